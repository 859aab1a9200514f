"""What ``sc.explain`` found: rows of layers, and advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from spikecore._explain._shown import as_html, as_text

#: In the reason of a copy: time steps that hold the same were written out.
REPEATED = "a step that is repeated"
#: The same: what a layout of the data would not change.
OWN = "lays out its weight or output for itself"


@dataclass(frozen=True)
class Copy:
    """Tensors that a layer laid out anew or converted, and why."""

    #: ``forward`` or ``backward``.
    when: str
    #: Whether the numbers were converted to another dtype, or moved to another device.
    converts: bool
    reason: str
    count: int
    bytes: int


@dataclass(frozen=True)
class Layer:
    """A row: one layer of the network. Sizes and layouts are those of its first call.

    ``name``: the path in the network, "" for the network itself. ``kind``: its class. ``calls``: how often it ran.
    ``shape``, ``dtype``: of the output. ``layout_in``, ``layout_out``: where the numbers of its first input and of its
    output lie ("contiguous", "channels-last", "batch before time", "one step repeated, ...", or strides).
    ``backend``, ``reason``: what computed a neuron, and why that; "" for any other layer.
    ``copies``: what was laid out anew or converted in it. ``words``, ``floor``: numbers that its neurons moved through
    memory per time step and neuron, forward and backward, and the least possible; None for any other layer.
    ``steps``: time steps that the layer had at once; 0 where that is not known. ``repeated``: true where all of them
    held the same, so that all but one were computed for nothing. ``products``: multiplications of its weights in linear
    layers and convolutions, forward.
    ``saved``: bytes that it keeps for backward; a tensor that several layers keep counts at the first one.
    ``saved_spikes``: how many of these are spikes, of a layer that is no neuron. ``rate``: the fraction of outputs that
    are spikes; None for a layer that gives other numbers than 0 and 1.
    ``notes``: what else there is to say, in words.
    """

    name: str
    kind: str
    calls: int
    shape: Tuple[int, ...]
    dtype: str
    layout_in: str
    layout_out: str
    backend: str = ""
    reason: str = ""
    copies: Tuple[Copy, ...] = ()
    words: Optional[float] = None
    floor: Optional[float] = None
    steps: int = 0
    repeated: bool = False
    products: int = 0
    saved: int = 0
    saved_spikes: int = 0
    rate: Optional[float] = None
    notes: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """What :func:`spikecore.explain` found. ``str()`` gives a table with the advice below; notebooks show the same.

    ``layers``: a :class:`Layer` for each layer, in the order of the first call. ``advice``: sentences, the most
    valuable first. ``device``: where the network ran. ``training``: whether it went backward, too.
    """

    layers: Tuple[Layer, ...]
    advice: Tuple[str, ...]
    device: str
    training: bool

    @property
    def saved(self) -> int:
        """Bytes that all layers keep for backward."""
        return sum(layer.saved for layer in self.layers)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)
