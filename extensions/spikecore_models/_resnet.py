"""Residual networks: shortcuts of spikes (SEW-ResNet), of potentials (MS-ResNet), and before a neuron (ResNet-19)."""

from __future__ import annotations

import functools
import math
from typing import Optional

import torch
from torch import Tensor, nn

from spikecore.layers import (
    MakeNeuron,
    MakeNorm,
    MSBlock,
    SEWBlock,
    TimeBatched,
    convolution,
    counts,
    makers,
    normalised,
    tdbn,
)
from spikecore.neurons import LIF
from spikecore_models._parts import beginning, lif, of_depth, read_out

#: Depth -> blocks of each stage, and whether these are bottlenecks.
_SEW = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
_MS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 104: (3, 8, 32, 8)}
_STAGES = (64, 128, 256, 512)


def sew_resnet(
    depth: int = 18,
    *,
    steps: Optional[int] = None,
    in_channels: int = 3,
    classes: int = 1000,
    neuron: MakeNeuron = lif,
    norm: MakeNorm = nn.BatchNorm2d,
    connect: str = "add",
    small: bool = False,
    zero_init: bool = False,
) -> nn.Sequential:
    """SEW-ResNet of 18, 34, 50, 101 or 152 layers: ``[T, B, C, H, W] -> [T, B, classes]``.

    A 7x7 convolution of stride 2, a neuron and max pooling, four stages of :class:`spikecore.layers.SEWBlock` (from 50
    layers on bottlenecks), the mean over the image, and a linear layer. ``small=True`` begins with a 3x3 convolution of
    stride 1 and without pooling, for images of some 32 pixels. 11.69 million parameters with 18 layers, 21.80 with 34,
    25.56 with 50, 44.55 with 101 and 60.19 with 152, for 1000 classes, as a ResNet.

    steps: the number of time steps to repeat images ``[B, C, H, W]`` for; None: the input has time.
    neuron: ``LIF(tau=2, detach_reset=True)`` by default; the paper has integrate-and-fire neurons on ImageNet,
        ``lambda: sc.IF(detach_reset=True)``, and PLIF on event data.
    norm, connect, zero_init: as of :class:`spikecore.layers.SEWBlock`; ``zero_init`` is an option of the authors'
        program, and off there, too.

    Convolutions begin as in He et al. (2015): normal, by the number of outputs. Raises ValueError for another depth.
    Source: Fang, Yu, Chen, Huang, Masquelier, Tian: Deep Residual Learning in Spiking Neural Networks. NeurIPS 2021.
    """
    blocks, bottleneck = of_depth("sew_resnet", _SEW, depth)
    counts("sew_resnet", in_channels=in_channels, classes=classes)
    makers("sew_resnet", neuron=neuron, norm=norm)
    stem = nn.Conv2d(in_channels, 64, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
    layers = beginning(stem, norm(64), steps, neuron())
    if not small:
        layers.append(TimeBatched(nn.MaxPool2d(3, 2, 1)))
    channels = 64
    for stage, (width, count) in enumerate(zip(_STAGES, blocks)):
        for k in range(count):
            stride = 2 if stage and not k else 1
            layers.append(
                SEWBlock(
                    channels,
                    width,
                    neuron,
                    stride=stride,
                    connect=connect,
                    norm=norm,
                    bottleneck=bottleneck,
                    zero_init=zero_init,
                )
            )
            channels = 4 * width if bottleneck else width
    net = nn.Sequential(*layers, read_out(channels, classes))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


#: The normalisation for the threshold of that neuron.
_TDBN = functools.partial(tdbn, threshold=0.5)


def _quarter() -> nn.Module:
    """The neuron of both papers: a quarter of the potential stays, and the input comes in whole."""
    return LIF(tau=4.0 / 3.0, decay_input=False, threshold=0.5, detach_reset=True)


def ms_resnet(
    depth: int = 18,
    *,
    steps: Optional[int] = None,
    in_channels: int = 3,
    classes: int = 1000,
    neuron: MakeNeuron = _quarter,
    norm: MakeNorm = _TDBN,
    small: bool = False,
    zero_init: bool = True,
) -> nn.Sequential:
    """MS-ResNet of 18, 34 or 104 layers: ``[T, B, C, H, W] -> [T, B, classes]``.

    A convolution and its normalisation, without a neuron, then four stages of :class:`spikecore.layers.MSBlock`,
    each of which halves the image, a neuron, the mean over the image, and a linear layer. The first convolution is
    7x7 with stride 2; with 104 layers it is three of 3x3, the first with stride 2, and shortcuts average.
    ``small=True`` begins with one 3x3 convolution of stride 1, and the first stage keeps the size. 11.69 million
    parameters with 18 layers, 21.80 with 34, and 77.35 with 104, for 1000 classes, counted of the same layers as in
    the authors' program.

    steps: the number of time steps to repeat images ``[B, C, H, W]`` for; None: the input has time.
    neuron: the authors' by default, ``LIF(tau=4/3, decay_input=False, threshold=0.5)``; theirs fires above the
        threshold, this at it, too.
    norm: tdBN by default, whose weight begins at 0.5, that threshold.
    zero_init: whether the branch of each block begins at 0, as in the authors' program.

    The dropout before the linear layer of the authors' 104 layers is left out; put it in with
    :class:`spikecore.layers.SequenceDropout`. Raises ValueError for another depth.
    Source: Hu, Deng, Wu, Yao, Li: Advancing Spiking Neural Networks Toward Deep Residual Learning. arXiv 2112.08954,
    2021; IEEE TNNLS 2024; and their program.
    """
    blocks = of_depth("ms_resnet", _MS, depth)
    counts("ms_resnet", in_channels=in_channels, classes=classes)
    makers("ms_resnet", neuron=neuron, norm=norm)
    stem: nn.Module = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
    if small:
        stem = nn.Conv2d(in_channels, 64, 3, 1, 1, bias=False)
    elif depth == 104:
        first = nn.Conv2d(in_channels, 64, 3, 2, 1)
        stem = nn.Sequential(first, nn.Conv2d(64, 64, 3, 1, 1), nn.Conv2d(64, 64, 3, 1, 1))
    layers = beginning(stem, norm(64), steps)
    channels = 64
    for stage, (width, count) in enumerate(zip(_STAGES, blocks)):
        for k in range(count):
            stride = 1 if k or (small and not stage) else 2
            layers.append(
                MSBlock(
                    channels,
                    width,
                    neuron,
                    stride=stride,
                    norm=norm,
                    pooled_shortcut=depth == 104,
                    zero_init=zero_init,
                )
            )
            channels = width
    return nn.Sequential(*layers, neuron(), read_out(channels, classes))


class TDBlock(nn.Module):
    """Residual block whose sum stands before the neuron: ``neuron(norm(conv(neuron(norm(conv(x))))) + s)``.

    ``s`` is x, or ``norm(conv1x1(x))`` where stride or channels change.
    """

    def __init__(
        self, in_channels: int, channels: int, neuron: MakeNeuron, *, stride: int = 1, norm: MakeNorm = tdbn
    ) -> None:
        super().__init__()
        norms = [norm(channels), norm(channels)]
        self.body = nn.Sequential(
            normalised(convolution(in_channels, channels, 3, stride), norms[0]),
            neuron(),
            normalised(convolution(channels, channels, 3, 1), norms[1]),
        )
        self.shortcut: nn.Module = nn.Identity()
        added = [norms[1]]
        if stride != 1 or in_channels != channels:
            added.append(norm(channels))
            self.shortcut = normalised(convolution(in_channels, channels, 1, stride), added[1])
        self.neuron = neuron()
        # two are added: each has half of the variance
        for module in added:
            weight = getattr(module, "weight", None)
            if isinstance(weight, Tensor):
                with torch.no_grad():
                    weight.mul_(math.sqrt(0.5))

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, C, H, W]``, or ``[B, C, H, W]`` of one step."""
        y: Tensor = self.neuron(self.body(x) + self.shortcut(x))
        return y


def resnet19(
    *,
    steps: Optional[int] = None,
    in_channels: int = 3,
    classes: int = 10,
    neuron: MakeNeuron = _quarter,
    norm: MakeNorm = _TDBN,
) -> nn.Sequential:
    """ResNet-19 with threshold-dependent batch normalisation: ``[T, B, C, H, W] -> [T, B, classes]``.

    A 3x3 convolution of 128 channels and a neuron, eight blocks of two 3x3 convolutions, three of 128 channels, three
    of 256 and two of 512, the mean over the image, a linear layer of 256 with a neuron, and a linear layer. A block
    adds its input before its last neuron; where it halves the image, a 1x1 convolution and a normalisation of their own
    fit the input. 12.70 million parameters for images of 3 channels and 10 classes.

    steps: the number of time steps to repeat images ``[B, C, H, W]`` for; None: the input has time.
    neuron: the paper's by default, ``LIF(tau=4/3, decay_input=False, threshold=0.5)``; theirs fires above the
        threshold, this at it, too.
    norm: tdBN by default, whose weight begins at 0.5, that threshold. The weights of normalisations that are added
        begin at ``1 / sqrt(2)`` of what ``norm`` says.

    Source: Zheng, Wu, Deng, Hu, Li: Going Deeper With Directly-Trained Larger Spiking Neural Networks. AAAI 2021.
    """
    counts("resnet19", in_channels=in_channels, classes=classes)
    makers("resnet19", neuron=neuron, norm=norm)
    layers = beginning(convolution(in_channels, 128, 3, 1), norm(128), steps, neuron())
    channels = 128
    for width, count in ((128, 3), (256, 3), (512, 2)):
        for k in range(count):
            layers.append(TDBlock(channels, width, neuron, stride=2 if width > 128 and not k else 1, norm=norm))
            channels = width
    return nn.Sequential(*layers, read_out(512, 256), neuron(), nn.Linear(256, classes))
