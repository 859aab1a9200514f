"""The language: every operation, and neurons and surrogates as users write them."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Mapping, Tuple

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._oracle import Array, Gradients, Trajectory, adjoint, run
from spikecore.testing._oracle.operations import CONSTANT, OPERATIONS, Applied
from spikecore.testing._oracle.recurrent import Matrix
from spikecore.testing._oracle.recurrent import adjoint as feedback
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import EXACT, TOLERANCES


class Apply(sc.Neuron):
    """One operation, summed up by a leak: ``v' = v / 2 + op(x, c)``; its output is ``v'``."""

    states = {"v": 0.0}
    params = {"c": CONSTANT}

    def __init__(self, operation: str, **options: Any) -> None:
        super().__init__(**options)
        self.operation = operation

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """The operation and the leak."""
        v = s.v * 0.5 + OPERATIONS[self.operation].written(sc.ops, self, x, p.c)
        return v, {"v": v}


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    for name, operation in OPERATIONS.items():
        cases.add(f"language/{name}", "language", "this operation has its value", partial(value, name=name))
        cases.add(
            f"language/{name}-gradient",
            "language",
            "this operation has its derivative, by convention where it has none",
            partial(derivative, name=name),
            ("gradients",),
        )
        if operation.learns:
            cases.add(
                f"language/{name}-parameter",
                "language",
                "this operation has its derivative by the other argument",
                partial(by_parameter, name=name),
                ("gradients", "parameter_gradients"),
            )
    cases.add("custom/same-name", "language", "two neurons of one name and other equations are two", same_name)
    cases.add("custom/configured", "language", "one class configured twice is two programs", configured)
    cases.add(
        "custom/recurrent",
        "language",
        "a neuron with feedback gives what its loop gives, gradient included",
        recurrent,
        ("gradients", "state_gradients"),
    )


def _apply(context: Context, name: str, learn: Tuple[str, ...] = ()) -> Tuple[sc.Neuron, Array]:
    """The neuron, and the points in every order of three steps."""
    points = np.asarray(OPERATIONS[name].points)
    neuron: sc.Neuron = context.place(Apply(name, backend=context.name, learn=learn))
    return neuron, np.stack([points, np.roll(points, 3), np.roll(points, 7)])


def _oracle(name: str, x: Array, dtype: Any = np.float64) -> Trajectory:
    return run(Applied(name), [x], {"c": CONSTANT}, dtype=dtype)


def value(context: Context, name: str) -> None:
    """Three steps over all points."""
    neuron, x = _apply(context, name)
    exact = OPERATIONS[name].exact
    same(
        f"{name}, as v/2 + {name}(x, {CONSTANT}),",
        f"{neuron!r}",
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


def derivative(context: Context, name: str) -> None:
    """By the input."""
    neuron, points = _apply(context, name)
    x = context.tensor(points, grad=True)
    right = _backward(context, name, neuron, x)
    same(
        f"derivative of {name} by x",
        f"{neuron!r} at x={points[0].tolist()}",
        as_array(torch.zeros_like(x) if x.grad is None else x.grad),
        right.inputs[0],
        TOLERANCES["float32", "input gradient"],
        there={"x": points},
    )


def by_parameter(context: Context, name: str) -> None:
    """By ``c``."""
    neuron, points = _apply(context, name, learn=("c",))
    right = _backward(context, name, neuron, context.tensor(points))
    parameter = dict(neuron.named_parameters())["c"]
    same(
        f"derivative of {name} by c",
        f"{neuron!r} at x={points[0].tolist()}",
        as_array(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad),
        right.params["c"],
        TOLERANCES["float32", "parameter gradient"],
        axes="",
    )


def same_name(context: Context) -> None:
    """Classes made in a function, as in a notebook's cell that is run again."""

    def made(gain: float) -> Any:
        class Gain(sc.Neuron):
            states: Mapping[str, Any] = {"v": 0.0}

            def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
                return x * gain + s.v, {"v": s.v}

        return Gain(backend=context.name)

    x = np.asarray([[1.0, 2.0, 3.0]])
    for gain in (2.0, 3.0):
        neuron = made(gain)
        same(f"x * {gain}", repr(neuron), as_array(neuron(context.tensor(x))), x * gain)


def configured(context: Context) -> None:
    """The same neuron object, its reset changed between calls."""
    hard, soft = Subject(context, "lif", "hard"), Subject(context, "lif", "soft")
    hard.check_outputs(hard.neuron(hard.x()))
    soft.check_outputs(soft.neuron(soft.x()))
    hard.neuron.reset = "soft"
    soft.check_outputs(hard.neuron(soft.x()), " after reset was changed to 'soft'")


def recurrent(context: Context) -> None:
    """``y[t] = LIF(x[t] + W y[t-1])``."""
    s = Subject(context, "lif", "soft", shape=(6, 2, 3))
    weight = np.asarray([[0.5, -0.25, 0.125], [0.25, 0.375, -0.5], [-0.125, 0.75, 0.25]])
    linear: nn.Module = nn.Linear(3, 3, bias=False)
    linear.weight.data = torch.tensor(weight, dtype=torch.float32)
    net = context.place(sc.Recurrent(s.neuron, linear))
    x, matrix = s.x(grad=True), Matrix(weight, None, np.zeros((2, 3)))
    for _ in range(len(x)):  # with each round one step more has what comes back to it
        s.takes([as_array(x) + matrix.back(s.seen.outputs[0])])
    output = net(x)
    same("spikes with feedback", repr(net), as_array(output), s.seen.outputs[0], tested=s.seen.tested)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    right = feedback(s.seen, matrix, as_array(cotangent)).inputs
    s.check("input gradient", x.grad, right, name="a network with feedback")
