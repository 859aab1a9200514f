"""Divisions by what is the same at every step have the bits of IEEE's division, for all numbers there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spikecore_cupy.host import HostKernel, reason

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]

TEXT = """#include "spikecore.cuh"
extern "C" __global__ void divide(
    const long long count, const float* __restrict__ xs, const float* __restrict__ ys, float* __restrict__ qs
) {
    for (long long k = 0; k < count; ++k) qs[k] = divided(xs[k], ys[k]);
}
"""


@pytest.fixture(scope="module")
def divide() -> HostKernel:
    """The function of the kernels' header, built for the CPU."""
    return HostKernel("divide", TEXT, ("long long", "const float*", "const float*", "float*"))


def differing(divide: HostKernel, x: Any, y: Any) -> Any:
    """The pairs of which the quotient has other bits than IEEE's; one NaN is as good as another."""
    x, y = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, np.float32)
    found = np.empty_like(x)
    divide(1, 0, [len(x), x.ctypes.data, y.ctypes.data, found.ctypes.data])
    with np.errstate(all="ignore"):
        right = x / y
    same = (found.view(np.uint32) == right.view(np.uint32)) | (np.isnan(found) & np.isnan(right))
    return np.stack([x, y])[:, ~same].T


def test_numbers_at_the_ends_of_ranges(divide: HostKernel) -> None:
    """Zeros, subnormal and infinite numbers, NaN, and what lies beside the limits of the quick way."""
    powers = [
        2.0**k for k in (-149, -148, -127, -126, -125, -102, -101, -81, -80, -79, -22, -21, -20, -1, 0, 60, 61, 62)
    ]
    near = [np.nextafter(np.float32(p), np.float32(to)) for p in powers for to in (0.0, np.inf)]
    largest = float(np.finfo(np.float32).max)
    positive = np.array([0.0, *powers, *near, 3.0, 1.1, largest, largest / 2, 2.0**127, np.inf, np.nan], np.float32)
    edges = np.concatenate([positive, -positive])
    x, y = np.meshgrid(edges, edges)
    assert differing(divide, x.ravel(), y.ravel()).tolist() == []


def test_quotients_nearest_to_the_middle_of_two_numbers(divide: HostKernel) -> None:
    """The quotients that a sum which is off by very little could round to the wrong side: none does.

    X and Y are the 24 bits of x and y. X / Y is near the middle of two numbers where X 2^s = M Y + c for an odd M and a
    small c, s = 24 for X >= Y and 25 else. (Of all Y there are, 46.5 million such pairs, all were right.)
    """
    rng = np.random.default_rng(3)
    divisors = np.unique(rng.integers(2**23, 2**24, 60_000))
    tested = 0
    for zeros in range(3):
        large = divisors[(divisors & -divisors) == 2**zeros].astype(np.int64)
        odd = large >> zeros
        for power in (24, 25):
            # the inverse of a power of two modulo an odd number, by halving 1 so many times
            inverse = np.ones_like(odd)
            for _ in range(power - zeros):
                inverse = np.where(inverse % 2, inverse + odd, inverse) >> 1
            for c in range(-8, 9):
                if c == 0 or c % 2**zeros:
                    continue
                first = (c >> zeros) % odd * inverse % odd
                x = first + -(-np.maximum(2**23 - first, 0) // odd) * odd
                # of an even Y every Z there are several X
                for _ in range(2**zeros + 1):
                    fits = (x < 2**24) & ((x >= large) == (power == 24)) & (((x << power) - c) // large % 2 == 1)
                    assert np.all(((x << power) - c)[fits] % large[fits] == 0)
                    tested += int(fits.sum())
                    assert differing(divide, x[fits], large[fits]).tolist() == []
                    x = x + odd
    assert tested > 100_000
