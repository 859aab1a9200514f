"""The core tier of spikecore's own suite; the whole of it takes a quarter of an hour: ``spikecore conformance jax``."""

import pytest

from spikecore.testing import BackendConformance


@pytest.mark.matrix(turn=1)
class TestJax(BackendConformance):
    backend = "jax"
    tiers = ("core",)
