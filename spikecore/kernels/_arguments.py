"""The tensors of a call, as its kernels take them: all in one layout, each parameter in the form of its kind."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from torch import Tensor

from spikecore.backend import Spec, Tensors
from spikecore.kernels._geometry import Geometry, RowGeometry
from spikecore.kernels._launches import KernelParams
from spikecore.kernels._layout import Layout
from spikecore.lang import Program


class Call(NamedTuple):
    """A call, beside its tensors: inputs, states if given, parameters that are tensors."""

    record: Tuple[str, ...]
    #: Whether the initial states are among the tensors.
    has_initial_state: bool
    #: The parameters that are numbers; None where a tensor stands.
    numbers: Tuple[Optional[float], ...]


#: The sizes and tensors of a call as kernels take them: geometry, inputs, initial states, parameters.
Prepared = Tuple[Geometry, Tensors, Tensors, KernelParams]
#: For each parameter how its channels lie: (neurons between neighbouring channels, channels); (0, 0) without channels.
Channels = Tuple[Tuple[int, int], ...]


class Arguments:
    """Which tensors of a call are inputs, states and parameters of a program, and what its kernels get for each."""

    def __init__(self, program: Program, spec: Spec) -> None:
        self.kinds = spec.params
        self.n_inputs, self.n_states = len(program.inputs), len(program.states)
        #: Indices of the parameters that are tensors.
        self.tensor_params = tuple(i for i, kind in enumerate(spec.params) if kind != "number")

    def n_moving(self, call: Call) -> int:
        """How many of a call's tensors are inputs or initial states; those behind them are parameters."""
        return self.n_inputs + (self.n_states if call.has_initial_state else 0)

    def prepared(self, call: Call, tensors: Sequence[Tensor], layout: Layout) -> Prepared:
        """What a kernel takes, from the tensors of a call that has steps; those not in ``layout`` are copied."""
        x = tensors[0]
        n, moving = self.n_inputs, self.n_moving(call)
        params: KernelParams = call.numbers  # type: ignore[assignment]  # no None if no tensor
        channels: Channels = ()
        # most calls have numbers alone, which are the kernel's as they are
        if self.tensor_params:
            params, channels = self.params(call, tensors[moving:], layout)
        inputs = tuple([layout.fit_steps(value) for value in tensors[:n]])
        state = tuple([layout.fit(value) for value in tensors[n:moving]])
        geometry = Geometry(x.shape[0], x.numel() // x.shape[0], channels)
        if layout.outer:
            geometry = RowGeometry(*geometry, layout.rows)
        return geometry, inputs, state, params

    def params(self, call: Call, tensors: Sequence[Tensor], layout: Layout) -> Tuple[KernelParams, Channels]:
        """All parameters, numbers and ``tensors``, and how their channels lie."""
        placed: List[Any] = list(call.numbers)
        channels = [(0, 0)] * len(placed)
        for index, value in zip(self.tensor_params, tensors):
            kind = self.kinds[index]
            if kind == "channel":
                channels[index] = layout.channels_of(value)
                # a kernel finds a neuron's channel by division, so the channels must be dense
                value = value.reshape(-1).contiguous()
            elif kind == "full":
                # one of shape [1, C, H, W] is the same for a whole batch, but a kernel reads a number per neuron
                value = layout.fit(value.expand(layout.shape))
            placed[index] = value
        return tuple(placed), tuple(channels)
