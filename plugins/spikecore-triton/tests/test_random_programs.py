"""Random programs against the oracle; the seed is new in each run, and printed."""

from __future__ import annotations

import pytest

from spikecore.testing.random_programs import check_many

#: Triton's interpreter is NumPy, which warns where a number is not finite.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_kernels_give_what_the_oracle_gives(device: str) -> None:
    """Values, traces, final states and gradients of random neurons, in random layouts and dtypes."""
    check_many("triton", 8, device=device, hostile=False)
