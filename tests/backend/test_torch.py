"""The reference backend conforms: all of the suite, and every neuron with every surrogate."""

from spikecore.testing import TIERS, BackendConformance


class TestTorch(BackendConformance):
    """The torch backend."""

    backend = "torch"
    tiers = TIERS
