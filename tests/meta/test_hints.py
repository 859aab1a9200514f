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
        (RIGHT[::-1], "in wrong places: along t came those of index 5, 4, 3, 2, 1, 0"),
        (RIGHT[:, [0, 2, 1, 3]], "in wrong places: along axis 1 came those of index 0, 2, 1, 3"),
        (np.roll(RIGHT, 1, 0), "one step late"),
        (np.roll(RIGHT, -1, 0), "one step early"),
        (np.broadcast_to(RIGHT[..., -1:], RIGHT.shape), "along axis 2 came those of index 3, 3, 3, 3"),
        (2 * RIGHT, "everything is 2 times"),
        (0 * RIGHT, "all values that came are 0"),
        (RIGHT.astype(np.float16).astype(float), "the values are rounded to float16"),
        (RIGHT + 3e-5 * np.abs(RIGHT) * (RIGHT > 1), None),
    ],
)
def test_patterns(actual: Any, words: Any) -> None:
    """Each has its words, and a difference of no pattern has none."""
    assert words in said(actual) if words else said(actual) == ""


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (np.s_[16:20, 1:3], "nothing differs before t=16: what is carried over"),
        (np.s_[2:16, 1:3], "nothing differs after t=15: in the backward pass"),
        (np.s_[0, 1:3], "only the first step differs"),
        (np.s_[39, 1:3], "only the last step differs"),
        (np.s_[3:9, 4], "only the last neuron differs"),
        (np.s_[3:9, 2:], ""),
    ],
)
def test_where_it_differs(where: Any, words: str) -> None:
    """The border of a chunk, one end of the run, or the last neuron; no words for another place."""
    right = RNG.normal(size=(40, 5))
    wrong = right.copy()
    wrong[where] += RNG.uniform(0.1, 1.0, size=wrong[where].shape)
    told = said(wrong, right)
    assert words in told if words else told == ""


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


def test_patterns_that_hold_for_the_right_values_are_none() -> None:
    """A constant is its own reverse."""
    flat = np.ones((5, 3))
    assert said(flat * 1.5, flat).strip() == "hint: everything is 1.5 times what it should be"


def test_one_number_is_half_of_another_only_where_it_is() -> None:
    """One number is always some multiple of another."""
    assert "0.5 times" in said(np.asarray(131396.5), np.asarray(262793.0))
    assert said(np.asarray(131324.0), np.asarray(262793.0)) == ""
