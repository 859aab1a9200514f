from spikecore.testing import BackendConformance


class TestNumba(BackendConformance):
    backend = "numba"
