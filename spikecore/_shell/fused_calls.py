"""A neuron that normalises its input, in calls like an earlier one: past the checks, straight to the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple

from torch import Tensor

from spikecore._base.running import direct_normalised
from spikecore._shell import earlier, fused, norms
from spikecore._shell.ranged import Ranged
from spikecore._shell.state import State
from spikecore.backend import Runner, Tensors

if TYPE_CHECKING:
    from spikecore._shell.prologue import Prologue

#: Outputs of a call, state after it, recorded states.
Results = Tuple[Tensors, Optional[State], Tensors]


class FusedCalls(Ranged):
    """A neuron that may have a prologue (see :mod:`spikecore._shell.prologue`)."""

    def _as_before(self, prologue: Prologue, x: Tensor, skip: Optional[Tensor]) -> Optional[Results]:
        """A call at rest for outputs alone. If an earlier call of its kind passed the checks, this one skips them; None
        if it needs them.
        """
        if earlier.only_input((x,)) is None:
            return None
        norm = prologue.norm
        kind = fused.kind_of(norm, prologue.shortcut, bool(prologue.fused), x, skip)
        found: Optional[fused.FusedCall] = self._cache.quick.get(kind)
        return None if found is None else self._straight(prologue, found, x, skip)

    def _straight(
        self, prologue: Prologue, found: fused.FusedCall, x: Tensor, skip: Optional[Tensor]
    ) -> Optional[Results]:
        """The call by the launches of an earlier one; None, with nothing moved, if it is not as that was."""
        own = earlier.values_as_before(found.earlier, self, x, False, self._ranges)
        one = None if own is None else fused.taken(found, prologue.norm, x, skip, own)
        if own is None or one is None:
            return None
        by = fused.constants(found, one, x)
        outputs = fused.outputs(found, one, x, skip, own, by)
        if outputs is None:
            # the running statistics have moved: from here on it is the runner's
            outputs = self._by_runner(found, x, skip, earlier.placed(found.earlier, own), by)
        prologue.reason = ""
        return outputs, None, ()

    def _by_runner(
        self,
        found: fused.FusedCall,
        x: Tensor,
        skip: Optional[Tensor],
        values: Tuple[Any, ...],
        by: norms.Constants,
    ) -> Tensors:
        """The outputs of a call at rest, normalised ``by`` these."""
        inputs = (x,) if skip is None else (x, skip)
        return found.earlier.runner(inputs, None, norms.among(values, found.before, by, x.ndim), ())[0]

    def _noted(
        self,
        prologue: Prologue,
        runner: Runner,
        x: Tensor,
        skip: Optional[Tensor],
        own: Sequence[Tuple[str, Any]],
        values: Tuple[Any, ...],
        count: int,
        quick: Dict[Tuple[Any, ...], Any],
    ) -> Optional[Results]:
        """A call that passed every check, noted and run as later ones are: a checkpointed call must save the same
        tensors when it is computed again. None, with nothing moved, if the runner has no such way for it.
        """
        places = norms.among(values, count, (x.new_empty(x.shape[2], device="meta"),) * 4, x.ndim)
        call = direct_normalised(runner, [tuple(v.shape) if isinstance(v, Tensor) else None for v in places])
        if call is None:
            return None
        found = fused.FusedCall(earlier.noted(runner, own, values, x, self), call, count)
        norm = prologue.norm
        results = self._straight(prologue, found, x, skip)
        quick[fused.kind_of(norm, prologue.shortcut, bool(prologue.fused), x, skip)] = found
        return results
