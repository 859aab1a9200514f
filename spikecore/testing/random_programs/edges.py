"""What holds at NaN, infinities, ties, zeros of both signs and subnormals: every operation, value and gradient.

One neuron per operation, whose output is the operation on its inputs, one step, compared with
:mod:`spikecore.testing._oracle.rules`. Gradients are those for a cotangent of 1.5, of -1
and of 0: zero times infinity is NaN, and what is 0 by definition is 0.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import torch

import spikecore as sc
from spikecore.lang.operations import ROWS, Operation
from spikecore.testing._oracle.rules import BACK, EXACT, VALUE, Array

#: Numbers where something happens, and some between.
POINTS = (
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1e-40,
    -1e-45,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    -2.5,
    1e3,
    3e9,
    -3e9,
    1e30,
    -1e30,
)
#: Fewer of them, for operations with three arguments.
FEW = (np.nan, np.inf, -np.inf, 0.0, -0.0, -1e-45, 1.0, -1.0, 2.5)
COTANGENTS = (1.5, -1.0, 0.0)
#: Where transcendental functions, off by some units in the last place, are compared.
RELATIVE, ABSOLUTE = 2e-5, 1e-36


class Edge(NamedTuple):
    """An operation as a neuron writes it; its value and its rule are those of ``op``."""

    op: str
    arity: int
    write: Callable[..., Any]
    #: What ends the path: the gradient is 0.
    flat: bool = False


def _edge(row: Operation) -> Edge:
    """An operation of numbers as a definition writes it: by ``sc.ops``, or by torch's name of an operator."""
    write = getattr(sc.ops, row.name) if row.is_function else row.torch
    if row.kind == "comparison":
        return Edge(row.name, 2, lambda a, b: sc.ops.where(write(a, b), 1.0, 0.0), flat=True)
    if row.kind == "choice":
        return Edge(row.name, 3, lambda c, a, b: write(c > 0.25, a, b))
    return Edge(row.name, row.arity, write, flat=row.gradient is None)


#: Name -> operation. Spikes and truth values are no numbers.
TABLE: Dict[str, Edge] = {
    row.name: _edge(row) for row in ROWS if row.kind != "logic" and row.name not in ("select", "spike")
}


class _Step(sc.Neuron):
    """A neuron whose step is one operation."""

    inputs: Tuple[str, ...] = ("a", "b", "c")
    edge: Edge

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """The operation on the first of the inputs; the others are taken so that every operation has the same call."""
        return self.edge.write(*list(x)[: self.edge.arity]), {}


def _grid(arity: int, dtype: Any) -> List[Array]:
    points = [*itertools.product(POINTS if arity < 3 else FEW, repeat=arity)]
    columns = np.array(points, dtype).T
    return [np.ascontiguousarray(column) for column in columns]


def check_edges(
    backend: str, name: str, device: str = "cpu", dtype: torch.dtype = torch.float32, infinite: bool = True
) -> None:
    """Raise AssertionError where a backend differs from the table at an operation.

    ``infinite``: whether the gradient is compared, too, where an argument or the value is infinite.
    """
    edge = TABLE[name]
    args = _grid(edge.arity, np.float64 if dtype == torch.float64 else np.float32)
    spare = [np.ones_like(args[0])] * (3 - edge.arity)
    with np.errstate(all="ignore"):
        given = [args[0] > 0.25, *args[1:]] if edge.op == "where" else args
        value = np.asarray(VALUE[edge.op](*given)).astype(args[0].dtype)
    neuron = type(f"Edge{name}", (_Step,), {"edge": edge})(backend=backend)
    inputs = [torch.from_numpy(a)[None].to(device).requires_grad_() for a in (*args, *spare)]
    (found,) = neuron(*inputs)
    _same(f"{name} on {backend}", "value", args, value, found.detach().cpu().numpy(), edge.op in EXACT, np.isnan(value))
    for cotangent in COTANGENTS:
        out = neuron(*inputs)
        g = np.full_like(value, cotangent)
        with np.errstate(all="ignore"):
            expected: Sequence[Any] = [np.zeros_like(g)] * edge.arity if edge.flat else BACK[edge.op](g, value, *given)
        expected = [np.zeros_like(g) if e is None else e for e in expected]
        ours = torch.autograd.grad(out, inputs, torch.full_like(out, cotangent))[: edge.arity]
        left_out = np.zeros(g.shape, bool)
        if not infinite:
            left_out = ~np.all([np.isfinite(a) for a in (*args, value)], axis=0)
        for k, (wanted, grad) in enumerate(zip(expected, ours)):
            what = f"gradient of argument {k} for a cotangent of {cotangent}"
            got = grad[0].cpu().numpy()
            _same(f"{name} on {backend}", what, args, np.where(left_out, got, wanted), got, False, left_out)


def _same(name: str, what: str, args: Sequence[Array], wanted: Array, got: Array, exact: bool, unsigned: Array) -> None:
    same = (wanted == got) | ((wanted != wanted) & (got != got))
    if exact:
        same &= (np.signbit(wanted) == np.signbit(got)) | unsigned
    else:
        with np.errstate(all="ignore"):
            same |= np.isfinite(wanted) & (np.abs(wanted - got) <= ABSOLUTE + RELATIVE * np.abs(wanted))
    if not same.all():
        k = int(np.flatnonzero(~same)[0])
        at = ", ".join(str(a[k]) for a in args)
        raise AssertionError(f"{name}: the {what} at ({at}) is {got[k]}, should be {wanted[k]}; {(~same).sum()} differ")


# -- paths


class _Paths(sc.Neuron):
    """Next state and output with an infinite derivative; a state that nothing depends on."""

    states = {"v": 0.0, "dead": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """``v`` goes to the output of the next step, ``dead`` nowhere."""
        return s.v, {"v": s.v * 0.5 + sc.ops.sqrt(x), "dead": sc.ops.sqrt(x) + s.dead}


class _Flat(sc.Neuron):
    """What is 0 by definition, before an infinite derivative."""

    params = {"w": 1.0, "unused": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """Only ``x`` itself carries gradient; ``w`` reaches nothing."""
        root = sc.ops.sqrt(x)
        flat = sc.ops.floor(root) + sc.ops.round(root) + sc.ops.sign(root) + sc.ops.detach(root * p.w)
        return (flat + x, root * p.unused), {}


class _Negated(sc.Neuron):
    """0 or 1, which a compiler might compute as an integer, with the sign changed."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """-0 where the choice is 0."""
        return (-self.spike(x), -1.0 * sc.ops.sign(x), -sc.ops.where(x > 0.0, 1.0, 0.0)), {}


class _Start(sc.Neuron):
    """A state that starts at a parameter, and one that no step reads."""

    states = {"v": "start", "last": "other"}
    params = {"start": 1.0, "other": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """Leaky integration; ``last`` is the input of the step."""
        return s.v, {"v": s.v * 0.5 + x, "last": x * 1.0}


def check_paths(backend: str, device: str = "cpu") -> None:
    """Raise AssertionError where a gradient is there that should not be, or is missing."""
    x = torch.tensor([[4.0, 0.0], [4.0, 4.0], [4.0, 0.0]], device=device).requires_grad_()
    out = _Paths(backend=backend)(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    # v after the last step is asked for by nobody: its cotangent is 0, and 0 times infinity is NaN
    _rows("a final state that nobody asked for", backend, grad, [[0.375, np.inf], [0.25, 0.25], [0.0, np.nan]])
    neuron = _Flat(backend=backend, learn=("w", "unused")).to(device)
    flat, _ = neuron(x)
    wanted = [x, neuron.get_parameter("w"), neuron.get_parameter("unused")]
    grads = torch.autograd.grad(flat.sum(), wanted, allow_unused=True)
    _rows("floor, round, sign and detach", backend, grads[0], [[1.0, 1.0]] * 3)
    for name, found in zip(("w", "unused"), grads[1:]):
        _rows(f"parameter {name}, which no path leads to,", backend, found, 0.0)
    start = _Start(backend=backend, learn=("start", "other")).to(device)
    wanted = [start.get_parameter("start"), start.get_parameter("other")]
    for given, expected in ((False, 2.0 * 1.75), (True, 0.0)):
        state = {"v": torch.zeros(2, device=device), "last": torch.zeros(2, device=device)} if given else None
        out, end = start.run(x, state=state)
        grads = torch.autograd.grad(out.sum() + end["last"].sum(), wanted, allow_unused=True)
        _rows("a parameter that states start from", backend, grads[0], expected)
        _rows("a parameter that a state starts from which no step reads", backend, grads[1], 0.0)
    constant = type("Constant", (_Step,), {"edge": Edge("floor", 1, sc.ops.floor)})(backend=backend)
    (found,) = torch.autograd.grad(constant(x, x, x).sum(), x)
    _rows("an output that is 0 by definition", backend, found, [[0.0, 0.0]] * 3)

    outs = _Negated(backend=backend)(torch.tensor([[-2.0, 0.0, 2.0]], device=device))
    wanted_zeros = [[-0.0, -1.0, -1.0], [1.0, -0.0, -1.0], [-0.0, -0.0, -1.0]]
    for what, found, row in zip(("spike", "sign", "choice"), outs, wanted_zeros):
        if [str(value) for value in found[0].tolist()] != [str(value) for value in row]:
            raise AssertionError(f"{backend}: a negated {what} is {found[0].tolist()}, should be {row}")


def _rows(what: str, backend: str, found: Any, wanted: Any) -> None:
    if found is None:
        raise AssertionError(f"{backend}: the gradient of {what} is None, should be {wanted}")
    if not np.array_equal(np.array(wanted, np.float32), found.cpu().numpy(), equal_nan=True):
        raise AssertionError(f"{backend}: the gradient of {what} is {found.tolist()}, should be {wanted}")
