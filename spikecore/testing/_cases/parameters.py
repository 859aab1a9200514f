"""Parameters, beside the rows: mixed kinds, values that change, ranges, and dtypes that are not that of arithmetic."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from spikecore.dtypes import DTYPES
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._inputs import rounded
from spikecore.testing._models import BY_NAME, spread
from spikecore.testing._subject import SHAPE, Subject
from spikecore.testing._tolerances import Tolerance
from spikecore.testing._turning import SWAP

_LEARN = ("gradients", "parameter_gradients")
_CHANNELS, _NEURONS = SHAPE[2:], SHAPE[1:]
#: Name -> a number that float32 does not hold, or not to the last digit.
NUMBERS: Mapping[str, float] = {
    "tenth": 0.1,
    "third": 1 / 3,
    "past-2-to-24": 16777217.0,
    "small": 1e-30 / 3,
    "half-way": 1 + 2**-24 + 2**-50,
}
#: dtype of the parameter, dtype of the input.
DTYPE_PAIRS = (
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float64", "float32"),
    ("float16", "float16"),
    ("bfloat16", "float16"),
    ("float32", "float16"),
    ("float16", "float64"),
    ("float32", "float64"),
    ("float64", "float64"),
)
#: Shape of one time step, and those of a parameter.
_STEP = (3, 5)
KINDS: Mapping[str, Sequence[int]] = {"scalar": (), "channel": (5,), "full": (3, 5)}
_NEAR = {"float16": Tolerance(2e-3, 2e-5), "bfloat16": Tolerance(1e-2, 2e-5)}


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    one, channel = "parameters", ("channel_parameters",)

    def add(name: str, holds: str, run: Any, *needs: str) -> None:
        cases.add(f"parameters/{name}", one, holds, run, needs)

    holds = "numbers, shared, per-channel and per-neuron parameters go together"
    add("mixed", holds, mixed, *_LEARN, *channel, "full_parameters")
    add("strided", "a parameter of any strides is read where it lies", strided, "full_parameters")
    add("changed", "a value changed between two calls, in place or not, counts in the second", changed)
    holds = "Leaky's beta is clamped to 0..1, with gradient 1 at the bounds and 0 outside"
    add("clamped", holds, clamped, *_LEARN, *channel)
    holds = "a learnt parameter outside its range is computed with as its nearest end, and stays as it is"
    add("ranges", holds, partial(ranged, shape=()), *_LEARN)
    add("ranges-channel", holds, partial(ranged, shape=_CHANNELS), *_LEARN, *channel)
    holds = "a parameter of a wider dtype than the arithmetic is rounded to it, and its gradient is in its own dtype"
    cases.add("parameters/float64-on-float32", "dtypes", holds, wide_parameter, _LEARN)
    for name, number in NUMBERS.items():
        for dtype, holds in (
            ("float32", "a number that float32 does not hold is rounded to float32 once"),
            ("float64", "with float64 inputs a number counts with all its digits"),
        ):
            cases.add(
                f"parameters/number-{name}-{dtype}",
                "parameters",
                holds,
                partial(numbered, number=number, dtype=dtype),
                dtype=dtype,
            )
    more: Dict[str, Sequence[str]] = {"scalar": (), "channel": ("channel_parameters",), "full": ("full_parameters",)}
    for held, dtype in DTYPE_PAIRS:
        for kind in KINDS:
            cases.add(
                f"parameters/{kind}-{held}-on-{dtype}",
                "parameters",
                "a tensor of another dtype counts as rounded to that of arithmetic; its gradient is in its own dtype",
                partial(held_in, held=held, dtype=dtype, kind=kind),
                ("gradients", "parameter_gradients", *more[kind]),
                dtype=dtype,
            )


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


def mixed(context: Context) -> None:
    """Each parameter of LIF of another kind."""
    given = {"tau": spread(2.7, _CHANNELS), "threshold": spread(0.9, _NEURONS)}
    learn(Subject(context, "lif", "hard", values=given, learn=("tau", "threshold")))
    learn(Subject(context, "lif", "hard", values=given, learn=("v_reset",)))


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


def numbered(context: Context, number: float, dtype: str) -> None:
    """To the bit, outputs and final state."""
    s = Subject(context, SWAP, "none", shape=(6, *_STEP), dtype=dtype, values={"leak": number})
    output, final = s.neuron.run(s.x())
    s.check_outputs(output, f" with the number {number!r}", exact=True)
    s.check_states(final, s.bits().final, f"final state, with the number {number!r},", exact=True)


def held_in(context: Context, held: str, dtype: str, kind: str) -> None:
    """Outputs, and the gradient of the parameter, learnt."""
    value = rounded(spread(0.7, KINDS[kind]), DTYPES[held])
    s = Subject(context, SWAP, "none", shape=(6, *_STEP), dtype=dtype, values={"leak": np.asarray(value)})
    neuron: Any = s.neuron
    neuron.leak = leaf = nn.Parameter(context.tensor(value, DTYPES[held]))
    x = s.x(grad=True)
    output = neuron(x)
    s.check_outputs(output, f" with a {kind} parameter in {held}")
    cotangent = s.cotangent(output)
    backward(s.of, [output], [cotangent])
    expected = s.gradients(cotangent)
    s.check("input gradient", x.grad, expected.inputs[0])
    if leaf.grad is None or leaf.grad.dtype != DTYPES[held]:
        found = None if leaf.grad is None else leaf.grad.dtype
        raise Mismatch(f"the gradient of leak, {DTYPES[held]}, of {s.of} is {found}")
    wide = Tolerance(1e-9, 1e-10) if (held, dtype) == ("float64", "float64") else Tolerance(5e-4, 2e-5)
    right = expected.params["leak"]
    what = f"gradient of leak, a {kind} parameter in {held},"
    same(what, s.of, as_array(leaf.grad), right, _NEAR.get(held, wide), axes="n")
    if held == "float16" and dtype != "float64":
        _overflow(context, s, leaf, kind)


def _overflow(context: Context, s: Subject, leaf: Any, kind: str) -> None:
    """A sum past 65504 is infinite in the parameter's dtype; it was finite while it was summed."""
    leaf.grad = None
    output = s.neuron(s.x())
    large = torch.full_like(output, 3e4 if s.dtype == torch.float16 else 3e6)
    backward(s.of, [output], [large])
    right = s.gradients(large).params["leak"]
    with np.errstate(over="ignore"):
        wanted = np.asarray(np.float16(right), float)
    clear = np.abs(np.abs(right) - 65520) > 700  # not where rounding decides
    what = f"gradient of leak, a {kind} parameter in float16, past what it holds,"
    found = as_array(leaf.grad)
    same(what, s.of, np.where(clear, found, 0.0), np.where(clear, wanted, 0.0), Tolerance(2e-3, 2e-5), axes="n")


def wide_parameter(context: Context) -> None:
    """tau in float64, input in float32."""
    s = Subject(context, "lif", "hard", learn=("tau",))
    s.neuron.tau = torch.nn.Parameter(context.tensor(s.params["tau"], torch.float64))
    output = s.neuron(s.x())
    s.check_outputs(output)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    s.check("parameter gradient", s.neuron.tau.grad, s.gradients(cotangent).params["tau"], name="tau")
    if s.neuron.tau.grad.dtype != torch.float64:
        raise Mismatch(f"the gradient of tau, torch.float64, of {s.of} is {s.neuron.tau.grad.dtype}")
