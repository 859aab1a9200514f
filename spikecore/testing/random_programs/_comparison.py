"""Results and gradients of a case compared with what the oracle gives, to within what rounding may make of them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from spikecore.testing._oracle.rules import Array
from spikecore.testing._subnormal import beside
from spikecore.testing.random_programs._call import Difference
from spikecore.testing.random_programs._case import Case, rounded
from spikecore.testing.random_programs._oracle import Run
from spikecore.testing.random_programs._step import RATE

#: Tolerance of a result: so many times the change that trial errors in its operations caused, plus so many units in the
#: last place.
FACTOR, ULPS = 4.0, 32.0
#: Relative error of a sum of many terms, to their sizes.
SUMMED = {"float64": 1e-13}
#: Half a unit in the last place of a result that is rounded to 16 bits, and its smallest number; generous by two.
ROUNDED = {"float16": (2.0**-10, 2.0**-23), "bfloat16": (2.0**-7, 2.0**-120)}
#: The largest number of float16, and the one from which on everything rounds to infinity.
LARGEST_HALF, BEYOND_HALF = 65504.0, 65520.0


def compare(what: str, ours: Any, wanted: Array, tolerance: Optional[Array], told: str) -> None:
    """Raise :class:`Difference` unless ``ours`` is ``wanted``: to the bit, or within a tolerance; NaN equals NaN."""
    if ours is None or ours.shape != wanted.shape:
        shape = "None" if ours is None else f"of shape {ours.shape}"
        raise Difference(f"{what} is {shape}, should be of shape {wanted.shape}\n{told}")
    if tolerance is None:
        same = (ours == wanted) & (np.signbit(ours) == np.signbit(wanted))
    else:
        with np.errstate(invalid="ignore"):
            same = (np.abs(ours - wanted) <= tolerance) | (ours == wanted)
    same |= np.isnan(ours) & np.isnan(wanted)
    if not same.all():
        at = tuple(int(i) for i in np.argwhere(~same)[0])
        alone = beside(~same, [wanted]) if (ours[~same] == 0).all() else ""
        within = "" if tolerance is None else f" to within {np.broadcast_to(tolerance, wanted.shape)[at]:.3g}"
        raise Difference(
            f"{what}{list(at)} is {ours[at]!r}, should be {wanted[at]!r}{within}; {(~same).sum()} of {same.size} "
            f"differ{alone and f', {alone}'}\n{told}"
        )


def compared(case: Case, found: Dict[str, Any], step: bool) -> List[Tuple[str, Any, Array, Optional[Array]]]:
    """(what, found, wanted, tolerance), None for the very bits, of everything that was found."""
    names = _rows(case)
    rows: List[Tuple[str, Any, Array, Optional[Array]]] = []
    for name, ours in found.items():
        base, others, kind = names[name]
        stored = _stored(case, name, kind)
        if kind in ("output", "state") and case.exact:
            rows.append((name, ours, rounded(base, stored).astype(np.float64), None))
            continue
        wanted = base.astype(np.float64)
        size = _finite(wanted)
        with np.errstate(invalid="ignore"):
            spread = np.max([_finite(other.astype(np.float64) - wanted) for other in others], axis=0)
        eps = float(np.finfo(case.compute).eps)
        top = size.max(axis=0, initial=0.0) if kind in ("output", "input") else size
        tolerance = FACTOR * spread + ULPS * eps * (top + size) + 1e-30
        if kind == "param":
            # a parameter that a state starts from has two sums, added in its own dtype
            sizes = _finite(_shaped(case, name, case.expected.sizes))
            if step:  # the gradient is the change of a float32 value, which was rounded
                tolerance = tolerance + float(np.finfo(np.float32).eps) * (
                    np.abs(case.params[name[len("gradient of ") :]]) / RATE + size
                )
            tolerance = tolerance + (SUMMED.get(case.dtype, 4e-6) + float(np.finfo(np.float32).eps)) * sizes
        relative, least = ROUNDED.get(stored, (0.0, 0.0))
        if kind == "input" and case.around.same_input:  # two gradients, rounded before they are added
            size = size + sum(_finite(g) for g in case.expected.inputs)
        tolerance = tolerance + relative * size + least
        rows.append(
            (name, *_as_half(ours, wanted, tolerance)) if stored == "float16" else (name, ours, wanted, tolerance)
        )
    return rows


def _stored(case: Case, name: str, kind: str) -> str:
    """The dtype of a result."""
    if kind in ("output", "input"):
        return case.dtype
    if kind == "param" and case.around.param_dtype and case.kinds[name[len("gradient of ") :]] != "number":
        return case.around.param_dtype
    return "float64" if case.dtype == "float64" else "float32"


def _finite(values: Array) -> Array:
    """Sizes, 0 for infinities and NaN: those have no tolerance."""
    return np.asarray(np.where(np.isfinite(values), np.abs(values), 0.0), np.float64)


def _as_half(ours: Any, wanted: Array, tolerance: Array) -> Tuple[Any, Array, Array]:
    """What float16 holds of the numbers: infinity where they are surely beyond its range, either near its end."""
    with np.errstate(invalid="ignore"):
        beyond = np.abs(wanted) - tolerance >= BEYOND_HALF
        near = ~beyond & (np.abs(wanted) + tolerance > LARGEST_HALF)
    if ours is not None and ours.shape == wanted.shape:
        ours = np.where(near & np.isinf(ours), np.copysign(LARGEST_HALF, ours), ours)
    return ours, np.where(beyond, np.copysign(np.inf, wanted), wanted), np.where(beyond, 0.0, tolerance)


def _rows(case: Case) -> Dict[str, Tuple[Array, List[Array], str]]:
    """Name -> what the oracle gives without and with errors, and which kind of result it is."""
    runs = [case.expected, *case.others]

    def row(pick: Callable[[Run], Array], kind: str) -> Tuple[Array, List[Array], str]:
        base, *others = [pick(run) for run in runs]
        return base, others, kind

    def of(part: str, key: Any) -> Callable[[Run], Array]:
        return lambda run: np.asarray(getattr(run, part)[key])

    def of_param(name: str) -> Callable[[Run], Array]:
        return lambda run: _shaped(case, name, run.params)

    rows: Dict[str, Tuple[Array, List[Array], str]] = {}
    for k in range(len(case.tree.outputs)):
        rows[f"output {k}"] = row(of("outputs", k), "output")
    for n in case.tree.states:
        rows[f"trace of {n}"] = row(of("trace", n), "state")
        rows[f"final {n}"] = row(of("final", n), "state")
        rows[f"gradient of state {n}"] = row(of("state", n), "gradient")
    for k, n in enumerate(case.tree.inputs):
        rows[f"gradient of input {n}"] = row(of("inputs", k), "input")
    if case.around.same_input:
        rows[f"gradient of input {case.tree.inputs[0]}"] = row(lambda run: run.inputs[0] + run.inputs[1], "input")
    for n in case.tree.params:
        rows[f"gradient of {n}"] = row(of_param(f"gradient of {n}"), "param")
    return rows


def _shaped(case: Case, name: str, per_neuron: Dict[str, Array]) -> Array:
    """A parameter's numbers summed over the neurons that share it."""
    name = name[len("gradient of ") :]
    value, size = per_neuron[name], case.params[name].shape
    aligned = (1,) * (value.ndim - len(size)) + size
    shared = tuple(d for d in range(value.ndim) if aligned[d] == 1)
    return np.asarray(value.sum(axis=shared).reshape(size))
