"""The cupy backend computes what the equations say, on a GPU: the conformance suite, every tier."""

from __future__ import annotations

import pytest

from spikecore.testing import TIERS, BackendConformance

pytestmark = pytest.mark.gpu


class TestCupy(BackendConformance):
    """Kernels of NVRTC on a GPU."""

    backend = "cupy"
    tiers = TIERS
