"""Operations at NaN, infinities, zeros of both signs, subnormals, ties and large numbers: values and gradients.

An id is ``edges/<operation>`` for the value, with ``-gradient`` for cotangents that are not 0 where arguments and value
are finite, ``-gradient-zero`` for the cotangent 0 there, ``-gradient-infinite`` where one is not finite, and
``-float64`` for all of that in float64.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import torch

import spikecore as sc
from spikecore.dtypes import DTYPES, NARROW
from spikecore.testing._case import Collection
from spikecore.testing._cases.process import subnormals_are_kept
from spikecore.testing._context import Context
from spikecore.testing._inputs import rounded
from spikecore.testing._oracle import Array
from spikecore.testing.compare import Mismatch, as_array, foremost, same
from spikecore.testing.edge_table import CONSTANTS, GROUPS, OPERATIONS, Edge, expected, grid, made, signed, slopes
from spikecore.testing.tolerances import EXACT, Tolerance

#: Tolerances of functions that no library rounds correctly, and of gradients: relative, and absolute.
NEAR = {False: Tolerance(2e-5, 1e-36), True: Tolerance(1e-11, 1e-300)}
#: Surrogates are compared more loosely: squares of rounded numbers stand in their formulas.
_LOOSE = {False: Tolerance(2e-4, 1e-12), True: Tolerance(1e-10, 1e-100)}
_MANY = ("several_inputs", "several_outputs")
CASES = Collection()


#: Kind of a gradient's case -> what holds.
GRADIENTS = {
    "gradient": "this operation has its derivative at zeros, subnormals, ties and large numbers",
    "gradient-zero": "a cotangent of 0 is multiplied like any other: times an infinite derivative it is NaN",
    "gradient-infinite": "this operation has its derivative where an argument or the value is NaN or infinite",
}


def value(context: Context, group: str, name: str, wide: bool = False) -> None:
    """All points, or all pairs of them, at once. What is right is computed before: a call may change how the thread
    computes.
    """
    edge, neuron, inputs, at = _call(context, group, name, wide)
    points, correct = grid(edge.arity, wide), expected(edge, wide)
    outs = neuron(*inputs)
    got = (outs if isinstance(outs, tuple) else (outs,))[at].detach().cpu().numpy()[0]
    subnormals_are_kept(f"after a call of backend {context.name!r}")
    correct = np.where(edge.open(*points), got, correct) if edge.open else correct
    near = EXACT if edge.exact else NEAR[wide]
    foremost(_comparisons(edge.name, "the value", points, correct, got, near, signed(edge)), Mismatch)


def gradient(context: Context, group: str, name: str, kind: str, wide: bool = False) -> None:
    """The gradient of each argument, for some cotangents."""
    edge, neuron, inputs, at = _call(context, group, name, wide, grad=True)
    first = sum(one.arity for one in _together(context, group, name)[:at])
    points, y = grid(edge.arity, wide), expected(edge, wide)
    finite = np.all([np.isfinite(one) for one in (*points, y)], axis=0)
    tested = ~finite if kind == "gradient-infinite" else finite
    tested = tested & ~edge.open(*points) if edge.open else tested
    near = (_LOOSE if group == "surrogates" else NEAR)[wide]
    checks: List[Callable[[], None]] = []
    for cotangent in {"gradient": (1.5, -1.0), "gradient-zero": (0.0,)}.get(kind, (1.5, -1.0, 0.0)):
        outs = neuron(*inputs)
        outs = [out for out in (outs if isinstance(outs, tuple) else (outs,)) if out.requires_grad]
        ours: Sequence[Any] = [None] * len(inputs)
        if outs:
            cotangents = [torch.full_like(out, cotangent) for out in outs]
            ours = torch.autograd.grad(outs, inputs, cotangents, allow_unused=True)
        subnormals_are_kept(f"after a backward pass of backend {context.name!r}")
        for k, correct in enumerate(slopes(edge, cotangent, wide)):
            grad = ours[first + k]
            got = np.zeros_like(correct) if grad is None else grad.cpu().numpy()[0]
            what = f"the gradient of argument {k} for a cotangent of {cotangent}"
            left_out = ~tested | (~finite & ((got == 0) | (got == cotangent))) if edge.lenient else ~tested
            correct = np.where(left_out, got, correct)
            checks += _comparisons(edge.name, what, points, correct, got, near, False)
    foremost(checks, Mismatch)


def constants(context: Context, kind: str, wide: bool = False) -> None:
    """The values of all operations with numbers of this kind."""
    for edge in GROUPS[f"constant-{kind}"]:
        value(context, f"constant-{kind}", edge.name, wide)


def double(context: Context, group: str, name: str) -> None:
    """Value and gradients."""
    value(context, group, name, wide=True)
    if context.declares("gradients"):
        for kind in GRADIENTS:
            gradient(context, group, name, kind, wide=True)


def _together(context: Context, group: str, name: str) -> List[Edge]:
    """Edges of one program: the whole group if the backend has several inputs and outputs."""
    edges = GROUPS[group]
    return edges if context.declares(*_MANY) else [edge for edge in edges if edge.name == name]


def _call(context: Context, group: str, name: str, wide: bool, grad: bool = False) -> Tuple[Edge, Any, List[Any], int]:
    edges = _together(context, group, name)
    at = next(i for i, edge in enumerate(edges) if edge.name == name)
    subnormals_are_kept(f"before a call of backend {context.name!r}")
    neuron = context.place(made(edges, context.name))
    dtype = torch.float64 if wide else torch.float32
    inputs = [context.tensor(points[None], dtype, grad) for edge in edges for points in grid(edge.arity, wide)]
    return edges[at], neuron, inputs, at


def _comparisons(
    name: str, what: str, points: Sequence[Array], correct: Array, got: Array, near: Tolerance, zeros: bool
) -> List[Callable[[], None]]:
    """Checks of values and, where the contract fixes them, of the signs of zeros."""
    tell: Any = partial(
        same,
        of=name,
        axes="point",
        there={f"argument {k}": point for k, point in enumerate(points)},
        arithmetic=got.dtype,
    )
    # the sum with 0.0 has no -0.0
    checks: List[Callable[[], None]] = [partial(tell, what, actual=got + 0.0, expected=correct + 0.0, tolerance=near)]
    if zeros:
        ours, right = (np.where(correct == 0, np.signbit(value), False).astype(float) for value in (got, correct))
        checks.append(partial(tell, f"the sign of {what}, which is 0,", actual=ours, expected=right))
    return checks


# -- 16 bits


class Square(sc.Neuron):
    """``x x - 16``: of 256 it is 65520, half way between the largest float16 and what is infinite."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """No state."""
        return x * x - 16.0, {}


def _points(dtype: str) -> Array:
    """Numbers of the dtype: odd ones, whose squares less 16 are ties in float16, and the ends of the range."""
    ends = [1e-4, 2.4e-4, 6e-8, -6e-8, 255.875, 256.0, -256.25, 65504.0, 1e19, -2e19, 3e38, 1e-20, 3e-20, 1e-39]
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.0, 4.0, *range(-63, 64, 2)]
    return rounded(np.asarray([*odd, *ends]), DTYPES[dtype])


#: Cotangents: where the gradient overflows, is NaN, and is subnormal.
_COTANGENTS = np.asarray([0.0, 1.0, -1.5, 65504.0, -3e38, 6e-8, np.inf, np.nan])


def narrow(context: Context, kind: str) -> None:
    """To the bit."""
    x = _points(kind)
    output = context.place(Square(backend=context.name))(context.tensor(x[None], DTYPES[kind]))
    _same_narrow("the output", {"x": x}, lambda x: x * x - np.float32(16.0), output, kind)


def narrow_gradient(context: Context, kind: str) -> None:
    """Each point with each of some cotangents, to the bit."""
    x, g = (one.ravel() for one in np.meshgrid(_points(kind), rounded(_COTANGENTS, DTYPES[kind])))
    leaf = context.tensor(x[None], DTYPES[kind], grad=True)
    output = context.place(Square(backend=context.name))(leaf)
    (came,) = torch.autograd.grad(output, leaf, context.tensor(g[None], DTYPES[kind]))
    _same_narrow("the gradient", {"x": x, "cotangent": g}, lambda x, g: g * x + g * x, came, kind)


def _same_narrow(what: str, at: Mapping[str, Array], right: Callable[..., Array], tensor: Any, kind: str) -> None:
    """Arithmetic is float32; what comes out is rounded to 16 bits once, and is infinite beyond their range."""
    subnormals_are_kept(f"after {what} of {kind} numbers was computed")
    if tensor.dtype != DTYPES[kind]:
        raise Mismatch(f"{what} of {kind} numbers has dtype {tensor.dtype}")
    with np.errstate(all="ignore"):
        correct = rounded(right(*(np.asarray(value, np.float32) for value in at.values())), DTYPES[kind])
    same(what, f"{kind} numbers", as_array(tensor)[0] + 0.0, correct + 0.0, axes="point", there=at)


# -- the cases


def _case(name: str, holds: str, run: Callable[..., None], needs: Sequence[str] = (), **more: Any) -> None:
    CASES.add(f"edges/{name.lower()}", "edges", holds, run, needs, **more)


def _add_operations() -> None:
    for group in OPERATIONS:
        for edge in GROUPS[group]:
            which: Dict[str, Any] = {"group": group, "name": edge.name}
            needs = _MANY if edge.arity > 1 else ()
            if group != "surrogates":
                holds = "this operation has its value at NaN, infinities, zeros, subnormals, ties and large numbers"
                _case(edge.name, holds, partial(value, **which), needs)
                holds = "and so it has in float64, gradients included where they are declared"
                _case(f"{edge.name}-float64", holds, partial(double, **which), needs, dtype="float64")
            for kind, holds in GRADIENTS.items():
                run = partial(gradient, kind=kind, **which)
                _case(f"{edge.name}-{kind}", holds, run, (*needs, "gradients"))


def _add_others() -> None:
    for kind in CONSTANTS:
        holds = "a number in a neuron's equations is rounded to the dtype of arithmetic once, and computed with"
        _case(f"constant-{kind}", holds, partial(constants, kind=kind))
        holds = "a number in a neuron's equations is a float64 where arithmetic is"
        _case(f"constant-{kind}-float64", holds, partial(constants, kind=kind, wide=True), dtype="float64")
    for dtype in NARROW:
        holds = "arithmetic is float32, and the output is rounded once: ties to even, infinite beyond the range"
        _case(f"output-{dtype}", holds, partial(narrow, kind=dtype), dtype=dtype)
        holds = "the gradient of a 16-bit input is rounded once: infinite beyond the range, NaN where it is NaN"
        _case(f"input-gradient-{dtype}", holds, partial(narrow_gradient, kind=dtype), ("gradients",), dtype=dtype)


_add_operations()
_add_others()
