"""Arguments and cotangents are read and never written, and changing them afterwards changes no result."""

from __future__ import annotations

from typing import Callable, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._case import Collection
from spikecore.testing._cases.ownership import arguments_of, named
from spikecore.testing._compare import Mismatch, as_array
from spikecore.testing._context import Context
from spikecore.testing._models import spread
from spikecore.testing._subject import Subject
from spikecore.testing._turning import TURN

_BACK = ("gradients",)
_NEURONS = (3, 5)


def add_to(cases: Collection) -> None:
    """Add the cases of this theme."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = ()) -> None:
        cases.add(f"ownership/{name}", "ownership", holds, run, needs)

    add("arguments", "values and version counters of arguments stay as they were, without gradients", arguments)
    add(
        "arguments-several",
        "two inputs, three states and parameters of every kind stay as they were, without gradients",
        several,
        ("several_inputs", "several_outputs", "channel_parameters", "full_parameters"),
    )
    add(
        "arguments-backward",
        "forward and backward leave arguments and cotangents as they were",
        arguments_backward,
        _BACK,
    )
    after = "a cotangent changed after backward changes no gradient"
    add("cotangent-after", after, cotangent_after, _BACK)
    add("cotangent-twice", "the same cotangent may be used for two calls", cotangent_twice, _BACK)
    add("argument-after", "an argument changed after the call changes no result", argument_after)


class Watched:
    """Tensors as they are now, to be found unchanged."""

    def __init__(self, named: Mapping[str, Optional[Tensor]]) -> None:
        self.tensors = {name: value for name, value in named.items() if value is not None}
        self.values = {name: as_array(value).copy() for name, value in self.tensors.items()}
        self.versions = {name: value._version for name, value in self.tensors.items()}

    def check(self, of: str, when: str) -> None:
        """Raise :class:`Mismatch` where one of them was written to."""
        for name, value in self.tensors.items():
            if not np.array_equal(as_array(value), self.values[name], equal_nan=True):
                raise Mismatch(
                    f"{name} of {of} has other values {when}: it was written to\n  hint: the caller reads it again; "
                    "clone what is used as scratch"
                )
            if value._version != self.versions[name]:
                raise Mismatch(
                    f"{name} of {of} was written to in place {when} (version {self.versions[name]}, now "
                    f"{value._version}): the caller's own backward pass is refused by torch"
                )


def arguments(context: Context) -> None:
    """Input, state and parameters, with and without a given state."""
    values = {"tau": np.asarray(2.75), "threshold": np.asarray(0.875)}
    for state in (False, True):
        s = Subject(context, "alif", "hard", values=values, state=state)
        x, start = s.x(), s.start()
        watched = Watched(arguments_of(s, x, start))
        s.neuron.run(x, state=start)
        watched.check(s.of, "after a call")


def several(context: Context) -> None:
    """A neuron of two inputs and three states; with records where there are such."""
    values = {"leak": spread(0.7, _NEURONS), "gain": spread(0.6, _NEURONS[1:]), "start": np.asarray(0.25)}
    record = TURN.twin("none").rest if context.declares("record") else ()
    for state in (False, True):
        s = Subject(context, TURN, "none", shape=(6, *_NEURONS), values=values, state=state)
        xs, start = s.xs(), s.start()
        watched = Watched({**arguments_of(s, xs[0], start), "the second input": xs[1]})
        s.neuron.run(*xs, state=start, record=tuple(record))
        watched.check(s.of, "after a call")


def arguments_backward(context: Context) -> None:
    """Contiguous, strided and expanded cotangents, one after the other."""
    state = context.declares("state_gradients")
    s = Subject(context, "alif", "hard", state=state)
    x, start = s.x(grad=True), s.start(grad=True)
    watched = Watched(arguments_of(s, x, start))
    output, final = s.neuron.run(x, state=start) if state else (s.neuron(x), {})
    after = Watched({"the output": output.detach(), **named("the final", {k: v.detach() for k, v in final.items()})})
    wide = torch.stack([s.cotangent(output)] * 2, -1)
    shapes = {
        "contiguous": s.cotangent(output),
        "strided": wide[..., 0],
        "expanded": s.cotangent(output)[:1].clone().expand(output.shape),
    }
    ends = {name: s.cotangent(value) for name, value in final.items()}
    for how, cotangent in shapes.items():
        given = Watched({f"the {how} cotangent": cotangent, **named("the cotangent of final", ends)})
        torch.autograd.grad([output, *final.values()], [x], [cotangent, *ends.values()], retain_graph=True)
        for each in (watched, after, given):
            each.check(s.of, f"after backward from a {how} cotangent")


def cotangent_after(context: Context) -> None:
    """Cotangents set to NaN after backward; then backward again, from other ones."""
    state = context.declares("state_gradients")
    s = Subject(context, "alif", "soft", state=state)
    x = s.x(grad=True)
    output, final = s.neuron.run(x, state=s.start()) if state else (s.neuron(x), {})
    for again in range(2):
        cotangent, ends = s.cotangent(output), {name: s.cotangent(value) for name, value in final.items()}
        right = s.gradients(cotangent, ends).inputs[0]
        (found,) = torch.autograd.grad([output, *final.values()], [x], [cotangent, *ends.values()], retain_graph=True)
        for value in (cotangent, *ends.values()):
            value.fill_(float("nan"))
        s.check("input gradient", found, right, name=f"backward number {again + 1}, cotangents set to NaN after it")


def cotangent_twice(context: Context) -> None:
    """One tensor, two calls of other values."""
    s = Subject(context, "lif", "hard")
    cotangent = s.cotangent(s.x())
    subjects = [Subject(context, "lif", "hard", draw=draw, neuron=s.neuron) for draw in (0, 1)]
    right = [each.gradients(cotangent).inputs[0] for each in subjects]
    for i, (each, expected) in enumerate(zip(subjects, right)):
        x = each.x(grad=True)
        (found,) = torch.autograd.grad(s.neuron(x), x, cotangent)
        each.check("input gradient", found, expected, name=f"call {i + 1} of two with one cotangent")


def argument_after(context: Context) -> None:
    """Input and state set to NaN after the call."""
    s = Subject(context, "alif", "hard", state=True)
    x, start = s.x(), s.start()
    output, final = s.neuron.run(x, state=start)
    for value in (x, *(start or {}).values()):
        value.fill_(float("nan"))
    s.check_outputs(output, ", input and state set to NaN after it")
    s.check_states(final, s.bits().final, "final state, input and initial state set to NaN after the call,", exact=True)
