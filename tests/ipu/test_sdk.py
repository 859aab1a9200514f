"""Which PopTorch serves, and what is said where none does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import poptorch_emulator
import spikecore as sc
import warm
from spikecore.plugins.registry import BUILTINS, Registry
from spikecore_ipu import sdk


def test_the_list_of_backends_says_who_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the emulator stands in for an IPU, the list says so; where nothing does, it says why."""
    for value, state, words in (("1", "ready", "the emulator on the CPU"), ("yes", "unavailable", "is neither 1")):
        monkeypatch.setenv("SPIKECORE_IPU_EMULATOR", value)
        rows = {row.name: row for row in Registry(BUILTINS, entry_points=[]).status(probe=True)}
        assert rows["ipu"].state == state
        assert words in rows["ipu"].detail


def test_without_the_emulator_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of backends and whoever asks for PopTorch name the distribution, and the command that installs it."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == sdk.EMULATOR else found(name))
    asks = "SPIKECORE_IPU_EMULATOR=1 asks for the distribution poptorch-emulator, which is not installed"
    command = "pip install ./plugins/poptorch-emulator"
    row = next(row for row in Registry(BUILTINS, entry_points=[]).status(probe=True) if row.name == "ipu")
    assert row.state == "unavailable"
    assert asks in row.detail
    assert command in row.detail
    with pytest.raises(sc.backend.BackendUnavailable, match=f"{asks} .*`{command}` in a checkout"):
        sdk.poptorch()
    with pytest.raises(sc.backend.BackendUnavailable, match=f"{asks} .*`{command}` in a checkout"):
        Registry(BUILTINS, entry_points=[]).get("ipu", "a test")


def test_the_emulator_needs_nothing_of_spikecore() -> None:
    """It is a distribution of its own: importing it imports no module of spikecore, nor does it name one."""
    code = "import sys, poptorch_emulator; print([name for name in sys.modules if name.startswith('spikecore')])"
    done = warm.run("-c", code, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
    folder = Path(poptorch_emulator.__file__).parent
    assert [path.name for path in folder.rglob("*.py") if "spikecore" in path.read_text(encoding="utf-8")] == []
