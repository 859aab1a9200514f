"""The core tier of spikecore's own suite; the whole of it takes a quarter of an hour: ``spikecore conformance jax``."""

from spikecore.testing import BackendConformance


class TestJax(BackendConformance):
    backend = "jax"
    tiers = ("core",)
