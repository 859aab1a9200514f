"""Fixtures of several test files."""

from __future__ import annotations

import pytest
import torch

from each_test import pytest_pycollect_makemodule, pytest_pyfunc_call, pytest_runtest_setup  # noqa: F401
from poptorch_emulator import _devices as devices


@pytest.fixture
def several_devices(monkeypatch):
    """A machine on which several models are compiled at a time."""
    monkeypatch.setenv(devices.VARIABLE, "8")


@pytest.fixture
def agrees():
    """Runs a probe, which gives a value, ``("is", value)``, or raises with a text, ``("fails" or "silent", text)``."""

    def check(probe, expected):
        kind, value = expected
        if kind != "is":
            with pytest.raises(Exception, match=value):
                probe()
            return
        found = probe()
        if isinstance(found, torch.Tensor):
            torch.testing.assert_close(found.detach(), torch.tensor(value).to(found.dtype), equal_nan=True)
        else:
            assert found == value

    return check
