"""Modules without neurons that know of time: whether they take all steps at once, or one."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from spikecore._shell import checks


class Stepped(nn.Module):
    """A module whose input is ``[T, ...]`` with ``step="multi"``, and that of one step with ``step="single"``."""

    #: Why this module takes no single steps, and what to do; "" if it does.
    only_multi: ClassVar[str] = ""
    #: Whether its output at one step depends on which step it is or on the others, so that it cannot stand where time
    #: and batch are one dimension.
    mixes_time: ClassVar[bool] = False
    # a class attribute until it is set, so that modules that were pickled before there was one have it
    _step = "multi"

    @property
    def step(self) -> str:
        """``"multi"`` or ``"single"``."""
        return self._step

    @step.setter
    def step(self, value: str) -> None:
        value = checks.step(type(self).__name__, "step", value)
        if value == "single" and self.only_multi:
            raise ValueError(f"{type(self).__name__}: step='single' is not possible: {self.only_multi}")
        self._step = value
