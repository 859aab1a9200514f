"""Kernels of the tests are kept in a folder of their own, between runs, unless the environment names one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("SPIKECORE_CACHE_DIR", str(Path(tempfile.gettempdir()) / "spikecore-numba-tests"))
