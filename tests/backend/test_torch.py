"""The reference backend conforms: all of the suite, and every neuron with every surrogate."""

import pytest

from spikecore.testing import TIERS, BackendConformance


@pytest.mark.matrix(tier="core")
class TestTorch(BackendConformance):
    """The torch backend."""

    backend = "torch"
    tiers = TIERS
