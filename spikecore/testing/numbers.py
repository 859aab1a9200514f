"""The cost of arithmetic on a backend: errors of operations, subnormals, signs of zeros, NaN, and sums of products.

An operation is measured as users meet it: by a neuron whose dynamics are that operation, in float32. What is right is
computed by NumPy in float64, which carries 29 bits more. An error counts in units of the last place (ulp): the distance
of neighbouring numbers of float32 around the right value. A correctly rounded result is off by 0.5 at most.
"""

from __future__ import annotations

import operator
import re
from datetime import datetime, timezone
from itertools import product
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np
import torch

import spikecore as sc
from spikecore.backend import ANY_DEVICE, BackendError
from spikecore.testing._context import Context, choose_device, device_fault, device_name
from spikecore.testing._oracle import Array
from spikecore.testing._report import versions
from spikecore.testing._runner import prepare

#: Time steps of the calls: unrolled, and as a loop with a remainder.
_STEPS = (4, 20)
#: Values that are drawn of each kind, and from which seed.
_DRAWN, _SEED = 1 << 16, 20261130
_TINY, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
#: Edges of the range: zeros, the subnormal and the normal numbers, what has no number behind it.
_SMALL, _ONES = (0.0, 2.0**-149, _TINY - 2.0**-149, _TINY), (1 - 2.0**-24, 1.0, 1 + 2.0**-23, 3.0)
_EDGES = (*_SMALL, *_ONES, 1e30, _LARGEST, np.inf, np.nan)


class Operation(NamedTuple):
    """An operation of the language, and what it is of float64."""

    write: Callable[..., Any]
    exact: Callable[..., Array]
    arity: int
    #: Where the function has most of its values: numbers are drawn evenly from there, besides those of bit patterns.
    interval: Tuple[float, float] = (-8.0, 8.0)


#: Text -> operation.
OPERATIONS: Mapping[str, Operation] = {
    "a + b": Operation(operator.add, np.add, 2),
    "a - b": Operation(operator.sub, np.subtract, 2),
    "a * b": Operation(operator.mul, np.multiply, 2),
    "a / b": Operation(operator.truediv, np.divide, 2),
    "sqrt(a)": Operation(sc.ops.sqrt, np.sqrt, 1, (0.0, 8.0)),
    "exp(a)": Operation(sc.ops.exp, np.exp, 1, (-104.0, 89.0)),
    "log(a)": Operation(sc.ops.log, np.log, 1, (0.0, 4.0)),
    "tanh(a)": Operation(sc.ops.tanh, np.tanh, 1, (-10.0, 10.0)),
    "sin(a)": Operation(sc.ops.sin, np.sin, 1, (-100.0, 100.0)),
}


class _Written(sc.Neuron):
    """One operation on the inputs."""

    write: Any = None

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """The operation."""
        return self.write(*([x] if len(self.inputs) == 1 else x)), {}


class _Sum(sc.Neuron):
    """A product, and a sum."""

    inputs = ("a", "b", "c")

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """The sum."""
        return x[0] * x[1] + x[2], {}


class _Carried(sc.Neuron):
    """The same with the state as a factor, as a leaky membrane has it."""

    inputs = ("b", "c")
    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """The sum is the new state."""
        v = s.v * x[0] + x[1]
        return v, {"v": v}


#: Text -> neuron with a sum of a product.
SUMS: Mapping[str, Type[sc.Neuron]] = {"a * b + c": _Sum, "v = v * b + c": _Carried}


def measure(name: str, device: Optional[str] = None) -> Dict[str, Any]:
    """The report of a backend on a device, for JSON: ``backend``, ``device``, ``versions``, ``date``, ``dtype``, and
    ``operations`` and ``fused``, text -> numbers.

    Of an operation: ``values`` that were computed; the largest error ``ulp`` where neither an argument nor the right
    result is subnormal, and the arguments ``at`` which it is; how many of those were ``misrounded``, had a zero of the
    wrong sign (``wrong_zeros``), a NaN too few or too many (``wrong_nans``), or another number for an infinity
    (``wrong_infinities``). Beside subnormal numbers: how many were ``flushed``, computed with zeros in their place, and
    the largest error of the others (``subnormal_ulp``). One that the backend refused has ``refused``, its words.
    ``fused`` has of sums of a product how many ``values`` were computed, and how many were ``fused``, rounded once.

    Raises ``BackendError`` for a backend that is unknown, broken or not usable here, and ``ValueError`` for a device
    that there is not, or that it does not compute on.
    """
    bench = prepare(name, device)
    context = Context(bench.backend, bench.device)
    return {
        "backend": name,
        "device": {"device": bench.device, "name": device_name(bench.device)},
        "versions": versions(name),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "dtype": "float32",
        "operations": {text: _of(context, operation) for text, operation in OPERATIONS.items()},
        "fused": {text: _fused(context, neuron) for text, neuron in SUMS.items()},
    }


def devices_here(devices: Sequence[str]) -> List[str]:
    """The device types of a backend that this machine has, the CPU first."""
    kinds = ("cpu", "cuda", "mps", "xpu", "hpu") if ANY_DEVICE in devices else devices
    return [kind for kind in kinds if device_fault(kind) is None] or [choose_device(devices)]


#: Key of a report -> type; the keys of an operation in it.
_KEYS = {"backend": str, "device": dict, "versions": dict, "date": str, "dtype": str, "operations": dict, "fused": dict}
_WRONG = ("zeros", "nans", "infinities")
_OF_OPERATION = ("values", "ulp", "at", "misrounded", *(f"wrong_{what}" for what in _WRONG), "flushed", "subnormal_ulp")


def check(report: Mapping[str, Any]) -> None:
    """Raise ``ValueError``, with key and value, for what :func:`measure` does not give."""
    again = "it must be what `spikecore backends --numbers --into DIR` writes"
    for key, kind in _KEYS.items():
        if not isinstance(report.get(key), kind):
            raise ValueError(f"{key}: {report.get(key)!r} is no {kind.__name__}; {again}")
    for text, found in report["operations"].items():
        missing = [key for key in _OF_OPERATION if key not in found]
        if missing and "refused" not in found:
            raise ValueError(f"operations: {text!r} has no {', '.join(missing)}; {again}")


def file_name(report: Mapping[str, Any]) -> str:
    """A file's name for a report: backend, device, and what computes."""
    by = report["versions"].get("by", "").partition(",")[0]
    words = f"{report['backend']} {report['device']['device']} {report['device']['name']} {by}".lower()
    return f"{re.sub('[^a-z0-9]+', '-', words).strip('-')}.json"


#: Titles of :func:`table`.
COLUMNS = ("operation", "largest error, ulp", "at", "misrounded", "subnormals", "zeros, NaN, infinities")


def table(report: Mapping[str, Any]) -> List[Tuple[str, ...]]:
    """The rows of a report of :func:`measure`, as words."""
    rows: List[Tuple[str, ...]] = []
    for text, found in report["operations"].items():
        if "refused" in found:
            rows.append((text, "refused", "", "", "", found["refused"].partition("\n")[0]))
            continue
        wrong = [f"{found[f'wrong_{what}']:,} {what}" for what in _WRONG if found[f"wrong_{what}"]]
        share = found["misrounded"] / found["values"]
        subnormals = "flushed" if found["flushed"] else "kept"
        if found["subnormal_ulp"] > max(found["ulp"], 1.0):
            subnormals += f", {found['subnormal_ulp']:g} ulp"
        at = ", ".join(f"{arg:.6g}" for arg in found["at"]) if share else ""
        words = (subnormals, f"wrong: {', '.join(wrong)}" if wrong else "right")
        rows.append((text, f"{found['ulp']:.3g}", at, f"{share:.2%}" if share else "none", *words))
    return rows


def contraction(report: Mapping[str, Any]) -> str:
    """A sentence about sums of products."""
    said = []
    for text, found in report["fused"].items():
        share = found.get("fused", 0) / found.get("values", 1)
        word = "not fused" if not share else "fused" if share == 1 else f"fused in {share:.0%} of the values"
        said.append(f"{text} is {'refused' if 'refused' in found else word}")
    return "; ".join(said)


# -- values


def values_of(operation: Operation) -> Tuple[Array, ...]:
    """Arguments in float32: edges of the range, all bit patterns, and numbers of usual size. The same at each call."""
    rng = np.random.default_rng(_SEED)
    edges = np.array([sign * edge for edge in _EDGES for sign in (1.0, -1.0)], np.float32)
    columns = [*np.array([*product(edges, repeat=operation.arity)], np.float32).T]
    patterns = [rng.integers(0, 1 << 32, _DRAWN, dtype=np.uint32).view(np.float32) for _ in columns]
    patterns = [np.where(np.isnan(one), np.float32(np.nan), one) for one in patterns]  # no signalling NaN
    usual = [rng.uniform(*operation.interval, _DRAWN).astype(np.float32) for _ in columns]
    # of all sizes near 1, the second argument near the first
    sizes = rng.uniform(-30.0, 30.0, _DRAWN)
    near = [np.exp2(sizes + k * rng.uniform(-4.0, 4.0, _DRAWN)).astype(np.float32) for k in range(len(columns))]
    signed = [np.copysign(one, rng.uniform(-1.0, 1.0, _DRAWN)).astype(np.float32) for one in near]
    small = [one * np.float32(2.0**-125) for one in signed]  # has subnormal sums; the next has such quotients
    parts = [np.concatenate(part) for part in zip(columns, patterns, usual, signed, small, [*small[:1], *signed[1:]])]
    size = -(-len(parts[0]) // max(_STEPS)) * max(_STEPS)  # a multiple of each number of steps
    return tuple(np.resize(part, size) for part in parts)


def _computed(context: Context, neuron: sc.Neuron, inputs: Sequence[Array], steps: int) -> Array:
    """The neuron's outputs for these inputs, which are cut into time steps; in float64."""
    with torch.no_grad(), np.errstate(all="ignore"):
        out = context.place(neuron)(*(context.tensor(values.reshape(steps, -1)) for values in inputs))
        return np.asarray(out.cpu().numpy().reshape(-1), np.float64)


# -- errors


def _of(context: Context, operation: Operation) -> Dict[str, Any]:
    """The numbers of one operation, of the calls together."""
    names = {"inputs": ("a", "b")[: operation.arity], "write": staticmethod(operation.write)}
    neuron: sc.Neuron = type("Measured", (_Written,), names)(backend=context.name)
    args = values_of(operation)
    try:
        got = [_computed(context, neuron, args, steps) for steps in _STEPS]
    except BackendError as error:
        return {"refused": str(error)}
    return errors(np.concatenate(got), operation.exact, [np.tile(arg, len(_STEPS)) for arg in args])


def errors(got: Array, exact: Callable[..., Array], args: Sequence[Array]) -> Dict[str, Any]:
    """The numbers of results, as :func:`measure` says; ``exact`` is the operation in float64."""
    with np.errstate(all="ignore"):
        wide = [np.asarray(arg, np.float64) for arg in args]
        value, zeroed = exact(*wide), exact(*map(_flush, wide))
        right, off = np.asarray(value.astype(np.float32), np.float64), ulps(got, value)
    subnormal = np.any([~_same(_flush(one), one) for one in (*wide, value)], axis=0)
    ways = [zeroed, _flush(zeroed), _flush(right)]
    flushed = subnormal & ~_same(got, right) & np.any([_same(got, way) for way in ways], axis=0)
    normal, finite = ~subnormal, np.isfinite(value) & ~np.isnan(got)
    worst = int(np.argmax(np.where(normal & finite, off, -1.0)))
    signs = (right == 0) & (got == 0) & (np.signbit(got) != np.signbit(right))
    return {
        "values": int(got.size),
        "ulp": round(float(off[worst]), 3),
        "at": [float(arg[worst]) for arg in args],
        "misrounded": int(np.sum(normal & finite & (got != right))),
        "wrong_zeros": int(np.sum(normal & signs)),
        "wrong_nans": int(np.sum(normal & (np.isnan(got) != np.isnan(value)))),
        "wrong_infinities": int(np.sum(normal & np.isinf(value) & (got != value) & ~np.isnan(got))),
        "flushed": int(np.sum(flushed)),
        "subnormal_ulp": round(float(np.max(off, where=subnormal & finite & ~flushed, initial=0.0)), 3),
    }


def _flush(values: Array) -> Array:
    """Subnormal numbers as zeros of their sign."""
    return np.asarray(np.where(np.abs(values) < _TINY, np.copysign(0.0, values), values))


def _same(a: Array, b: Array) -> Array:
    """True where both are equal, or NaN."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def ulps(got: Array, exact: Array) -> Array:
    """Errors in units of the last place of float32 at the exact values. An infinity counts as 2^128, behind the largest
    number.
    """
    end = 2.0**128
    got, exact = np.clip(got, -end, end), np.clip(exact, -end, end)
    exponent = np.clip(np.frexp(exact)[1] - 1, -126, 127)
    return np.asarray(np.abs(got - exact) / np.exp2(exponent - 23.0))


def _fused(context: Context, neuron: Type[sc.Neuron]) -> Dict[str, Any]:
    """The number of fused sums. ``c`` is the negative rounded product: a sum is 0, or fused the rest of the product."""
    rng = np.random.default_rng(_SEED)
    a, b = (rng.uniform(1.0, 2.0, _DRAWN).astype(np.float32) for _ in range(2))
    c = -(a * b)
    rest = np.asarray(a, np.float64) * b + c
    chosen = np.flatnonzero(rest)  # the other sums are 0, fused or not
    chosen = chosen[: len(chosen) // max(_STEPS) * max(_STEPS)]
    fused = 0
    try:
        for steps in _STEPS:
            a_t, b_t, c_t = (one[chosen].reshape(steps // 2, 1, -1) for one in (a, b, c))
            # a sum at each second step: the state has a from the step before
            rows = [(0 * b_t, b_t), (a_t, c_t)] if "v" in neuron.states else [(a_t, a_t), (b_t, b_t), (c_t, c_t)]
            inputs = [np.concatenate(pair, axis=1).reshape(-1) for pair in rows]
            got = _computed(context, neuron(backend=context.name), inputs, steps)
            fused += int(np.sum(got.reshape(steps, -1)[1::2].reshape(-1) == rest[chosen]))
    except BackendError as error:
        return {"refused": str(error)}
    return {"values": len(chosen) * len(_STEPS), "fused": fused}
