"""Fixtures of every test of the benchmark."""

from __future__ import annotations

import gc

import pytest

from each_test import pytest_pycollect_makemodule, pytest_pyfunc_call, pytest_runtest_setup  # noqa: F401
from spikecore_bench.timing import HostClock, Plan


def pytest_unconfigure() -> None:
    """The command freezes objects. When Python ends, some extension modules report those that it does not find."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of one call, so that nothing here depends on how fast it runs; and backends beside the reference take part
    only where a test brings them.
    """
    monkeypatch.setenv("SPIKECORE_BACKEND", "torch")
    monkeypatch.setenv("SPIKECORE_BLOCK", "ipu")
    monkeypatch.setattr(Plan, "calls", lambda self, seconds: 1)
    monkeypatch.setattr(HostClock, "cache_bytes", lambda self: 1000)
