"""Random programs against the oracle; the seed is new in each run, and printed."""

from __future__ import annotations

from spikecore.testing.random_programs import check_many


def test_kernels_give_what_the_oracle_gives() -> None:
    """Values, traces, final states and gradients of random neurons, in random layouts and dtypes."""
    check_many("numba", 8)
