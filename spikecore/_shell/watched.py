"""A call of a neuron that is watched, or that records states."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple

from torch import Tensor

from spikecore._shell import watchers
from spikecore._shell.feedback import FedBack
from spikecore._shell.fused_calls import Results
from spikecore.backend import Tensors


class Watched(FedBack):
    """A neuron whose calls may be watched."""

    def _call(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        final: bool,
        single: bool = False,
        watched: bool = True,
    ) -> Tuple[Tensors, Any]:
        """A call without a record."""
        raise NotImplementedError(f"{type(self).__name__} must define _call")

    def _recorded(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool = False,
    ) -> Results:
        """A call with a record; what watches the neuron is told of it."""
        execute = self._execute if self._prologue is None else self._behind_prologue
        told = self._watchers
        if not told:
            return execute(inputs, state, record, final, single)
        names = watchers.wanted(type(self).__name__, told, self.states, record)
        if names:
            outputs, end, trace = execute(inputs, state, names, final, single)
        else:  # as quick as a call that is not watched
            (outputs, end), trace = self._call(inputs, state, final, single, watched=False), ()
        given, at_once = tuple(inputs), outputs
        if single:
            given, at_once = (tuple([value.unsqueeze(0) for value in values]) for values in (inputs, outputs))
        watchers.tell(self, told, given, at_once, dict(zip(names, trace)), single)
        return outputs, end, trace[: len(record)]
