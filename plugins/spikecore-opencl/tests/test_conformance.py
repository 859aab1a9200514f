import pytest

from spikecore.testing import BackendConformance


@pytest.mark.matrix(turn=4)
class TestOpenCL(BackendConformance):
    backend = "opencl"
