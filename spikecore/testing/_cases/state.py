"""State: given, recorded, carried from call to call, and differentiated."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict

import numpy as np
import torch

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._cases.core import configurations
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._oracle import adjoint, run
from spikecore.testing._subject import Subject

#: Step counts around 16, up to which a backend may unroll and beyond which it works in chunks.
LONG = (2, 15, 16, 17, 31, 32, 33, 40)
_BACK = ("gradients", "state_gradients")


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    for model, reset, name in configurations():
        which: Dict[str, Any] = {"model": model.name, "reset": reset}
        if reset == model.resets[0] or model.name in ("lif", "leaky", "alif", "izhikevich"):
            cases.add(
                f"record/{name}",
                "state",
                "a recorded state is its value after every step, the last one the final state's",
                partial(record, **which),
                ("record",),
            )
            cases.add(
                f"state/given-{name}", "state", "a run continues from the state it is given", partial(given, **which)
            )
        cases.add(
            f"state/gradient-{name}",
            "state",
            "gradients flow to the initial state and from the final one",
            partial(gradient, **which),
            _BACK,
        )
    cases.add("record/gradient", "state", "a recorded state carries its gradient", record_gradient, (*_BACK, "record"))
    cases.add(
        "record/gradient-alone",
        "state",
        "a gradient may come from a recorded state alone",
        record_alone,
        (*_BACK, "record"),
    )
    cases.add("record/several", "state", "several states are recorded, in the order asked for", several, ("record",))
    for steps in LONG:
        cases.add(
            f"state/long-{steps}",
            "state",
            "any number of steps gives the oracle's outputs and final state",
            partial(long, steps=steps),
        )
        cases.add(
            f"state/long-{steps}-gradient",
            "state",
            "and the oracle's gradients, from all outputs and the final state",
            partial(long_gradient, steps=steps),
            _BACK,
        )
    cases.add("state/carried", "state", "calls that carry their state give what one long call gives", carried)
    cases.add(
        "state/carried-16-bit",
        "state",
        "nothing is rounded on the way from call to call",
        partial(carried, dtype="float16"),
        dtype="float16",
    )
    cases.add("state/truncated", "state", "a detached state lets the value through and no gradient", truncated, _BACK)
    cases.add(
        "state/single-gradient",
        "state",
        "step by step, the gradient through the carried state is that of one call",
        single_gradient,
        _BACK,
    )
    cases.add("state/final-alone", "state", "a gradient may come from the final state alone", final_alone, _BACK)
    cases.add("state/initial-alone", "state", "only the initial state may need a gradient", initial_alone, _BACK)
    cases.add("state/not-asked", "state", "outputs are the same whether or not the final state is", not_asked)


def record(context: Context, model: str, reset: str) -> None:
    """All states."""
    s = Subject(context, model, reset)
    output, final, trace = s.neuron.run(s.x(), record=tuple(s.twin.rest))
    s.check_outputs(output)
    exact = s.model.arithmetic
    s.check_states(trace, (s.bits() if exact else s.seen).states, "recorded", exact)
    for name in s.twin.rest:
        same(
            f"final {name} against the last recorded", s.of, as_array(final[name]), as_array(trace[name][-1]), axes="n"
        )


def given(context: Context, model: str, reset: str) -> None:
    """A drawn state."""
    s = Subject(context, model, reset, state=True)
    output, final = s.neuron.run(s.x(), state=s.start())
    s.check_outputs(output, " from a given state")
    s.check_states(final, s.seen.final, "final state", exact=False)


def gradient(context: Context, model: str, reset: str) -> None:
    """Cotangents on the outputs and on every final state."""
    s = Subject(context, model, reset, state=True)
    _both_ways(s)


def _both_ways(s: Subject) -> None:
    x, start = s.x(grad=True), s.start(grad=True)
    output, final = s.neuron.run(x, state=start)
    cotangent = s.cotangent(output)
    of_final = {name: s.cotangent(value) for name, value in final.items()}
    backward(s.of, [output, *final.values()], [cotangent, *of_final.values()])
    expected = s.gradients(cotangent, of_final)
    s.check("input gradient", x.grad, expected.inputs[0], suspects=s.gradient_suspects(cotangent, of_final))
    for name, value in (start or {}).items():
        s.check("state gradient", value.grad, expected.state[name], name=f"the initial {name}")


def record_gradient(context: Context) -> None:
    """Cotangents on everything that a run returns."""
    for model in ("lif", "alif"):
        s = Subject(context, model, "hard", state=True)
        x, start = s.x(grad=True), s.start(grad=True)
        output, final, trace = s.neuron.run(x, state=start, record=tuple(s.twin.rest))
        cotangent = s.cotangent(output)
        of_final = {name: s.cotangent(value) for name, value in final.items()}
        of_trace = {name: s.cotangent(value) for name, value in trace.items()}
        results = [output, *final.values(), *trace.values()]
        backward(s.of, results, [cotangent, *of_final.values(), *of_trace.values()])
        expected = s.gradients(cotangent, of_final, of_trace)
        s.check("input gradient", x.grad, expected.inputs[0], name="everything recorded")
        for name, value in (start or {}).items():
            s.check("state gradient", value.grad, expected.state[name], name=f"the initial {name}")


def record_alone(context: Context) -> None:
    """The spikes are not used."""
    s = Subject(context, "lif", "soft")
    x = s.x(grad=True)
    _, _, trace = s.neuron.run(x, record=("v",))
    cotangent = s.cotangent(trace["v"])
    s.backward(trace["v"], cotangent)
    s.check("input gradient", x.grad, s.gradients(None, None, {"v": cotangent}).inputs[0])


def several(context: Context) -> None:
    """The second state, then both in the other order."""
    s = Subject(context, "alif", "hard")
    for names in (("a",), ("a", "v")):
        _, _, trace = s.neuron.run(s.x(), record=names)
        if tuple(trace) != names:
            raise Mismatch(f"record={names} of {s.of} gives {tuple(trace)}")
        for name in names:
            same(f"recorded {name}", s.of, as_array(trace[name]), s.bits().states[name])


def long(context: Context, steps: int) -> None:
    """LIF without decay of the input, so that a state matters for long."""
    s = Subject(context, "lif-nodecay", "soft", shape=(steps, 3, 5))
    output, final = s.neuron.run(s.x())
    s.check_outputs(output)
    s.check_states(final, s.bits().final, "final state", exact=True)


def long_gradient(context: Context, steps: int) -> None:
    """As above, backwards."""
    _both_ways(Subject(context, "lif-nodecay", "soft", shape=(steps, 3, 5), state=True))
    _both_ways(Subject(context, "alif", "hard", shape=(steps, 3, 5), state=True))


def carried(context: Context, dtype: str = "float32") -> None:
    """Pieces of 16, 1, 0, 7 and 16 steps."""
    for model in ("lif", "synaptic", "leaky"):
        s = Subject(context, model, "soft", shape=(40, 3, 5), dtype=dtype)
        with sc.carry_state(s.neuron):
            pieces = [s.neuron(piece) for piece in s.x().split([16, 1, 0, 7, 16])]
            state = dict(s.neuron.state or {})
        s.check_outputs(torch.cat(pieces), " of the pieces")
        s.check_states(state, s.bits().final, "carried state", exact=True)
        if s.neuron.state is not None:
            raise Mismatch(f"{s.of} keeps a state after carry_state ended")


def truncated(context: Context) -> None:
    """Backward in two pieces."""
    s = Subject(context, "lif", "soft", shape=(12, 3, 5))
    x = s.x(grad=True)
    first, middle = s.neuron.run(x[:7])
    second, _ = s.neuron.run(x[7:], state={name: value.detach() for name, value in middle.items()})
    s.check_outputs(torch.cat([first, second]), " of the pieces")
    cotangent = s.cotangent(torch.cat([first, second]))
    backward(s.of, [first, second], [cotangent[:7], cotangent[7:]])
    head = s.gradients(torch.cat([cotangent[:7], torch.zeros_like(cotangent[7:])])).inputs[0]
    tail = run(s.twin, [x[7:] for x in s.inputs], s.params, {n: v[6] for n, v in s.seen.states.items()})
    behind = adjoint(tail, [as_array(cotangent[7:])]).inputs[0]
    s.check("input gradient", x.grad, np.concatenate([head[:7], behind]), name="truncated")


def single_gradient(context: Context) -> None:
    """Eight calls, one backward."""
    for model in ("lif", "leaky", "alif"):
        s = Subject(context, model, "soft", step="single", shape=(8, 3, 5))
        x = s.x(grad=True)
        output = torch.stack([s.neuron(step) for step in x])
        cotangent = s.cotangent(output)
        s.backward(output, cotangent)
        s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0])


def final_alone(context: Context) -> None:
    """The spikes are not used."""
    for model in ("lif", "alif"):
        s = Subject(context, model, "hard", state=True)
        x, start = s.x(grad=True), s.start(grad=True)
        _, final = s.neuron.run(x, state=start)
        cotangent = s.cotangent(final["v"])
        s.backward(final["v"], cotangent)
        expected = s.gradients(None, {"v": cotangent})
        s.check("input gradient", x.grad, expected.inputs[0])
        s.check("state gradient", (start or {})["v"].grad, expected.state["v"], name="the initial v")


def initial_alone(context: Context) -> None:
    """The input needs no gradient."""
    s = Subject(context, "lif", "soft", state=True)
    start = s.start(grad=True)
    output, _ = s.neuron.run(s.x(), state=start)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    s.check("state gradient", (start or {})["v"].grad, s.gradients(cotangent).state["v"], name="the initial v")


def not_asked(context: Context) -> None:
    """``neuron(x)`` against ``neuron.run(x)``."""
    s = Subject(context, "synaptic", "hard")
    same("spikes without final state", s.of, as_array(s.neuron(s.x())), as_array(s.neuron.run(s.x())[0]))
