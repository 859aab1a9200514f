"""Core, beside its rows: tails of surrogates, a start at rest, and what is not written to."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same, unchanged
from spikecore.testing._context import Context
from spikecore.testing._custom import library_surrogate
from spikecore.testing._models import BY_NAME, spread
from spikecore.testing._oracle import SURROGATES, run
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import TOLERANCES


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    for name in SURROGATES:
        holds = "this surrogate's derivative is finite and right at 0 of both signs, next to it, and very far from it"
        cases.add(f"surrogate/{name.lower()}-tails", "core", holds, partial(tails, name=name), ("gradients",))
    cases.add("state/rest", "core", "every call starts at rest: the same input twice gives the same output", rest)
    cases.add("state/inputs-stay", "core", "inputs, parameters and given states are not written to", inputs_stay)
    cases.add("state/no-gradient-asked", "core", "under no_grad and inference_mode the outputs are the same", no_grad)


def tails(context: Context, name: str) -> None:
    """One step of IF with threshold 0, where the potential minus threshold is the input."""
    points = [0.0, -0.0, 1e-30, -1e-30, 1e-6, -1e-6, 3.0, -3.0, 1e4, -1e4, 1e18, -1e18, 1e30, -1e30]
    twin = SURROGATES[name]
    neuron = BY_NAME["if"].build(
        context.name, "hard", {"threshold": 0.0, "v_reset": 0.0}, surrogate=library_surrogate(twin)
    )
    u = context.tensor([points], grad=True)
    output = context.place(neuron)(u)
    backward(repr(neuron), [output], [torch.ones_like(output)])
    held = as_array(u)
    expected = twin(held)
    if name == "SquarewaveFourier":
        # beyond 1e4 a float32 has no phase left: only finite is asked for
        far = abs(held) > 1e4
        got = as_array(u.grad)  # type: ignore[arg-type]  # a leaf after backward
        if not (abs(got[far]) < 10).all():
            raise Mismatch(f"the derivative of {neuron.surrogate!r} far from 0 is {got[far]}, which is not bounded")
        expected[far] = got[far]
    if u.grad is None:
        raise Mismatch(f"no gradient came through {neuron!r}")
    same(
        "derivative of the spike",
        f"{neuron!r}, where the input is the potential minus threshold",
        as_array(u.grad),
        expected,
        TOLERANCES["float32", "input gradient"],
        tested=held,
    )


def rest(context: Context) -> None:
    """Three calls; the second on other input."""
    for model in ("lif", "alif", "leaky"):
        s = Subject(context, model, "soft")
        first = s.neuron(s.x())
        other = s.x().flip(0) + 0.5
        s.neuron(other)
        s.check_outputs(first)
        ended = run(s.twin, [as_array(other)], s.spread).final
        same(
            "spikes of the third call",
            s.of,
            as_array(s.neuron(s.x())),
            as_array(first),
            tested=s.seen.tested,
            suspects={
                "of a start where the call before ended": partial(_first_output, s, ended),
                "of the call before": partial(_first_output, s, None, as_array(other)),
            },
            right="the first call with the same input",
        )


def _first_output(s: Subject, state: Any, x: Any = None) -> Any:
    return run(s.twin, s.inputs if x is None else [x], s.spread, state).outputs[0]


def inputs_stay(context: Context) -> None:
    """Copies made before are equal after."""
    s = (
        Subject(context, "lif", "hard", values={"tau": _column(2.7)})
        if context.declares("channel_parameters")
        else (Subject(context, "lif", "hard"))
    )
    x, start = s.x(), {"v": context.tensor([[0.25] * 7] * 3)}
    kept = [x.clone(), start["v"].clone(), *(p.clone() for p in s.neuron.buffers())]
    s.neuron.run(x, state=start)
    now = [x, start["v"], *s.neuron.buffers()]
    for name, before, after in zip(("the input", "the given state", "a parameter", "a parameter"), kept, now):
        unchanged(f"{name} after the call", s.of, [after], [before])


def _column(value: float) -> Any:
    return spread(value, (7,))


def no_grad(context: Context) -> None:
    """The two ways of saying that no gradient is wanted."""
    s = Subject(context, "lif", "soft")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            output = s.neuron(s.x())
        s.check_outputs(output, f" under {mode.__name__}")
        if output.requires_grad:
            raise Mismatch(f"the output of {s.of} requires a gradient under {mode.__name__}")
