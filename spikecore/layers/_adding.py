"""Residual sums: a branch that ends in a neuron, and a shortcut that is added to its spikes."""

from __future__ import annotations

from typing import Callable, Optional

from torch import Tensor, nn

from spikecore._shell.modules import in_turn, is_watched
from spikecore.layers._norm_neuron import NormNeuron


class Adding(nn.Module):
    """A module that adds a shortcut to what its ``body`` gives.

    Once :func:`spikecore.fuse` put a ``NormNeuron`` at the end of the body, the sum is computed by its kernel, if
    nothing sees what the body gives: no hook, no ``forward`` of an object.
    """

    body: nn.Sequential

    def ending(self) -> Optional[nn.Module]:
        """The module at the end of the body, None where that is not known."""
        body = self.body
        # anything may have been put in its place
        return [*body][-1] if in_turn(body) and len(body) else None

    def sum(self, x: Tensor, shortcut: Optional[Callable[[Tensor], Tensor]] = None) -> Tensor:
        """``body(x) + shortcut(x)``, the body computed first; ``body(x) + x`` without a shortcut."""
        last = self.ending()
        if not isinstance(last, NormNeuron) or not last.adds_for_block or self._is_seen(last):
            y = self.body(x)
            added: Tensor = y + (x if shortcut is None else shortcut(x))
            return added
        y = x
        for module in [*self.body][:-1]:
            y = module(y)
        added = last(y, x if shortcut is None else shortcut(x))
        return added  # noqa: RET504  # typed above: a call of a module is Any

    def _is_seen(self, last: nn.Module) -> bool:
        # torch 2.0 has no Module.compile
        compiled = getattr(self.body, "_compiled_call_impl", None) is not None
        return compiled or is_watched(self.body) or is_watched(last)
