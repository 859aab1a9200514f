"""The language: every operation, neurons and surrogates as users write them, and programs as nobody writes them."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Mapping, Tuple

import numpy as np
import torch
from torch import Tensor

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._models import as_written
from spikecore.testing._oracle import Array, Gradients, Trajectory, adjoint, run
from spikecore.testing._oracle.operations import CONSTANT, OPERATIONS, Applied
from spikecore.testing._subject import subject
from spikecore.testing._tolerances import EXACT, TOLERANCES
from spikecore.testing.naming import Naming, awkward, namings, results, usable

CASES = Collection()
_LEARN = ("gradients", "parameter_gradients")
Next = Tuple[Any, Dict[str, Any]]


def _case(name: str, holds: str, *needs: str, **more: Any) -> Callable[[Any], Any]:
    return CASES.case(name, "language", holds, *needs, **more)


# -- operations


class Apply(sc.Neuron):
    """One operation, summed up by a leak: ``v' = v / 2 + op(x, c)``; its output is ``v'``."""

    states = {"v": 0.0}
    params = {"c": CONSTANT}

    def __init__(self, operation: str, **options: Any) -> None:
        super().__init__(**options)
        self.operation = operation

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        """The operation and the leak."""
        v = s.v * 0.5 + OPERATIONS[self.operation].written(sc.ops, self, x, p.c)
        return v, {"v": v}


def _apply(context: Context, name: str, learn: Tuple[str, ...] = ()) -> Tuple[sc.Neuron, Array]:
    """The neuron, and the points in every order of three steps."""
    points = np.asarray(OPERATIONS[name].points)
    neuron: sc.Neuron = context.place(Apply(name, backend=context.name, learn=learn))
    return neuron, np.stack([points, np.roll(points, 3), np.roll(points, 7)])


def _oracle(name: str, x: Array, dtype: Any = np.float64) -> Trajectory:
    return run(Applied(name), [x], {"c": CONSTANT}, dtype=dtype)


def _value(context: Context, name: str) -> None:
    """Three steps over all points."""
    neuron, x = _apply(context, name)
    exact = OPERATIONS[name].exact
    same(
        f"{name}, as v/2 + {name}(x, {CONSTANT}),",
        repr(neuron),
        as_array(neuron(context.tensor(x))),
        _oracle(name, x, np.float32 if exact else np.float64).outputs[0],
        EXACT if exact else TOLERANCES["float32", "output"],
        there={"x": x},
    )


def _backward(context: Context, name: str, neuron: sc.Neuron, x: Tensor) -> Gradients:
    """Run backwards from the output; what is right for the cotangent."""
    output = neuron(x)
    cotangent = context.tensor(np.linspace(-1.0, 1.5, x.numel()).reshape(x.shape))
    if output.requires_grad:
        backward(repr(neuron), [output], [cotangent])
    return adjoint(_oracle(name, as_array(x)), [as_array(cotangent)])


def _derivative(context: Context, name: str, by: str) -> None:
    """By the input, or by the other argument, which is a parameter."""
    neuron, points = _apply(context, name, ("c",) if by == "c" else ())
    x = context.tensor(points, grad=by == "x")
    right = _backward(context, name, neuron, x)
    leaf = x if by == "x" else neuron.get_parameter("c")
    what, of = f"derivative of {name} by {by}", f"{neuron!r} at x={points[0].tolist()}"
    came = as_array(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
    if by == "x":
        near = TOLERANCES["float32", "input gradient"]
        same(what, of, came, right.inputs[0], near, there={"x": points})
    else:
        same(what, of, came, right.params["c"], TOLERANCES["float32", "parameter gradient"], axes="")


def _add_operations() -> None:
    for name, operation in OPERATIONS.items():
        _case(f"language/{name}", "this operation has its value")(partial(_value, name=name))
        holds = "this operation has its derivative, by convention where it has none"
        _case(f"language/{name}-gradient", holds, "gradients")(partial(_derivative, name=name, by="x"))
        if operation.learns:
            holds = "this operation has its derivative by the other argument"
            _case(f"language/{name}-parameter", holds, *_LEARN)(partial(_derivative, name=name, by="c"))


_add_operations()

# -- neurons


@_case("custom/same-name", "two neurons of one name and other equations are two")
def _same_name(context: Context) -> None:
    """Classes made in a function, as in a notebook's cell that is run again."""

    def made(gain: float) -> Any:
        class Gain(sc.Neuron):
            states: Mapping[str, Any] = {"v": 0.0}

            def dynamics(self, x: Any, s: Any, p: Any) -> Next:
                return x * gain + s.v, {"v": s.v}

        return Gain(backend=context.name)

    x = np.asarray([[1.0, 2.0, 3.0]])
    for gain in (2.0, 3.0):
        neuron = made(gain)
        same(f"x * {gain}", repr(neuron), as_array(neuron(context.tensor(x))), x * gain)


@_case("custom/configured", "one class configured twice is two programs")
def _configured(context: Context) -> None:
    """The same neuron object, its reset changed between calls."""
    hard, soft = subject(context, "lif", "hard"), subject(context, "lif", "soft")
    hard.check_outputs(hard.neuron(hard.x()))
    soft.check_outputs(soft.neuron(soft.x()))
    hard.neuron.reset = "soft"
    soft.check_outputs(hard.neuron(soft.x()), " after reset was changed to 'soft'")


# -- names

#: Names of kernels' own values, of C, Python, NumPy, CUDA and Triton: as many for each of the five roles.
_NAMES = "j i t0 n N T out grad_x sum count begin at M_PI INFINITY tl np math auto range float32".split()
_NEEDS = (
    *(*_LEARN, "state_gradients", "channel_parameters", "full_parameters"),
    *("record", "several_outputs", "several_inputs"),
)


@_case("language/names", "a user's names may be those of anything in a kernel", *_NEEDS)
def _names(context: Context) -> None:
    """Every name in every role: local variable, parameter, state, input, field of a surrogate."""
    for naming in namings(usable(_NAMES), len(_NAMES)):
        _as_under_harmless_names(context, naming)


@_case("language/long-names", "names may be long, beyond ASCII, and no identifiers for a class", *_NEEDS[:-1])
def _long_names(context: Context) -> None:
    """500 letters, Greek and German ones, and a class whose name has quotes and a line break."""
    _as_under_harmless_names(context, awkward())


def _as_under_harmless_names(context: Context, naming: Naming) -> None:
    device = str(context.device)
    ours, expected = results(naming, context.name, device), results(naming.harmless(), context.name, device)
    for (what, value), right in zip(ours.items(), expected.values()):
        near = TOLERANCES["float32", "parameter gradient" if what.startswith("gradient") else "output"]
        same(f"{what}, as under other names,", repr(naming), as_array(value), as_array(right), near)


# -- many values, and many operations

#: Inputs, outputs and states of :class:`Many`; it has twice as many parameters.
COUNT = 18
#: Of one term to the next in :class:`Deep`.
RATIO = 0.99


class Many(sc.Neuron):
    """``y_k = s_k + p_k x_k`` and ``s_k' = s_k / 2 + q_k x_(k + 1)``, for each k."""

    inputs = tuple(f"x{k}" for k in range(COUNT))
    states = {f"s{k}": 0.0 for k in range(COUNT)}
    params = {**{f"p{k}": 1.0 for k in range(COUNT)}, **{f"q{k}": 1.0 for k in range(COUNT)}}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        """One after the other."""
        xs = [getattr(x, f"x{k}") for k in range(COUNT)]
        outputs = tuple(getattr(s, f"s{k}") + xs[k] * getattr(p, f"p{k}") for k in range(COUNT))
        after = {f"s{k}": getattr(s, f"s{k}") * 0.5 + xs[(k + 1) % COUNT] * getattr(p, f"q{k}") for k in range(COUNT)}
        return outputs, after


@_case(
    "language/many",
    f"{COUNT} inputs, states and outputs and {2 * COUNT} parameters: each has its own value and gradient",
    *_LEARN,
    "several_inputs",
    "several_outputs",
)
def _many(context: Context) -> None:
    """Whole numbers and halves, to the bit."""
    rng = np.random.default_rng(1)
    x, g = (rng.integers(-4, 5, (3, COUNT, 5)).astype(float) for _ in range(2))
    values = {name: np.asarray(rng.integers(1, 9) / 2) for name in Many.params}
    made: Any = Many
    tensors = {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}
    neuron = context.place(made(**tensors, learn=tuple(tensors), backend=context.name))
    xs = [context.tensor(x[:, k], grad=True) for k in range(COUNT)]
    outputs, final = neuron.run(*xs)
    backward(repr(neuron), list(outputs), [context.tensor(g[:, k]) for k in range(COUNT)])
    seen = run(as_written(Many, outputs=COUNT)(), [*x.swapaxes(0, 1)], values)
    right = adjoint(seen, [*g.swapaxes(0, 1)])
    rows = [(f"output {k} of {COUNT}", outputs[k], seen.outputs[k]) for k in range(COUNT)]
    rows += [(f"final {name}", final[name], value) for name, value in seen.final.items()]
    rows += [(f"gradient of input x{k}", xs[k].grad, right.inputs[k]) for k in range(COUNT)]
    rows += [(f"gradient of parameter {name}", getattr(neuron, name).grad, right.params[name]) for name in values]
    for what, ours, expected in rows:
        came = torch.full(np.shape(expected), float("nan")) if ours is None else ours
        same(what, repr(neuron), as_array(came), np.asarray(expected), axes="")


class Deep(sc.Neuron):
    """Hundreds of operations, one in the other, of inputs and of parameters alone."""

    states = {"v": 0.0}
    params = {"a": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        """Both sums, term by term."""
        y, c = x, p.a
        for k in range(220):
            y = y * RATIO + s.v
            c = c * 0.25 + p.a if k < 60 else c
        return y, {"v": x * c}


@_case("language/deep", "hundreds of operations, one in the other, are computed", *_LEARN, "channel_parameters")
def _deep(context: Context) -> None:
    """Values and gradients. Python's parser, for one, stops at 200 parentheses."""
    x = np.random.default_rng(0).random((3, 2, 3))
    a = np.asarray([0.25, 0.5, 0.75])
    neuron = context.place(Deep(a=torch.tensor(a, dtype=torch.float32), learn=("a",), backend=context.name))
    leaf = context.tensor(x, grad=True)
    output, end = neuron.run(leaf)
    backward(repr(neuron), [output, end["v"]], [torch.ones_like(output), torch.ones_like(end["v"])])
    seen = run(as_written(Deep)(), [x], {"a": a})
    right = adjoint(seen, [np.ones_like(x)], {"v": np.ones(x.shape[1:])})
    rows = [
        ("output", output, seen.outputs[0], "output"),
        ("final v", end["v"], seen.final["v"], "output"),
        ("gradient of x", leaf.grad, right.inputs[0], "input gradient"),
        ("gradient of a", neuron.a.grad, right.params["a"], "parameter gradient"),
    ]
    for what, ours, expected, kind in rows:
        same(what, repr(neuron), as_array(ours), expected, TOLERANCES["float32", kind])
