"""What a call is asked for: single traces, losses of a part of the results, and tensors that stand for several."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, List, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from spikecore.testing._case import Collection
from spikecore.testing._compare import backward
from spikecore.testing._context import Context
from spikecore.testing._models import BY_NAME
from spikecore.testing._subject import Subject
from spikecore.testing._turning import TURN

_STATES = ("a", "b", "c")
_LEARN = ("gradients", "parameter_gradients")
_TWO = ("several_inputs", "several_outputs")


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of state."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = ()) -> None:
        cases.add(f"wanted/{name}", "state", holds, run, needs)

    trace = ("gradients", "state_gradients", "record", *_TWO)
    alone = "a state that is recorded alone, and is not the first, has its values and its gradient"
    add("second-trace-recorded-alone", alone, partial(traces, record=("b",)), trace)
    order = "states recorded in another order than the program's have their own values and gradients"
    add("traces-in-another-order", order, partial(traces, record=("c", "a")), trace)
    add(
        "last-step-only",
        "a loss of the last step's outputs alone, or of one neuron's, has its gradient at every step",
        last_step,
        ("gradients",),
    )
    sums = "each result's sum(), whose cotangent is one number expanded, has its gradient"
    add("sums-of-everything", sums, sums_of_everything, (*trace, "parameter_gradients"))
    add(
        "one-tensor-for-two-parameters",
        "one learnt tensor that is two parameters gets the sum of both gradients",
        one_parameter,
        _LEARN,
    )
    add(
        "input-is-a-parameter",
        "input and initial state may be torch.nn.Parameter, and are learnt then like any other",
        input_as_parameter,
        ("gradients", "state_gradients"),
    )
    computed = "a parameter that was computed from others passes its gradient on to them"
    add("computed-parameter", computed, computed_parameter, _LEARN)


def traces(context: Context, record: Sequence[str]) -> None:
    """Some of three states, with cotangents of nothing else."""
    s = Subject(context, TURN, "none", shape=(6, 3, 5), state=True)
    xs, start = s.xs(grad=True), s.start(grad=True) or {}
    trace = s.neuron.run(*xs, state=start, record=tuple(record))[2]
    for name in record:
        s.check("potential", trace[name].detach(), s.seen.states[name], name=f"the recorded {name}")
    cotangents = {name: s.cotangent(trace[name]) for name in record}
    s.cotangents = {f"trace {name}": one for name, one in cotangents.items()}
    backward(s.of, [trace[name] for name in record], list(cotangents.values()))
    right = s.gradients([None, None], None, cotangents)
    for name, x, expected in zip(s.twin.inputs, xs, right.inputs):
        grad = torch.zeros_like(x) if x.grad is None and not expected.any() else x.grad
        s.check("input gradient", grad, expected, name=name, of=name)
    for name, value in start.items():
        s.check("state gradient", value.grad, right.state[name], name=f"the initial {name}", of=name)


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
