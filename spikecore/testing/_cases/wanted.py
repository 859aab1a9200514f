"""Gradients that are wanted, beside the rows: none, sums, and tensors that stand for several."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward
from spikecore.testing._context import Context
from spikecore.testing._models import BY_NAME
from spikecore.testing._subject import Subject
from spikecore.testing._turning import TURN

_STATES, _PARAMS = ("a", "b", "c"), ("leak", "gain", "start")
_LEARN, _TWO = ("gradients", "parameter_gradients"), ("several_inputs", "several_outputs")
_NEEDS = (*_LEARN, "state_gradients", "record", *_TWO)


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of state."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = _NEEDS) -> None:
        cases.add(f"wanted/{name}", "state", holds, run, needs)

    holds = "where nothing requires a gradient, or under no_grad, results require none"
    add("none", holds, nothing, ("record", *_TWO))
    for name in ("same", "view"):
        holds = "one tensor given as both inputs gets the sum of both gradients"
        add(f"one-tensor-for-both-inputs-{name}", holds, partial(twice, view=name == "view"))
    add("one-tensor-for-all-states", "one tensor given as every state gets the sum of their gradients", one_state)
    holds = "a loss of the last step's outputs alone, or of one neuron's, has its gradient at every step"
    add("last-step-only", holds, last_step, ("gradients",))
    holds = "each result's sum(), whose cotangent is one number expanded, has its gradient"
    add("sums-of-everything", holds, sums_of_everything)
    holds = "one learnt tensor that is two parameters gets the sum of both gradients"
    add("one-tensor-for-two-parameters", holds, one_parameter, _LEARN)
    holds = "input and initial state may be torch.nn.Parameter, and are learnt then like any other"
    add("input-is-a-parameter", holds, input_as_parameter, ("gradients", "state_gradients"))
    holds = "a parameter that was computed from others passes its gradient on to them"
    add("computed-parameter", holds, computed_parameter, _LEARN)


def _subject(context: Context, learn: Sequence[str] = (), state: bool = True) -> Subject:
    return Subject(context, TURN, "none", shape=(6, 3, 5), state=state, learn=tuple(learn))


def _run(s: Subject, xs: Sequence[Tensor], start: Any) -> Dict[str, Tensor]:
    output, final, trace = s.neuron.run(*xs, state=start, record=_STATES)
    named = {f"output {i}": one for i, one in enumerate(output)}
    named.update({f"final {name}": final[name] for name in _STATES})
    named.update({f"trace {name}": trace[name] for name in _STATES})
    return named


def nothing(context: Context) -> None:
    """Numbers as parameters; then leaves that require gradients, under ``no_grad``."""
    s = _subject(context)
    for what, results in (("of plain tensors", _run(s, s.xs(), s.start())), ("under no_grad", _without(s))):
        for name, value in results.items():
            if value.requires_grad or value.grad_fn is not None:
                raise Mismatch(f"{name} of {s.of}, {what}, requires a gradient: what does it keep for a backward pass?")
        s.check_outputs((results["output 0"], results["output 1"]), f" {what}")


def _without(s: Subject) -> Dict[str, Tensor]:
    xs, start = s.xs(grad=s.context.declares("gradients")), s.start()
    with torch.no_grad():
        return _run(s, xs, start)


def twice(context: Context, view: bool) -> None:
    """The tensor itself, or a view of it."""
    s = _subject(context, _PARAMS[:2])
    s.takes([s.inputs[0], s.inputs[0]])
    x = s.xs(grad=True)[0]
    results = _run(s, [x, x.view_as(x) if view else x], s.start())
    outputs = [results["output 0"], results["output 1"]]
    s.check_outputs(tuple(outputs), " of one tensor given twice")
    cotangents = [s.cotangent(one) for one in outputs]
    backward(s.of, outputs, cotangents)
    expected = s.gradients(cotangents)
    both = expected.inputs[0] + expected.inputs[1]
    parts = {"of the first input alone": lambda: expected.inputs[0], "of the second alone": lambda: expected.inputs[1]}
    s.check("input gradient", x.grad, both, name="one tensor given as both inputs", suspects=parts)


def one_state(context: Context) -> None:
    """The same tensor for a, b and c."""
    s = _subject(context)
    held = (s.state or {})["a"]
    s.takes(s.inputs, dict.fromkeys(_STATES, held))
    value = (s.start() or {})["a"].requires_grad_()
    results = _run(s, s.xs(), dict.fromkeys(_STATES, value))
    outputs: List[Tensor] = [results["output 0"], results["output 1"]]
    s.check_outputs(tuple(outputs), " from one tensor as every state")
    cotangents = [s.cotangent(one) for one in outputs]
    backward(s.of, outputs, cotangents)
    total = sum(s.gradients(cotangents).state.values())
    s.check("state gradient", value.grad, np.asarray(total), name="one tensor given as every state")
    if not np.array_equal(as_array(value), held):
        raise Mismatch(f"the state given to {s.of} was written to")


def last_step(context: Context) -> None:
    """Cotangents that are zero but for the last step, then but for one neuron of it."""
    for parts in ((-1,), (-1, 1, 2)):
        s = Subject(context, "lif", "soft", shape=(20, 3, 5))
        x = s.x(grad=True)
        output = s.neuron(x)
        cotangent, dense = s.cotangent(output[parts]), torch.zeros_like(output)
        dense[parts] = cotangent
        backward(s.of, [output[parts]], [cotangent])
        s.check("input gradient", x.grad, s.gradients(dense).inputs[0], name=f"a loss of the output at {list(parts)}")


def sums_of_everything(context: Context) -> None:
    """``sum()`` of outputs, final states and traces, each times a number of its own."""
    s = Subject(context, TURN, "none", shape=(6, 3, 5), state=True, learn=("leak", "gain"))
    xs, start = s.xs(grad=True), s.start(grad=True) or {}
    outputs, final, trace = s.neuron.run(*xs, state=start, record=_STATES)
    results: List[Tensor] = [*outputs, *(final[n] for n in _STATES), *(trace[n] for n in _STATES)]
    times = [0.5 + k / 4 for k in range(len(results))]
    backward(s.of, [r.sum() for r in results], [context.tensor(time) for time in times])
    full = [torch.full_like(r, time) for r, time in zip(results, times)]
    right = s.gradients(full[:2], dict(zip(_STATES, full[2:5])), dict(zip(_STATES, full[5:])))
    for name, x, expected in zip(s.twin.inputs, xs, right.inputs):
        s.check("input gradient", x.grad, expected, name=f"{name}, of the sums of all results")
    for name, value in start.items():
        s.check("state gradient", value.grad, right.state[name], name=f"the initial {name}, of the sums of all results")
    for name, parameter in s.neuron.named_parameters():
        s.check("parameter gradient", parameter.grad, right.params[name], name=f"{name}, of the sums of all results")


def one_parameter(context: Context) -> None:
    """Threshold and reset value of LIF."""
    held = BY_NAME["lif"].params["threshold"]
    names = ("threshold", "v_reset")
    s = Subject(context, "lif", "soft", values=dict.fromkeys(names, held), learn=names)
    neuron: Any = s.neuron
    neuron.v_reset = neuron.threshold
    x = s.x(grad=True)
    output = neuron(x)
    s.check_outputs(output, " with one tensor as two parameters")
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    right = s.gradients(cotangent)
    s.check("input gradient", x.grad, right.inputs[0], name="one tensor as two parameters")
    parts = {
        f"of {name} alone: does one gradient replace the other?": partial(np.asarray, right.params[name])
        for name in names
    }
    total = np.asarray(right.params["threshold"] + right.params["v_reset"])
    s.check("parameter gradient", neuron.threshold.grad, total, name="threshold, which is v_reset too,", suspects=parts)


def computed_parameter(context: Context) -> None:
    """``tau = raw / 2 + 1``."""
    s = Subject(context, "lif", "hard", values={"tau": np.asarray(2.75)})
    neuron: Any = s.neuron
    raw = context.tensor(3.5, grad=True)
    neuron.tau = raw / 2 + 1
    x = s.x(grad=True)
    output = neuron(x)
    s.check_outputs(output, " with a computed tau")
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    right = s.gradients(cotangent)
    s.check("input gradient", x.grad, right.inputs[0], name="a call with a computed tau")
    s.check("parameter gradient", raw.grad, right.params["tau"] / 2, name="what tau was computed from")


def input_as_parameter(context: Context) -> None:
    """An image that is optimised, from a state that is learnt."""
    s = Subject(context, "alif", "hard", state=True)
    x = nn.Parameter(s.x())
    start = {name: nn.Parameter(value) for name, value in (s.start() or {}).items()}
    output, final = s.neuron.run(x, state=start)
    s.check_outputs(output, " of a parameter as input")
    s.check_states(final, s.seen.final, "final state, from parameters as state,", exact=False)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    right = s.gradients(cotangent)
    s.check("input gradient", x.grad, right.inputs[0], name="a parameter as input")
    for name, value in start.items():
        s.check("state gradient", value.grad, right.state[name], name=f"a parameter as the initial {name}")
