import pytest

from spikecore.testing import BackendConformance


@pytest.mark.matrix(turn=3)
class TestC(BackendConformance):
    backend = "c"


@pytest.mark.matrix(turn=5)
class TestMetal(BackendConformance):
    """The source, compiled by g++ for the CPU."""

    backend = "metal_host"
