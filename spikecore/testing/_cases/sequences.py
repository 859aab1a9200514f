"""Several calls of one neuron before their backward passes: each has values, memory and gradients of its own."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, List, Sequence, Tuple

import torch

from spikecore.testing._calls import Call, backward_together, check_parameters, pair
from spikecore.testing._case import Collection
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import OTHER_DTYPES

_BACK = ("gradients",)
_LEARN = (*_BACK, "parameter_gradients")
_STATE = (*_BACK, "state_gradients")
_SHAPES = ((12, 3, 7), (12, 5), (5, 2, 3, 2), (20, 4, 3), (1, 7))


def add_to(cases: Collection) -> None:
    """Add the cases of this theme."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = (), **more: Any) -> None:
        cases.add(f"sequences/{name}", "sequences", holds, run, needs, **more)

    own = "two calls of different values, then one backward pass: each gradient is that of its own call"
    for model, reset in (("lif", "hard"), ("alif", "soft"), ("li", "none")):
        add(f"two-calls-{model}-{reset}", own, partial(two_calls, model=model, reset=reset), _BACK)
    add("two-calls-learnt", f"{own}; those of learnt parameters are the sum", two_calls_learnt, _LEARN)
    add("two-calls-state", f"{own}, with initial and final states", two_calls_state, _STATE)
    add("two-calls-long", f"{own}, beyond a chunk of 16 steps", partial(two_calls_state, steps=35), _STATE)
    first = "the order of two backward passes is not that of their calls, and no matter"
    add("backward-reversed", first, partial(one_by_one, order=(1, 0)), _BACK)
    add("backward-in-order", first, partial(one_by_one, order=(0, 1)), _BACK)
    add("outputs-kept", "a later call leaves the results of an earlier one as they were", outputs_kept)
    kept = "a later backward pass leaves the gradients of an earlier one as they were"
    add("gradients-kept", kept, gradients_kept, _BACK)
    add("shapes", "calls of different shapes take turns, forward and backward", shapes, _BACK)
    for dtype in OTHER_DTYPES:
        turns = f"calls of float32 and {dtype} take turns on one neuron"
        add(f"dtypes-{dtype}", turns, partial(dtypes, dtype=dtype), _BACK, dtype=dtype)


def two_calls(context: Context, model: str, reset: str) -> None:
    """One shape, two inputs."""
    first, second = pair(Subject(context, model, reset))
    calls = [first.forward(), second.forward()]
    for call in calls:
        call.check_outputs(", after both")
    backward_together(calls)
    first.check_inputs(second)
    second.check_inputs(first)


def two_calls_learnt(context: Context) -> None:
    """tau, threshold and v_reset of LIF, plain 0-d tensors."""
    s = Subject(context, "lif", "hard", learn=("tau", "threshold", "v_reset"))
    first, second = pair(s)
    calls = [first.forward(), second.forward()]
    backward_together(calls)
    first.check_inputs(second)
    second.check_inputs(first)
    check_parameters(s, calls, "summed over two calls of different values")


def two_calls_state(context: Context, steps: int = 12) -> None:
    """ALIF from two states, with cotangents of both final states."""
    s = Subject(context, "alif", "hard", state=True, shape=(steps, 3, 7))
    first, second = pair(s, final=True, state=True)
    calls = [first.forward(), second.forward()]
    for call in calls:
        call.check_outputs(", after both")
        s.check_states(call.final, call.s.seen.final, f"final state of {call.which}", exact=False)
    backward_together(calls)
    first.check_inputs(second)
    second.check_inputs(first)


def one_by_one(context: Context, order: Tuple[int, int]) -> None:
    """Two backward passes."""
    calls = pair(Subject(context, "lif", "soft"))
    for call in calls:
        call.forward()
    for i in order:
        calls[i].backward().check_inputs(calls[1 - i])
    calls[order[0]].check_inputs(calls[order[1]], what=", after the backward pass of the other")


def outputs_kept(context: Context) -> None:
    """Output, final state and record of the first call, looked at after the second."""
    record = ("v",) if context.declares("record") else ()
    first, second = pair(Subject(context, "lif", "hard"))
    results = first.s.neuron.run(first.x.detach(), record=record)
    second.s.neuron.run(second.x.detach(), record=record)
    s = first.s
    s.check_outputs(results[0], " of the first call, after the second: results of two calls share memory")
    what = "final state of the first call, after the second,"
    s.check_states(results[1], s.bits().final, what, exact=True)
    if record:
        s.check_states(results[2], s.bits().states, "recorded in the first call, read after the second,", exact=True)


def gradients_kept(context: Context) -> None:
    """Gradients as ``torch.autograd.grad`` returns them, which nobody copies."""
    first, second = pair(Subject(context, "lif", "hard"))
    found = []
    for call in (first, second):
        call.forward()
        (gradient,) = torch.autograd.grad(call.output, call.x, call.cotangent)
        found.append((call, gradient))
    for call, gradient in found:
        others = [other for other, _ in found if other is not call]
        name = f"{call.which}, after all backward passes"
        call.s.check("input gradient", gradient, call.right.inputs[0], name=name, suspects=call.suspects(*others))


def shapes(context: Context) -> None:
    """Five shapes, each called twice with other values, backwards in another order."""
    s = Subject(context, "lif", "hard", shape=_SHAPES[0])
    calls: List[Call] = []
    for draw in (0, 1):
        for shape in _SHAPES:
            each = Subject(context, "lif", "hard", shape=shape, draw=draw, neuron=s.neuron)
            calls.append(Call(each, f"call number {len(calls) + 1}, of shape {list(shape)},"))
    for call in calls:
        call.forward()
    for call in calls:
        call.check_outputs(" after all calls")
    for call in calls[::-2] + calls[::2]:
        call.backward()
    for call in calls:
        call.check_inputs(*[other for other in calls if other.s.shape == call.s.shape and other is not call])


def dtypes(context: Context, dtype: str) -> None:
    """One neuron of numbers, called with both dtypes in turn."""
    neuron = Subject(context, "lif", "hard").neuron
    calls: List[Call] = []
    for draw in (0, 1):
        for each in ("float32", dtype):
            s = Subject(context, "lif", "hard", dtype=each, draw=draw, neuron=neuron)
            calls.append(Call(s, f"call number {len(calls) + 1}, of {each},"))
    for call in calls:
        call.forward().check_outputs()
    for call in (calls[2], calls[1], calls[0], calls[3]):
        call.backward()
    for call in calls:
        call.check_inputs()
