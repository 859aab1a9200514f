"""States that change places, and many steps: beside whatever else a call may have."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Sequence

from spikecore.testing._case import Collection
from spikecore.testing._compare import as_array, backward
from spikecore.testing._context import Context
from spikecore.testing._models import Model, spread
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import OTHER_DTYPES
from spikecore.testing._turning import SWAP, TURN

#: Step counts beside and beyond chunks of 16.
STEPS = (17, 33, 64, 100, 250)
BACK = ("gradients", "parameter_gradients", "state_gradients")
TWO = ("several_inputs", "several_outputs")


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of state."""

    def add(name: str, holds: str, run: Any, needs: Sequence[str] = (), dtype: str = "float32") -> None:
        cases.add(f"state/{name}", "state", holds, run, needs, dtype=dtype)

    for name, model, needs in (("swap-two", SWAP, ()), ("swap-three", TURN, TWO)):
        which: Dict[str, Any] = {"model": model}
        swap = "states that take each other's values are all read before one is written"
        add(name, swap, partial(forward, **which), needs)
        add(f"{name}-given", f"{swap}, from a given state", partial(forward, given=True, **which), needs)
        add(f"{name}-record", f"{swap}, and recorded", partial(forward, record=True, **which), (*needs, "record"))
        back = "and so are their cotangents"
        add(f"{name}-gradient", f"{swap}, {back}", partial(gradient, **which), (*needs, *BACK))
    add(
        "steps-1025-scalar",
        "in 1025 steps shared parameters get their gradients",
        partial(gradient, model=TURN, shape=(1025, 2, 3), record=True, given=True),
        (*TWO, *BACK, "record"),
    )
    for steps in STEPS:
        shape = (steps, 2, 3)
        every = f"in {steps} steps, from a given state, with the cotangents of outputs, trace and final state, "
        with_ = (*BACK, "record")
        add(
            f"steps-{steps}-scalar",
            every + "shared parameters get their gradients",
            partial(gradient, model=TURN, shape=shape, record=True, given=True),
            (*TWO, *with_),
        )
        add(
            f"steps-{steps}-channel",
            every + "parameters per channel get theirs",
            partial(gradient, model=TURN, shape=shape, record=True, given=True, channels=3),
            (*TWO, *with_, "channel_parameters"),
        )
        add(
            f"steps-{steps}-spikes",
            every + "a neuron that fires has its gradients",
            partial(gradient, model="lif-nodecay", reset="soft", shape=shape, record=True, given=True),
            with_,
        )
    add(
        "one-step-gradient",
        "one step from a given state, recorded: every gradient is the oracle's",
        partial(gradient, model=TURN, shape=(1, 3, 5), record=True, given=True),
        (*TWO, *BACK, "record"),
    )
    add(
        "no-steps-gradient",
        "without steps the final state is the given one, and its cotangent that one's gradient",
        no_steps,
        ("gradients", "state_gradients"),
    )
    for dtype in OTHER_DTYPES:
        add(
            f"steps-100-{dtype}",
            "100 steps of this dtype, recorded, from a given state: states and traces are in the dtype of arithmetic",
            partial(gradient, model=TURN, shape=(100, 2, 3), record=True, given=True, dtype=dtype),
            (*TWO, *BACK, "record"),
            dtype,
        )


def forward(context: Context, model: Model, given: bool = False, record: bool = False) -> None:
    """Outputs, final state and trace to the bit."""
    s = Subject(context, model, "none", shape=(6, 3, 5), state=given)
    options: Dict[str, Any] = {"record": tuple(s.twin.rest)} if record else {}
    output, final, *trace = s.neuron.run(*s.xs(), state=s.start(), **options)
    s.check_states(final, s.bits().final, "final state", exact=True)
    s.check_outputs(output, exact=True)
    for one in trace:
        s.check_states(one, s.bits().states, "recorded", exact=True)


def gradient(
    context: Context,
    model: Any,
    reset: str = "none",
    shape: Sequence[int] = (6, 3, 5),
    record: bool = False,
    given: bool = False,
    channels: int = 0,
    dtype: str = "float32",
) -> None:
    """Cotangents on everything that the call gives; gradients of everything that it takes."""
    s = Subject(context, model, reset, shape=shape, state=given, dtype=dtype)
    names = tuple(s.params)
    if channels:
        values = {name: spread(value, (channels,)) for name, value in s.params.items()}
        s = Subject(context, model, reset, shape=shape, state=given, dtype=dtype, values=values, learn=names)
    else:
        s = Subject(context, model, reset, shape=shape, state=given, dtype=dtype, learn=names)
    xs, start = s.xs(grad=True), s.start(grad=True)
    options: Dict[str, Any] = {"record": tuple(s.twin.rest)} if record else {}
    output, final, *traces = s.neuron.run(*xs, state=start, **options)
    trace: Dict[str, Any] = traces[0] if traces else {}
    outputs = output if isinstance(output, tuple) else (output,)
    s.check_outputs(output)
    s.check_states(final, s.seen.final, "final state", exact=False)
    if trace:
        s.check_states(trace, s.seen.states, "recorded", exact=False)
    of_outputs = [s.cotangent(one) for one in outputs]
    of_final = {name: s.cotangent(one) for name, one in final.items()}
    of_trace = {name: s.cotangent(one) for name, one in trace.items()}
    backward(
        s.of,
        [*outputs, *final.values(), *trace.values()],
        [*of_outputs, *of_final.values(), *of_trace.values()],
    )
    s.cotangents = {f"output {i}": one for i, one in enumerate(of_outputs)}
    s.cotangents.update({f"final {name}": one for name, one in of_final.items()})
    s.cotangents.update({f"trace {name}": one for name, one in of_trace.items()})
    expected = s.gradients(of_outputs, of_final, of_trace)
    for name, x, right in zip(s.twin.inputs, xs, expected.inputs):
        s.check("input gradient", x.grad, right, name=name, of=name)
    for name, value in (start or {}).items():
        s.check("state gradient", value.grad, expected.state[name], name=f"the initial {name}", of=name)
    for name, parameter in s.neuron.named_parameters():
        if parameter.grad is not None or expected.params[name].any():
            s.check("parameter gradient", parameter.grad, expected.params[name], name=name, of=name)


def no_steps(context: Context) -> None:
    """An empty part of a stream, of neurons with one state and with two."""
    for model in ("lif", "alif"):
        s = Subject(context, model, "hard", shape=(0, 3, 5), state=True)
        start = s.start(grad=True) or {}
        final = s.neuron.run(s.x(), state=start)[1]
        s.check_states({name: value.detach() for name, value in final.items()}, s.seen.final, "final state", exact=True)
        cotangents = {name: s.cotangent(value) for name, value in final.items()}
        backward(s.of, list(final.values()), list(cotangents.values()))
        for name, value in start.items():
            s.check("state gradient", value.grad, as_array(cotangents[name]), name=f"the initial {name}, of no steps,")
