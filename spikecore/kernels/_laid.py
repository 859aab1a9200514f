"""How an input without gaps lies in memory, and what direct calls know from that."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from torch import Tensor

from spikecore.kernels._execution import Execution
from spikecore.kernels._geometry import Geometry, RowGeometry
from spikecore.kernels._layout import Layout, is_dense
from spikecore.kernels._straight import Dense


class Laid:
    """What follows from the shape and the strides of an input.

    ``layout`` is None where such an input is for the runner: where it has gaps, or nothing in it.
    """

    __slots__ = ("backward", "forward", "geometry", "kept", "layout", "lies", "second", "shape", "strides")

    def __init__(self, shape: Tuple[int, ...], strides: Tuple[int, ...], layout: Optional[Layout]) -> None:
        self.shape, self.strides, self.layout = shape, strides, layout
        self.geometry = self.second = Geometry(0, 0, ())
        #: Neurons between neighbouring channels of the input, channels.
        self.lies = Geometry(0, 0, ())
        #: A checkpoint: its shape and strides; None where one chunk has all steps.
        self.kept: Optional[Tuple[Tuple[int, ...], Tuple[int, ...]]] = None
        #: Launches forward, without checkpoints and with them, and backward, by the pass and the wanted gradients.
        self.forward: List[Optional[Dense]] = [None, None]
        self.backward: Dict[Any, Dense] = {}

    def holds(self, value: Tensor) -> bool:
        """Whether a tensor lies as the input does."""
        return value.shape == self.shape and value.stride() == self.strides and in_memory(value)


def laid_as(
    x: Tensor,
    execution: Execution,
    views: Sequence[Optional[Tuple[int, ...]]],
    order: Sequence[int],
    statistics: bool = False,
) -> Laid:
    """What follows from how ``x`` lies.

    views: for each parameter the shape that it has over the neurons of one time step; None for a number. order: where
    the parameters of the second backward pass stand among those of the program and the three that it has beside them.
    statistics: whether kernels that find those of the input take it, too, whose steps must be dense.
    """
    shape, strides, layout = tuple(x.shape), x.stride(), execution.layout((x,))
    neurons = x.numel() // shape[0] if x.numel() else 0
    if layout.outer:  # a step is rows between which other steps lie, as in [B, T, ...] seen as [T, B, ...]
        taken = not statistics and is_dense(x)
    else:
        taken = layout.holds(x[0]) and (strides[0] == neurons or neurons == x.numel()) if neurons else False
    if not (neurons and taken):
        return Laid(shape, strides, None)
    laid = Laid(shape, strides, layout)
    channels = [
        layout.channels_along(view) if kind == "channel" and view is not None else (0, 0)
        for kind, view in zip(execution.spec.params, views)
    ]
    own = (layout.inner_of(1), shape[2])
    laid.geometry = Geometry(shape[0], neurons, tuple(channels))
    if layout.outer:
        laid.geometry = RowGeometry(*laid.geometry, layout.rows)
    # two of the three are sums for weight and bias, and lie as these; the third one is a number
    every = [*channels, own, own, (0, 0)]
    laid.second = Geometry(shape[0], neurons, tuple([every[index] for index in order]))
    laid.lies = Geometry(shape[0], neurons, (own,))
    if 0 < execution.chunk < shape[0]:
        kept = layout.empty(((shape[0] - 1) // execution.chunk,), x.new_empty(0, device="meta"), execution.spec.compute)
        laid.kept = (tuple(kept.shape), kept.stride())
    return laid


def in_memory(value: Tensor) -> bool:
    """Whether the memory of a tensor holds its values."""
    try:
        return not value.is_neg() and value.data_ptr() != 0
    except RuntimeError:  # tensors wrapped by functorch raise on data_ptr()
        return False
