"""Parameters, beside the rows: mixed kinds, values that change, ranges, and dtypes that are not that of arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Mapping, Sequence

import numpy as np
import torch

from spikecore.testing._calls import Call
from spikecore.testing._case import Collection
from spikecore.testing._config import SHAPE, Config
from spikecore.testing._config_check import add_row
from spikecore.testing._context import Context
from spikecore.testing._subject import subject
from spikecore.testing.compare import as_array, same
from spikecore.testing.custom import SWAP
from spikecore.testing.models import BY_NAME, spread

CASES = Collection()
_case = CASES.family("parameters")
_LEARN = ("gradients", "parameter_gradients")
_CHANNELS, _NEURONS = SHAPE[2:], SHAPE[1:]


@_case("changed", "a value changed between two calls, in place or not, counts in the second")
def _changed(context: Context) -> None:
    """A number assigned, then a tensor written in place, as an optimiser does."""
    s, other = subject(context, "lif", "hard"), subject(context, "lif", "hard", values={"tau": 3.25})
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


@_case(
    "clamped",
    "Leaky's beta is clamped to 0..1, with gradient 1 at the bounds, 0 outside",
    *_LEARN,
    "channel_parameters",
)
def _clamped(context: Context) -> None:
    """beta below 0, at 0, within, at 1, above."""
    beta = spread(0.5, _CHANNELS)
    beta[:] = (-0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
    for reset in ("hard", "soft"):
        s = subject(
            context, "leaky", reset, values={"beta": beta}, learn=("beta", "threshold"), options={"bounds": None}
        )
        Call(s, "a call with beta at its bounds").check()


_RANGED = "a learnt parameter outside its range is computed with as its nearest end, and stays as it is"


@_case("ranges", _RANGED, *_LEARN, shape=())
@_case("ranges-channel", _RANGED, *_LEARN, "channel_parameters", shape=_CHANNELS)
def _ranged(context: Context, shape: Sequence[int]) -> None:
    """tau and the threshold of LIF below and above their ranges."""
    bounds = {"tau": (1.5, 4.0), "threshold": (0.75, 1.25)}
    values = {name: np.asarray(spread(value, shape)) for name, value in (("tau", 2.7), ("threshold", 0.9))}
    values["threshold"] = np.asarray(values["threshold"].clip(*bounds["threshold"]))
    s = subject(context, "lif", "hard", values=values, learn=tuple(bounds), options={"bounds": bounds})
    Call(s, "a call within the ranges").check()
    for again in range(2):
        outside = {name: value.copy() for name, value in values.items()}
        for name, sign in (("tau", -1), ("threshold", 1)):
            outside[name].reshape(-1)[again :: 1 + again] += sign * 5.0
            s.neuron.get_parameter(name).data.copy_(torch.from_numpy(outside[name]))
        inside = {name: np.asarray(value.clip(*bounds[name])) for name, value in outside.items()}
        s.neuron.zero_grad(set_to_none=True)
        other = subject(context, "lif", "hard", values=inside, learn=tuple(bounds), neuron=s.neuron, draw=1 + again)
        Call(other, "a call with parameters outside their ranges").check()
        for name, value in outside.items():
            same(name, f"{s.of} after a call", as_array(s.neuron.get_parameter(name)), value.astype(np.float32))


#: Name -> a number that float32 does not hold, or not to the last digit.
_NUMBERS: Mapping[str, float] = {
    "tenth": 0.1,
    "third": 1 / 3,
    "past-2-to-24": 16777217.0,
    "small": 1e-30 / 3,
    "half-way": 1 + 2**-24 + 2**-50,
}


def _add_numbers() -> None:
    once: Dict[str, str] = {
        "float32": "a number that float32 does not hold is rounded to float32 once",
        "float64": "with float64 inputs a number counts with all its digits",
    }
    for name, number in _NUMBERS.items():
        for dtype, holds in once.items():
            config = Config(replace(SWAP, params={"leak": number}), "none", shape=(6, 3, 5), dtype=dtype, bits=True)
            add_row(CASES, f"parameters/number-{name}-{dtype}", "parameters", holds, config)


_add_numbers()
