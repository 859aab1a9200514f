import pytest

from spikecore.testing import BackendConformance


@pytest.mark.matrix(turn=0)
class TestNumba(BackendConformance):
    backend = "numba"
