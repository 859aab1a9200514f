"""The language: every operation, and neurons and surrogates as users write them."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np
import torch
from torch import nn

import spikecore as sc
from spikecore.testing import _custom as custom
from spikecore.testing._case import Collection
from spikecore.testing._cases import core
from spikecore.testing._compare import as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._models import Model
from spikecore.testing._oracle import Array
from spikecore.testing._oracle.operations import CONSTANT, OPERATIONS, accumulated, accumulated_back
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
        if operation.to_c is not None:
            cases.add(
                f"language/{name}-parameter",
                "language",
                "this operation has its derivative by the other argument",
                partial(by_parameter, name=name),
                ("gradients", "parameter_gradients"),
            )
    for model in custom.CUSTOM:
        needs = _needs(model)
        which: Dict[str, Any] = {"model": model}
        cases.add(
            f"custom/{model.name}",
            "language",
            "a user's neuron gives what its equations say",
            partial(forward, **which),
            needs,
        )
        cases.add(
            f"custom/{model.name}-exact",
            "language",
            "and does so where potentials meet the threshold",
            partial(forward, **which, exact=True),
            needs,
        )
        for detach in (False, True):
            cases.add(
                f"custom/{model.name}-gradient{'-detach' if detach else ''}",
                "language",
                "a user's neuron has the gradients of its equations, of inputs, parameters and state",
                partial(gradient, **which, detach=detach),
                (*needs, "gradients", "parameter_gradients", "state_gradients"),
            )
    cases.add(
        "custom/surrogate",
        "language",
        "a user's surrogate is the derivative of the spike",
        partial(core.gradient, model="lif", reset="hard", surrogate=custom.TENT),
        ("gradients",),
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


def _needs(model: Model) -> Tuple[str, ...]:
    several = ("several_inputs",) if len(model.oracle.inputs) > 1 else ()
    return (*several, *(("several_outputs",) if len(model.outputs) > 1 else ()))


def _apply(context: Context, name: str, learn: Tuple[str, ...] = ()) -> Tuple[sc.Neuron, Array]:
    """The neuron, and the points in every order of three steps."""
    points = np.asarray(OPERATIONS[name].points)
    neuron: sc.Neuron = context.place(Apply(name, backend=context.name, learn=learn))
    return neuron, np.stack([points, np.roll(points, 3), np.roll(points, 7)])


def value(context: Context, name: str) -> None:
    """Three steps over all points."""
    neuron, x = _apply(context, name)
    output = neuron(context.tensor(x))
    operation = OPERATIONS[name]
    kind = np.float32 if operation.exact else np.float64
    with np.errstate(all="ignore"):
        expected = accumulated(np.asarray(operation.value(x.astype(kind), np.asarray(CONSTANT, kind)), kind))
    tolerance = EXACT if operation.exact else TOLERANCES["float32", "output"]
    what = f"{name}, as v/2 + {name}(x, {CONSTANT}),"
    same(what, f"{neuron!r}", as_array(output), expected, tolerance, there={"x": x})


def derivative(context: Context, name: str) -> None:
    """By the input."""
    neuron, x = _apply(context, name)
    given = context.tensor(x, grad=True)
    output = neuron(given)
    cotangent = context.tensor(np.linspace(-1.0, 1.5, x.size).reshape(x.shape))
    if output.requires_grad:
        backward(repr(neuron), [output], [cotangent])
    with np.errstate(all="ignore"):
        slope = np.asarray(OPERATIONS[name].to_x(x, np.asarray(CONSTANT)), float)
    expected = accumulated_back(as_array(cotangent)) * slope
    if given.grad is None:
        given.grad = torch.zeros_like(given)
    same(
        f"derivative of {name} by x",
        f"{neuron!r} at x={x[0].tolist()}",
        as_array(given.grad),
        expected,
        TOLERANCES["float32", "input gradient"],
        there={"x": x},
    )


def by_parameter(context: Context, name: str) -> None:
    """By ``c``."""
    neuron, x = _apply(context, name, learn=("c",))
    output = neuron(context.tensor(x))
    cotangent = context.tensor(np.linspace(-1.0, 1.5, x.size).reshape(x.shape))
    backward(repr(neuron), [output], [cotangent])
    to_c = OPERATIONS[name].to_c
    slope = np.asarray(to_c(x, np.asarray(CONSTANT)), float) if to_c is not None else np.zeros_like(x)
    expected = np.asarray((accumulated_back(as_array(cotangent)) * slope).sum())
    parameter = dict(neuron.named_parameters())["c"]
    grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    same(
        f"derivative of {name} by c",
        f"{neuron!r} at x={x[0].tolist()}",
        as_array(grad),
        expected,
        TOLERANCES["float32", "parameter gradient"],
        axes="",
    )


def forward(context: Context, model: Model, exact: bool = False) -> None:
    """Outputs and final state, to the bit."""
    s = Subject(context, model, model.resets[0], exact=exact)
    output, final = s.neuron.run(*s.xs())
    s.check_outputs(output, exact=True)
    s.check_states(final, s.bits().final, "final state", exact=True)


def gradient(context: Context, model: Model, detach: bool) -> None:
    """Cotangents on outputs and final state."""
    s = Subject(context, model, model.resets[0], detach=detach, state=True, learn=tuple(model.params))
    xs, start = s.xs(grad=True), s.start(grad=True)
    output, final = s.neuron.run(*xs, state=start)
    outputs = output if isinstance(output, tuple) else (output,)
    cotangents = [s.cotangent(one) for one in outputs]
    of_final = {name: s.cotangent(one) for name, one in final.items()}
    connected = [
        (y, g) for y, g in zip((*outputs, *final.values()), (*cotangents, *of_final.values())) if y.requires_grad
    ]
    backward(s.of, [y for y, _ in connected], [g for _, g in connected])
    expected = s.gradients(cotangents, of_final)
    for name, x, right in zip(s.twin.inputs, xs, expected.inputs):
        s.check("input gradient", x.grad, right, name=name)
    for name, at in (start or {}).items():
        got = torch.zeros_like(at) if at.grad is None else at.grad
        s.check("state gradient", got, expected.state[name], name=f"the initial {name}")
    for name, parameter in s.neuron.named_parameters():
        s.check("parameter gradient", parameter.grad, expected.params[name], name=name)


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
    """``y[t] = LIF(x[t] + W y[t-1])``, against the same loop around the oracle's step."""
    from types import SimpleNamespace as Values

    s = Subject(context, "lif", "soft", shape=(6, 2, 3))
    weight = np.asarray([[0.5, -0.25, 0.125], [0.25, 0.375, -0.5], [-0.125, 0.75, 0.25]])
    linear: nn.Module = nn.Linear(3, 3, bias=False)
    linear.weight.data = torch.tensor(weight, dtype=torch.float32)
    net = context.place(sc.Recurrent(s.neuron, linear))
    x = s.x(grad=True)
    output = net(x)
    p = s.seen.params
    now, fed, steps = dict(s.seen.start), np.zeros((2, 3)), []
    for at in s.inputs[0]:
        step = s.twin.step(Values(**now), p, at + fed @ weight.T)
        step.before = Values(**now)
        now, fed = step.next, step.outputs[0]
        steps.append(step)
    same(
        "spikes with feedback",
        repr(net),
        as_array(output),
        np.stack([k.outputs[0] for k in steps]),
        tested=np.stack([np.asarray(k.tested) for k in steps]),
    )
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    g, back = {"v": np.zeros((2, 3))}, np.zeros((2, 3))
    found: List[Array] = []
    for k, g_out in zip(reversed(steps), as_array(cotangent)[::-1]):
        got = s.twin.back(k, k.before, p, Values(**g), g_out + back)
        g, back = got.states, got.inputs[0] @ weight
        found.append(got.inputs[0])
    s.check("input gradient", x.grad, np.stack(found[::-1]), name="a network with feedback")
