"""Changes between calls: what an optimiser or a user changes counts from the next call on, and for no call before."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

import numpy as np
import torch

from spikecore.testing._calls import Call, check_parameters
from spikecore.testing._case import Collection
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject, subject
from spikecore.testing.compare import Mismatch, as_array, same
from spikecore.testing.custom import library_surrogate
from spikecore.testing.models import BY_NAME
from spikecore.testing.tolerances import TOLERANCES

CASES = Collection()
_case = CASES.family("sequences")
_BACK = ("gradients",)
_LEARN = (*_BACK, "parameter_gradients")
_NAMES = ("tau", "threshold", "v_reset")
_RATE = 0.002


def _call(s: Subject, step: int, which: str, **options: Any) -> Call:
    """A call of the neuron of ``s``, beside the oracle with the values that parameters have now."""
    values = {name: as_array(torch.as_tensor(getattr(s.neuron, name))) for name in _NAMES}
    other = subject(s.context, "lif", s.config.reset, values=values, draw=step, neuron=s.neuron, **options)
    return Call(other, f"call number {step + 1}, {which},")


def _check(s: Subject, step: int, which: str, learnt: Optional[Sequence[str]] = None, **options: Any) -> Call:
    """Such a call with its outputs and gradients."""
    call = _call(s, step, which, **options).forward()
    call.check_outputs(" (is an earlier value read?)" * (step > 0)).backward().check_inputs()
    check_parameters(call.s, [call], call.which, learnt)
    return call


_OPTIMISER = "three steps of an optimiser: outputs and gradients of each are those of the values of then"


@_case("optimiser-scalar", _OPTIMISER, *_LEARN, kind="scalar")
@_case("optimiser-channel", _OPTIMISER, *_LEARN, "channel_parameters", kind="channel")
@_case("optimiser-full", _OPTIMISER, *_LEARN, "full_parameters", kind="full")
def _optimiser(context: Context, kind: str) -> None:
    """SGD, which writes in place, on all parameters of LIF."""
    s = subject(context, "lif", "soft", params=kind, learn=_NAMES)
    descent = torch.optim.SGD(s.neuron.parameters(), lr=_RATE)
    for step in range(3):
        descent.zero_grad()
        call = _check(s, step, f"after {step} steps of the optimiser, {kind} parameters")
        descent.step()
        for name in _NAMES:
            right = call.s.params[name] - _RATE * call.right.params[name]
            near, value = TOLERANCES["float32", "parameter gradient"], as_array(getattr(s.neuron, name))
            same(f"{name} after {call.which}", call.s.of, value, right, near, axes="n")


_BEFORE = "a change between two calls counts for the second, forward and backward, and not for the first"


@_case("changed-threshold", _BEFORE, *_BACK, what="threshold")
@_case("changed-v_reset", _BEFORE, *_BACK, what="v_reset")
@_case("changed-surrogate", _BEFORE, *_BACK, what="surrogate")
@_case("changed-detach_reset", _BEFORE, *_BACK, what="detach_reset")
def _changed(context: Context, what: str) -> None:
    """One call before the change and one after it; then both backward passes, that of the first call last."""
    values = {what: BY_NAME["lif"].params[what] + 0.25} if what in _NAMES else {}
    factors: Dict[str, Any] = {"surrogate": {"surrogate": "FastSigmoid"}, "detach_reset": {"detach": True}}
    s = subject(context, "lif", "hard")
    other = subject(context, "lif", "hard", draw=1, neuron=s.neuron, values=values, **factors.get(what, {}))
    calls = [Call(s, f"the call before {what} was changed"), Call(other, f"the call after {what} was changed")]
    calls[0].forward()
    options = {"surrogate": library_surrogate(other.config.derivative), "detach_reset": True}
    setattr(s.neuron, what, {**options, **values}[what])
    calls[1].forward().check_outputs()
    calls[0].check_outputs(", looked at after it")
    for call in reversed(calls):
        call.backward().check_inputs()


@_case(
    "learnt-in-turn",
    "which parameters are learnt may change between calls: those that are get their gradients, and no others",
    *_LEARN,
)
def _learnt_in_turn(context: Context) -> None:
    """Nothing, one, the other, both, nothing; the neuron has both as parameters from the start."""
    s = subject(context, "lif", "hard", learn=_NAMES[:2])
    for step, learnt in enumerate(((), ("tau",), ("threshold",), ("tau", "threshold"), (), ("threshold",))):
        for name in _NAMES[:2]:
            parameter = getattr(s.neuron, name)
            parameter.requires_grad_(name in learnt)
            parameter.grad = None
        call = _check(s, step, f"where {' and '.join(learnt) or 'nothing'} is learnt", learnt)
        for name in _NAMES[:2]:
            if name not in learnt and getattr(s.neuron, name).grad is not None:
                raise Mismatch(f"{name} of {s.of} got a gradient in {call.which} which wants none of it")


@_case(
    "parameter-data",
    "a parameter whose .data is another tensor counts in the next call: torch changes no version then",
    *_LEARN,
)
def _data_replaced(context: Context) -> None:
    """Replacement of data, as by ``torch.nn.utils.vector_to_parameters``, then changes in place past autograd."""
    s = subject(context, "lif", "hard", learn=_NAMES)
    for step in range(3):
        s.neuron.zero_grad(set_to_none=True)
        _check(s, step, f"after the parameters' data were {('made', 'replaced')[step > 0]}")
        for i, name in enumerate(_NAMES):
            parameter = getattr(s.neuron, name)
            if step:
                parameter.data.add_(0.125 * (i + 1))
            else:
                parameter.data = parameter.data + 0.125 * (i + 1)


@_case(
    "converted-between",
    "double() and float() between calls count for the parameters of the next call",
    *_LEARN,
    "float64",
)
def _converted(context: Context) -> None:
    """float32, float64, float32 again; tau is one that float32 does not hold once it is float64."""
    values = {"tau": np.asarray(2.75), "threshold": np.asarray(0.875), "v_reset": np.asarray(0.125)}
    s = subject(context, "lif", "hard", values=values, learn=_NAMES)
    for step, dtype in enumerate(("float32", "float64", "float32")):
        neuron: Any = s.neuron.double() if dtype == "float64" else s.neuron.float()
        with torch.no_grad():
            neuron.tau.fill_(2.7)
        neuron.zero_grad(set_to_none=True)
        _check(s, step, f"of a neuron converted to {dtype}", dtype=dtype)


@_case("refilled-buffer", "a part of a buffer, filled anew for each call, is read anew")
def _refilled(context: Context) -> None:
    """The first of the batch, of a larger buffer, and every second neuron."""
    s = subject(context, "lif", "hard")
    steps, batch, neurons = s.shape
    for part in (
        torch.empty(steps, batch + 2, neurons, device=context.device)[:, :batch],
        torch.empty(steps, batch, 2 * neurons, device=context.device)[..., ::2],
    ):
        for step in range(3):
            each = subject(context, "lif", "hard", draw=step, neuron=s.neuron)
            part.copy_(each.x())
            each.check_outputs(s.neuron(part), f" of filling number {step + 1} of one buffer (is a copy of it kept?)")
