"""Results in 16 bits at the ends of their range: rounded once, infinite beyond it, subnormals kept, NaN kept."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping

import numpy as np
import torch

import spikecore as sc
from spikecore.dtypes import DTYPES, NARROW
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context
from spikecore.testing._oracle import Array
from spikecore.testing._subnormal import beside


class Square(sc.Neuron):
    """``x x - 16``: of 256 it is 65520, half way between the largest float16 and what is infinite."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """No state."""
        return x * x - 16.0, {}


def add_to(cases: Collection) -> None:
    """Add the cases of 16 bits to the tier of edges."""
    for dtype in NARROW:
        cases.add(
            f"edges/output-{dtype}",
            "edges",
            "arithmetic is float32, and the output is rounded once: ties to even, infinite beyond the range",
            partial(output, dtype=dtype),
            dtype=dtype,
        )
        cases.add(
            f"edges/input-gradient-{dtype}",
            "edges",
            "the gradient of a 16-bit input is rounded once: infinite beyond the range, NaN where it is NaN",
            partial(gradient, dtype=dtype),
            ("gradients",),
            dtype=dtype,
        )


def halved(x: Array, dtype: str) -> Array:
    """float32 numbers rounded to 16 bits, ties to even, as float64."""
    return _HALVED[dtype](np.asarray(x, np.float32))


def _as_float16(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(float)


def _as_bfloat16(x: Array) -> Array:
    bits = x.view(np.uint32).astype(np.uint64)
    kept = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), x, kept).astype(float)


_HALVED: Mapping[str, Callable[[Array], Array]] = {"float16": _as_float16, "bfloat16": _as_bfloat16}


def points(dtype: str) -> Array:
    """Numbers of the dtype: odd ones, whose squares less 16 are ties in float16, and the ends of the range."""
    ends = [1e-4, 2.4e-4, 6e-8, -6e-8, 255.875, 256.0, -256.25, 65504.0, 1e19, -2e19, 3e38, 1e-20, 3e-20, 1e-39]
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.0, 4.0, *range(-63, 64, 2)]
    return halved(np.asarray([*odd, *ends]), dtype)


def output(context: Context, dtype: str) -> None:
    """To the bit."""
    x = points(dtype)
    neuron = context.place(Square(backend=context.name))
    got = neuron(context.tensor(x[None], DTYPES[dtype]))
    single = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        wanted = halved(single * single - np.float32(16.0), dtype)
    _same(f"the output in {dtype}", {"x": x}, wanted, got, DTYPES[dtype])


def gradient(context: Context, dtype: str) -> None:
    """Each point with each of some cotangents, to the bit."""
    x, g = (one.ravel() for one in np.meshgrid(points(dtype), halved(_COTANGENTS, dtype)))
    given = context.tensor(x[None], DTYPES[dtype], grad=True)
    out = context.place(Square(backend=context.name))(given)
    (got,) = torch.autograd.grad(out, given, context.tensor(g[None], DTYPES[dtype]))
    with np.errstate(all="ignore"):
        product = np.asarray(g, np.float32) * np.asarray(x, np.float32)
        wanted = halved(product + product, dtype)
    _same(f"the gradient of a {dtype} input", {"x": x, "cotangent": g}, wanted, got, DTYPES[dtype])


#: Cotangents: where the gradient overflows, is NaN, and is subnormal.
_COTANGENTS = np.asarray([0.0, 1.0, -1.5, 65504.0, -3e38, 6e-8, np.inf, np.nan])


def _same(what: str, at: Any, wanted: Array, got: Any, dtype: torch.dtype) -> None:
    if got.dtype != dtype:
        raise Mismatch(f"edges: {what} has dtype {got.dtype}")
    found = got.detach().cpu().double().numpy()[0]
    same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
    if same.all():
        return
    k, alone = int(np.flatnonzero(~same)[0]), beside(~same, [*at.values(), wanted])
    where = ", ".join(f"{name} = {values[k]}" for name, values in at.items())
    raise Mismatch(
        f"edges: {what} at {where} is {found[k]}, should be {wanted[k]}\n  {int((~same).sum())} of {same.size} differ\n"
        "  arithmetic is float32; what comes out is rounded to 16 bits once, and is infinite beyond their range"
        + (f"\n  {alone}" if alone else "")
    )
