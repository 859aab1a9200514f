"""Residual sums: a branch that ends in a neuron, and a shortcut that is added to its spikes."""

from __future__ import annotations

from typing import Callable, Optional

from torch import Tensor, nn

from spikecore._hoisting import is_watched
from spikecore._shell.prologued import prologue_of
from spikecore._shell.state import has_watchers
from spikecore.neuron import Neuron


class Adding(nn.Module):
    """A module that adds a shortcut to what its ``body`` gives.

    Once :func:`spikecore.fuse` had the neuron at the end of the body normalise its own input, the sum is computed by
    that neuron's kernel, if nothing sees what the body gives: no hook, no ``forward`` of an object, no monitor.
    """

    body: nn.Sequential

    def ending(self) -> Optional[Neuron]:
        """The neuron at the end of the body, None where there is another module."""
        *_, last = [None, *self.body]
        return last if isinstance(last, Neuron) else None

    def sum(self, x: Tensor, shortcut: Callable[[Tensor], Tensor]) -> Tensor:
        """``body(x) + shortcut(x)``, the body computed first."""
        last = self.ending()
        prologue = None if last is None else prologue_of(last)
        if last is None or prologue is None or not prologue.optional or self._is_seen(last):
            added: Tensor = self.body(x) + shortcut(x)
            return added
        y = x
        for module in [*self.body][:-1]:
            y = module(y)
        skip = shortcut(x)
        # in other shapes, which broadcast or raise, it is for torch to add them
        added = last(y, skip) if y.shape == skip.shape else last(y) + skip
        return added  # noqa: RET504  # typed above: a call of a module is Any

    def _is_seen(self, last: Neuron) -> bool:
        plain = type(self.body).forward is nn.Sequential.forward
        return not plain or has_watchers(last) or is_watched(self.body) or is_watched(last)
