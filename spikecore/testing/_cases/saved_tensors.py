"""What is saved for backward: changes in place before it, hooks that keep it elsewhere, and autocast around it."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._calls import Call, check_parameters, learnable, pair
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, backward
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject

_BACK = ("gradients",)
_LEARN = (*_BACK, "parameter_gradients")
_STATE = (*_BACK, "state_gradients")
#: What torch says of a saved tensor that was changed in place.
_REFUSED = "modified by an inplace operation"


def add_to(cases: Collection) -> None:
    """Add the cases of this theme."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = ()) -> None:
        cases.add(f"sequences/{name}", "sequences", holds, run, needs)

    after = "changed in place after the call: torch's error in backward, or the gradient of the call's own values"
    add("in-place-input", f"an input {after}", in_place_input, _BACK)
    add("in-place-state", f"an initial state {after}", in_place_state, _STATE)
    for learnt in (True, False):
        name = "learnt" if learnt else "fixed"
        more = _LEARN if learnt else _BACK
        add(
            f"in-place-parameter-{name}",
            f"a {name} parameter {after}",
            partial(in_place_parameter, learnt=learnt),
            more,
        )
    add("in-place-output", f"an output {after}; it counts as changed", in_place_output, _BACK)
    add("in-place-final", f"a final state {after}; it counts as changed", in_place_final, _STATE)
    add("in-place-record", f"a recorded state {after}; it counts as changed", in_place_record, (*_STATE, "record"))
    hooked = "saved-tensor hooks may keep saved tensors elsewhere: gradients are the same"
    for how in HOOKS:
        add(f"saved-{how}", hooked, partial(hooks, how=how), _BACK)
    add("saved-on-cpu", f"{hooked} (torch.autograd.graph.save_on_cpu)", on_cpu, _BACK)
    for where in ("forward", "backward", "both"):
        cast = (
            f"autocast around {where if where != 'both' else 'forward and backward'} changes no value and no gradient"
        )
        add(f"autocast-{where}", cast, partial(autocast, where=where), _BACK)


# -- in place


def _judge(call: Call, run_backward: Callable[[], Any], check: Callable[[], Any]) -> None:
    """Run backwards, and accept torch's refusal or what ``check`` finds right."""
    try:
        run_backward()
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        return
    try:
        check()
    except Mismatch as error:
        raise Mismatch(
            f"{error}\n  hint: a tensor was changed between forward and backward, and backward read the changed one; "
            "save it with ctx.save_for_backward, so that torch sees the change, or save a copy"
        ) from error


def in_place_input(context: Context) -> None:
    """``y = x * 1; out = lif(y); y.zero_()``, with all gradients of learnt parameters, too, if there are such."""
    s = Subject(context, "lif", "hard", learn=learnable(context, "tau"))
    call = Call(s, "a call whose input was set to zero after it")
    now = call.x * 1
    call.output = s.neuron(now)
    now.detach().zero_()  # a view of the same memory, with the same version counter
    call.check_outputs()
    _judge(call, call.backward, call.check_inputs)


def in_place_state(context: Context) -> None:
    """The same of a state."""
    call = Call(
        Subject(context, "alif", "soft", state=True), "a call whose initial state was set to zero after it", final=True
    )
    start = {name: value * 1 for name, value in (call.start or {}).items()}
    call.output, call.final = call.s.neuron.run(call.x, state=start)
    for value in start.values():
        value.detach().zero_()
    _judge(call, call.backward, call.check_inputs)


def in_place_parameter(context: Context, learnt: bool) -> None:
    """tau and threshold, as an optimiser's step between forward and backward changes them."""
    values = {"tau": np.asarray(2.75), "threshold": np.asarray(0.875)}
    s = Subject(context, "lif", "soft", values=values, learn=tuple(values) if learnt else ())
    call = Call(s, "a call after which tau and threshold were doubled").forward()
    with torch.no_grad():
        for name in values:
            getattr(s.neuron, name).mul_(2)

    def check() -> None:
        call.check_inputs()
        check_parameters(s, [call], call.which)

    _judge(call, call.backward, check)


def in_place_output(context: Context) -> None:
    """``out.mul_(2)``, and the output overwritten."""
    call = Call(Subject(context, "lif", "hard"), "a call whose output was doubled in place").forward()
    call.output.mul_(2)
    _judge(call, call.backward, partial(call.check_inputs, times=2.0))
    call = Call(Subject(context, "lif", "hard"), "a call whose output was overwritten past autograd").forward()
    call.output.detach().fill_(7.0)
    _judge(call, call.backward, call.check_inputs)


def in_place_final(context: Context) -> None:
    """Final states doubled, outputs not used."""
    s = Subject(context, "alif", "hard", state=True)
    call = Call(s, "a call whose final states were doubled in place", final=True).forward()
    for value in call.final.values():
        value.mul_(2)
    right = s.gradients(call.cotangent, {name: 2 * value for name, value in call.of_final.items()}).inputs[0]
    _judge(call, call.backward, lambda: s.check("input gradient", call.x.grad, right, name=call.which))


def in_place_record(context: Context) -> None:
    """What was recorded, overwritten in part."""
    s = Subject(context, "lif", "soft")
    call = Call(s, "a call whose recorded states were doubled in place")
    output, _, trace = s.neuron.run(call.x, record=("v",))
    trace["v"].mul_(2)
    of_trace = s.cotangent(trace["v"])
    right = s.gradients(call.cotangent, None, {"v": 2 * of_trace}).inputs[0]
    _judge(
        call,
        lambda: backward(s.of, [output, trace["v"]], [call.cotangent, of_trace]),
        lambda: s.check("input gradient", call.x.grad, right, name=call.which),
    )


# -- hooks


def _to_numpy(tensor: Tensor) -> Tuple[Any, torch.device]:
    return tensor.detach().to("cpu", copy=True).numpy(), tensor.device


def _from_numpy(packed: Tuple[Any, torch.device]) -> Tensor:
    return torch.from_numpy(packed[0].copy()).to(packed[1])


def _last_first(tensor: Tensor) -> Tensor:
    """The same values with the strides of a transposed tensor."""
    reverse = tuple(range(tensor.ndim))[::-1]
    return tensor.detach().permute(reverse).contiguous().permute(reverse)


def _spaced(tensor: Tensor) -> Tensor:
    """The same values as every second number of a wider tensor."""
    return torch.stack([tensor.detach(), torch.full_like(tensor, float("nan"))], -1)[..., 0]


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


HOOKS: Any = {
    "numpy": (_to_numpy, _from_numpy),
    "transposed": (_last_first, _unchanged),
    "spaced": (_unchanged, _spaced),
}


def hooks(context: Context, how: str) -> None:
    """A pack and an unpack, around forward alone; a second call of other values before backward."""
    pack, unpack = HOOKS[how]
    _with(context, torch.autograd.graph.saved_tensors_hooks(pack, unpack), f"whose saved tensors are kept {how}")


def on_cpu(context: Context) -> None:
    """torch's own hooks."""
    _with(context, torch.autograd.graph.save_on_cpu(), "whose saved tensors are kept on the CPU")


def _with(context: Context, around: Any, words: str) -> None:
    s = Subject(context, "lif", "hard", learn=learnable(context, "tau", "threshold"), shape=(35, 3, 7))
    calls: List[Call] = list(pair(s))
    for call in calls:
        call.which += f" {words}"
    with around:
        for call in calls:
            call.forward()
    for call in reversed(calls):
        call.check_outputs()
        call.backward()
        call.check_inputs(*[other for other in calls if other is not call])
    check_parameters(s, calls, words)


# -- autocast


def autocast(context: Context, where: str) -> None:
    """bfloat16, on the CPU and on the device under test."""
    for kind in sorted({"cpu", context.device.type}):
        s = Subject(context, "lif", "hard", learn=learnable(context, "tau", "threshold"))
        call = Call(s, f"a call with autocast of {kind} around {where}")
        with ExitStack() as stack:
            if where != "backward":
                stack.enter_context(torch.autocast(kind, dtype=torch.bfloat16))
            call.forward()
        call.check_outputs()
        with ExitStack() as stack:
            if where != "forward":
                stack.enter_context(torch.autocast(kind, dtype=torch.bfloat16))
            call.backward()
        if call.x.grad is not None and call.x.grad.dtype != torch.float32:
            raise Mismatch(f"the input gradient of {call.which} of {s.of} has dtype {call.x.grad.dtype}")
        call.check_inputs()
        check_parameters(s, [call], call.which)
