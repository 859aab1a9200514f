"""Whose memory is whose: every result has its own, and every argument stays as it was."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

import spikecore as sc
from spikecore.dtypes import WIDE
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, same
from spikecore.testing._context import Context
from spikecore.testing._custom import CUSTOM
from spikecore.testing._models import spread
from spikecore.testing._subject import SHAPE, Subject
from spikecore.testing._tolerances import OTHER_DTYPES

_BACK = ("gradients",)
#: Sizes at which a copy may be forgotten: no steps, one step, no neurons, one neuron.
_SIZES: Mapping[str, Tuple[int, ...]] = {
    "usual": (12, 3, 7),
    "long": (20, 3, 7),
    "no-steps": (0, 3, 7),
    "one-step": (1, 3, 7),
    "no-neurons": (12, 0, 7),
    "one-neuron": (12, 1),
}


class Held(sc.Neuron):
    """A state that never changes, one that takes the place of the other, and the input as it is for an output."""

    states = {"kept": 0.25, "last": 0.0}
    params = {"gain": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """``z = x``, ``kept' = kept``, ``last' = x``."""
        return x, {"kept": s.kept, "last": x}


def add_to(cases: Collection) -> None:
    """Add the cases of this theme."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = (), **more: Any) -> None:
        cases.add(f"ownership/{name}", "ownership", holds, run, needs, **more)

    own = "no result shares memory with an argument or another result, or has two elements in one place"
    of_gradients = f"{own}; gradients and cotangents likewise"
    for name, shape in _SIZES.items():
        add(f"results-{name}", own, partial(results, shape=shape))
        if shape[0]:
            add(f"gradients-{name}", of_gradients, partial(gradients, shape=shape), _BACK)
    for dtype in OTHER_DTYPES:
        for name in ("usual", "no-steps", "one-step"):
            add(f"results-{name}-{dtype}", own, partial(results, shape=_SIZES[name], dtype=dtype), dtype=dtype)
        add(f"gradients-{dtype}", of_gradients, partial(gradients, dtype=dtype), _BACK, dtype=dtype)
    add("results-trace", f"{own}: IF, whose last record is its final state", partial(recorded, model="if"), ("record",))
    add("results-trace-li", f"{own}: LI, whose record is its output", partial(recorded, model="li"), ("record",))
    for dtype in WIDE:
        through = f"{own}: states and inputs that pass through unchanged"
        add(f"results-passed-through-{dtype}", through, partial(passed, dtype=dtype), dtype=dtype)
    equal = partial(gradients, model="li", values={"tau": 2.0}, shape=(1, 5))
    add("gradients-equal", f"{of_gradients}; those of input and state are equal in LI of tau 2", equal, _BACK)
    several = ("several_inputs", "several_outputs", *_BACK)
    add("several", f"{own}; two inputs, two outputs, which stay as they were", several_of_each, several)
    learnt = (*_BACK, "parameter_gradients", "channel_parameters", "full_parameters")
    add("gradients-parameters", f"{own}; gradients of learnt parameters of every kind likewise", parameters, learnt)
    add("single-step", "outputs changed in place between single steps change no state", single_step)


def distinct(of: str, results: Mapping[str, Optional[Tensor]], arguments: Mapping[str, Optional[Tensor]]) -> None:
    """Raise :class:`Mismatch` where memory is shared, between these or within one result."""
    seen: Dict[str, Tensor] = {name: value for name, value in arguments.items() if value is not None}
    for name, value in results.items():
        if value is None:
            continue
        if value.numel() and any(size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride())):
            raise Mismatch(
                f"{name} of {of}: an expanded view, of shape {list(value.shape)} and strides {list(value.stride())}: a "
                "change in place of one element would change others\n  hint: clone() what expand() gave"
            )
        for other, there in seen.items():
            if _overlap(value, there):
                raise Mismatch(
                    f"{name} of {of} lies in the memory of {other}: a change of one in place changes the other\n"
                    "  hint: an operation that changes nothing (to() of the same dtype, expand, reshape, the value of "
                    "a node that is a leaf) returns a view or its argument; clone it"
                )
        seen[name] = value


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the addresses of two tensors meet; those of tensors without elements meet none."""
    if not (one.numel() and other.numel()) or one.device != other.device:
        return False
    (begin, end), (first, last) = _extent(one), _extent(other)
    return begin < last and first < end


def _extent(value: Tensor) -> Tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
    return value.data_ptr(), value.data_ptr() + (last + 1) * value.element_size()


def named(what: str, values: Optional[Mapping[str, Tensor]]) -> Dict[str, Optional[Tensor]]:
    """Tensors by names for a message."""
    return {f"{what} {name}": value for name, value in (values or {}).items()}


def arguments_of(s: Subject, x: Tensor, start: Optional[Mapping[str, Tensor]]) -> Dict[str, Optional[Tensor]]:
    """Input, initial states, and parameters that are tensors, by names for a message."""
    held = {name: value for name in s.params for value in [getattr(s.neuron, name)] if isinstance(value, Tensor)}
    return {"the input": x, **named("the initial", start), **named("parameter", held)}


def results(context: Context, shape: Sequence[int], dtype: str = "float32") -> None:
    """Output, final states and, where it is declared, all records; at rest and from a given state."""
    for state in (False, True):
        s = Subject(context, "alif", "hard", dtype=dtype, shape=tuple(shape), state=state)
        x, start = s.x(), s.start()
        record = tuple(s.twin.rest) if context.declares("record") else ()
        found = s.neuron.run(x, state=start, record=record)
        trace = found[2] if record else {}
        got = {"the output": found[0], **named("the final", found[1]), **named("the record of", trace)}
        distinct(f"{s.of}, {'from a given state' if state else 'from rest'}", got, arguments_of(s, x, start))


def recorded(context: Context, model: str) -> None:
    """A neuron whose results are of the same values."""
    for shape in ((1, 5), (4, 5)):
        s = Subject(context, model, "none", shape=shape, state=True)
        x, start = s.x(), s.start()
        output, final, trace = s.neuron.run(x, state=start, record=("v",))
        got = {"the output": output, **named("the final", final), **named("the record of", trace)}
        distinct(s.of, got, arguments_of(s, x, start))


def passed(context: Context, dtype: str) -> None:
    """Nothing is computed, so nothing new need be made, and yet must."""
    kind = getattr(torch, dtype)
    neuron: Any = Held(backend=context.name)
    record = ("kept", "last") if context.declares("record") else ()
    for steps in (0, 1, 3):
        for given in (False, True):
            x = context.tensor(np.arange(5.0 * steps).reshape(steps, 5), kind)
            start = {name: context.tensor(np.arange(5.0), kind) for name in ("kept", "last")} if given else None
            found = neuron.run(x, state=start, record=record)
            trace = found[2] if record else {}
            got = {"the output": found[0], **named("the final", found[1]), **named("the record of", trace)}
            of = f"{neuron!r} on {steps} steps of {dtype}, {'from a given state' if given else 'from rest'}"
            distinct(of, got, {"the input": x, **named("the initial", start)})
            same("output", of, as_array(found[0]), as_array(x))
            kept = as_array(start["kept"]) if start else np.full(5, 0.25)
            same("final kept", of, as_array(found[1]["kept"]), kept, axes="n")


def gradients(
    context: Context, shape: Sequence[int] = SHAPE, dtype: str = "float32", model: str = "alif", **options: Any
) -> None:
    """Gradients of input and, where there are such, of states."""
    state = context.declares("state_gradients")
    reset = "soft" if model == "alif" else "none"
    s = Subject(context, model, reset, dtype=dtype, shape=tuple(shape), state=state, **options)
    x, start = s.x(grad=True), s.start(grad=True) or {}
    output, final = s.neuron.run(x, state=start) if state else (s.neuron(x), {})
    given: Dict[str, Tensor] = {"the output": output, **{f"the final {name}": value for name, value in final.items()}}
    cotangents = {f"the cotangent of {name}": s.cotangent(value) for name, value in given.items()}
    sources: List[Tensor] = [x, *start.values()]
    found = torch.autograd.grad(list(given.values()), sources, list(cotangents.values()))
    names = ["the input gradient", *[f"the gradient of {name}" for name in start]]
    there = {**arguments_of(s, x, start), **given, **cotangents}
    distinct(s.of, dict(zip(names, found)), there)


def several_of_each(context: Context) -> None:
    """A neuron without state, and one with two inputs; forward, then backward."""
    for name in ("coincidence", "gated"):
        s = Subject(context, next(model for model in CUSTOM if model.name == name), "hard")
        xs = s.xs(grad=True)
        found = s.neuron(*xs)
        outputs = found if isinstance(found, tuple) else (found,)
        given = {f"input {i}": x for i, x in enumerate(xs)}
        got = {f"output {i}": output for i, output in enumerate(outputs)}
        distinct(s.of, got, given)
        cotangents = {f"the cotangent of output {i}": s.cotangent(output) for i, output in enumerate(outputs)}
        right = s.gradients(list(cotangents.values())).inputs
        gradients = torch.autograd.grad(list(outputs), xs, list(cotangents.values()))
        distinct(
            s.of, {f"the gradient of input {i}": g for i, g in enumerate(gradients)}, {**given, **got, **cotangents}
        )
        for i, (x, values, gradient) in enumerate(zip(xs, s.inputs, gradients)):
            same(f"input {i}, after forward and backward,", s.of, as_array(x), values)
            s.check("input gradient", gradient, right[i], name=f"input {i}")


def parameters(context: Context) -> None:
    """A shared, a per-channel and a per-neuron one."""
    values = {"tau": spread(2.7, SHAPE[1:]), "threshold": spread(0.9, SHAPE[2:]), "v_reset": np.asarray(0.125)}
    s = Subject(context, "lif", "hard", values=values, learn=tuple(values))
    x = s.x(grad=True)
    output = s.neuron(x)
    cotangent = s.cotangent(output)
    names = [name for name, _ in s.neuron.named_parameters()]
    found = torch.autograd.grad(output, [x, *s.neuron.parameters()], cotangent)
    there = {**arguments_of(s, x, None), "the output": output, "the cotangent": cotangent}
    distinct(s.of, dict(zip(["the input gradient", *[f"the gradient of {name}" for name in names]], found)), there)


def single_step(context: Context) -> None:
    """Spikes set to zero by the user after each step; li, whose output is its state."""
    for model in ("lif", "li"):
        s = Subject(context, model, "none", step="single")
        outputs = []
        for x in s.x():
            output = s.neuron(x)
            outputs.append(output.clone())
            output.zero_()
            x.zero_()
        s.check_outputs(
            torch.stack(outputs), " of single steps, where each output and input was set to zero after its step"
        )
