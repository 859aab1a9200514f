"""Core: what every neuron computes, state and gradient included. Every backend passes these."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Iterator, Tuple

import torch

from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same, unchanged
from spikecore.testing._context import Context
from spikecore.testing._models import MODELS, Model
from spikecore.testing._oracle import SURROGATES, run
from spikecore.testing._oracle.surrogates import OTHER_ARGUMENTS
from spikecore.testing._subject import Subject


def configurations() -> Iterator[Tuple[Model, str, str]]:
    """Every neuron with every reset it has, and the name of the two."""
    for model in MODELS:
        for reset in model.resets:
            yield model, reset, f"{model.name}-{reset}" if len(model.resets) > 1 else model.name


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    for model, reset, name in configurations():
        which: Dict[str, Any] = {"model": model.name, "reset": reset}
        cases.add(
            f"forward/{name}",
            "core",
            "outputs and final state are the oracle's, on inputs with a margin",
            partial(forward, **which),
        )
        if reset in model.exact_resets:
            cases.add(
                f"exact/{name}",
                "core",
                "outputs and final state are the oracle's to the bit where potentials meet the threshold",
                partial(forward, **which, exact=True),
            )
        if model.arithmetic:
            cases.add(
                f"bits/{name}",
                "core",
                "the final state of a neuron of + - * / is bit for bit that of IEEE arithmetic in source order",
                partial(bits, **which),
            )
        cases.add(
            f"single-step/{name}",
            "core",
            "step by step gives what all steps at once give",
            partial(single_step, **which),
        )
        for detach in (False, True) if model.fires and reset != "none" else (False,):
            cases.add(
                f"gradient/{name}{'-detach' if detach else ''}",
                "core",
                "the input gradient is the oracle's",
                partial(gradient, **which, detach=detach),
                ("gradients",),
            )
    for name in SURROGATES:
        cases.add(
            f"surrogate/{name.lower()}",
            "core",
            "the input gradient with this surrogate is the oracle's, on inputs with a "
            "margin and where potentials meet the threshold",
            partial(surrogate, name=name),
            ("gradients",),
        )
        cases.add(
            f"surrogate/{name.lower()}-tails",
            "core",
            "this surrogate's derivative is finite and right at 0 of both signs, next to it, and very far from it",
            partial(tails, name=name),
            ("gradients",),
        )
    cases.add("state/rest", "core", "every call starts at rest: the same input twice gives the same output", rest)
    cases.add("state/inputs-stay", "core", "inputs, parameters and given states are not written to", inputs_stay)
    cases.add("state/no-gradient-asked", "core", "under no_grad and inference_mode the outputs are the same", no_grad)


def forward(context: Context, model: str, reset: str, exact: bool = False, dtype: str = "float32") -> None:
    """One call from rest."""
    s = Subject(context, model, reset, exact=exact, dtype=dtype)
    output, final = s.neuron.run(s.x())
    s.check_outputs(output, exact=exact)
    s.check_states(final, s.seen.final, "final state", exact)


def bits(context: Context, model: str, reset: str, dtype: str = "float32") -> None:
    """One call from rest, compared to the last bit."""
    s = Subject(context, model, reset, dtype=dtype)
    output, final = s.neuron.run(s.x())
    s.check_outputs(output, exact=True)
    s.check_states(final, s.bits().final, "final state", exact=True)


def single_step(context: Context, model: str, reset: str) -> None:
    """One call per step; the neuron carries its state."""
    s = Subject(context, model, reset, step="single", shape=(5, 3, 7))
    together = torch.stack([s.neuron(x) for x in s.x()])
    s.check_outputs(together, ", step by step,")
    carried = s.neuron.state
    if carried is None:
        raise Mismatch(f"{s.of}: no state is carried between single steps")
    s.check_states(carried, s.seen.final, "carried state", exact=False)


def gradient(
    context: Context,
    model: str,
    reset: str,
    detach: bool = False,
    surrogate: Any = None,
    dtype: str = "float32",
    exact: bool = False,
) -> None:
    """The gradient of the outputs with respect to the input."""
    s = Subject(context, model, reset, detach=detach, surrogate=surrogate, dtype=dtype, exact=exact)
    x = s.x(grad=True)
    output = s.neuron(x)
    s.check_outputs(output, ", with a gradient wanted,")
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    suspects = s.gradient_suspects(cotangent)
    s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0], suspects=suspects)


def surrogate(context: Context, name: str) -> None:
    """Two neurons, margin and exact inputs, default and other arguments."""
    for twin in (SURROGATES[name], OTHER_ARGUMENTS.get(name)):
        if twin is not None:
            gradient(context, "lif", "hard", surrogate=twin)
            gradient(context, "leaky-prompt", "soft", surrogate=twin)
            gradient(context, "lif", "soft", surrogate=twin, exact=True)


def tails(context: Context, name: str) -> None:
    """One step of IF with threshold 0, where the potential minus threshold is the input."""
    points = [0.0, -0.0, 1e-30, -1e-30, 1e-6, -1e-6, 3.0, -3.0, 1e4, -1e4, 1e18, -1e18, 1e30, -1e30]
    from spikecore.testing._custom import library_surrogate
    from spikecore.testing._models import BY_NAME

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
    from spikecore.testing._tolerances import TOLERANCES

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
    from spikecore.testing._models import spread

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
