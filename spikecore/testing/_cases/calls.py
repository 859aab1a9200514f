"""Calls and their backward passes: several of one neuron, and what may happen between a call and its backward pass."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._calls import Call, backward_together, check_each, check_parameters, learnable, pair
from spikecore.testing._case import Collection
from spikecore.testing._config import Config
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject, subject
from spikecore.testing.compare import Mismatch, backward
from spikecore.testing.custom import SWAP
from spikecore.testing.tolerances import OTHER_DTYPES

CASES = Collection()
_case = CASES.family("sequences")
_BACK = ("gradients",)
_LEARN, _STATE = (*_BACK, "parameter_gradients"), (*_BACK, "state_gradients")
_SHAPES = ((12, 3, 7), (12, 5), (5, 2, 3, 2), (20, 4, 3), (1, 7))


# -- several calls

_OWN = "two calls of different values, then one backward pass: each gradient is that of its own call"


_LEARNT = Config(params="scalar", learn=("*",))
_LONG = Config("alif", state=True, shape=(35, 3, 7))


@_case("two-calls-lif-hard", _OWN, *_BACK, config=Config())
@_case("two-calls-alif-soft", _OWN, *_BACK, config=Config("alif", "soft"))
@_case("two-calls-li-none", _OWN, *_BACK, config=Config("li", "none"))
@_case("two-calls-learnt", f"{_OWN}; those of learnt parameters are the sum", *_LEARN, config=_LEARNT)
@_case("two-calls-state", f"{_OWN}, with initial and final states", *_STATE, config=Config("alif", state=True))
@_case("two-calls-long", f"{_OWN}, beyond a chunk of 16 steps", *_STATE, config=_LONG)
def _two_calls(context: Context, config: Config) -> None:
    calls = pair(Subject(context, config))
    for call in calls:
        call.forward()
    for call in calls:
        call.check_outputs(", after both")
    backward_together(calls)
    check_each(calls)


@_case("outputs-kept", "a later call leaves the results of an earlier one as they were")
def _outputs_kept(context: Context) -> None:
    record = ("v",) if context.declares("record") else ()
    first, second = pair(subject(context, "lif", "hard"))
    s = first.s
    results = s.neuron.run(first.x.detach(), record=record)
    second.s.neuron.run(second.x.detach(), record=record)
    s.check_outputs(results[0], " of the first call, after the second: results of two calls share memory")
    s.check_states(results[1], s.bits().final, "final state of the first call, after the second,", exact=True)
    if record:
        s.check_states(results[2], s.bits().states, "recorded in the first call, read after the second,", exact=True)


@_case("gradients-kept", "a later backward pass leaves the gradients of an earlier one as they were", *_BACK)
def _gradients_kept(context: Context) -> None:
    calls = pair(subject(context, "lif", "hard"))
    # torch.autograd.grad returns gradients that nobody copies
    grads = [torch.autograd.grad(call.forward().output, call.x, call.cotangent)[0] for call in calls]
    for call, grad in zip(calls, grads):
        name = f"{call.which}, after all backward passes"
        call.s.check("input gradient", grad, call.right.inputs[0], name=name)


def _take_turns(context: Context, configs: Sequence[Config]) -> None:
    """Each called twice with other values on one neuron of numbers, backwards in another order."""
    neuron = Subject(context, configs[0]).neuron
    calls: List[Call] = []
    for draw in (0, 1):
        for config in configs:
            s = Subject(context, replace(config, draw=draw), neuron=neuron)
            calls.append(Call(s, f"call number {len(calls) + 1}, of {config.dtype}, shape {list(config.shape)},"))
    for call in calls:
        call.forward()
    for call in calls:
        call.check_outputs(" after all calls")
    for call in calls[::-2] + calls[::2]:
        call.backward()
    for call in calls:
        call.check_inputs()


_case("shapes", "calls of different shapes take turns, forward and backward", *_BACK)(
    partial(_take_turns, configs=[Config(shape=shape) for shape in _SHAPES])
)
for _dtype in OTHER_DTYPES:
    _case(f"dtypes-{_dtype}", f"calls of float32 and {_dtype} take turns on one neuron", *_BACK, dtype=_dtype)(
        partial(_take_turns, configs=[Config(), Config(dtype=_dtype)])
    )


@_case("accumulated", "gradients of calls add up in .grad", *_BACK)
def _accumulated(context: Context) -> None:
    s = subject(context, "lif", "hard", learn=learnable(context, "tau", "threshold"))
    first, second = pair(s)
    first.forward().backward(retain_graph=True)
    second.forward().backward()
    first.backward()
    first.check_inputs(what=", run backwards twice", times=2.0)
    second.check_inputs()
    check_parameters(s, [first, second, first], "of three backward passes of two calls")


# -- modes and copies


_FIRST = "has gradients in the next call"


@_case("no-grad-first", f"a neuron, used without gradients, {_FIRST}", *_BACK, mode=torch.no_grad)
@_case("inference-mode", f"a neuron, used in inference mode, {_FIRST}", *_BACK)
@_case("inference-mode-from-constants", f"so it has if its states start from constants: {_FIRST}", *_BACK, model=SWAP)
def _mode_first(context: Context, model: Any = "lif", mode: Any = torch.inference_mode) -> None:
    """A tensor that is made in inference mode cannot be saved for backward."""
    lif = model == "lif"
    s = subject(context, model, "soft" if lif else "none", values={"tau": np.asarray(2.75)} if lif else {})
    for call in reversed(pair(s)):
        with mode():
            output = s.neuron(s.x(grad=True))
        s.check_outputs(output, f" under {mode.__name__}")
        if output.requires_grad:
            raise Mismatch(f"{s.of}: the output of a call under {mode.__name__} requires a gradient")
        call.forward().backward().check_inputs()


@_case("deepcopy-between", "a copy made between call and backward computes its own", *_BACK, how="copied")
@_case("pickle-between", "a neuron pickled between call and backward is no other", *_BACK, how="pickled")
def _copied(context: Context, how: str) -> None:
    s = subject(context, "lif", "hard", values={"tau": np.asarray(2.75)})
    first, second = pair(s)
    first.forward()
    twin: Any = copy.deepcopy(s.neuron) if how == "copied" else pickle.loads(pickle.dumps(s.neuron))
    second.s.neuron = twin
    second.forward().check_outputs(f", of a neuron {how} between call and backward")
    second.backward().check_inputs(what=f", of a neuron {how}")
    with torch.no_grad():
        twin.tau.fill_(9.0)
    first.backward().check_inputs(what=f", of a neuron {how} in between")
    s.check_outputs(s.neuron(s.x()), f" after its copy ({how}) was changed: they share a parameter")


# -- changes in place between a call and its backward pass: torch refuses, or the values of the call count

_AFTER = "changed in place after the call: torch's error in backward, or the gradient of the call's own values"


def _judge(call: Call, run_backward: Callable[[], Any], check: Callable[[], Any]) -> None:
    """Run backwards, and accept torch's refusal or what ``check`` finds right."""
    try:
        run_backward()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return
    try:
        check()
    except Mismatch as error:
        raise Mismatch(
            f"{error}\n  hint: a tensor was changed between forward and backward, and backward read the changed one; "
            "save it with ctx.save_for_backward, so that torch sees the change, or save a copy"
        ) from error


@_case("in-place-input", f"an input {_AFTER}", *_BACK, what="input")
@_case("in-place-state", f"an initial state {_AFTER}", *_STATE, what="state")
@_case("in-place-parameter-learnt", f"a learnt parameter {_AFTER}", *_LEARN, what="parameters", learnt=True)
@_case("in-place-parameter-fixed", f"a fixed parameter {_AFTER}", *_BACK, what="parameters")
def _in_place(context: Context, what: str, learnt: bool = False) -> None:
    """By a view of the same memory, with the same version counter; parameters as an optimiser's step changes them."""
    values = {"tau": np.asarray(2.75), "threshold": np.asarray(0.875)}
    names, state = tuple(values) if learnt else (), what == "state"
    s = subject(context, "alif", "soft", values=values, learn=names, state=state)
    call = Call(s, f"a call after which its {what} changed in place")
    product, began = call.x * 1, {name: value * 1 for name, value in (call.start or {}).items()}
    if state:
        call.output, call.final = s.neuron.run(product, state=began)
    else:
        call.output = s.neuron(product)
    parameters = [getattr(s.neuron, name) for name in values]
    for value in {"input": [product], "state": [*began.values()], "parameters": parameters}[what]:
        value.detach().mul_(2)
    call.check_outputs()
    _judge(call, call.backward, lambda: check_each([call], f", {call.which}"))


@_case("in-place-output", f"an output {_AFTER}; it counts as changed", *_BACK)
def _in_place_output(context: Context) -> None:
    call = Call(subject(context, "lif", "hard"), "a call whose output was doubled in place").forward()
    call.output.mul_(2)
    _judge(call, call.backward, partial(call.check_inputs, times=2.0))
    call = Call(subject(context, "lif", "hard"), "a call whose output was overwritten past autograd").forward()
    call.output.detach().fill_(7.0)
    _judge(call, call.backward, call.check_inputs)


@_case("in-place-record", f"a recorded state {_AFTER}; it counts as changed", *_STATE, "record")
def _in_place_record(context: Context) -> None:
    s = subject(context, "lif", "soft")
    call = Call(s, "a call whose recorded states were doubled in place")
    output, _, trace = s.neuron.run(call.x, record=("v",))
    trace["v"].mul_(2)
    of_trace = s.cotangent(trace["v"])
    call.right = s.gradients(call.cotangent, None, {"v": 2 * of_trace})
    back = partial(backward, s.of, [output, trace["v"]], [call.cotangent, of_trace])
    _judge(call, back, call.check_inputs)


# -- hooks that keep saved tensors elsewhere


def _spaced(tensor: Tensor) -> Tensor:
    """The same values as every second number of a wider tensor."""
    return torch.stack([tensor.detach(), torch.full_like(tensor, float("nan"))], -1)[..., 0]


def _to_numpy(tensor: Tensor) -> Tuple[Any, torch.device]:
    return tensor.detach().to("cpu", copy=True).numpy(), tensor.device


def _from_numpy(packed: Tuple[Any, torch.device]) -> Tensor:
    return torch.from_numpy(packed[0].copy()).to(packed[1])


_HOOKS: Dict[str, Callable[[], Any]] = {
    "numpy": partial(torch.autograd.graph.saved_tensors_hooks, _to_numpy, _from_numpy),
    "spaced": partial(torch.autograd.graph.saved_tensors_hooks, lambda tensor: tensor, _spaced),
}
_HOOKED = "saved-tensor hooks may keep saved tensors elsewhere: gradients are the same"


@_case("saved-numpy", _HOOKED, *_BACK, how="numpy")
@_case("saved-spaced", _HOOKED, *_BACK, how="spaced")
def _saved(context: Context, how: str) -> None:
    s = subject(context, "lif", "hard", learn=learnable(context, "tau", "threshold"), shape=(35, 3, 7))
    calls: Sequence[Call] = pair(s)
    with _HOOKS[how]():
        for call in calls:
            call.which += f" whose saved tensors are kept {how}"
            call.forward()
    for call in reversed(calls):
        call.check_outputs().backward()
    check_each(calls)
