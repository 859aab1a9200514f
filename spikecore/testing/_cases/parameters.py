"""Parameters: numbers and tensors, shared, per channel and per neuron, learnt or not."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Sequence

import numpy as np
import torch

from spikecore.testing._case import Collection
from spikecore.testing._cases.core import configurations
from spikecore.testing._compare import Mismatch, as_array, same
from spikecore.testing._context import Context
from spikecore.testing._models import BY_NAME, spread
from spikecore.testing._subject import SHAPE, Subject

_LEARN = ("gradients", "parameter_gradients")
_CHANNELS = SHAPE[2:]
_NEURONS = SHAPE[1:]
_IMAGE = (6, 2, 3, 2, 5)


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    one = "parameters"
    for model, reset, name in configurations():
        which: Dict[str, Any] = {"model": model.name, "reset": reset}
        cases.add(
            f"parameters/gradient-{name}",
            one,
            "the gradient of every shared parameter is the oracle's",
            partial(gradient, **which),
            _LEARN,
        )
        if reset == model.resets[0]:
            cases.add(
                f"parameters/scalar-{model.name}",
                one,
                "0-d tensors give what numbers give",
                partial(forward, **which, shape=()),
            )
            cases.add(
                f"parameters/channel-{model.name}",
                one,
                "every parameter may have one value per channel, learnt ones too",
                partial(gradient, **which, shape=_CHANNELS),
                (*_LEARN, "channel_parameters"),
            )
            cases.add(
                f"parameters/full-{model.name}",
                one,
                "every parameter may have one value per neuron, learnt ones too",
                partial(gradient, **which, shape=_NEURONS),
                (*_LEARN, "full_parameters"),
            )
    channel = ("channel_parameters",)
    cases.add(
        "parameters/channel-forward",
        one,
        "one value per channel, nothing learnt",
        partial(forward, model="lif", reset="hard", shape=_CHANNELS),
        channel,
    )
    cases.add(
        "parameters/full-forward",
        one,
        "one value per neuron, nothing learnt",
        partial(forward, model="lif", reset="hard", shape=_NEURONS),
        ("full_parameters",),
    )
    for dim in (0, 1, 2, -1):
        cases.add(
            f"parameters/channel-dim{dim}",
            one,
            "channel_dim says along which dimension of a time step the channels lie",
            partial(channel_dim, dim=dim),
            (*_LEARN, *channel),
        )
    for shape in ((1, 7), (3, 1), (1, 1)):
        cases.add(
            f"parameters/full-{shape[0]}x{shape[1]}",
            one,
            "a parameter that broadcasts to one time step is spread over it, and its gradient summed",
            partial(gradient, model="lif", reset="soft", shape=shape),
            (*_LEARN, "full_parameters"),
        )
    for kind, size, more in (("channel", (7,), channel), ("full", (1, 7), ("full_parameters",))):
        cases.add(
            f"parameters/{kind}-batch-of-one",
            one,
            "a batch of one has the gradients of all its neurons' values",
            partial(gradient, model="lif", reset="soft", shape=size, input_shape=(6, 1, 7)),
            (*_LEARN, *more),
        )
    cases.add(
        "parameters/mixed",
        one,
        "numbers, shared, per-channel and per-neuron parameters go together",
        mixed,
        (*_LEARN, *channel, "full_parameters"),
    )
    cases.add("parameters/some-learnt", one, "only the parameters to learn get a gradient", some_learnt, _LEARN)
    cases.add("parameters/gradient-alone", one, "parameters learn where the input needs no gradient", alone, _LEARN)
    cases.add(
        "parameters/strided", one, "a parameter of any strides is read where it lies", strided, ("full_parameters",)
    )
    cases.add(
        "parameters/changed", one, "a value changed between two calls, in place or not, counts in the second", changed
    )
    cases.add(
        "parameters/clamped",
        one,
        "Leaky's beta is clamped to 0..1, with gradient 1 at the bounds and 0 outside",
        clamped,
        (*_LEARN, *channel),
    )
    text = "learnt parameters that left their ranges between two calls are put back before they are computed with"
    cases.add("parameters/ranges", one, text, partial(ranged, shape=()), _LEARN)
    cases.add("parameters/ranges-channel", one, text, partial(ranged, shape=_CHANNELS), (*_LEARN, *channel))
    cases.add(
        "parameters/many", one, "a shared parameter's gradient is summed over many neurons and steps", many, _LEARN
    )


def values(model: str, shape: Sequence[int]) -> Dict[str, Any]:
    """The model's parameters as arrays of a shape, no two values alike."""
    return {name: spread(value, shape) for name, value in BY_NAME[model].params.items()}


def forward(context: Context, model: str, reset: str, shape: Sequence[int]) -> None:
    """Outputs and final state with tensors for parameters."""
    s = Subject(context, model, reset, values=values(model, shape))
    output, final = s.neuron.run(s.x())
    s.check_outputs(output)
    s.check_states(final, s.seen.final, "final state", exact=False)


def gradient(
    context: Context, model: str, reset: str, shape: Sequence[int] = (), input_shape: Sequence[int] = SHAPE
) -> None:
    """All parameters learnt, of one shape."""
    given = values(model, shape) if shape else {}
    learn(Subject(context, model, reset, values=given, learn=tuple(BY_NAME[model].params), shape=input_shape))


def learn(s: Subject) -> None:
    """Gradients of the input and of all parameters to learn."""
    x = s.x(grad=True)
    output = s.neuron(x)
    s.check_outputs(output)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    expected = s.gradients(cotangent)
    s.check("input gradient", x.grad, expected.inputs[0])
    for name, parameter in s.neuron.named_parameters():
        if parameter.shape != expected.params[name].shape:
            raise Mismatch(f"{name} of {s.of} has shape {list(parameter.shape)} as a parameter")
        if parameter.grad is None and not expected.params[name].any():
            continue  # nothing depends on it
        s.check("parameter gradient", parameter.grad, expected.params[name], name=name)


def channel_dim(context: Context, dim: int) -> None:
    """An image, with all its dimensions different where that can be."""
    size = _IMAGE[1:][dim]
    s = Subject(
        context, "lif", "hard", shape=_IMAGE, channel_dim=dim, values=values("lif", (size,)), learn=("tau", "threshold")
    )
    learn(s)


def mixed(context: Context) -> None:
    """Each parameter of LIF of another kind."""
    given = {"tau": spread(2.7, _CHANNELS), "threshold": spread(0.9, _NEURONS)}
    learn(Subject(context, "lif", "hard", values=given, learn=("tau", "threshold")))
    learn(Subject(context, "lif", "hard", values=given, learn=("v_reset",)))


def some_learnt(context: Context) -> None:
    """Each parameter of LIF alone."""
    for name in ("tau", "threshold", "v_reset"):
        s = Subject(context, "lif", "soft", learn=(name,))
        learn(s)
        if [n for n, _ in s.neuron.named_parameters()] != [name]:
            raise Mismatch(f"{s.of} learns {[n for n, _ in s.neuron.named_parameters()]}, asked for {name}")


def alone(context: Context) -> None:
    """No gradient of the input is wanted."""
    s = Subject(context, "plif", "hard", learn=("w", "threshold"))
    output = s.neuron(s.x())
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    expected = s.gradients(cotangent).params
    for name, parameter in s.neuron.named_parameters():
        s.check("parameter gradient", parameter.grad, expected[name], name=name)


def strided(context: Context) -> None:
    """tau as every second column of a wider tensor, threshold expanded."""
    s = Subject(context, "lif", "hard", values={"tau": spread(2.7, _NEURONS)})
    wide = torch.zeros(3, 14, device=context.device)
    wide[:, ::2] = context.tensor(s.params["tau"])
    s.neuron.tau = wide[:, ::2]
    s.neuron.threshold = torch.full((1, 1), 0.9, device=context.device).expand(3, 7)
    s.check_outputs(s.neuron(s.x()))
    s.neuron.tau = wide.new_zeros(7, 3).T.copy_(wide[:, ::2])
    s.check_outputs(s.neuron(s.x()), " with tau transposed")


def changed(context: Context) -> None:
    """A number assigned, then a tensor written in place, as an optimiser does."""
    s, other = Subject(context, "lif", "hard"), Subject(context, "lif", "hard", values={"tau": 3.25})
    s.neuron(other.x())
    s.neuron.tau = 3.25
    other.check_outputs(s.neuron(other.x()), " after tau was assigned")
    tau = torch.full((), BY_NAME["lif"].params["tau"], device=context.device)
    s.neuron.tau = tau
    s.neuron(other.x())
    with torch.no_grad():
        tau.fill_(3.25)
    other.check_outputs(s.neuron(other.x()), " after tau was written to in place")
    same("tau", s.of, as_array(s.neuron.tau), as_array(tau))


def clamped(context: Context) -> None:
    """beta below 0, at 0, within, at 1, above."""
    beta = spread(0.5, _CHANNELS)
    beta[:] = (-0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
    for reset in ("hard", "soft"):
        learn(Subject(context, "leaky", reset, values={"beta": beta}, learn=("beta", "threshold"), bounds=None))


def ranged(context: Context, shape: Sequence[int]) -> None:
    """tau and the threshold of LIF below and above their ranges: a call computes at the ends, and changes neither."""
    bounds = {"tau": (1.5, 4.0), "threshold": (0.75, 1.25)}
    given = {name: np.asarray(spread(value, shape)) for name, value in (("tau", 2.7), ("threshold", 0.9))}
    given["threshold"] = np.asarray(given["threshold"].clip(*bounds["threshold"]))
    s = Subject(context, "lif", "hard", values=given, learn=tuple(bounds), bounds=bounds)
    learn(s)
    for again in range(2):
        outside = {name: value.copy() for name, value in given.items()}
        for name, sign in (("tau", -1), ("threshold", 1)):
            outside[name].reshape(-1)[again :: 1 + again] += sign * 5.0
            s.neuron.get_parameter(name).data.copy_(torch.from_numpy(outside[name]))
        inside = {name: np.asarray(value.clip(*bounds[name])) for name, value in outside.items()}
        s.neuron.zero_grad(set_to_none=True)
        draw = 1 + again
        learn(Subject(context, "lif", "hard", values=inside, learn=tuple(bounds), neuron=s.neuron, draw=draw))
        for name, value in outside.items():
            same(name, f"{s.of} after a call", as_array(s.neuron.get_parameter(name)), value.astype(np.float32))


def many(context: Context) -> None:
    """More neurons than any block of threads has."""
    learn(Subject(context, "lif", "hard", shape=(5, 37, 113), learn=("tau", "threshold", "v_reset")))
