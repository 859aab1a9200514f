"""What a test sees does not depend on which plugins are installed beside spikecore."""

from __future__ import annotations

from typing import Iterator

import pytest

from spikecore import selection
from spikecore.candidates import OWN
from spikecore.registry import default_registry


@pytest.fixture(scope="session", autouse=True)
def _no_plugin_unasked() -> Iterator[None]:
    """A neuron that names no backend is computed by a built-in. Processes that tests start are theirs to set up."""
    before = selection.AUTO
    selection.AUTO = {device: tuple(n for n in names if n not in OWN) for device, names in before.items()}
    yield
    selection.AUTO = before


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The ipu backend serves by its emulator, also where an earlier test of the process found that it cannot."""
    monkeypatch.setenv("SPIKECORE_IPU_EMULATOR", "1")
    default_registry().refresh()
    yield
    default_registry().refresh()
