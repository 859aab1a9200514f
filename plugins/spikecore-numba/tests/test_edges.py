"""What holds at NaN, infinities, ties and zeros, on this backend."""

from __future__ import annotations

import pytest

from spikecore.testing.random_programs.edges import TABLE, check_edges, check_paths


@pytest.mark.parametrize("operation", TABLE)
def test_every_operation_at_the_edges(operation: str) -> None:
    """Values, signs of zero and gradients at NaN, infinities, ties, zeros and subnormals are those of the table."""
    check_edges("numba", operation)


def test_where_a_path_is_a_zero_cotangent_counts() -> None:
    """Zero times infinity is NaN along a path, and what no path leads to is 0."""
    check_paths("numba")
