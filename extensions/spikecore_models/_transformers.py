"""Transformers of spikes over patches of an image: Spikformer, QKFormer, the spike-driven transformer."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

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
#: The same of QKFormer: the first convolution, those of the first embedding, and those of the other two.
_HALVED_IN_STAGES = {4: (False, (False,), (False, True)), 16: (True, (True, False), (True, False))}


def _of_attention() -> nn.Module:
    """The neuron behind sums and products of spikes, in the papers."""
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
    counts("spikformer", depth=depth, channels=channels, heads=heads, hidden=hidden, classes=classes)
    makers("spikformer", neuron=neuron, attention_neuron=attention_neuron, norm=norm, token_norm=token_norm)
    layers = _stem("spikformer", in_channels, channels, patch, steps, norm, [neuron() for _ in range(4)])
    last = normalised(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), norm(channels))
    layers += [Added(last, neuron()), Tokens()]
    for _ in range(depth):
        attention = SpikingSelfAttention(
            channels, heads, neuron, attention_neuron=attention_neuron, norm=token_norm, qkv_bias=qkv_bias
        )
        layers += [Added(attention), Added(_hidden_layer(channels, hidden * channels, neuron, token_norm))]
    net = nn.Sequential(*layers, MeanOfTokens(), nn.Linear(channels, classes))
    _begin_small(net, (nn.Linear,))
    return net


class TokenQKAttention(nn.Module):
    """Q-K attention of each token, within :class:`spikecore.layers.EachToken`: ``[T, B N, C] -> [T, B N, C]``.

    ::

        q, k = neuron(norm(linear(x)))                                  two layers
        a = attention_neuron(sum of q over the channels of a head)      one spike for a token and head
        y = neuron(norm(linear(a k)))

    Queries say which tokens of the keys pass; the cost grows with the number of tokens. Arguments, errors: those of
    :class:`spikecore.layers.SpikingSelfAttention`. Source: that of :func:`qkformer`.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        neuron: MakeNeuron,
        *,
        attention_neuron: MakeNeuron = _of_attention,
        norm: MakeNorm = nn.BatchNorm1d,
    ) -> None:
        super().__init__()
        counts("TokenQKAttention", channels=channels, heads=heads)
        makers("TokenQKAttention", neuron=neuron, attention_neuron=attention_neuron, norm=norm)
        if channels % heads:
            raise ValueError(f"TokenQKAttention: channels={channels} must be a multiple of heads={heads}")
        self.heads = heads
        self.query = linear(channels, channels, neuron, norm, bias=False)
        self.key = linear(channels, channels, neuron, norm, bias=False)
        self.fire = attention_neuron()
        self.projected = linear(channels, channels, neuron, norm, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Forward pass; see the class."""
        query, key = [layer(x).unflatten(-1, (self.heads, -1)) for layer in (self.query, self.key)]
        y: Tensor = self.projected((self.fire(query.sum(-1, keepdim=True)) * key).flatten(-2))
        return y


def qkformer(
    depths: Tuple[int, int, int] = (1, 1, 2),
    channels: int = 384,
    *,
    heads: int = 8,
    patch: int = 4,
    hidden: int = 4,
    steps: Optional[int] = None,
    in_channels: int = 3,
    classes: int = 10,
    neuron: MakeNeuron = lif,
    attention_neuron: MakeNeuron = _of_attention,
    norm: MakeNorm = nn.BatchNorm2d,
    token_norm: MakeNorm = nn.BatchNorm1d,
) -> nn.Sequential:
    """QKFormer of three stages: ``[T, B, C, H, W] -> [T, B, classes]``.

    A stage begins with an embedding, convolutions to whose spikes those of a 1x1 convolution are added, and has
    ``depths`` blocks: an attention and a hidden layer, each added. Stages have a quarter, half and all of ``channels``;
    the attention is :class:`TokenQKAttention`, and :class:`spikecore.layers.SpikingSelfAttention` in the last one. 6.71
    million parameters for ``qkformer()`` on CIFAR-10, and 6.74 for 100 classes, which the paper gives.
    ``qkformer((1, 2, 7), 384, heads=6, patch=16, classes=1000)`` is that of ImageNet, with 16.47 million, as in the
    paper; so are 29.08 with 512 channels and 8 heads, and 64.96 with 768 and 12.

    Arguments, errors: those of :func:`spikformer`, with 4 or 16 for ``patch`` and a quarter of ``channels`` that is a
    multiple of ``heads``. The last layer begins as there, as in the authors' program.
    Source: Zhou, Zhang, Zhou, Yu, Huang, Fan, Ma, Zhou, Yuan, Tian: QKFormer: Hierarchical Spiking Transformer using
    Q-K Attention. NeurIPS 2024; and their program.
    """
    makers("qkformer", neuron=neuron, attention_neuron=attention_neuron, norm=norm, token_norm=token_norm)
    counts("qkformer", channels=channels, heads=heads, hidden=hidden, in_channels=in_channels, classes=classes)
    counts("qkformer", **{f"depths[{stage}]": depth for stage, depth in enumerate(depths)})
    if len(depths) != 3 or patch not in _HALVED_IN_STAGES:
        raise ValueError(f"qkformer: depths={depths!r} must be three numbers, and patch={patch!r} must be 4 or 16")

    def fired(width: int, out: int, size: int, halved: bool, stride: int = 1) -> List[nn.Module]:
        pool = [_halving()] if halved else []
        return [normalised(nn.Conv2d(width, out, size, stride, size // 2, bias=False), norm(out)), *pool, neuron()]

    def embedding(width: int, out: int, halved: Tuple[bool, ...]) -> nn.Module:
        body = [part for k, each in enumerate(halved) for part in fired(out if k else width, out, 3, each)]
        return Added(*body, shortcut=nn.Sequential(*fired(width, out, 1, False, 2 if any(halved) else 1)))

    width = channels // 8
    first, *others = _HALVED_IN_STAGES[patch]
    convolution = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
    layers = beginning(convolution, norm(width), steps, None if first else neuron())
    layers += [_halving(), neuron()] if first else []
    for stage, (out, depth) in enumerate(zip((channels // 4, channels // 2, channels), depths)):
        layers.append(embedding(width, out, others[min(stage, 1)]))
        blocks: List[nn.Module] = []
        for _ in range(depth):
            both: Any = {"attention_neuron": attention_neuron, "norm": token_norm}
            attention: nn.Module = EachToken(TokenQKAttention(out, heads, neuron, **both))
            if stage == 2:
                attention = SpikingSelfAttention(out, heads, neuron, qkv_bias=False, **both)
            blocks += [Added(attention), Added(_hidden_layer(out, hidden * out, neuron, token_norm))]
        layers.append(_OnTokens(*blocks))
        width = out
    head = nn.Linear(channels, classes)
    _begin_small(head, (nn.Linear,))
    return nn.Sequential(*layers, Tokens(), MeanOfTokens(), head)


class SpikeDrivenSelfAttention(nn.Module):
    """Spike-driven self-attention: ``[..., B, N, C] -> [..., B, N, C]`` with N tokens of C channels.

    ::

        q, k, v = neuron(norm(linear(neuron(x))))               three layers; x are potentials
        a = attention_neuron(sum of k v over the tokens)        one spike for a channel
        y = norm(linear(a q))

    Products are masks of spikes, and the cost grows with N. Each channel is by itself: the paper's number of heads
    changes nothing. Arguments, errors: those of :class:`spikecore.layers.SpikingSelfAttention`. Source: that of
    :func:`spike_driven_transformer`.
    """

    def __init__(
        self,
        channels: int,
        neuron: MakeNeuron,
        *,
        attention_neuron: MakeNeuron = _of_attention,
        norm: MakeNorm = nn.BatchNorm1d,
    ) -> None:
        super().__init__()
        counts("SpikeDrivenSelfAttention", channels=channels)
        makers("SpikeDrivenSelfAttention", neuron=neuron, attention_neuron=attention_neuron, norm=norm)
        self.first = neuron()
        self.query = linear(channels, channels, neuron, norm, bias=False)
        self.key = linear(channels, channels, neuron, norm, bias=False)
        self.value = linear(channels, channels, neuron, norm, bias=False)
        self.fire = attention_neuron()
        self.projected = normalised(nn.Linear(channels, channels), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Forward pass; see the class."""
        sizes, flat = x.shape[-3:-1], self.first(x).flatten(-3, -2)
        query, key, value = [layer(flat).unflatten(-2, sizes) for layer in (self.query, self.key, self.value)]
        attended = self.fire((key * value).sum(-2, keepdim=True)) * query
        y: Tensor = self.projected(attended.flatten(-3, -2)).unflatten(-2, sizes)
        return y


def spike_driven_transformer(
    depth: int = 8,
    channels: int = 384,
    *,
    patch: int = 16,
    hidden: int = 4,
    steps: Optional[int] = None,
    in_channels: int = 3,
    classes: int = 1000,
    neuron: MakeNeuron = lif,
    attention_neuron: MakeNeuron = _of_attention,
    norm: MakeNorm = nn.BatchNorm2d,
    token_norm: MakeNorm = nn.BatchNorm1d,
) -> nn.Sequential:
    """Spike-driven Transformer-``depth``-``channels``: ``[T, B, C, H, W] -> [T, B, classes]``.

    The stem of :func:`spikformer` makes tokens of patches; its fourth convolution has no neuron, so that potentials are
    added, here and in the ``depth`` blocks of :class:`SpikeDrivenSelfAttention` and of a hidden layer, whose neurons
    stand before their linear layers. Then the mean over tokens, a neuron, and a linear layer. 16.82 million parameters
    for ``spike_driven_transformer()``, which the paper gives as 16.81, and 66.34 with 768 channels, as in the paper;
    ``spike_driven_transformer(2, 512, patch=4, classes=10)`` is that of CIFAR-10. Arguments, errors: those of
    :func:`spikformer`. Weights but those of the last layer begin as its linear ones do, as in the authors' program.
    Source: Yao, Hu, Zhou, Yuan, Tian, Xu, Li: Spike-driven Transformer. NeurIPS 2023; and their program.
    """
    owner = "spike_driven_transformer"
    counts(owner, depth=depth, channels=channels, hidden=hidden, classes=classes)
    makers(owner, neuron=neuron, attention_neuron=attention_neuron, norm=norm, token_norm=token_norm)
    layers = _stem(owner, in_channels, channels, patch, steps, norm, [neuron(), neuron(), neuron(), None])
    place = normalised(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), norm(channels))
    layers += [Added(neuron(), place), Tokens()]
    for _ in range(depth):
        attention = SpikeDrivenSelfAttention(channels, neuron, attention_neuron=attention_neuron, norm=token_norm)
        first = normalised(nn.Linear(channels, hidden * channels), token_norm(hidden * channels))
        last = normalised(nn.Linear(hidden * channels, channels), token_norm(channels))
        layers += [Added(attention), Added(EachToken(neuron(), first, neuron(), last))]
    body = nn.Sequential(*layers)
    _begin_small(body, (nn.Conv2d, nn.Linear))
    return nn.Sequential(*body, MeanOfTokens(), neuron(), nn.Linear(channels, classes))


# -- parts


def _stem(
    owner: str, in_channels: int, channels: int, patch: Any, steps: Optional[int], norm: MakeNorm, neurons: Any
) -> List[nn.Module]:
    """Four convolutions with normalisations and these neurons, where there is one, halved for patches of that size."""
    counts(owner, in_channels=in_channels)
    if isinstance(patch, bool) or not isinstance(patch, int) or patch not in _HALVED:
        raise ValueError(f"{owner}: patch must be one of {', '.join(map(str, _HALVED))} pixels, got {patch!r}")
    if channels % 8:
        raise ValueError(f"{owner}: channels must be a multiple of 8, the widths of the stem, got {channels!r}")
    layers: List[nn.Module] = []
    width = in_channels
    for k, out in enumerate((channels // 8, channels // 4, channels // 2, channels)):
        convolution = nn.Conv2d(width, out, 3, 1, 1, bias=False)
        layers += beginning(convolution, norm(out), None if k else steps, neurons[k])
        if k in _HALVED[patch]:
            layers.append(_halving())
        width = out
    return layers


def _halving() -> nn.Module:
    return TimeBatched(nn.MaxPool2d(3, 2, 1))


def _hidden_layer(channels: int, wide: int, neuron: MakeNeuron, norm: MakeNorm) -> nn.Module:
    return EachToken(linear(channels, wide, neuron, norm, bias=True), linear(wide, channels, neuron, norm, bias=True))


def _begin_small(net: nn.Module, kinds: Tuple[Any, ...]) -> None:
    """Have weights begin normal with a deviation of 0.02, cut at 2 and -2, and biases at 0."""
    for module in net.modules():
        if isinstance(module, kinds):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class Added(nn.Module):
    """``modules(x) + x``, modules one after the other, or ``modules(x) + shortcut(x)``."""

    def __init__(self, *modules: nn.Module, shortcut: Optional[nn.Module] = None) -> None:
        super().__init__()
        self.body = nn.Sequential(*modules)
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Of any shape; both give the same."""
        y: Tensor = self.body(x) + self.shortcut(x)
        return y


class _OnTokens(nn.Module):
    """Modules of tokens on the pixels of an image: ``[..., C, H, W] -> [..., C, H, W]``."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(Tokens(), *modules)

    def forward(self, x: Tensor) -> Tensor:
        """Forward pass; see the class."""
        y: Tensor = self.body(x).transpose(-2, -1).unflatten(-1, x.shape[-2:])
        return y
