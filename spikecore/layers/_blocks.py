"""Residual blocks of spiking networks."""

from __future__ import annotations

from typing import Callable, List, Optional

from torch import Tensor, nn

from spikecore._base.bits import Whole, added, multiplied
from spikecore.layers._adding import Adding
from spikecore.layers._arguments import counts, makers
from spikecore.layers._norms import normalised, silenced
from spikecore.layers._packed import Follow
from spikecore.layers._time_batched import TimeBatched

#: Makes the neuron of one place, and the normalisation of so many channels.
MakeNeuron = Callable[[], nn.Module]
MakeNorm = Callable[[int], nn.Module]

_CONNECT = ("add", "and", "iand")


class SEWBlock(Adding):
    """Spike-element-wise residual block: the block's spikes and those of its input are joined element by element.

    ::

        a = neuron(norm(conv(neuron(norm(conv(x))))))           two 3x3 convolutions
        s = x, or neuron(norm(conv1x1(x)))                      where stride or channels change
        y = a + s  ("add"),   a * s  ("and"),   (1 - a) * s  ("iand")

    ``[T, B, in_channels, H, W] -> [T, B, channels, H', W']``, H' and W' divided by ``stride``, rounded up. With
    ``bottleneck=True`` the branch has three convolutions, 1x1, 3x3 and 1x1, and ``4 * channels`` come out. Sums of
    ``"add"`` are whole numbers, and grow with every block; the other two stay spikes.

    neuron: makes a neuron, ``lambda: sc.LIF(detach_reset=True)``; it is called for each place.
    norm: makes the normalisation of so many channels: ``nn.BatchNorm2d``, :func:`tdbn`, or
        ``lambda channels: sc.layers.TEBN(channels, steps=4)``.
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
        for kind, one in zip(kinds, norms):
            parts += [normalised(convolution(*kind), one), neuron()]
        if zero_init:
            silenced(norms[-1])
        self.body = nn.Sequential(*parts)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out:
            self.shortcut = nn.Sequential(normalised(convolution(in_channels, out, 1, stride), norm(out)), neuron())

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, C, H, W]``, or ``[B, C, H, W]`` of one step."""
        if self.connect == "add":
            return self.sum(x, self.shortcut)
        a, s = self.body(x), self.shortcut(x)
        joined: Tensor = a * s if self.connect == "and" else (1 - a) * s
        return joined

    def follow_spikes(self, known: Optional[Whole], follow: Follow) -> Optional[Whole]:
        """What comes out, for :func:`spikecore.pack`."""
        a, s = follow(self.body, known), follow(self.shortcut, known)
        if self.connect == "add":
            return added(a, s)
        # 1 - a is 0 or 1 where a is
        return multiplied(a, s) if self.connect == "and" or a == Whole(1) else None

    def ending(self) -> Optional[nn.Module]:
        """The module to whose spikes those of the shortcut are added."""
        return super().ending() if self.connect == "add" else None

    def extra_repr(self) -> str:
        """How branch and shortcut are joined."""
        return f"connect={self.connect!r}"


class MSBlock(nn.Module):
    """Membrane-shortcut residual block: potentials are added, and the neurons stand before the convolutions.

    ::

        y = norm(conv(neuron(norm(conv(neuron(x)))))) + s       two 3x3 convolutions
        s = x, or norm(conv1x1(x))                              where stride or channels change

    ``[T, B, in_channels, H, W] -> [T, B, channels, H', W']``, H' and W' divided by ``stride``, rounded up. What goes in
    and comes out are input currents of neurons, not spikes: the first layer of a network is a convolution without a
    neuron, and one neuron follows the last block. Convolutions of the branch see spikes alone.

    neuron, norm: as of :class:`SEWBlock`.
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
            one = normalised(convolution(in_channels, channels, 1, 1 if pooled else stride), norm(channels))
            # rounded up, as strided convolutions do: of 7 pixels the branch leaves 4, and a pooling that rounds down 3
            # without padding count_include_pad changes no number, and with True torch.compile has wrong gradients here
            pool = nn.AvgPool2d(stride, ceil_mode=True, count_include_pad=False)
            self.shortcut = nn.Sequential(TimeBatched(pool), one) if pooled else one

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, C, H, W]``, or ``[B, C, H, W]`` of one step."""
        joined: Tensor = self.body(x) + self.shortcut(x)
        return joined

    def follow_spikes(self, known: Optional[Whole], follow: Follow) -> Optional[Whole]:
        """What comes out, for :func:`spikecore.pack`."""
        follow(self.body, known)
        follow(self.shortcut, known)
        return None


def convolution(channels: int, out: int, size: int, stride: int) -> nn.Module:
    """A convolution before a normalisation, which has the bias; pixels stay where the stride is 1."""
    return nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
