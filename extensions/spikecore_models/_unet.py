"""Spiking U-Net: a value for each pixel, from an encoder and a decoder joined at each size."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor, nn

from spikecore.layers import MakeNeuron, MakeNorm, TimeBatched, convolution, counts, makers, normalised
from spikecore_models._parts import beginning, lif


class _Level(nn.Module):
    """A level of the U and all below it: ``[..., above, H, W] -> [..., above, H, W]``."""

    def __init__(self, above: int, below: int, neuron: MakeNeuron, norm: MakeNorm) -> None:
        super().__init__()

        def fired(layer: nn.Module, out: int) -> nn.Module:
            return nn.Sequential(normalised(layer, norm(out)), neuron())

        width = 2 * above
        self.down = nn.Sequential(TimeBatched(nn.AvgPool2d(2)), fired(convolution(above, width, 3, 1), width))
        self.strided = TimeBatched(nn.Conv2d(above, width, 2, 2))
        self.joined = fired(convolution(2 * width, width, 3, 1), width)
        self.below = _Level(width, below - 1, neuron, norm) if below else nn.Identity()
        self.up = fired(nn.ConvTranspose2d(width, above, 3, 2, 1, output_padding=1, bias=False), above)
        ends = [fired(convolution(inputs, above, 3, 1), above) for inputs in (2 * above, above)]
        self.leave = nn.Sequential(*ends)

    def forward(self, x: Tensor) -> Tensor:
        """Forward pass; see the class."""
        y = self.below(self.joined(_side_by_side(self.strided(x), self.down(x))))
        left: Tensor = self.leave(_side_by_side(x, self.up(y)))
        return left


def _side_by_side(x: Tensor, y: Tensor) -> Tensor:
    """Join two tensors ``[..., C, H, W]`` along their channels, as samples ``[B, C, H, W]``: then what is channels-last
    stays so, and a convolution behind it copies nothing.
    """
    samples = torch.cat([x.flatten(0, -4), y.flatten(0, -4)], 1)
    joined: Tensor = samples.unflatten(0, x.shape[:-3])
    return joined


def spiking_unet(
    depth: int = 4,
    channels: int = 64,
    *,
    steps: Optional[int] = None,
    in_channels: int = 3,
    classes: int = 1,
    neuron: MakeNeuron = lif,
    norm: MakeNorm = nn.BatchNorm2d,
) -> nn.Sequential:
    """Spiking U-Net: ``[T, B, C, H, W] -> [T, B, classes, H, W]``, a value for each pixel.

    Two 3x3 convolutions; ``depth`` levels down, each with half the size and twice the channels: average pooling and a
    convolution, joined by a 2x2 convolution of stride 2 of the level above, and a convolution; as many levels up, each
    a transposed convolution, joined by the level of that size, and two convolutions. All but the strided ones have a
    normalisation and a neuron. The read-out is a convolution. 49.84 million parameters for ``spiking_unet()``.

    depth: the number of levels below the first one; height and width of images are multiples of ``2**depth``.
    channels: those of the first level.
    steps: the number of time steps to repeat images ``[B, C, H, W]`` for; None: the input has time.
    classes: the number of values for each pixel: classes of a segmentation, or colours.
    neuron, norm: as of :func:`vgg`.

    The convolutions are those of the authors' program, with as many weights. They convert a trained U-Net of ReLUs to
    neurons with several thresholds; this one is trained from its start, with normalisations in the place of biases.
    Raises ValueError for numbers below 1, TypeError for ones that are not whole.
    Source: Li, Zhang, Xiong, Sun: Deep Multi-threshold Spiking-UNet for Image Processing. Neurocomputing, 2024; after
    Ronneberger, Fischer, Brox: U-Net: Convolutional Networks for Biomedical Image Segmentation. MICCAI 2015.
    """
    counts("spiking_unet", depth=depth, channels=channels, in_channels=in_channels, classes=classes)
    makers("spiking_unet", neuron=neuron, norm=norm)
    layers = beginning(convolution(in_channels, channels, 3, 1), norm(channels), steps, neuron())
    top = [normalised(convolution(channels, channels, 3, 1), norm(channels)), neuron()]
    read_out = TimeBatched(nn.Conv2d(channels, classes, 3, 1, 1))
    return nn.Sequential(*layers, *top, _Level(channels, depth - 1, neuron, norm), read_out)
