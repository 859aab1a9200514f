"""Half-precision storage is converted as torch converts it: all 65536 values, and everything between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor

from spikecore_numba import functions

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def converted(function: Any, values: np.ndarray, dtype: Any) -> np.ndarray:
    """The values, each converted by a function of kernels."""

    @njit  # type: ignore[untyped-decorator]  # Numba has no types
    def loop(source: Any, out: Any) -> None:
        for i in range(len(source)):
            out[i] = function(source[i])

    out = np.empty(len(values), dtype)
    loop(values, out)
    return out


def same_bits(ours: Tensor, theirs: Tensor) -> None:
    """Equal in every bit, but for which NaN a NaN is."""
    assert torch.equal(ours.isnan(), theirs.isnan())
    kind = {2: torch.int16, 4: torch.int32}[ours.element_size()]
    number = ~theirs.isnan()
    assert torch.equal(ours.view(kind)[number], theirs.view(kind)[number])


@pytest.mark.parametrize("name", HALF)
def test_every_stored_value_is_read_exactly(name: str) -> None:
    """All 65536 patterns: subnormals, infinities, both zeros."""
    bits = np.arange(65536, dtype=np.uint16)
    ours = torch.from_numpy(converted(getattr(functions, f"from_{name}"), bits, np.float32))
    same_bits(ours, torch.from_numpy(bits.view(np.int16)).view(HALF[name]).float())


@pytest.mark.parametrize("name", HALF)
def test_rounding_is_to_nearest_even(name: str) -> None:
    """Every value, every tie between neighbours and what is beside it, and a million random patterns."""
    generator = torch.Generator().manual_seed(0)
    values = torch.from_numpy(np.arange(65536, dtype=np.uint16).view(np.int16)).view(HALF[name]).float()
    ties = (values.double() + values.roll(-1).double()).div(2).float()
    random = torch.randint(-(2**31), 2**31 - 1, (1_000_000,), generator=generator, dtype=torch.int32)
    random = random.view(torch.float32)
    up, down = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    every = torch.cat([values, ties, ties.nextafter(up), ties.nextafter(down), random])
    ours = converted(getattr(functions, f"to_{name}"), every.numpy(), np.uint16)
    same_bits(torch.from_numpy(ours.view(np.int16)).view(HALF[name]), every.to(HALF[name]))


def test_sign_of_nan_is_zero() -> None:
    """The sign is torch's."""
    values = np.array([np.nan, -0.0, 0.0, -2.0, 3.0, np.inf])
    assert converted(functions.sign, values, np.float64).tolist() == [0, 0, 0, -1, 1, 1]
    assert converted(functions.signf, values.astype(np.float32), np.float32).tolist() == [0, 0, 0, -1, 1, 1]
