"""Blocks of spiking networks: residual sums of spikes and of potentials, and self-attention."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

from torch import Tensor, nn

from spikecore.layers._stateless import TimeBatched, counts, makers, normalised, silenced

#: Makes the neuron of one place, and the normalisation of so many channels.
MakeNeuron = Callable[[], nn.Module]
MakeNorm = Callable[[int], nn.Module]

_CONNECT = ("add", "and", "iand")


class SEWBlock(nn.Module):
    """Spike-element-wise residual block: the block's spikes and those of its input are joined element by element.

    ::

        a = neuron(norm(conv(neuron(norm(conv(x))))))           two 3x3 convolutions
        s = x, or neuron(norm(conv1x1(x)))                      where stride or channels change
        y = a + s  ("add"),   a * s  ("and"),   (1 - a) * s  ("iand")

    ``[T, B, in_channels, H, W] -> [T, B, channels, H', W']``, H' and W' divided by ``stride``, rounded up. With
    ``bottleneck=True`` the branch has three convolutions, 1x1, 3x3 and 1x1, and ``4 * channels`` come out. Sums of
    ``"add"`` are whole numbers, and grow with every block; the other two stay spikes.

    in_channels: the channels of the input.
    channels: the channels of the output, or a quarter of them with ``bottleneck``.
    neuron: makes a neuron, ``lambda: sc.LIF(detach_reset=True)``; it is called for each place.
    stride: that of the first convolution, or of the 3x3 one with ``bottleneck``.
    connect: ``"add"``, ``"and"`` or ``"iand"``, as above.
    norm: makes the normalisation of so many channels: ``nn.BatchNorm2d``, :func:`tdbn`, or
        ``lambda channels: sc.layers.TEBN(channels, steps=4)``.
    bottleneck: whether the branch has three convolutions.
    zero_init: whether the branch begins silent (weight 0 in its last normalisation), so that the block begins as the
        identity; not for ``"and"``.

    Raises ValueError for another ``connect``, for ``zero_init`` with ``"and"`` and for a number below 1, TypeError for
    one that is not whole and for a module where a function makes them.
    Source: Fang, Yu, Chen, Huang, Masquelier, Tian: Deep Residual Learning in Spiking Neural Networks. NeurIPS 2021.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        neuron: MakeNeuron,
        *,
        stride: int = 1,
        connect: str = "add",
        norm: MakeNorm = nn.BatchNorm2d,
        bottleneck: bool = False,
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        counts("SEWBlock", in_channels=in_channels, channels=channels, stride=stride)
        makers("SEWBlock", neuron=neuron, norm=norm)
        if connect not in _CONNECT:
            raise ValueError(f"SEWBlock: connect must be one of {', '.join(map(repr, _CONNECT))}, got {connect!r}")
        if zero_init and connect == "and":
            raise ValueError("SEWBlock: zero_init with connect='and' would give no spike at all; take 'add' or 'iand'")
        self.connect = connect
        out = 4 * channels if bottleneck else channels
        kinds = [(in_channels, channels, 3, stride), (channels, out, 3, 1)]
        if bottleneck:
            kinds = [(in_channels, channels, 1, 1), (channels, channels, 3, stride), (channels, out, 1, 1)]
        norms = [norm(kind[1]) for kind in kinds]
        parts: List[nn.Module] = []
        for kind, norm_of_kind in zip(kinds, norms):
            parts += [normalised(convolution(*kind), norm_of_kind), neuron()]
        if zero_init:
            silenced(norms[-1])
        self.body = nn.Sequential(*parts)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out:
            self.shortcut = nn.Sequential(normalised(convolution(in_channels, out, 1, stride), norm(out)), neuron())

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, C, H, W]``, or ``[B, C, H, W]`` of one step."""
        a, s = self.body(x), self.shortcut(x)
        if self.connect == "add":
            return a + s  # type: ignore[no-any-return]  # tensors
        joined: Tensor = a * s if self.connect == "and" else (1 - a) * s
        return joined

    def extra_repr(self) -> str:
        """Join of branch and shortcut."""
        return f"connect={self.connect!r}"


class MSBlock(nn.Module):
    """Membrane-shortcut residual block: potentials are added, and the neurons stand before the convolutions.

    ::

        y = norm(conv(neuron(norm(conv(neuron(x)))))) + s       two 3x3 convolutions
        s = x, or norm(conv1x1(x))                              where stride or channels change

    ``[T, B, in_channels, H, W] -> [T, B, channels, H', W']``, H' and W' divided by ``stride``, rounded up. What goes in
    and comes out are input currents of neurons, not spikes: the first layer of a network is a convolution without a
    neuron, and one neuron follows the last block. Convolutions of the branch see spikes alone.

    in_channels, channels: the channels of the input, and of the output.
    neuron, norm: as of :class:`SEWBlock`.
    stride: that of the first convolution of the branch.
    pooled_shortcut: whether the shortcut averages over squares of ``stride`` instead of leaving pixels out, as in the
        authors' network of 104 layers. At the edge of an image that the stride does not divide it averages over the
        pixels that are left.
    zero_init: whether the branch begins at 0 (weight 0 in its last normalisation), as the authors' does.

    Raises ValueError for a number below 1, TypeError for one that is not whole and for a module where a function makes
    them. Source: Hu, Deng, Wu, Yao, Li: Advancing Spiking Neural Networks Toward Deep Residual Learning. arXiv
    2112.08954, 2021; IEEE TNNLS 2024; and their program.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        neuron: MakeNeuron,
        *,
        stride: int = 1,
        norm: MakeNorm = nn.BatchNorm2d,
        pooled_shortcut: bool = False,
        zero_init: bool = True,
    ) -> None:
        super().__init__()
        counts("MSBlock", in_channels=in_channels, channels=channels, stride=stride)
        makers("MSBlock", neuron=neuron, norm=norm)
        norms = [norm(channels), norm(channels)]
        self.body = nn.Sequential(
            neuron(),
            normalised(convolution(in_channels, channels, 3, stride), norms[0]),
            neuron(),
            normalised(convolution(channels, channels, 3, 1), norms[1]),
        )
        if zero_init:
            silenced(norms[1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            pooled = pooled_shortcut and stride != 1
            projection = normalised(convolution(in_channels, channels, 1, 1 if pooled else stride), norm(channels))
            # rounded up, as strided convolutions do: of 7 pixels the branch leaves 4, and a pooling that rounds down 3
            # without padding count_include_pad changes no number, and with True torch.compile has wrong gradients here
            pool = nn.AvgPool2d(stride, ceil_mode=True, count_include_pad=False)
            self.shortcut = nn.Sequential(TimeBatched(pool), projection) if pooled else projection

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, C, H, W]``, or ``[B, C, H, W]`` of one step."""
        joined: Tensor = self.body(x) + self.shortcut(x)
        return joined


def convolution(channels: int, out: int, size: int, stride: int) -> nn.Module:
    """A convolution before a normalisation, which has the bias; pixels stay where the stride is 1."""
    return nn.Conv2d(channels, out, size, stride, size // 2, bias=False)


class SpikingSelfAttention(nn.Module):
    """Self-attention of spikes, without softmax: products of spikes are not negative.

    ::

        q, k, v = neuron(norm(linear(x)))                       three layers
        a = neuron(scale * q (k^T v))                           in each head, over the tokens of a sample
        y = neuron(norm(linear(a)))

    ``[T, B, N, C] -> [T, B, N, C]`` with N tokens of C channels, ``[B, N, C]`` of one step. ``q (k^T v)`` is
    ``(q k^T) v`` with fewer products where there are more tokens than channels in a head; sums of spikes are whole
    numbers, so both are exact in float32. Batch and tokens are one dimension for layers, normalisation and neurons, as
    ``[T, B N, C]``: statistics are over time, batch and tokens.

    channels: C, a multiple of ``heads``.
    heads: the number of heads.
    neuron, norm: as of :class:`SEWBlock`, ``norm`` of ``[B N, C]``: ``nn.BatchNorm1d``.
    attention_neuron: makes the neuron behind the products; None takes ``neuron``. The paper's fires at 0.5.
    scale: the factor of the products, 0.125 in the paper, whatever the number of channels.
    bias: whether the linear layers have a bias.
    qkv_bias: the same of the first three; None takes ``bias``. The authors' program for ImageNet has none there.

    Raises TypeError or ValueError for a number that is not whole or below 1, ValueError for channels that are no
    multiple of ``heads`` and for an input of another shape, TypeError for a module where a function makes them.
    Source: Zhou, Zhu, He, Wang, Yan, Tian, Yuan: Spikformer: When Spiking Neural Network Meets Transformer. ICLR 2023.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        neuron: MakeNeuron,
        *,
        attention_neuron: Optional[MakeNeuron] = None,
        norm: MakeNorm = nn.BatchNorm1d,
        scale: float = 0.125,
        bias: bool = True,
        qkv_bias: Optional[bool] = None,
    ) -> None:
        super().__init__()
        counts("SpikingSelfAttention", channels=channels, heads=heads)
        makers("SpikingSelfAttention", neuron=neuron, attention_neuron=attention_neuron or neuron, norm=norm)
        if channels % heads:
            raise ValueError(f"SpikingSelfAttention: channels={channels} must be a multiple of heads={heads}")
        self.channels, self.heads, self.scale = channels, heads, scale
        first = bias if qkv_bias is None else qkv_bias
        self.query = linear(channels, channels, neuron, norm, first)
        self.key = linear(channels, channels, neuron, norm, first)
        self.value = linear(channels, channels, neuron, norm, first)
        self.fire = (attention_neuron or neuron)()
        self.projected = linear(channels, channels, neuron, norm, bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, N, C] -> [T, B, N, C]``, or ``[B, N, C]`` of one step."""
        if not isinstance(x, Tensor):
            raise TypeError(f"SpikingSelfAttention: x must be a tensor, got {type(x).__name__}")
        if x.ndim < 3 or x.shape[-1] != self.channels:
            raise ValueError(
                f"SpikingSelfAttention: x must be [T, B, N, C] with C={self.channels}, or [B, N, C] of one step, got "
                f"shape {tuple(x.shape)}"
            )
        return self._attended(x)

    def traced_forward(self, over_samples: Any, x: Any) -> Any:
        """The same for a reader of networks, whose values have no shape to check."""
        return self._attended(x)

    def _attended(self, x: Tensor) -> Tensor:
        sizes = x.shape[-3:-1]
        flat = x.flatten(-3, -2)
        query, key, value = (
            layer(flat).unflatten(-2, sizes).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )
        attended = query @ (key.transpose(-2, -1) @ value) * self.scale
        fired = self.fire(attended.transpose(-3, -2).flatten(-2).flatten(-3, -2))
        projected: Tensor = self.projected(fired).unflatten(-2, sizes)
        return projected

    def extra_repr(self) -> str:
        """Heads and scale."""
        return f"heads={self.heads}, scale={self.scale}"


class Tokens(nn.Module):
    """Pixels as tokens: ``[..., C, H, W] -> [..., H W, C]``, row after row.

    Behind ``nn.Conv2d(channels, width, 2, 2)`` they are patches of 2 x 2 pixels. Source: Zhou et al., Spikformer, 2023.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Forward pass; see the class."""
        return x.flatten(-2).transpose(-2, -1)


class EachToken(nn.Module):
    """Modules that see tokens as samples: ``[..., B, N, C] -> [..., B, N, C]``, computed as ``[..., B N, C]``.

    modules: called one after the other, such as a linear layer, a batch normalisation of ``C`` channels and a neuron.
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*modules)

    def forward(self, x: Tensor) -> Tensor:
        """Forward pass; see the class."""
        y: Tensor = self.body(x.flatten(-3, -2)).unflatten(-2, x.shape[-3:-1])
        return y


class MeanOfTokens(nn.Module):
    """The mean over tokens, ``[..., N, C] -> [..., C]``, in front of a classifier."""

    def forward(self, x: Tensor) -> Tensor:
        """Forward pass; see the class."""
        return x.mean(-2)


def linear(channels: int, out: int, neuron: MakeNeuron, norm: MakeNorm, bias: bool) -> nn.Module:
    """A linear layer of tokens ``[T, B N, C]``, normalisation and a neuron."""
    return nn.Sequential(normalised(nn.Linear(channels, out, bias=bias), norm(out)), neuron())
