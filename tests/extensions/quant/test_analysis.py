"""The analysis of bits: what fits is exact, and what needs one bit more is refused, and would not be exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spikecore as sc
from spikecore_chips.quant import Format, Inexact, analyse


def rounded(x: Any, bits: int) -> Any:
    """A whole number below ``2**bits``."""
    return sc.ops.round(sc.ops.clamp(x, 1.0 - 2.0**bits, 2.0**bits - 1.0))


class Scaled(sc.Neuron):
    """``factor * x + extra``: an odd factor makes the largest value odd."""

    configuration = {**sc.Neuron.configuration}

    def __init__(self, bits: int, factor: int, extra: int = 0) -> None:
        super().__init__()
        self.bits, self.factor, self.extra = bits, factor, extra

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return rounded(x, self.bits) * float(self.factor) + float(self.extra), {}


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 23), st.integers(0, 2**22 - 1), st.sampled_from((0, 1, 2**23)))
def test_products_and_sums_that_fit_are_exact_and_others_are_not(bits: int, half: int, extra: int) -> None:
    factor = 2 * half + 1
    largest = (2**bits - 1) * factor + extra
    neuron = Scaled(bits, factor, extra)
    computed = int(neuron(torch.full((1, 1), 2.0**24)).item())
    if max(largest, (2**bits - 1) * factor) <= 2**24:
        known = analyse(neuron.program)[neuron.program.outputs[0]]
        assert known.high == largest == computed
        assert known.low == -(2**bits - 1) * factor + extra
    else:
        with pytest.raises(Inexact, match="bits, and float32 holds 24"):
            analyse(neuron.program)
        assert analyse(neuron.program, dtype=torch.float64)[neuron.program.outputs[0]].high == largest


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 23), st.integers(2, 2**22 - 1))
def test_one_bit_more_would_be_rounded(bits: int, half: int) -> None:
    factor = 2 * half + 1
    largest = (2**bits - 1) * factor
    if largest > 2**24:
        with pytest.raises(Inexact):
            analyse(Scaled(bits, factor).program)
        assert int(Scaled(bits, factor)(torch.full((1, 1), 2.0**24)).item()) != largest


class Counter(sc.Neuron):
    """A state that grows until it is clamped, and one that halves."""

    states = {"n": 0.0, "part": 1.0}

    def __init__(self, limit: float, halves: bool = False) -> None:
        super().__init__()
        self.limit, self.halves = limit, halves

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        n = sc.ops.minimum(s.n + 1.0, self.limit)
        return n, {"n": n, "part": s.part * 0.5 if self.halves else s.part}


def test_a_state_has_the_range_that_its_clamp_leaves() -> None:
    program = Counter(1000.0).program
    assert analyse(program)[program.next[0]] == Format(0, 1, 1000)


def test_states_without_a_range_or_a_grid_are_refused() -> None:
    for neuron in (Counter(float("inf")), Counter(10.0, halves=True)):
        with pytest.raises(Inexact, match="adds to its range or to its fractional bits; clamp its next value"):
            analyse(neuron.program)


def test_a_float_that_meets_a_grid_is_named() -> None:
    with pytest.raises(Inexact, match="a float that nothing has rounded"):
        analyse(sc.Leaky(0.9).program)


def test_formats_of_inputs_are_taken_as_they_are() -> None:
    neuron = sc.quant.fixed(sc.IF(), word=16, frac=12)
    wide = Format(18, -(2**23), 2**23)
    known = analyse(neuron.program, {"x": wide})
    assert known[neuron.program.leaves[0]] == wide
    with pytest.raises(ValueError, match="inputs has 'y', which is no input of IF"):
        analyse(neuron.program, {"y": wide})
    with pytest.raises(ValueError, match=r"must be torch\.float32 or torch\.float64"):
        analyse(neuron.program, dtype=torch.float16)


def test_a_format_says_its_ends_and_bits() -> None:
    known = Format(4, -8, 24)
    assert (known.ends, known.bits, known.is_whole, str(known)) == ((-0.5, 1.5), 5, False, "[-0.5, 1.5] / 2^4 (5 bits)")
    assert known.at(6) == Format(6, -32, 96)
    assert known.holds(Format(2, -2, 6))
    assert not known.holds(Format(5, 0, 1))
