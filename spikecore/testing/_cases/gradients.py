"""State and gradients: carried states, tensors that stand for several, and cotangents that do not arrive."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, ContextManager, Dict, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.testing._calls import Call, default_dtype
from spikecore.testing._case import Collection
from spikecore.testing._context import Context
from spikecore.testing._oracle import Array
from spikecore.testing._subject import subject
from spikecore.testing.compare import Mismatch, as_array, backward, same

CASES = Collection()
_BACK, _STATE, _LEARN = ("gradients",), ("gradients", "state_gradients"), ("gradients", "parameter_gradients")
_TWO = ("several_inputs", "several_outputs")


def _case(name: str, holds: str, *needs: str, tier: str = "state", **more: Any) -> Callable[[Any], Any]:
    return CASES.case(name, tier, holds, *needs, **more)


# -- state


@_case("state/rest", "every call starts at rest: the same input twice gives the same output", tier="core")
def _rest(context: Context) -> None:
    """Three calls; the second on other input."""
    for model in ("lif", "alif", "leaky"):
        s = subject(context, model, "soft")
        first, other = s.neuron(s.x()), s.x().flip(0) + 0.5
        s.neuron(other)
        s.check_outputs(first)
        third, tested = as_array(s.neuron(s.x())), s.seen.tested
        right = "the first call with the same input"
        same("spikes of the third call", s.of, third, as_array(first), tested=tested, right=right)


_MODES: Dict[str, Callable[[], ContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "float64 as torch's default dtype": partial(default_dtype, torch.float64),
}
_NO_GRAD, _INFERENCE, _DEFAULT = _MODES
_UNDER, _FINAL_STATE = "under no_grad and inference_mode the outputs are the same", "the final state"


@_case("state/no-gradient-asked", _UNDER, tier="core", modes=(_NO_GRAD, _INFERENCE))
@_case("robust/no-grad-state", f"{_FINAL_STATE} is right under torch.no_grad", tier="robust", modes=(_NO_GRAD,))
@_case("robust/inference-mode-state", f"{_FINAL_STATE} is right in inference mode", tier="robust", modes=(_INFERENCE,))
@_case("robust/default-dtype-state", f"{_FINAL_STATE} has its own dtype", tier="robust", modes=(_DEFAULT,))
def _modes(context: Context, modes: Sequence[str]) -> None:
    s = subject(context, "lif", "soft")
    for mode in modes:
        x = s.x(grad=mode != _DEFAULT and context.declares("gradients"))
        with _MODES[mode]():
            short, (output, final) = s.neuron(x), s.neuron.run(x)
        for value in (short, output):
            s.check_outputs(value, f" under {mode}")
        if any(value.requires_grad for value in (short, output, *final.values())):
            raise Mismatch(f"a result of {s.of} requires a gradient under {mode}")
        s.check_states(final, s.bits().final, f"final state, under {mode},", exact=True)


# -- tensors that stand for several


@_case(
    "wanted/one-tensor-for-all-states",
    "one tensor given as every state gets the sum of their gradients",
    *(*_LEARN, "state_gradients", *_TWO),
)
def _one_state(context: Context) -> None:
    s = subject(context, "turn", "none", shape=(6, 3, 5), state=True)
    names = tuple(s.twin.rest)
    s.takes(s.inputs, dict.fromkeys(names, (s.state or {})[names[0]]))
    value = (s.start(grad=True) or {})[names[0]]
    outputs, _ = s.neuron.run(*s.xs(), state=dict.fromkeys(names, value))
    s.check_outputs(outputs, " of one tensor given as every state")
    cotangents = [s.cotangent(output) for output in outputs]
    backward(s.of, list(outputs), cotangents)
    total = np.asarray(sum(s.gradients(cotangents).state.values()))
    s.check("state gradient", value.grad, total, name="one tensor given as every state")


@_case(
    "wanted/one-tensor-for-two-parameters",
    "one learnt tensor that is two parameters gets the sum of both gradients",
    *_LEARN,
)
def _one_parameter(context: Context) -> None:
    names = ("threshold", "v_reset")
    s = subject(context, "lif", "soft", values=dict.fromkeys(names, np.asarray(0.75)), learn=names)
    neuron: Any = s.neuron
    neuron.v_reset = neuron.threshold
    call = Call(s, "a call with one tensor as two parameters").forward()
    call.check_outputs().backward().check_inputs()
    total = np.asarray(sum(call.right.params[name] for name in names))
    s.check("parameter gradient", neuron.threshold.grad, total, name="threshold, which is v_reset too,")


@_case("wanted/computed-parameter", "a parameter that was computed passes its gradient on", *_LEARN)
def _computed_parameter(context: Context) -> None:
    """``tau = raw / 2 + 1``."""
    s = subject(context, "lif", "hard", values={"tau": np.asarray(2.75)})
    neuron: Any = s.neuron
    raw = context.tensor(3.5, grad=True)
    neuron.tau = raw / 2 + 1
    call = Call(s, "a call with a computed tau")
    call.check()
    s.check("parameter gradient", raw.grad, call.right.params["tau"] / 2, name="what tau was computed from")


@_case("wanted/input-is-a-parameter", "input and initial state may be torch.nn.Parameter, and are learnt", *_STATE)
def _input_as_parameter(context: Context) -> None:
    """An image that is optimised, from a state that is learnt."""
    s = subject(context, "alif", "hard", state=True)
    call = Call(s, "a call with parameters as input and state")
    call.x = nn.Parameter(call.x.detach())
    call.start = {name: nn.Parameter(value.detach()) for name, value in (call.start or {}).items()}
    call.check()


# -- cotangents that do not arrive are not 0: beside an infinite derivative they must not give NaN. The derivative of
# ``log(x)`` is infinite at the inputs of these cases, which are 0, and nothing with a cotangent depends on it.

_SHAPE = (4, 3)
#: Cotangents of the potential ``v' = v + x / 2``.
_WEIGHTS = np.array([[1.0, 2.0, -1.0, 0.5]]).T * np.array([[1.0, -0.5, 2.0]])
#: The sum of the cotangents from each step on, and that of the final state for each step.
_LATER: Array = np.cumsum(_WEIGHTS[::-1], 0)[::-1]
_FINAL: Array = np.tile(_WEIGHTS[0], (_SHAPE[0], 1))

Next = Tuple[Any, Dict[str, Any]]


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


def _of_trace(neuron: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(neuron.run(x, record=("v", "b"))[2]["v"])


def _of_both(neuron: Any, x: Tensor) -> Tensor:
    output, final = neuron.run(x)
    return torch.as_tensor(output + final["v"])


def _first_output(neuron: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(neuron(x)[0])


def _of_final(neuron: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(neuron.run(x)[1]["v"])


#: Of :func:`_of_both`: the final state is added to every step.
_LATER_AND_FINAL = _LATER + _FINAL * _WEIGHTS[:, 0].sum()
#: (case, what has no cotangent, capabilities, neuron, what has one, that of a call, gradients of input and parameters).
_ABSENT: Sequence[Any] = (
    ("output", "an output", ("several_outputs",), Learnt, "its first output alone", _first_output, _LATER / 2.0),
    ("output-of-a-final-state", "an output", _STATE, Output, "the final v alone", _of_final, _FINAL / 2.0),
    ("state", "a state that nothing reads", (), State, "the output alone", lambda n, x: n(x), _LATER / 2.0),
    ("final-state", "a final state", _STATE, State, "the final v alone", _of_final, _FINAL / 2.0),
    ("state-of-a-sum", "a final state", _STATE, State, "output plus final v", _of_both, _LATER_AND_FINAL / 2.0),
    ("trace", "a recorded state", (*_STATE, "record"), State, "the trace of v alone", _of_trace, _LATER / 2.0),
    ("output-of-a-parameter", "an output", (*_LEARN, "several_outputs"), Learnt, "its first output alone",
     _first_output, _LATER / 2.0, _LATER.sum(), np.zeros(())),
)  # fmt: skip


def _add_absent() -> None:
    for name, what, needs, cls, words, result, *right in _ABSENT:
        holds = (
            f"{what} without a cotangent contributes nothing: where its derivative is infinite gradients are as if it "
            "were not there"
        )
        run = partial(_check, cls=cls, words=words, result=result, right=right)
        CASES.add(f"wanted/absent-{name}", "state", holds, run, tuple(dict.fromkeys((*_BACK, *needs))))


def _check(
    context: Context, cls: Any, words: str, result: Callable[[Any, Tensor], Tensor], right: Sequence[Any]
) -> None:
    """The gradients of the input and of every parameter, at inputs that are 0."""
    learn = tuple(cls.params)[: len(right) - 1]
    neuron = context.place(cls(backend=context.name, learn=learn))
    x = context.tensor(np.zeros(_SHAPE), grad=True)
    of = f"{neuron!r} at inputs that are 0, with a cotangent of {words},"
    output = result(neuron, x)
    backward(of, [output], [context.tensor(_WEIGHTS if output.ndim > 1 else _WEIGHTS[0])])
    leaves: List[Any] = [x, *(neuron.get_parameter(name) for name in learn)]
    for k, (leaf, expected) in enumerate(zip(leaves, map(np.asarray, right))):
        what = "input gradient" if k == 0 else f"gradient of {tuple(neuron.params)[k - 1]}"
        if leaf.grad is None and expected.any():
            raise Mismatch(f"{what} of {of}: there is none; the result is not connected to it")
        came = np.zeros(expected.shape) if leaf.grad is None else as_array(leaf.grad)
        if np.isnan(came).any():
            raise Mismatch(
                f"{what} of {of}: {int(np.isnan(came).sum())} of {came.size} values are NaN, expected finite ones\n"
                "  hint: a cotangent that did not arrive was 0, and was multiplied by an infinite derivative: build "
                "the adjoint for those that arrive, program.adjoint(learn, outputs, trace, final)"
            )
        same(what, of, came, expected, axes="t, n" if k == 0 else "n")


_add_absent()
