"""Fixtures of several test files."""

from __future__ import annotations

import pytest

from each_test import pytest_pycollect_makemodule, pytest_pyfunc_call, pytest_runtest_setup  # noqa: F401
from poptorch_emulator import devices


@pytest.fixture
def several_devices(monkeypatch):
    """A machine on which several models are compiled at a time."""
    monkeypatch.setenv(devices.VARIABLE, "8")
