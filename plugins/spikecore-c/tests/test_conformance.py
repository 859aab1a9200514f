import pytest

from spikecore.testing import BackendConformance


@pytest.mark.matrix(turn=3)
class TestC(BackendConformance):
    backend = "c"
