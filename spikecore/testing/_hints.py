"""Hints: patterns of what came beside what is right, in words, that usually make differences like these.

A hint names a cause that explains every difference, or the place where all of them are. A pattern that the right values
have as well says nothing.
"""

from __future__ import annotations

import math
from typing import List, Optional, Sequence

import numpy as np
import torch

from spikecore.dtypes import NARROW
from spikecore.testing._oracle import Array
from spikecore.testing.tolerances import EXACT, Tolerance

#: The smallest normal number of float32.
_TINY = float(np.finfo(np.float32).tiny)
#: The longest axis along which places are compared.
_LONGEST = 64


@np.errstate(all="ignore")  # a warning that is an error would hide the difference
def hints(
    actual: Array,
    expected: Array,
    wrong: Array,
    *,
    tolerance: Tolerance,
    tested: Optional[Array] = None,
    strict: bool = False,
    axes: Sequence[str] = (),
) -> List[str]:
    """At most three sentences: what explains every value, else what says where the differences are."""
    explained = _zeros_alone(actual, expected, wrong)
    if explained:
        return [explained]
    found = [_ties(wrong, tested, strict), _not_a_number(actual, expected)]
    if expected.any() and not actual.any():
        found.append("all values that came are 0: is this connected at all?")
    if not any(found):
        near = Tolerance(max(tolerance.rtol, 1e-6), max(tolerance.atol, 1e-9))
        found += [
            _ratio(actual, expected),
            _misplaced(actual, expected, near, axes),
            _steps(wrong),
            _rounding(actual, expected, wrong, tolerance),
        ]
    return [hint for hint in found if hint][:3]


def different(actual: Array, expected: Array, tolerance: Tolerance, time: bool = True) -> Array:
    """Mask of the values that differ by more than the tolerance. Without one, the sign of a zero is a difference as
    well.

    time: whether the first axis is that of time. A large value widens the tolerance of its own neuron only.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.where(np.isfinite(expected), np.abs(expected), 0.0)
        scale = size.max(axis=0, keepdims=True, initial=1.0) if time and size.ndim else np.maximum(size, 1.0)
        near = np.abs(actual - expected) <= tolerance.rtol * size + tolerance.atol * scale
    equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    if tolerance == EXACT:
        # 0.0 equals -0.0, and 1 / x does not
        near = equal = equal & ((np.signbit(actual) == np.signbit(expected)) | (expected != 0))
    wrong: Array = ~(equal | near)
    return wrong


def _is(actual: Array, other: Array, expected: Array, near: Tolerance) -> bool:
    """True if the values are these others, and the others are not right as well."""
    return (
        actual.shape == other.shape
        and not different(actual, other, near).any()
        and bool(different(other, expected, near).any())
    )


def _zeros_alone(actual: Array, expected: Array, wrong: Array) -> Optional[str]:
    came, right = actual[wrong], expected[wrong]
    if (came == right).all():
        return "only signs of zeros differ: -x is no 0 - x, and x + 0 no x, where x is 0"
    if (came == 0).all() and (right != 0).all() and (np.abs(right) < _TINY).all():
        return (
            "every value that differs came as 0 and is subnormal, below 1.18e-38: subnormals are flushed to zero (by a "
            "compiler's option such as -ffast-math or ftz, or by a mode of the processor)"
        )
    return None


def _ties(wrong: Array, tested: Optional[Array], strict: bool) -> Optional[str]:
    if tested is None or tested.shape != wrong.shape:
        return None
    # what follows the first difference of a neuron follows from it
    first = tested[wrong & (np.cumsum(wrong, axis=0) == 1)]
    if np.isnan(first).all():
        return "it starts where the potential is NaN, which never fires: was a NaN swallowed on the way?"
    if not (first == 0).all():
        return None
    rule = "> (a tie does not fire)" if strict else ">= (a tie fires)"
    return f"in every neuron it starts where the potential equals the threshold; this neuron compares with {rule}"


def _not_a_number(actual: Array, expected: Array) -> Optional[str]:
    made = int((np.isnan(actual) & ~np.isnan(expected)).sum())
    lost = int((~np.isnan(actual) & np.isnan(expected)).sum())
    if made:
        return f"{made} are NaN that should be numbers (0 * inf, or 0 / 0, in an arithmetic form of a choice?)"
    return f"{lost} are numbers that should be NaN: a NaN was swallowed on the way" if lost else None


def _ratio(actual: Array, expected: Array) -> Optional[str]:
    used = np.isfinite(expected) & np.isfinite(actual) & (np.abs(expected) > 1e-6)
    if not used.any() or not actual[used].all():
        return None
    ratios = actual[used] / expected[used]
    middle = float(np.median(ratios))
    if abs(middle - 1) < 1e-3 or np.abs(ratios - middle).max() > 1e-3 * abs(middle):
        return None
    if len(ratios) == 1 and min(abs(middle - simple) for simple in (2.0, 0.5, -1.0)) > 1e-5:
        return None  # one number is always some multiple of another
    return f"everything is {middle:.6g} times what it should be"


def _misplaced(actual: Array, expected: Array, near: Tolerance, axes: Sequence[str]) -> Optional[str]:
    """Hint that the values are those of another step, row or channel; None if they are not."""
    if tuple(axes[:1]) == ("t",) and actual.ndim > 1 and len(actual) > 2:
        if _is(actual[1:], expected[:-1], expected[1:], near):
            return "the values are those of the step before: one step late"
        if _is(actual[:-1], expected[1:], expected[:-1], near):
            return "the values are those of the step after: one step early"
    for axis, size in enumerate(actual.shape):
        if not 1 < size <= _LONGEST or actual.ndim < 2:
            continue
        came, right = np.moveaxis(actual, axis, 0), np.moveaxis(expected, axis, 0)
        sources = [next((j for j in range(size) if _close(row, right[j], near)), None) for row in came]
        if None not in sources and sources != list(range(size)):
            where = "t" if tuple(axes[axis : axis + 1]) == ("t",) else f"axis {axis}"
            some = ", ".join(map(str, sources[:8])) + (", ..." if size > 8 else "")
            return f"the values are right and in wrong places: along {where} came those of index {some}"
    return None


def _close(one: Array, other: Array, near: Tolerance) -> bool:
    return not different(one, other, near, time=False).any()


def _steps(wrong: Array) -> Optional[str]:
    if wrong.ndim < 2 or len(wrong) < 2:
        return None
    times = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
    first, last = int(times[0]), int(times[-1])
    if first and first % 16 == 0:
        return f"nothing differs before t={first}: what is carried over from one chunk of 16 steps to the next?"
    if last < len(wrong) - 1 and (last + 1) % 16 == 0:
        return f"nothing differs after t={last}: in the backward pass, what crosses the border of a chunk of 16 steps?"
    if first == last and first in (0, len(wrong) - 1):
        return "only the first step differs: what does it start from?" if not first else "only the last step differs"
    neurons = np.asarray(wrong.reshape(len(wrong), -1).any(axis=0))
    if neurons.sum() == 1 and neurons.size > 2 and neurons[-1]:
        return "only the last neuron differs: is the tail of an odd size handled?"
    return None


def _rounding(actual: Array, expected: Array, wrong: Array, tolerance: Tolerance) -> Optional[str]:
    a, e = actual[wrong], expected[wrong]
    if not (np.isfinite(a).all() and np.isfinite(e).all()):
        return None
    some = len(np.unique(a[a != 0])) > 2  # fewer are of any dtype by chance
    # the coarsest first: most of the values of bfloat16 are float16's as well
    for name, dtype in sorted(NARROW.items(), key=lambda item: -torch.finfo(item[1]).eps) if some else ():
        few = (_rounded(a, dtype) == a).all() and not (_rounded(e, dtype) == e).all()
        if (_rounded(e, dtype) == a).all() or (few and tolerance.rtol < 6e-4):  # a 16-bit result has a wider one
            return f"the values are rounded to {name}: state and arithmetic have more digits"
    off = np.abs(a - e)
    if not e.all() or not (off <= 1e-5 * np.abs(e)).all():
        return None
    if (e.astype(np.float32) == a).all():
        return (
            "the values are the right ones rounded to float32: float64 input has float64 state and arithmetic, and a "
            "parameter of float64 is read and gets its gradient in float64"
        )
    ulp = max(float(x) for x in off / np.spacing(np.abs(e).astype(np.float32)).astype(float))
    if not math.isfinite(ulp):
        return None  # beyond the range of float32
    if (a.astype(np.float32) != a).any() and (off > 1000 * np.spacing(np.abs(e))).any():
        return (
            f"float64 values are off by what float32 rounds ({math.ceil(ulp)} ulp of float32 at most): something on "
            "the way is float32, such as a parameter that is a number, or a constant"
        )
    return (
        f"the differences are of the size of rounding ({math.ceil(ulp)} ulp of float32 at most): keep to source order, "
        "contract nothing (FMA), and divide where the source divides"
    )


def _rounded(values: Array, dtype: torch.dtype) -> Array:
    return np.asarray(torch.from_numpy(np.ascontiguousarray(values)).to(dtype).double().numpy())
