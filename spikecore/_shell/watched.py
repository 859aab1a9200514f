"""A call of a neuron that is watched, or that records states."""

from __future__ import annotations

from typing import Callable, Mapping, Optional, Sequence, Tuple

from torch import Tensor

from spikecore._shell import watchers
from spikecore._shell.feedback import FedBack
from spikecore._shell.state import State
from spikecore.backend import Tensors

#: Outputs of a call, state after it, recorded states.
Results = Tuple[Tensors, Optional[State], Tensors]


class Watched(FedBack):
    """A neuron whose calls may be watched."""

    def _recorded(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool,
        execute: Callable[..., Results],
    ) -> Results:
        """A call with a record, as ``execute`` computes it; what watches the neuron is told of it."""
        told = self._watchers
        if not told:
            return execute(inputs, state, record, final, single)
        names = watchers.wanted(type(self).__name__, told, self.states, record)
        outputs, end, trace = execute(inputs, state, names, final, single)
        given, at_once = tuple(inputs), outputs
        if single:
            given, at_once = (tuple([value.unsqueeze(0) for value in values]) for values in (inputs, outputs))
        watchers.tell(self, told, given, at_once, dict(zip(names, trace)), single)
        return outputs, end, trace[: len(record)]
