"""Networks of 3x3 convolutions and pooling, one after the other."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union

from torch import nn

from spikecore.layers import MakeNeuron, MakeNorm, TimeBatched, counts, makers
from spikecore_models._parts import beginning, lif, of_depth

#: Depth -> the widths of the convolutions between two poolings.
_WIDTHS: Dict[int, Tuple[Tuple[int, ...], ...]] = {
    9: ((64, 128), (256, 256), (512, 512), (512, 512)),
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    13: ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
    16: ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3),
    19: ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4),
}


def vgg(
    depth: int = 9,
    *,
    size: Union[int, Tuple[int, ...]] = 32,
    steps: Optional[int] = None,
    in_channels: int = 3,
    classes: int = 10,
    neuron: MakeNeuron = lif,
    norm: MakeNorm = nn.BatchNorm2d,
) -> nn.Sequential:
    """VGG of 9, 11, 13, 16 or 19 layers: ``[T, B, C, H, W] -> [T, B, classes]``.

    3x3 convolutions, each with its normalisation and its neuron, halved after each group, and one linear layer. Depth 9
    is VGGSNN of Deng et al. (2022), eight convolutions and average pooling: 9.27 million parameters for event data of
    48x48 pixels (``in_channels=2, size=48``), 9.24 for CIFAR-10. The others are those of Simonyan and Zisserman (2015)
    with max pooling and one linear layer in the place of three, as is usual for CIFAR-10: 14.72 million parameters with
    16 layers; the usual 14.73 are with a bias in each convolution, which its normalisation takes away again.

    size: height and width of the images, one number if they are equal: 16 or more, 32 from 11 layers on.
    steps: the number of time steps to repeat images ``[B, C, H, W]`` for; None: the input has time.
    neuron: ``LIF(tau=2, detach_reset=True)`` by default.
    norm: as of :class:`spikecore.layers.SEWBlock`.

    Weights begin as torch makes them. Raises ValueError for another depth, for images that nothing is left of and for
    numbers below 1, TypeError for a ``size`` that is not one or two whole numbers.
    Source: Deng, Li, Zhang, Gu: Temporal Efficient Training of Spiking Neural Network via Gradient Re-weighting. ICLR
    2022.
    """
    groups = of_depth("vgg", _WIDTHS, depth)
    counts("vgg", in_channels=in_channels, classes=classes)
    makers("vgg", neuron=neuron, norm=norm)
    height, width = _height_and_width(size)
    least = 2 ** len(groups)
    if height < least or width < least:
        raise ValueError(
            f"vgg: size must be {least} or more with {depth} layers, which halve it {len(groups)} times, got {size!r}"
        )
    layers: List[nn.Module] = []
    channels = in_channels
    for group in groups:
        for out in group:
            convolution = nn.Conv2d(channels, out, 3, 1, 1, bias=False)
            layers += beginning(convolution, norm(out), None if layers else steps, neuron())
            channels = out
        layers.append(TimeBatched(nn.AvgPool2d(2) if depth == 9 else nn.MaxPool2d(2)))
    pixels = (height // least) * (width // least)
    return nn.Sequential(*layers, TimeBatched(nn.Flatten(), nn.Linear(channels * pixels, classes)))


def _height_and_width(size: Any) -> Tuple[int, int]:
    both = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(both) != 2 or any(isinstance(side, bool) or not isinstance(side, int) for side in both):
        raise TypeError(f"vgg: size={size!r} must be a whole number of pixels, or two: (height, width)")
    return both[0], both[1]
