"""Comparing what came with what is right, in words that lead to the error.

A message says what was compared and of which neuron, where the first difference is, how near the threshold the
potential was there, and, where the differences have a pattern, what usually makes that pattern.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._hints import different, hints
from spikecore.testing._oracle import Array
from spikecore.testing._subnormal import ALONE, beside
from spikecore.testing.tolerances import EXACT, Tolerance


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
    differ, the message says so (:mod:`spikecore.testing._subnormal`). ``conditioning`` is asked, where values differ,
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
    patterns = hints(actual, expected, wrong, tolerance=tolerance, tested=tested, strict=strict, axes=names)
    lines += [f"  hint: {hint}" for hint in patterns]
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
