"""The message of a failure leads to the fault, and to no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spikecore.testing.compare import Mismatch, same
from spikecore.testing.tolerances import EXACT, Tolerance

RNG = np.random.default_rng(7)
RIGHT = RNG.normal(size=(6, 4, 4))
SINGLE = Tolerance(1e-5, 1e-6)


def said(actual: Any, expected: Any = RIGHT, tolerance: Tolerance = SINGLE, **more: Any) -> str:
    """The hints of a comparison."""
    with pytest.raises(Mismatch) as failure:
        same("output", "a neuron", np.asarray(actual), np.asarray(expected), tolerance, **more)
    return "\n".join(line for line in str(failure.value).splitlines() if "hint:" in line)


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (2 * RIGHT, "everything is 2 times"),
        (0 * RIGHT, "all values that came are 0"),
        (np.where(RIGHT > 1, np.nan, RIGHT), "are NaN that should be numbers"),
        (RIGHT * (1 + 1e-7), "of the size of rounding (2 ulp of float32 at most)"),
        (RIGHT + 3e-5 * np.abs(RIGHT) * (RIGHT > 1), None),
    ],
)
def test_patterns(actual: Any, words: Any) -> None:
    """Each has its words, and a difference of no pattern has none."""
    tolerance = EXACT if words and "rounding" in words else SINGLE
    assert words in said(actual, tolerance=tolerance) if words else said(actual) == ""


def test_a_large_value_excuses_its_own_neuron_alone() -> None:
    """Beside 1e3 small numbers of other neurons must be right; those of the same neuron may be off by its rounding."""
    right = np.asarray([[1e3, 2e-4, 3e-4]] * 4)
    over_time = np.asarray([[1e3], [2e-4], [np.inf]])
    same("v", "a neuron", right[0], right[0] + 5e-7, SINGLE, axes="n")
    same("v", "a neuron", over_time + 5e-4, over_time, SINGLE)
    for actual, expected, axes, words in (
        (right * 0 + [1e3, -2e-4, 0.0], right, "t, n", r"8 of 12 differ (.|\n)*first at \(t=0, n=1\)"),
        ([1e30, 2.0], [1e30, 1.0], "n", r"1 of 2 differ (.|\n)*first at \(n=1\)"),
        (over_time + np.asarray([[0.0], [5e-4], [0.0]]), over_time, "n, m", "1 of 3 differ"),
        ([1e3, -2e-4, 0.0], right[0], "n", "2 of 3 differ"),
    ):
        with pytest.raises(Mismatch, match=words):
            same("v", "a neuron", np.asarray(actual), np.asarray(expected), SINGLE, axes=axes)


def test_flush_to_zero() -> None:
    """Only where every difference is a subnormal that came as 0; nothing else is said then."""
    tiny = np.asarray([[1e-39, 2.0], [3.0, -2e-40]])
    assert said(np.where(np.abs(tiny) < 1e-38, 0, tiny), tiny, EXACT).count("hint:") == 1
    assert "flushed to zero" in said(np.where(np.abs(tiny) < 1e-38, 0, tiny), tiny, EXACT)
    assert "flushed to zero" not in said(np.zeros_like(tiny), tiny, EXACT)


def test_one_number_is_half_of_another_only_where_it_is() -> None:
    """One number is always some multiple of another."""
    assert "0.5 times" in said(np.asarray(131396.5), np.asarray(262793.0))
    assert said(np.asarray(131324.0), np.asarray(262793.0)) == ""
