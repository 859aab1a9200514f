"""Residual sums: a branch that ends in a neuron, and a shortcut that is added to its spikes."""

from __future__ import annotations

from typing import Callable, Optional

from torch import Tensor, nn

from spikecore._shell.modules import in_turn, is_watched
from spikecore._shell.observe import has_watchers
from spikecore._shell.prologued import prologue_of
from spikecore.neuron import Neuron


class Adding(nn.Module):
    """A module that adds a shortcut to what its ``body`` gives.

    Once :func:`spikecore.fuse` had the neuron at the end of the body normalise its own input, the sum is computed by
    that neuron's kernel, if nothing sees what the body gives: no hook, no ``forward`` of an object, no monitor.
    """

    body: nn.Sequential

    def ending(self) -> Optional[Neuron]:
        """The neuron at the end of the body, None where there is another module."""
        body = self.body
        # anything may have been put in its place
        if not in_turn(body) or not len(body):
            return None
        last = [*body][-1]
        return last if isinstance(last, Neuron) else None

    def sum(self, x: Tensor, shortcut: Optional[Callable[[Tensor], Tensor]] = None) -> Tensor:
        """``body(x) + shortcut(x)``, the body computed first; ``body(x) + x`` without a shortcut."""
        last = self.ending()
        prologue = None if last is None else prologue_of(last)
        if last is None or prologue is None or not prologue.optional or self._is_seen(last):
            y = self.body(x)
            added: Tensor = y + (x if shortcut is None else shortcut(x))
            return added
        y = x
        for module in [*self.body][:-1]:
            y = module(y)
        added = last(y, x if shortcut is None else shortcut(x))
        return added  # noqa: RET504  # typed above: a call of a module is Any

    def _is_seen(self, last: Neuron) -> bool:
        # torch 2.0 has no Module.compile
        compiled = getattr(self.body, "_compiled_call_impl", None) is not None
        return compiled or has_watchers(last) or is_watched(self.body) or is_watched(last)
