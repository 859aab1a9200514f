"""Two virtual devices, which must be asked for before JAX is imported."""

from __future__ import annotations

import os

from each_test import pytest_pycollect_makemodule, pytest_pyfunc_call, pytest_runtest_setup  # noqa: F401
from shares import pytest_collection_modifyitems, pytest_report_header  # noqa: F401

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()
