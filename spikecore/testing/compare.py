"""Comparing what came with what is right, in words that lead to the error.

A message says what was compared and of which neuron, where the first difference is, how near the threshold the
potential was there, and, where the differences have a pattern, what usually makes that pattern.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._oracle import Array
from spikecore.testing.tolerances import EXACT, Tolerance

#: The smallest normal number of float32.
_TINY = float(np.finfo(np.float32).tiny)
#: In the text of a difference: wherever numbers differ, one of those compared there, or an argument, is subnormal.
ALONE = "each of these is beside a subnormal number"


class Mismatch(AssertionError):
    """The backend computed something else than the oracle."""


def as_array(value: Tensor) -> Array:
    """A tensor's values in float64."""
    return np.asarray(value.detach().to("cpu").double().numpy())


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
    right: str = "the oracle",
    there: Optional[Mapping[str, Array]] = None,
    arithmetic: Any = np.float32,
    conditioning: Optional[Callable[[], Array]] = None,
) -> None:
    """Raise :class:`Mismatch` unless ``actual`` is ``expected`` within the tolerance; NaN equals NaN.

    ``axes`` are the names of the axes, ``"t"`` for time: the tolerance grows with the largest value of a neuron over
    time, and with no other neuron's.
    ``tested`` is the potential minus threshold, of the same shape; ``strict`` says that a tie does not fire. ``right``
    is where the expected values are from. ``there`` are further values, such as arguments, to show at the first
    difference; if one of those compared or of these is subnormal in the dtype of ``arithmetic`` wherever numbers
    differ, the message says so (:data:`ALONE`). ``conditioning`` is asked, where values differ,
    for how far each may be off beside the tolerance (:mod:`spikecore.testing.conditioning`).
    """
    expected = np.asarray(expected, float)
    if actual.shape != expected.shape:
        raise Mismatch(f"{what} of {of}: the shape is {list(actual.shape)}, expected {list(expected.shape)}")
    names = _names(axes, actual.ndim)
    wrong = different(actual, expected, tolerance, time=names[:1] == ["t"])
    limits = conditioning() if wrong.any() and conditioning is not None else None
    if limits is not None:
        with np.errstate(invalid="ignore"):
            wrong &= ~(np.abs(actual - expected) <= limits)
    if not wrong.any():
        return
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    limit = "exactly" if tolerance == EXACT else f"within rtol {tolerance.rtol:g}, atol {tolerance.atol:g}"
    lines = [
        f"{what} of {of}",
        f"  {int(wrong.sum())} of {wrong.size} differ from {right} ({limit} expected)",
        f"  first at {_place(first, axes)}: got {actual[first]!s}, expected {expected[first]!s}",
    ]
    if limits is not None:
        lines.append(f"  ill-conditioned there: sound values may be {limits[first]:.3g} apart")
    if tested is not None and tested.shape == expected.shape:
        lines.append(f"  potential minus threshold there: {tested[first]:.9g}")
    for name, values in (there or {}).items():
        lines.append(f"  {name} there: {values[first]!s}")
    if there and beside(wrong, [*there.values(), expected], arithmetic):
        lines.append(f"  {ALONE}")
    lines += [f"  hint: {hint}" for hint in _hints(actual, expected, wrong, tested, strict)]
    raise Mismatch("\n".join(lines))


def backward(of: str, results: Sequence[Tensor], cotangents: Sequence[Tensor], **options: Any) -> None:
    """Run backwards from some results; raise :class:`Mismatch` if one of them has no graph, or if a cotangent is
    written to. What is right is computed from the cotangents, later, so nothing else would show it.
    """
    for i, result in enumerate(results):
        if not result.requires_grad:
            which = f"result {i} of " if len(results) > 1 else ""
            raise Mismatch(
                f"{which}{of}: there is no gradient; the result is not connected to what it was computed from"
            )
    kept = [cotangent.clone() for cotangent in cotangents]
    torch.autograd.backward(list(results), list(cotangents), **options)
    unchanged("the gradient that came in", of, cotangents, kept)


def unchanged(what: str, of: str, now: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Raise :class:`Mismatch` if one of these tensors of the caller's was written to."""
    for i, (tensor, kept) in enumerate(zip(now, before)):
        wrong = different(as_array(tensor), as_array(kept), EXACT)
        if wrong.any():
            which = f"{what}{f' of result {i}' if len(now) > 1 else ''}"
            raise Mismatch(
                f"{which} of {of}: {int(wrong.sum())} of {wrong.size} values were written to\n"
                "  hint: it is the caller's memory, and others read it later: clone it before it is used as scratch"
            )


def _names(axes: str, dims: int) -> List[str]:
    names = [name.strip() for name in axes.split(",")] if axes else []
    return names + [""] * (dims - len(names))


def _place(index: Tuple[int, ...], axes: str) -> str:
    names = _names(axes, len(index))
    return "(" + ", ".join(f"{name}={i}" if name else str(i) for name, i in zip(names, index)) + ")"


# -- patterns


@np.errstate(all="ignore")  # a warning that is an error would hide the difference
def _hints(actual: Array, expected: Array, wrong: Array, tested: Optional[Array], strict: bool) -> List[str]:
    """At most three sentences on what usually makes differences like these. One that explains every value stands alone,
    and a pattern that the right values have as well says nothing.
    """
    explained = _zeros_alone(actual, expected, wrong)
    if explained:
        return [explained]
    found = [_ties(wrong, tested, strict), _not_a_number(actual, expected)]
    if expected.any() and not actual.any():
        found.append("all values that came are 0: is this connected at all?")
    if not any(found):
        found += [_ratio(actual, expected), _rounding(actual, expected, wrong)]
    return [hint for hint in found if hint]


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


def _rounding(actual: Array, expected: Array, wrong: Array) -> Optional[str]:
    came, right = actual[wrong], expected[wrong]
    off = np.abs(came - right)
    if not right.all() or not (off <= 1e-5 * np.abs(right)).all():
        return None
    ulp = float((off / np.spacing(np.abs(right).astype(np.float32))).max())
    if not math.isfinite(ulp):
        return None  # beyond the range of float32
    return (
        f"the differences are of the size of rounding ({math.ceil(ulp)} ulp of float32 at most): keep to source order, "
        "contract nothing (FMA), divide where the source divides, and compute with float64 where the input has it"
    )


# -- subnormal numbers: an excuse covers a text (:class:`~spikecore.testing.ExpectedFailure`), and a text that names the
# first difference says nothing of the others. So ALONE stands in it only where it is true of all of them.


def beside(wrong: Array, values: Sequence[Array], dtype: Any) -> bool:
    """True if one of the ``values`` is subnormal in ``dtype``, that of arithmetic, wherever ``wrong`` is true."""
    tiny = float(np.finfo(dtype).tiny)
    sizes = [np.abs(np.asarray(value, np.float64)) for value in values]
    near = np.any([(size > 0) & (size < tiny) for size in sizes], axis=0)
    return bool(near[wrong].all())


def foremost(checks: Iterable[Callable[[], None]], kind: Type[BaseException]) -> None:
    """Run every check. Raises the first exception of this ``kind`` whose text does not have :data:`ALONE`, else the
    first one that has it.
    """
    alone: Optional[BaseException] = None
    for check in checks:
        try:
            check()
        except kind as error:
            if ALONE not in str(error):
                raise
            alone = alone or error
    if alone is not None:
        raise alone
