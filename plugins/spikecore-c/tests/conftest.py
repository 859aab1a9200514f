"""Kernels of the tests are kept beside pytest's own cache, between runs, unless the environment names a folder.

Beside the installed backends there is ``metal_host``, of metal_host.py.
"""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points

import pytest

from each_test import pytest_pycollect_makemodule, pytest_pyfunc_call, pytest_runtest_setup  # noqa: F401
from shares import pytest_collection_modifyitems, pytest_report_header  # noqa: F401
from spikecore.plugins.registry import BUILTINS, Registry, replace_default


def pytest_configure(config: pytest.Config) -> None:
    """Name the folder before any backend is made, and add the backend of tests."""
    host = EntryPoint("metal_host", "metal_host", "spikecore.backends")
    replace_default(Registry(BUILTINS, entry_points=[*entry_points(group=host.group), host]))
    if config.pluginmanager.hasplugin("cacheprovider"):
        os.environ.setdefault("SPIKECORE_CACHE_DIR", str(config.cache.mkdir("spikecore-kernels")))
