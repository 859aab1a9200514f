"""Kernels of the tests are kept beside pytest's own cache, between runs, unless the environment names a folder."""

from __future__ import annotations

import os

import pytest

from each_test import pytest_pycollect_makemodule, pytest_pyfunc_call, pytest_runtest_setup  # noqa: F401
from shares import pytest_collection_modifyitems, pytest_report_header  # noqa: F401


def pytest_configure(config: pytest.Config) -> None:
    """Name the folder before any backend is made."""
    if config.pluginmanager.hasplugin("cacheprovider"):
        os.environ.setdefault("SPIKECORE_CACHE_DIR", str(config.cache.mkdir("spikecore-kernels")))
