import os

from spikecore.testing import DEFAULT_TIERS, BackendConformance


class TestTriton(BackendConformance):
    backend = "triton"
    # the interpreter takes minutes for the generated tier; test_random_programs.py has programs of that kind for it
    tiers = tuple(tier for tier in DEFAULT_TIERS if tier != "generated" or "TRITON_INTERPRET" not in os.environ)
