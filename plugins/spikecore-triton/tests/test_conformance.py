import os

import pytest

from spikecore.testing import TIERS, BackendConformance


#: Triton's interpreter is NumPy, which warns where a number is not finite.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.matrix(turn=2)
class TestTriton(BackendConformance):
    backend = "triton"
    # the interpreter takes minutes for the generated tier; the programs of the tier random are of that kind
    tiers = tuple(tier for tier in TIERS if tier != "generated" or "TRITON_INTERPRET" not in os.environ)
