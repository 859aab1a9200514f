"""Augmentation: random changes of training images that keep the class, drawn from a generator on the CPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def affine(images: Tensor, generator: torch.Generator, strength: float = 1.0) -> Tensor:
    """Each image turned by up to 15 degrees, scaled by 0.85 to 1.15, sheared by up to 0.2, and moved by up to about a
    twelfth of its size; ``strength`` multiplies all of these limits.
    """

    def within(limit: float) -> Tensor:
        return strength * limit * (2 * torch.rand(len(images), generator=generator) - 1)

    angle, scale = within(math.pi / 12), 1 + within(0.15)
    shear, down, right = within(0.2), within(1 / 6), within(1 / 6)  # an image is 2 wide
    cos, sin = angle.cos() / scale, angle.sin() / scale
    rows = (torch.stack((cos, shear * cos - sin, right), 1), torch.stack((sin, shear * sin + cos, down), 1))
    grid = F.affine_grid(torch.stack(rows, 1).to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def photographs(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to an eighth of its size each way, zeros coming in; every second one mirrored."""
    number, _, height, width = images.shape
    by = height // 8
    padded = F.pad(images, (by, by, by, by))
    down, right = torch.randint(0, 2 * by + 1, (2, number, 1), generator=generator)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    moved = padded[torch.arange(number)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    turned = torch.rand(number, 1, 1, 1, generator=generator) < 0.5
    return torch.where(turned, moved.flip(-1), moved)
