"""What layers and networks check about their arguments."""

from __future__ import annotations

from typing import Any

from torch import nn

from spikecore._shell.checks import shown, whole


def counts(owner: str, least: int = 1, **values: Any) -> None:
    """Whole numbers of ``least`` or more, by the names of their arguments."""
    for name, value in values.items():
        if whole(owner, name, value) < least:
            raise ValueError(f"{owner}: {name}={value!r} must be {least} or more")


def makers(owner: str, **values: Any) -> None:
    """Functions that make a module for each place: not modules, which all places would share."""
    for name, value in values.items():
        if isinstance(value, nn.Module) or not callable(value):
            given = f"the module {type(value).__name__}" if isinstance(value, nn.Module) else shown(value)
            raise TypeError(
                f"{owner}: {name} must be a function that makes a module for each place, got {given}; give one, as in "
                "neuron=lambda: sc.LIF(tau=2.0) or norm=lambda channels: nn.BatchNorm2d(channels)"
            )
