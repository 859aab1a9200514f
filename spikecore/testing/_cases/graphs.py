"""Calls with and without gradients, kept graphs, dropped ones and copies, between a call and its backward pass."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any, Callable, Sequence

import numpy as np
import torch

from spikecore.testing._calls import Call, check_parameters, learnable, no_gradient, pair
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._custom import CUSTOM
from spikecore.testing._oracle import run
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import EXACT
from spikecore.testing._turning import SWAP

_BACK = ("gradients",)
_PROBE = next(model for model in CUSTOM if model.name == "probe")


def add_to(cases: Collection) -> None:
    """Add the cases of this theme."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = (), **more: Any) -> None:
        cases.add(f"sequences/{name}", "sequences", holds, run, needs, **more)

    add("no-grad-between", "a call without gradients between a call and its backward changes nothing", between, _BACK)
    add("no-grad-first", "a neuron used without gradients has them in the next call", no_grad_first, _BACK)
    add("inference-mode", "a neuron used in inference mode has gradients in the next call", inference_first, _BACK)
    add(
        "inference-mode-from-constants",
        "a neuron whose states start from constants, used in inference mode, has gradients in the next call",
        partial(inference_first, model=SWAP),
        _BACK,
    )
    add("never-backward", "calls whose backward pass never comes disturb none", never_backward, _BACK)
    add("retained", "a retained graph gives the same gradient again after another call", retained, _BACK)
    add("accumulated", "gradients of calls add up in .grad", accumulated, _BACK)
    one = "backward from one of two outputs gives the gradient of that one"
    add("one-of-two-outputs", one, one_of_two, (*_BACK, "several_outputs"))
    twice = "second derivatives are those of their own call"
    add("double-backward", twice, second, (*_BACK, "double_backward"), undeclared="RuntimeError")
    add(
        "deepcopy-between",
        "a copy made between call and backward computes its own",
        partial(copied, how="copied"),
        _BACK,
    )
    add(
        "pickle-between",
        "a neuron pickled between call and backward is no other",
        partial(copied, how="pickled"),
        _BACK,
    )


def between(context: Context) -> None:
    """The same shape, other values."""
    first, second = pair(Subject(context, "lif", "hard"))
    first.forward()
    with torch.no_grad():
        second.forward().check_outputs()
    first.backward().check_inputs(second)
    no_gradient(second, "which was made under no_grad")


def no_grad_first(context: Context) -> None:
    """no_grad, gradients, no_grad, gradients."""
    for draw in (0, 2):
        first, second = pair(Subject(context, "lif", "hard", draw=draw))
        with torch.no_grad():
            first.forward().check_outputs(", under no_grad")
        if first.output.requires_grad:
            raise Mismatch(f"{first.s.of}: the output of a call under no_grad requires a gradient")
        second.forward().backward().check_inputs(first)


def inference_first(context: Context, model: Any = "lif") -> None:
    """Inference mode, then gradients; a tensor made there is never saved."""
    lif = model == "lif"
    s = Subject(context, model, "soft" if lif else "none", values={"tau": np.asarray(2.75)} if lif else {})
    first, second = pair(s)
    with torch.inference_mode():
        s.check_outputs(s.neuron(s.x()), " in inference mode")
    second.forward().backward().check_inputs(first)
    with torch.inference_mode():
        s.check_outputs(s.neuron(s.x()), " in inference mode, after a backward pass")
    first.forward().backward().check_inputs(second)


def never_backward(context: Context) -> None:
    """Nine calls of other values, their results dropped, kept and detached."""
    s = Subject(context, "lif", "hard", learn=learnable(context, "tau"))
    first, second = pair(s)
    kept = []
    for i in range(9):
        output = s.neuron(second.x.detach().requires_grad_())
        kept.append(output if i % 2 else output.detach())
    first.forward().backward().check_inputs(second)
    check_parameters(s, [first], "beside nine calls without backward")
    for output in kept:
        second.s.check_outputs(output.detach(), " of a call without backward")


def retained(context: Context) -> None:
    """Backward, another call and its backward, backward again."""
    first, second = pair(Subject(context, "lif", "hard"))
    first.forward().backward(retain_graph=True).check_inputs()
    before = as_array(first.x.grad)  # type: ignore[arg-type]  # checked above
    second.forward().backward().check_inputs(first)
    first.x.grad = None
    first.backward().check_inputs(second, what=", run backwards again")
    same("input gradient, run backwards again,", first.s.of, as_array(first.x.grad), before, EXACT)  # type: ignore[arg-type]  # as above


def accumulated(context: Context) -> None:
    """Two calls, the first one run backwards twice."""
    s = Subject(context, "lif", "hard", learn=learnable(context, "tau", "threshold"))
    first, second = pair(s)
    first.forward().backward(retain_graph=True)
    second.forward().backward()
    first.backward()
    first.check_inputs(second, what=", run backwards twice", times=2.0)
    second.check_inputs(first)
    check_parameters(s, [first, second, first], "of three backward passes of two calls")


def one_of_two(context: Context) -> None:
    """The spikes alone, the potential alone, then both."""
    s = Subject(context, _PROBE, "soft")
    for used in ((True, False), (False, True), (True, True)):
        x = s.x(grad=True)
        outputs = s.neuron(x)
        cotangents = [s.cotangent(output) if use else None for output, use in zip(outputs, used)]
        expected = s.gradients(cotangents).inputs[0]
        chosen = [(out, cot) for out, cot in zip(outputs, cotangents) if cot is not None]
        backward(s.of, [out for out, _ in chosen], [cot for _, cot in chosen])
        s.check("input gradient", x.grad, expected, name=f"outputs used: {used}")


def second(context: Context) -> None:
    """The second derivative of the first call, after the first derivative of the second."""
    dtype = "float64" if context.declares("float64") else "float32"
    s = Subject(context, "lif", "hard", detach=True, dtype=dtype, shape=(6, 3, 5))
    calls = pair(s, detach=True)
    directions = [s.cotangent(s.x()) for _ in calls]
    right = [_difference(call, as_array(way)) for call, way in zip(calls, directions)]
    slopes = []
    for call in calls:
        call.forward()
        slopes.append(torch.autograd.grad(call.output, call.x, call.cotangent, create_graph=True)[0])
    for call, slope, way, expected in zip(calls, slopes, directions, right):
        (found,) = torch.autograd.grad(slope, call.x, way)
        s.check("second derivative", found, expected, name=call.which)


def _difference(call: Call, direction: Any) -> Any:
    """The central difference of the oracle's adjoint along a direction."""
    s, step = call.s, 1e-5
    ends = [run(s.twin, [s.inputs[0] + sign * step * direction], s.params) for sign in (1, -1)]
    up, down = (s.gradients_of(end, call.cotangent, None, None).inputs[0] for end in ends)
    return (up - down) / (2 * step)


def copied(context: Context, how: str) -> None:
    """The copy is called with other values, and has parameters of its own."""
    s = Subject(context, "lif", "hard", values={"tau": np.asarray(2.75)})
    first, second = pair(s)
    first.forward()
    twin: Any = copy.deepcopy(s.neuron) if how == "copied" else pickle.loads(pickle.dumps(s.neuron))
    second.s.neuron = twin
    second.forward().check_outputs(f", of a neuron {how} between call and backward")
    second.backward().check_inputs(first, what=f", of a neuron {how}")
    with torch.no_grad():
        twin.tau.fill_(9.0)
    first.backward().check_inputs(second, what=f", of a neuron {how} in between")
    s.check_outputs(s.neuron(s.x()), f" after its copy ({how}) was changed: they share a parameter")
