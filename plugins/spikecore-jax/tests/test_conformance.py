"""The core tier of spikecore's own suite; the whole of it takes a quarter of an hour: ``spikecore conformance jax``."""

from __future__ import annotations

import pytest

from spikecore.testing import CASES, BackendConformance
from spikecore_jax.backend import JaxBackend


@pytest.mark.matrix(turn=1)
class TestJax(BackendConformance):
    backend = "jax"
    tiers = ("core",)


def test_every_expected_failure_is_of_the_cpu_and_says_how() -> None:
    """None is excused by its reason alone, and none on another device."""
    for id, one in JaxBackend.expected_failures.items():
        assert CASES.get(id) is not None
        assert one.devices == ("cpu",)
        assert one.match
        assert not one.holds_on("cuda:0", "NVIDIA H200")
