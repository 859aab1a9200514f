"""The sizes of one call, as a launch gets them."""

from __future__ import annotations

from typing import NamedTuple, Tuple


class Geometry(NamedTuple):
    """Sizes of one call."""

    #: Number of time steps.
    steps: int
    #: Number of neurons of one time step.
    neurons: int
    #: For each parameter of kind "channel": (neurons between neighbouring channels, channels); else (0, 0). Neuron
    #: ``i`` belongs to channel ``(i // inner) % channels``. Empty where every parameter is a number.
    channels: Tuple[Tuple[int, int], ...]


class RowGeometry(Geometry):
    """Sizes of one call whose tensors of all steps may lie in rows: for backends with ``rows``.

    ``rows``: neurons of a row, and the dimension of such a tensor whose stride goes from row to row.
    """

    rows: Tuple[int, int]

    def __new__(
        cls, steps: int, neurons: int, channels: Tuple[Tuple[int, int], ...], rows: Tuple[int, int]
    ) -> RowGeometry:
        """The sizes, and how rows lie."""
        made = super().__new__(cls, steps, neurons, channels)
        made.rows = rows
        return made
