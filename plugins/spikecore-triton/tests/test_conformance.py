from spikecore.testing import BackendConformance


class TestTriton(BackendConformance):
    backend = "triton"
