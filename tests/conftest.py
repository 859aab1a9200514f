"""Tests depend neither on the plugins installed beside spikecore, nor on the tests before it."""

from __future__ import annotations

import gc
import os
from typing import Iterator

import pytest

from each_test import pytest_pycollect_makemodule, pytest_pyfunc_call, pytest_runtest_setup  # noqa: F401
from shares import pytest_collection_modifyitems, pytest_report_header  # noqa: F401
from spikecore.plugins import selection
from spikecore.plugins.registry import PLUGINS

# There is no IPU and no SDK here. Asked for before anything looks for backends, and for the whole process: the registry
# remembers what it found, so a variable that only some tests set made results depend on the order of tests.
os.environ["SPIKECORE_IPU_EMULATOR"] = "1"


def pytest_collection_finish() -> None:
    """Objects that were imported and collected stay until the end: Python's garbage collector passes over them.

    Otherwise each ``gc.collect()`` takes half a second, and many tests of memory and of devices call it.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """When Python ends it frees all objects, and some extension modules report those that it does not find."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _no_plugin_unasked() -> Iterator[None]:
    """A neuron that names no backend is computed by a built-in. Processes that tests start are theirs to set up."""
    before = selection.AUTO
    selection.AUTO = {device: tuple(n for n in names if n not in PLUGINS) for device, names in before.items()}
    yield
    selection.AUTO = before
