"""Networks of the kinds that people build, beside the ones of :mod:`spikecore_bench.models`: one of each kind.

Where a layout of its own makes ReLU's network faster, it is written by hand a second time, as ``by_hand``: with the
convolutions of one dimension as ones of two whose height is 1, and with linear layers in the place of 1x1
convolutions. Both have the same arithmetic.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, List, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.layers import TimeBatched
from spikecore_bench.network import Activation, Network, beginning
from spikecore_bench.workloads import TwoStates

_BF16 = torch.bfloat16


class Through(nn.Module):
    """A function of tensors as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """The function's result."""
        return self.function(x)


class Added(nn.Module):
    """A block whose input is added to its output."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """``x + layers(x)``."""
        y: Tensor = x + self.layers(x)
        return y


class Joined(nn.Module):
    """A block whose output is joined to its input along the channels."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, C, H, W] -> [T, B, C + G, H, W]``."""
        return torch.cat((x, self.layers(x)), 2)


def _mean_of_images(x: Tensor) -> Tensor:
    """``[T, B, C, ...] -> [T, B, C]``."""
    return x.flatten(3).mean(3)


def _read_out(channels: int, classes: int) -> List[nn.Module]:
    return [Through(_mean_of_images), nn.Linear(channels, classes)]


def _strong(layer: nn.Linear) -> nn.Linear:
    """A layer without a normalisation behind it, whose neurons fire: gradients of 0 would be an update's slow case."""
    with torch.no_grad():
        layer.weight.mul_(8.0)
    return layer


def mobilenet(steps: int, neuron: Activation) -> nn.Module:
    """Six depthwise and 1x1 convolutions of 32 to 512 channels, each with a normalisation and a neuron."""
    layers = beginning(steps, nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)), neuron())
    channels = 32
    for out, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)):
        depthwise = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
        layers += [TimeBatched(depthwise, nn.BatchNorm2d(channels)), neuron()]
        layers += [TimeBatched(nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out)), neuron()]
        channels = out
    return nn.Sequential(*layers, *_read_out(channels, 100))


def unet(steps: int, neuron: Activation) -> nn.Module:
    """U-Net of two levels below 64x64 pixels, from 32 channels."""
    return nn.Sequential(
        sc.models.spiking_unet(2, 32, steps=steps, in_channels=3, classes=10, neuron=neuron), Through(_mean_of_images)
    )


def dvs(steps: int, neuron: Activation) -> nn.Module:
    """Five 3x3 convolutions of 128 channels, each halved by maximum pooling, and two linear layers on events."""
    layers: List[nn.Module] = []
    for channels in (2, 128, 128, 128, 128):
        convolution = nn.Conv2d(channels, 128, 3, padding=1, bias=False)
        layers += [TimeBatched(convolution, nn.BatchNorm2d(128)), neuron(), TimeBatched(nn.MaxPool2d(2))]
    return nn.Sequential(*layers, nn.Flatten(2), _strong(nn.Linear(128 * 4, 512)), neuron(), nn.Linear(512, 11))


def densenet(steps: int, neuron: Activation, growth: int = 32, width: int = 64) -> nn.Module:
    """Two dense blocks of four layers: normalisation, neuron, 3x3 convolution of 32 channels, joined to the input."""
    layers: List[nn.Module] = [
        *beginning(steps, nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), nn.BatchNorm2d(width)), neuron())
    ]
    for block in range(2):
        for _ in range(4):
            convolution = nn.Conv2d(width, growth, 3, padding=1, bias=False)
            layers.append(Joined(TimeBatched(nn.BatchNorm2d(width)), neuron(), TimeBatched(convolution)))
            width += growth
        layers += [TimeBatched(nn.BatchNorm2d(width)), neuron()]
        if block == 0:
            layers.append(TimeBatched(nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)))
            width //= 2
    return nn.Sequential(*layers, *_read_out(width, 10))


def audio(steps: int, neuron: Activation, dims: int = 1, width: int = 128) -> nn.Module:
    """Five convolutions of 3 frames, dilated by 1 to 8, of 128 channels; the first one once, of 40 bands.

    ``dims=2``: as convolutions of two dimensions.
    """
    layers: List[nn.Module] = []
    channels = 40
    for dilation in (1, 1, 2, 4, 8):
        if dims == 1:
            convolution: nn.Module = nn.Conv1d(channels, width, 3, padding=dilation, dilation=dilation, bias=False)
            norm: nn.Module = nn.BatchNorm1d(width)
        else:
            convolution = nn.Conv2d(channels, width, (1, 3), padding=(0, dilation), dilation=(1, dilation), bias=False)
            norm = nn.BatchNorm2d(width)
        layers += beginning(None if layers else steps, nn.Sequential(convolution, norm), neuron())
        channels = width
    before = [Through(partial(torch.unsqueeze, dim=2))] if dims == 2 else []
    return nn.Sequential(*before, *layers, *_read_out(width, 35))


class MaskedAttention(nn.Module):
    """Spike-driven self-attention (Yao et al., 2023), ``[T, B, C, N]``: the neurons of a sum over tokens are a mask."""

    def __init__(self, layer: Callable[[int, int], nn.Module], channels: int, neuron: Activation) -> None:
        super().__init__()
        self.first, self.fire = neuron(), neuron()
        self.q = nn.Sequential(layer(channels, channels), neuron())
        self.k = nn.Sequential(layer(channels, channels), neuron())
        self.v = nn.Sequential(layer(channels, channels), neuron())
        self.out = layer(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Potentials to add."""
        x = self.first(x)
        mask = self.fire((self.k(x) * self.v(x)).sum(-1, keepdim=True))
        y: Tensor = self.out(self.q(x) * mask)
        return y


def driven(steps: int, neuron: Activation, dims: int = 1, width: int = 256) -> nn.Module:
    """Two blocks of spike-driven attention, 256 wide, on 64 tokens ``[T, B, C, N]``: neurons before layers, masks.

    ``dims=2``: the layers of each token are 1x1 convolutions of images ``[C, 1, N]``.
    """
    layers = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d)}[dims]

    def layer(channels: int, out: int) -> nn.Module:
        return TimeBatched(layers[0](channels, out, 1, bias=False), layers[1](out))

    # potentials, which the first neuron of a block reads
    net: List[nn.Module] = [nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.BatchNorm2d(width)), sc.encode.Constant(steps)]
    net.append(nn.Flatten(3))
    net += [Through(partial(torch.unsqueeze, dim=3))] if dims == 2 else []
    for _ in range(2):
        net.append(Added(MaskedAttention(layer, width, neuron)))
        net.append(Added(neuron(), layer(width, 4 * width), neuron(), layer(4 * width, width)))
    return nn.Sequential(*net, neuron(), *_read_out(width, 10))


def vectors(steps: int, neuron: Activation) -> nn.Module:
    """700-512-512-20, on an input that has time."""
    sizes = ((700, 512), (512, 512), (512, 20))
    return nn.Sequential(*[layer for size in sizes for layer in (_strong(nn.Linear(*size)), neuron())])


def convnext(steps: int, neuron: Activation, last: bool = False, width: int = 96) -> nn.Module:
    """Three blocks of ConvNeXt (Liu et al., 2022) on 16x16 patches: depthwise 7x7, LayerNorm, neuron, 1x1, neuron, 1x1.

    ``last``: images are ``[T, B, H, W, C]`` throughout.
    """

    def to_last(x: Tensor) -> Tensor:
        return x.movedim(2, -1)

    def to_images(x: Tensor) -> Tensor:
        return x.movedim(-1, 2)

    def block() -> nn.Module:
        depthwise = TimeBatched(nn.Conv2d(width, width, 7, padding=3, groups=width))
        wide = _strong(nn.Linear(width, 4 * width))
        hidden = [nn.LayerNorm(width), neuron(), wide, neuron(), nn.Linear(4 * width, width)]
        if last:
            return Added(Through(to_images), depthwise, Through(to_last), *hidden)
        return Added(depthwise, Through(to_last), *hidden, Through(to_images))

    patches = nn.Sequential(nn.Conv2d(3, width, 2, 2), nn.BatchNorm2d(width))
    net: List[nn.Module] = [*beginning(steps, patches, neuron()), *([Through(to_last)] if last else [])]
    net += [block() for _ in range(3)]
    net += [Through(to_images)] if last else []
    return nn.Sequential(*net, *_read_out(width, 10))


def volumes(steps: int, neuron: Activation) -> nn.Module:
    """Three 3x3x3 convolutions of 32 to 128 channels on volumes of events ``[T, B, 2, 8, 32, 32]``, each halved."""
    layers: List[nn.Module] = []
    channels = 2
    for out in (32, 64, 128):
        convolution = nn.Conv3d(channels, out, 3, padding=1, bias=False)
        layers += [TimeBatched(convolution, nn.BatchNorm3d(out)), neuron(), TimeBatched(nn.MaxPool3d(2))]
        channels = out
    return nn.Sequential(*layers, *_read_out(channels, 11))


def transformer(steps: int, neuron: Activation) -> nn.Module:
    """Spikformer-2-256 (Zhou et al., 2023), as published, with eight heads on 8x8 patches."""

    def of_attention() -> nn.Module:
        made = neuron()
        if isinstance(made, sc.Neuron):
            made.threshold = 0.5
        return made

    return sc.models.spikformer(
        2, 256, heads=8, steps=steps, classes=10, neuron=neuron, attention_neuron=of_attention, qkv_bias=False
    )


#: Forms of what has convolutions of one dimension, and of what has none.
_LINES = (
    "eager",
    "compiled CUDA graph",
    "fused compiled CUDA graph",
    "channels-last compiled CUDA graph",
    "channels-last fused compiled CUDA graph",
    "channels-last fused packed compiled CUDA graph",
)
_FLAT = ("eager", "CUDA graph", "compiled CUDA graph", "packed compiled CUDA graph")


def _plif(backend: str) -> nn.Module:
    return sc.PLIF(2.0, backend=backend)


def _two_states(backend: str) -> nn.Module:
    return TwoStates(backend=backend)


_IMAGES = ((3, 32, 32), 10, _BF16)
_AUDIO = ("dilated convolutions of one dimension, PLIF", audio, 20, 64, 1, (40, 200), 35)
_DRIVEN = ("spike-driven attention, masks, 64 tokens", driven, 4, 64, 1, *_IMAGES)
_CONVNEXT = ("ConvNeXt with LayerNorm, 16x16 patches", convnext, 4, 64, 1, *_IMAGES)
_VECTORS = ("700-512-512-20, a user's neuron", vectors, 100, 256, 16, (700,), 20)

#: One network of each kind.
KINDS: Tuple[Network, ...] = (
    Network("kind-mobilenet", "depthwise and 1x1 convolutions, 64x64", mobilenet, 4, 64, 1, (3, 64, 64), 100, _BF16),
    Network("kind-unet", "U-Net of three sizes, 64x64", unet, 4, 32, 1, (3, 64, 64), 10, _BF16),
    Network("kind-dvs", "convolutions and poolings of events", dvs, 16, 16, 1, (2, 64, 64), 11, _BF16, in_time=True),
    Network("kind-densenet", "dense blocks, a user's neuron", densenet, 4, 64, 1, *_IMAGES, neuron=_two_states),
    Network("kind-audio", *_AUDIO, neuron=_plif, by_hand=partial(audio, dims=2), forms=_LINES),
    Network("kind-audio-bf16", *_AUDIO, _BF16, neuron=_plif, by_hand=partial(audio, dims=2), forms=_LINES),
    Network("kind-driven", *_DRIVEN, by_hand=partial(driven, dims=2), forms=_LINES),
    Network("kind-vectors", *_VECTORS, neuron=_two_states, in_time=True, forms=_FLAT),
    Network("kind-convnext", *_CONVNEXT, by_hand=partial(convnext, last=True)),
    Network("kind-volumes", "volumes of events", volumes, 4, 16, 1, (2, 8, 32, 32), 11, _BF16, in_time=True),
    Network("kind-transformer", "Spikformer-2-256, 8x8 patches", transformer, 4, 64, 1, *_IMAGES),
)
