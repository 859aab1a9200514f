"""Spikformer: spiking self-attention over patches of an image."""

from __future__ import annotations

from typing import List, Optional

from torch import Tensor, nn

from spikecore.layers import (
    EachToken,
    MakeNeuron,
    MakeNorm,
    MeanOfTokens,
    SpikingSelfAttention,
    TimeBatched,
    Tokens,
    counts,
    linear,
    makers,
    normalised,
)
from spikecore.neurons import LIF
from spikecore_models._parts import beginning, lif

#: Size of a patch -> after which of the four convolutions of the stem the image is halved.
_HALVED = {2: (3,), 4: (2, 3), 8: (1, 2, 3), 16: (0, 1, 2, 3)}


def _of_attention() -> nn.Module:
    """The neuron behind the products of the paper."""
    return LIF(tau=2.0, threshold=0.5, detach_reset=True)


def spikformer(
    depth: int = 4,
    channels: int = 384,
    *,
    heads: int = 12,
    patch: int = 4,
    hidden: int = 4,
    steps: Optional[int] = None,
    in_channels: int = 3,
    classes: int = 10,
    neuron: MakeNeuron = lif,
    attention_neuron: MakeNeuron = _of_attention,
    norm: MakeNorm = nn.BatchNorm2d,
    token_norm: MakeNorm = nn.BatchNorm1d,
    qkv_bias: bool = True,
) -> nn.Sequential:
    """Spikformer-``depth``-``channels``: ``[T, B, C, H, W] -> [T, B, classes]``.

    A stem of four 3x3 convolutions, each with normalisation and neuron, and max pooling makes tokens of patches; a
    fifth one, added to them, tells where they are. Then ``depth`` blocks of
    :class:`spikecore.layers.SpikingSelfAttention` and of a hidden layer of ``hidden * channels``, each added, the mean
    over tokens, and a linear layer. 9.32 million parameters for ``spikformer()`` on CIFAR-10;
    ``spikformer(8, 512, heads=8, patch=16, classes=1000, qkv_bias=False)`` is that of ImageNet, with 29,689,384, which
    the paper gives as 29.68 million.

    heads: of the attention; ``channels`` are a multiple of it, and of 8.
    patch: pixels of a side of a patch, 2, 4, 8 or 16.
    steps: the number of time steps to repeat images ``[B, C, H, W]`` for; None: the input has time.
    neuron: ``LIF(tau=2, detach_reset=True)`` by default, and ``attention_neuron`` the same with a threshold of 0.5, as
        in the paper.
    norm, token_norm: make the normalisation of the stem, ``[B, C, H, W]`` of one step, and of tokens, ``[B N, C]``.
    qkv_bias: as of the attention; the authors' program has it for CIFAR, and not for ImageNet.

    Linear weights begin as in the authors' program: normal with a deviation of 0.02, cut at 2 and -2, and biases 0.
    Raises ValueError for another ``patch``, for channels that do not divide and for numbers below 1, TypeError for ones
    that are not whole.
    Source: Zhou, Zhu, He, Wang, Yan, Tian, Yuan: Spikformer: When Spiking Neural Network Meets Transformer. ICLR 2023;
    and their program.
    """
    counts("spikformer", depth=depth, channels=channels, heads=heads, hidden=hidden)
    counts("spikformer", in_channels=in_channels, classes=classes)
    makers("spikformer", neuron=neuron, attention_neuron=attention_neuron, norm=norm, token_norm=token_norm)
    if isinstance(patch, bool) or not isinstance(patch, int) or patch not in _HALVED:
        raise ValueError(f"spikformer: patch must be one of {', '.join(map(str, _HALVED))} pixels, got {patch!r}")
    if channels % 8:
        raise ValueError(f"spikformer: channels must be a multiple of 8, the widths of the stem, got {channels!r}")
    layers: List[nn.Module] = []
    width = in_channels
    for k, out in enumerate((channels // 8, channels // 4, channels // 2, channels)):
        convolution = nn.Conv2d(width, out, 3, 1, 1, bias=False)
        layers += beginning(convolution, norm(out), None if k else steps, neuron())
        if k in _HALVED[patch]:
            layers.append(TimeBatched(nn.MaxPool2d(3, 2, 1)))
        width = out
    last = normalised(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), norm(channels))
    layers += [Added(last, neuron()), Tokens()]
    for _ in range(depth):
        attention = SpikingSelfAttention(
            channels, heads, neuron, attention_neuron=attention_neuron, norm=token_norm, qkv_bias=qkv_bias
        )
        wide = hidden * channels
        layers += [
            Added(attention),
            Added(
                EachToken(
                    linear(channels, wide, neuron, token_norm, bias=True),
                    linear(wide, channels, neuron, token_norm, bias=True),
                )
            ),
        ]
    net = nn.Sequential(*layers, MeanOfTokens(), nn.Linear(channels, classes))
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net


class Added(nn.Module):
    """``x + modules(x)``, one after the other."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*modules)

    def forward(self, x: Tensor) -> Tensor:
        """Of any shape, which ``modules`` keep."""
        y: Tensor = self.body(x) + x
        return y
