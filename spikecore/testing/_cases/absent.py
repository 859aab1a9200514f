"""A cotangent that does not arrive is not 0: beside an infinite derivative it must not give NaN.

The derivative of ``log(x)`` is infinite at the inputs of these cases, which are 0, and nothing with a cotangent depends
on ``log(x)``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._oracle import Array

_SHAPE = (4, 3)
#: Of the potential ``v' = v + x / 2``: the cotangents of all steps, of a step each.
_WEIGHTS = np.array([[1.0, 2.0, -1.0, 0.5]]).T * np.array([[1.0, -0.5, 2.0]])

Next = Tuple[Any, Dict[str, Any]]


class Outputs(sc.Neuron):
    """Potential and logarithm are outputs."""

    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        """Both."""
        v = s.v + x / 2.0
        return (v, sc.ops.log(x)), {"v": v}


class Output(sc.Neuron):
    """The logarithm is the output, the potential is a state."""

    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        """Both."""
        return sc.ops.log(x), {"v": s.v + x / 2.0}


class State(sc.Neuron):
    """The potential is the output, and the logarithm a state that no step reads."""

    states = {"v": 0.0, "b": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        """Both."""
        v = s.v + x / 2.0
        return v, {"v": v, "b": sc.ops.log(x)}


class Learnt(sc.Neuron):
    """The logarithm is an output times a parameter that the potential has, too, and times one that it has not."""

    states = {"v": 0.0}
    params = {"gain": 0.5, "other": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        """Both."""
        v = s.v + (x + 1.0) * p.gain
        return (v, sc.ops.log(x) * p.gain * p.other), {"v": v}


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of state."""
    of = "where its derivative is infinite the gradients are as if it were not there"
    cases.add(
        "wanted/absent-output",
        "state",
        f"an output without a cotangent contributes nothing: {of}",
        output,
        ("gradients", "several_outputs"),
    )
    cases.add(
        "wanted/absent-output-of-a-final-state",
        "state",
        f"an output without a cotangent contributes nothing to the gradient of a final state: {of}",
        final_state,
        ("gradients", "state_gradients"),
    )
    cases.add(
        "wanted/absent-state",
        "state",
        f"a state without a cotangent, which nothing reads, contributes nothing: {of}",
        state,
        ("gradients",),
    )
    cases.add(
        "wanted/absent-final-state",
        "state",
        f"a final state without a cotangent, which nothing reads, contributes nothing beside another one: {of}",
        other_final_state,
        ("gradients", "state_gradients"),
    )
    cases.add(
        "wanted/absent-trace",
        "state",
        f"a recorded state without a cotangent contributes nothing: {of}",
        trace,
        ("gradients", "state_gradients", "record"),
    )
    cases.add(
        "wanted/absent-output-of-a-parameter",
        "state",
        f"an output without a cotangent contributes nothing to parameters: {of}",
        parameter,
        ("gradients", "parameter_gradients", "several_outputs"),
    )


def output(context: Context) -> None:
    """Two outputs, a loss of the first one."""
    neuron, x = Outputs(backend=context.name), context.tensor(np.zeros(_SHAPE), grad=True)
    _check(context, neuron, "its first output alone", [x], neuron(x)[0], [_later() / 2.0])


def final_state(context: Context) -> None:
    """The loss is of the final state."""
    neuron, x = Output(backend=context.name), context.tensor(np.zeros(_SHAPE), grad=True)
    v = neuron.run(x)[1]["v"]
    _check(context, neuron, "the final v alone", [x], v, [np.tile(_WEIGHTS[0] / 2.0, (_SHAPE[0], 1))])


def state(context: Context) -> None:
    """The loss is of the output."""
    neuron, x = State(backend=context.name), context.tensor(np.zeros(_SHAPE), grad=True)
    _check(context, neuron, "the output alone", [x], neuron(x), [_later() / 2.0])


def other_final_state(context: Context) -> None:
    """The loss is of the final potential, and then of it and the output."""
    neuron, one = State(backend=context.name), np.tile(_WEIGHTS[0] / 2.0, (_SHAPE[0], 1))
    x = context.tensor(np.zeros(_SHAPE), grad=True)
    _check(context, neuron, "the final v alone", [x], neuron.run(x)[1]["v"], [one])
    x = context.tensor(np.zeros(_SHAPE), grad=True)
    output, final = neuron.run(x)
    _check(context, neuron, "the output plus the final v", [x], output + final["v"], [_later() / 2.0 + one * _total()])


def trace(context: Context) -> None:
    """Both states are recorded, and the loss is of the first trace."""
    neuron, x = State(backend=context.name), context.tensor(np.zeros(_SHAPE), grad=True)
    v = neuron.run(x, record=("v", "b"))[2]["v"]
    _check(context, neuron, "the trace of v alone", [x], v, [_later() / 2.0])


def parameter(context: Context) -> None:
    """The gradient of a parameter of both outputs, and of one that the second output alone has."""
    neuron = context.place(Learnt(backend=context.name, learn=("gain", "other")))
    x = context.tensor(np.zeros(_SHAPE), grad=True)
    leaves = [x, neuron.get_parameter("gain"), neuron.get_parameter("other")]
    right = [_later() / 2.0, _later().sum(), np.zeros(())]
    _check(context, neuron, "its first output alone", leaves, neuron(x)[0], right)


def _total() -> float:
    """Of cotangents of each step, times which that of the final state arrives where it is added to every step."""
    return float(_WEIGHTS[:, 0].sum())


def _later() -> Array:
    """The sum of the cotangents from each step on."""
    return np.asarray(np.cumsum(_WEIGHTS[::-1], 0)[::-1])


def _check(context: Context, neuron: Any, given: str, leaves: List[Any], result: Any, right: List[Array]) -> None:
    """The gradients of input and parameters; none is 0, but for the input."""
    of = f"{neuron!r} at inputs that are 0, with a cotangent of {given},"
    backward(of, [result], [context.tensor(_WEIGHTS if result.ndim > 1 else _WEIGHTS[0])])
    for k, (leaf, expected) in enumerate(zip(leaves, right)):
        what = "input gradient" if k == 0 else f"gradient of {tuple(neuron.params)[k - 1]}"
        got = np.zeros(expected.shape) if leaf.grad is None and not expected.any() else leaf.grad
        if got is None:
            raise Mismatch(f"{what} of {of}: there is none; the result is not connected to it")
        found = got if isinstance(got, np.ndarray) else as_array(got)
        if np.isnan(found).any():
            raise Mismatch(
                f"{what} of {of}: {int(np.isnan(found).sum())} of {found.size} values are NaN, expected finite ones\n"
                "  hint: a cotangent that did not arrive was 0, and was multiplied by an infinite derivative: build "
                "the adjoint for those that arrive, program.adjoint(learn, outputs, trace, final)"
            )
        same(what, of, found, expected, axes="t, n" if k == 0 else "n")
