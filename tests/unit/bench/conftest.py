"""What every test of the bench needs."""

from __future__ import annotations

import pytest

from spikecore.bench._timing import HostClock, Plan


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of one call, so that nothing here depends on how fast it runs; and no emulator takes part."""
    monkeypatch.setenv("SPIKECORE_BLOCK", "ipu")
    monkeypatch.setattr(Plan, "calls", lambda self, seconds: 1)
    monkeypatch.setattr(HostClock, "cache_bytes", lambda self: 1000)
