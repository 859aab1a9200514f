"""Comparing what came with what is right, in words that lead to the error.

A message says what was compared and of which neuron, where the first difference is, how near the threshold the
potential was there, and, where the differences have a pattern, what usually makes that pattern.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.testing.oracle import Array
from spikecore.testing.tolerances import EXACT, Tolerance

#: What else the values might be: a phrase -> a function that computes them.
Suspects = Mapping[str, Callable[[], Any]]


class Mismatch(AssertionError):
    """The backend computed something else than the oracle."""


def as_array(value: Tensor) -> Array:
    """A tensor's values in float64."""
    return np.asarray(value.detach().to("cpu").double().numpy())


def same(
    what: str,
    of: str,
    actual: Array,
    expected: Array,
    tolerance: Tolerance = EXACT,
    *,
    tested: Optional[Array] = None,
    strict: bool = False,
    axes: str = "t, n",
    suspects: Optional[Suspects] = None,
) -> None:
    """Raise :class:`Mismatch` unless ``actual`` is ``expected`` within the tolerance; NaN equals NaN.

    ``tested`` is the potential minus threshold, of the same shape; ``strict`` says that a tie does not fire.
    """
    expected = np.asarray(expected, float)
    if actual.shape != expected.shape:
        raise Mismatch(f"{what} of {of}: the shape is {list(actual.shape)}, expected {list(expected.shape)}")
    wrong = different(actual, expected, tolerance)
    if not wrong.any():
        return
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    limit = "exactly" if tolerance == EXACT else f"within rtol {tolerance.rtol:g}, atol {tolerance.atol:g}"
    lines = [
        f"{what} of {of}",
        f"  {int(wrong.sum())} of {wrong.size} differ from the oracle ({limit} expected)",
        f"  first at {_place(first, axes)}: got {actual[first]!s}, expected {expected[first]!s}",
    ]
    if tested is not None and tested.shape == expected.shape:
        lines.append(f"  potential minus threshold there: {tested[first]:.9g}")
    hints = [hint for hint in _hints(actual, expected, wrong, tested, strict, tolerance) if hint]
    hints += _matching(actual, suspects or {}, tolerance)
    lines += [f"  hint: {hint}" for hint in hints]
    raise Mismatch("\n".join(lines))


def backward(of: str, results: Sequence[Tensor], cotangents: Sequence[Tensor], **options: Any) -> None:
    """Run backwards from some results; raise :class:`Mismatch` if one of them has no graph."""
    for i, result in enumerate(results):
        if not result.requires_grad:
            which = f"result {i} of " if len(results) > 1 else ""
            raise Mismatch(
                f"{which}{of}: there is no gradient; the result is not connected to what it was computed from"
            )
    torch.autograd.backward(list(results), list(cotangents), **options)


def different(actual: Array, expected: Array, tolerance: Tolerance) -> Array:
    """Where the values differ by more than the tolerance."""
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.abs(expected[np.isfinite(expected)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        near = np.abs(actual - expected) <= tolerance.rtol * np.abs(expected) + tolerance.atol * scale
    equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    wrong: Array = ~(equal | near)
    return wrong


def _place(index: Tuple[int, ...], axes: str) -> str:
    names = [name.strip() for name in axes.split(",")] if axes else []
    if len(index) > len(names):
        names += [""] * (len(index) - len(names))
    return "(" + ", ".join(f"{name}={i}" if name else str(i) for name, i in zip(names, index)) + ")"


def _hints(
    actual: Array, expected: Array, wrong: Array, tested: Optional[Array], strict: bool, tolerance: Tolerance
) -> Iterator[Optional[str]]:
    yield _ties(wrong, tested, strict)
    yield _not_a_number(actual, expected, wrong)
    yield _zeros(actual, expected)
    yield _ratio(actual, expected)
    yield _shifted(actual, expected, tolerance)
    yield _places(wrong)
    yield _rounding(actual, expected, wrong)


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


def _not_a_number(actual: Array, expected: Array, wrong: Array) -> Optional[str]:
    made = int((np.isnan(actual) & ~np.isnan(expected)).sum())
    lost = int((~np.isnan(actual) & np.isnan(expected)).sum())
    if made:
        return f"{made} are NaN that should be numbers (0 * inf, or 0 / 0, in an arithmetic form of a choice?)"
    return f"{lost} are numbers that should be NaN: a NaN was swallowed on the way" if lost else None


def _zeros(actual: Array, expected: Array) -> Optional[str]:
    return "all values that came are 0: is this connected at all?" if expected.any() and not actual.any() else None


def _ratio(actual: Array, expected: Array) -> Optional[str]:
    used = np.isfinite(expected) & np.isfinite(actual) & (np.abs(expected) > 1e-6)
    if not used.any() or not actual[used].all():
        return None
    ratios = actual[used] / expected[used]
    middle = float(np.median(ratios))
    if abs(middle - 1) < 1e-3 or np.abs(ratios - middle).max() > 1e-3 * abs(middle):
        return None
    if len(ratios) == 1 and min(abs(middle - simple) for simple in (2.0, 0.5, -1.0)) > 1e-3:
        return None  # one number is always some multiple of another
    return f"everything is {middle:.6g} times what it should be"


def _shifted(actual: Array, expected: Array, tolerance: Tolerance) -> Optional[str]:
    if actual.ndim < 2 or len(actual) < 3:
        return None
    near = Tolerance(max(tolerance.rtol, 1e-6), max(tolerance.atol, 1e-9))
    if not different(actual[1:], expected[:-1], near).any():
        return "the values are those of the step before: one step late"
    if not different(actual[:-1], expected[1:], near).any():
        return "the values are those of the step after: one step early"
    if not different(actual[::-1], expected, near).any():
        return "time runs backwards"
    return None


def _places(wrong: Array) -> Optional[str]:
    if wrong.ndim < 2 or len(wrong) < 2:
        return None
    times = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
    first, last = int(times[0]), int(times[-1])
    if first and first % 16 == 0:
        return f"nothing differs before t={first}: what is carried over from one chunk of 16 steps to the next?"
    if last < len(wrong) - 1 and (last + 1) % 16 == 0:
        return f"nothing differs after t={last}: in the backward pass, what crosses the border of a chunk of 16 steps?"
    if first == last == len(wrong) - 1:
        return "only the last step differs"
    if first == last == 0:
        return "only the first step differs: what does it start from?"
    columns = np.asarray(wrong.reshape(len(wrong), -1).any(axis=0))
    if columns.sum() == 1 and columns.size > 2 and columns[-1]:
        return "only the last neuron differs: is the tail of an odd size handled?"
    return None


def _rounding(actual: Array, expected: Array, wrong: Array) -> Optional[str]:
    a, e = actual[wrong], expected[wrong]
    if not (np.isfinite(a).all() and np.isfinite(e).all()):
        return None
    off = np.abs(a - e)
    if not e.all() or not (off <= 1e-5 * np.abs(e)).all():
        half = np.float16(e).astype(float)
        return "the values are rounded to float16: state and arithmetic are float32" if (half == a).all() else None
    ulp = max(float(x) for x in off / np.spacing(np.abs(e).astype(np.float32)).astype(float))
    return (
        f"the differences are of the size of rounding ({math.ceil(ulp)} ulp of float32 at most): keep to source order, "
        "contract nothing (FMA), and divide where the source divides"
    )


def _matching(actual: Array, suspects: Suspects, tolerance: Tolerance) -> List[str]:
    near = Tolerance(max(tolerance.rtol, 1e-4), max(tolerance.atol, 1e-5))
    found = []
    for phrase, compute in suspects.items():
        value = np.asarray(compute(), float)
        if value.shape == actual.shape and not different(actual, value, near).any():
            found.append(f"the values are those {phrase}")
    return found[:3]
