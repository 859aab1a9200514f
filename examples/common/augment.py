"""Augmentation: random changes of training images that keep the class, drawn from a generator on the CPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def affine(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image turned by up to 15 degrees, scaled by 0.85 to 1.15, sheared by up to 0.2, and moved by up to about a
    twelfth of its size.
    """

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(images), generator=generator)

    angle, scale = between(-math.pi / 12, math.pi / 12), between(0.85, 1.15)
    shear, down, right = between(-0.2, 0.2), between(-1 / 6, 1 / 6), between(-1 / 6, 1 / 6)  # an image is 2 wide
    cos, sin = angle.cos() / scale, angle.sin() / scale
    rows = (torch.stack((cos, shear * cos - sin, right), 1), torch.stack((sin, shear * sin + cos, down), 1))
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def noise(images: Tensor, generator: torch.Generator, deviation: float = 0.1) -> Tensor:
    """Gaussian noise on every pixel; values stay in [0, 1]."""
    return (images + deviation * torch.randn(images.shape, generator=generator)).clamp(0.0, 1.0)


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
