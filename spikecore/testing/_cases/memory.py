"""Memory: every result has its own, arguments stay as they are, and nothing is held after a call."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import spikecore as sc
from spikecore.dtypes import WIDE
from spikecore.testing._calls import Call
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, same
from spikecore.testing._config import SHAPE
from spikecore.testing._context import Context
from spikecore.testing._custom import CUSTOM
from spikecore.testing._models import MODELS, Model, spread
from spikecore.testing._oracle import Array
from spikecore.testing._subject import Subject, subject
from spikecore.testing._tolerances import OTHER_DTYPES
from spikecore.testing._turning import TURN

CASES = Collection()
_BACK = ("gradients",)
Named = Mapping[str, Optional[Tensor]]
_MODELS: Mapping[str, Model] = {model.name: model for model in (*MODELS, *CUSTOM, TURN)}


def _case(name: str, holds: str, *needs: str, **more: Any) -> Callable[[Any], Any]:
    return CASES.case(f"ownership/{name}", "ownership", holds, *needs, **more)


# -- results


def distinct(of: str, results: Named, arguments: Named) -> None:
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
    """Whether two tensors have a byte in common. Views of one allocation may lie between each other."""
    return one.device == other.device and np.intersect1d(_addresses(one), _addresses(other)).size > 0


def _addresses(x: Tensor) -> Array:
    at, width = np.array([x.data_ptr()]), x.element_size()
    for size, stride in zip(x.shape, x.stride()):
        at = np.add.outer(at, np.arange(size) * stride * width).ravel()
    return np.asarray(np.add.outer(at, np.arange(width)).ravel())


class Watched:
    """Tensors as they are now, to be compared later."""

    def __init__(self, named: Named) -> None:
        self.tensors = {name: value for name, value in named.items() if value is not None}
        self.values = {name: as_array(value).copy() for name, value in self.tensors.items()}
        self.versions = {name: value._version for name, value in self.tensors.items()}

    def check(self, of: str, when: str) -> None:
        """Raise :class:`Mismatch` where one of them was written to."""
        for name, value in self.tensors.items():
            if not np.array_equal(as_array(value), self.values[name], equal_nan=True):
                raise Mismatch(
                    f"{name} {when} of {of} has other values: it was written to\n  hint: the caller reads it again; "
                    "clone what is used as scratch"
                )
            if value._version != self.versions[name]:
                raise Mismatch(
                    f"{name} {when} of {of} was written to in place (version {self.versions[name]}, now "
                    f"{value._version}): the caller's own backward pass is refused by torch"
                )


def _named(what: str, values: Optional[Named]) -> Dict[str, Optional[Tensor]]:
    return {f"{what} {name}": value for name, value in (values or {}).items()}


def _arguments(s: Subject, xs: Sequence[Tensor], start: Optional[Named]) -> Dict[str, Optional[Tensor]]:
    """Inputs, initial states, and parameters that are tensors, by names for a message."""
    inputs = {"the input" if len(xs) == 1 else f"input {i}": x for i, x in enumerate(xs)}
    params = {name: getattr(s.neuron, name) for name in s.params}
    tensors = {name: value for name, value in params.items() if isinstance(value, Tensor)}
    return {**inputs, **_named("the initial", start), **_named("parameter", tensors)}


def _results(of: str, returned: Any, arguments: Named) -> None:
    """Raise :class:`Mismatch` where results of ``neuron.run`` share memory."""
    trace = returned[2] if len(returned) > 2 else {}
    results = {"the output": returned[0], **_named("the final", returned[1]), **_named("the record of", trace)}
    distinct(of, results, arguments)


_OWN = "no result shares memory with an argument or another result, or has two elements in one place"
_OF_GRADIENTS = f"{_OWN}; gradients and cotangents likewise"
#: Sizes at which a copy may be forgotten: no steps, one step, no neurons, one neuron.
_SIZES: Mapping[str, Tuple[int, ...]] = {
    "usual": (12, 3, 7),
    "long": (20, 3, 7),
    "no-steps": (0, 3, 7),
    "one-step": (1, 3, 7),
    "no-neurons": (12, 0, 7),
    "one-neuron": (12, 1),
}


def _run_alif(context: Context, shape: Sequence[int], input_dtype: str = "float32") -> None:
    """Output, final states and, where it is declared, all records; at rest and from a given state."""
    for state in (False, True):
        s = subject(context, "alif", "hard", dtype=input_dtype, shape=tuple(shape), state=state)
        x, start = s.x(), s.start()
        record = tuple(s.twin.rest) if context.declares("record") else ()
        of = f"{s.of}, {'from a given state' if state else 'from rest'}"
        _results(of, s.neuron.run(x, state=start, record=record), _arguments(s, [x], start))


@_case("results-trace", f"{_OWN}: IF, whose last record is its final state", "record", model="if")
@_case("results-trace-li", f"{_OWN}: LI, whose record is its output", "record", model="li")
def _recorded(context: Context, model: str) -> None:
    for shape in ((1, 5), (4, 5)):
        s = subject(context, model, "none", shape=shape, state=True)
        x, start = s.x(), s.start()
        _results(s.of, s.neuron.run(x, state=start, record=("v",)), _arguments(s, [x], start))


class Constant(sc.Neuron):
    """A state that never changes, one that takes the place of the other, and the input as it is for an output."""

    states = {"constant": 0.25, "last": 0.0}
    params = {"gain": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """``z = x``, ``kept' = kept``, ``last' = x``."""
        return x, {"constant": s.constant, "last": x}


def _passed_through(context: Context, input_dtype: str) -> None:
    """Nothing is computed, so nothing new need be made, and yet must."""
    kind = getattr(torch, input_dtype)
    neuron: Any = Constant(backend=context.name)
    record = ("constant", "last") if context.declares("record") else ()
    for steps in (0, 1, 3):
        for started in (False, True):
            x = context.tensor(np.arange(5.0 * steps).reshape(steps, 5), kind)
            start = {name: context.tensor(np.arange(5.0), kind) for name in ("constant", "last")} if started else None
            returned = neuron.run(x, state=start, record=record)
            of = f"{neuron!r} on {steps} steps of {input_dtype}, {'from a given state' if started else 'from rest'}"
            _results(of, returned, {"the input": x, **_named("the initial", start)})
            same("output", of, as_array(returned[0]), as_array(x))
            right = as_array(start["constant"]) if start else np.full(5, 0.25)
            same("final constant", of, as_array(returned[1]["constant"]), right, axes="n")


@_case(
    "gradients-equal",
    f"{_OF_GRADIENTS}; those of input and state are equal in LI of tau 2",
    *_BACK,
    model="li",
    values={"tau": 2.0},
    shape=(1, 5),
)
@_case(
    "several",
    f"{_OWN}; two inputs, two outputs, which stay as they were",
    "several_inputs",
    "several_outputs",
    *_BACK,
    model="gated",
)
def _gradients(
    context: Context,
    shape: Sequence[int] = SHAPE,
    input_dtype: str = "float32",
    model: str = "alif",
    **options: Any,
) -> None:
    """Results, then gradients of inputs, parameters and, where there are such, of states."""
    state = context.declares("state_gradients")
    s = subject(context, _MODELS[model], "soft", dtype=input_dtype, shape=tuple(shape), state=state, **options)
    xs, start = s.xs(grad=True), s.start(grad=True) or {}
    output, final = s.neuron.run(*xs, state=start) if state else (s.neuron(*xs), {})
    outputs = output if isinstance(output, tuple) else (output,)
    results: Dict[str, Tensor] = {f"output {i}": one for i, one in enumerate(outputs)}
    results.update({f"the final {name}": value for name, value in final.items()})
    arguments = _arguments(s, xs, start)
    distinct(s.of, results, arguments)
    cotangents = {f"the cotangent of {name}": s.cotangent(value) for name, value in results.items()}
    watched = Watched({**arguments, **cotangents})
    leaves = {**dict(zip(s.twin.inputs, xs)), **start, **dict(s.neuron.named_parameters())}
    grads = torch.autograd.grad(list(results.values()), list(leaves.values()), list(cotangents.values()))
    gradients = {f"the gradient of {name}": grad for name, grad in zip(leaves, grads)}
    distinct(s.of, gradients, {**arguments, **results, **cotangents})
    watched.check(s.of, "after forward and backward")


def _add_sizes() -> None:
    for name, shape in _SIZES.items():
        _case(f"results-{name}", _OWN)(partial(_run_alif, shape=shape))
        if shape[0]:
            _case(f"gradients-{name}", _OF_GRADIENTS, *_BACK)(partial(_gradients, shape=shape))
    for dtype in OTHER_DTYPES:
        for name in ("usual", "no-steps", "one-step"):
            run = partial(_run_alif, shape=_SIZES[name], input_dtype=dtype)
            _case(f"results-{name}-{dtype}", _OWN, dtype=dtype)(run)
        _case(f"gradients-{dtype}", _OF_GRADIENTS, *_BACK, dtype=dtype)(partial(_gradients, input_dtype=dtype))
    for dtype in WIDE:
        holds = f"{_OWN}: states and inputs that pass through unchanged"
        _case(f"results-passed-through-{dtype}", holds, dtype=dtype)(partial(_passed_through, input_dtype=dtype))


_add_sizes()


@_case(
    "gradients-parameters",
    f"{_OWN}; gradients of learnt parameters of every kind likewise",
    *_BACK,
    "parameter_gradients",
    "channel_parameters",
    "full_parameters",
)
def _of_parameters(context: Context) -> None:
    """A shared, a per-channel and a per-neuron one."""
    values = {"tau": spread(2.7, SHAPE[1:]), "threshold": spread(0.9, SHAPE[2:]), "v_reset": np.asarray(0.125)}
    _gradients(context, model="lif", values=values, learn=tuple(values))


@_case("single-step", "outputs changed in place between single steps change no state")
def _single_step(context: Context) -> None:
    """Also of LI, whose output is its state."""
    for model in ("lif", "li"):
        s = subject(context, model, "none", call="single")
        outputs = []
        for x in s.x():
            output = s.neuron(x)
            outputs.append(output.clone())
            output.zero_()
            x.zero_()
        what = " of single steps, where each output and input was set to zero after its step"
        s.check_outputs(torch.stack(outputs), what)


# -- arguments


@CASES.case("state/inputs-stay", "core", "inputs, parameters and given states are not written to")
@_case("arguments", "values and version counters of arguments stay as they were, without gradients")
@_case(
    "arguments-several",
    "two inputs, three states and parameters of every kind stay as they were, without gradients",
    "several_inputs",
    "several_outputs",
    "channel_parameters",
    "full_parameters",
    several=True,
)
def _arguments_stay(context: Context, several: bool = False) -> None:
    """With records where there are such."""
    values: Dict[str, Any] = {"tau": np.asarray(2.75), "threshold": np.asarray(0.875)}
    if context.declares("channel_parameters"):
        values["tau"] = spread(2.7, SHAPE[2:])
    if several:
        values = {"leak": spread(0.7, SHAPE[1:]), "gain": spread(0.6, SHAPE[2:]), "start": np.asarray(0.25)}
    for state in (False, True):
        s = subject(context, _MODELS["turn" if several else "alif"], "none", values=values, state=state)
        xs, start = s.xs(), s.start()
        watched = Watched(_arguments(s, xs, start))
        s.neuron.run(*xs, state=start, record=tuple(s.twin.rest) if context.declares("record") else ())
        watched.check(s.of, "after the call")


@_case("arguments-backward", "forward and backward leave arguments and cotangents as they were", *_BACK)
def _arguments_backward(context: Context) -> None:
    """Contiguous, strided and expanded cotangents, one after the other."""
    state = context.declares("state_gradients")
    s = subject(context, "alif", "hard", state=state)
    x, start = s.x(grad=True), s.start(grad=True)
    watched = Watched(_arguments(s, [x], start))
    output, final = s.neuron.run(x, state=start) if state else (s.neuron(x), {})
    results = {"the output": output.detach(), **_named("the final", {k: v.detach() for k, v in final.items()})}
    watched_results = Watched(results)
    cotangents = {
        "contiguous": s.cotangent(output),
        "strided": torch.stack([s.cotangent(output)] * 2, -1)[..., 0],
        "expanded": s.cotangent(output)[:1].clone().expand(output.shape),
    }
    ends = {name: s.cotangent(value) for name, value in final.items()}
    for how, cotangent in cotangents.items():
        watched_cotangents = Watched({f"the {how} cotangent": cotangent, **_named("the cotangent of final", ends)})
        leaves, every = [x, *(start or {}).values()], [cotangent, *ends.values()]
        torch.autograd.grad([output, *final.values()], leaves, every, retain_graph=True, allow_unused=True)
        for tensors in (watched_cotangents, watched, watched_results):
            tensors.check(s.of, f"after backward with a {how} cotangent")


@_case("cotangent-after", "a cotangent changed after backward changes no gradient", *_BACK)
def _cotangent_after(context: Context) -> None:
    """Of output and final states, twice."""
    state = context.declares("state_gradients")
    s = subject(context, "alif", "hard", state=state)
    x = s.x(grad=True)
    output, final = s.neuron.run(x, state=s.start()) if state else (s.neuron(x), {})
    for again in (1, 2):
        cotangent, ends = s.cotangent(output), {name: s.cotangent(value) for name, value in final.items()}
        right = s.gradients(cotangent, ends).inputs[0]
        (grad,) = torch.autograd.grad([output, *final.values()], [x], [cotangent, *ends.values()], retain_graph=True)
        for value in (cotangent, *ends.values()):
            value.fill_(float("nan"))
        s.check("input gradient", grad, right, name=f"backward number {again}, cotangents set to NaN after it")


@_case("argument-after", "an argument changed after the call changes no result")
def _argument_after(context: Context) -> None:
    s = subject(context, "alif", "hard", state=True)
    x, start = s.x(), s.start()
    output, final = s.neuron.run(x, state=start)
    for value in (x, *(start or {}).values()):
        value.fill_(float("nan"))
    s.check_outputs(output, ", input and state set to NaN after it")
    s.check_states(final, s.bits().final, "final state, input and initial state set to NaN after the call,", exact=True)


# -- what a call leaves behind


def _later(name: str, holds: str, *needs: str, **more: Any) -> Callable[[Any], Any]:
    return CASES.case(f"sequences/{name}", "sequences", holds, *needs, **more)


@contextmanager
def no_collector() -> Iterator[None]:
    """Python's collector off; what is freed is freed because nobody refers to it."""
    restore = gc.enable if gc.isenabled() else gc.disable
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        restore()


class _Memories:
    """Weak references to the memory of tensors, by name; they see what autograd holds, too."""

    def __init__(self, s: Subject, **named: Any) -> None:
        self.s = s
        self.memories = {
            f"{name} {key}".strip(): StorageWeakRef(tensor.untyped_storage())
            for name, value in named.items()
            for key, tensor in (value.items() if isinstance(value, dict) else [("", value)])
        }

    def check_gone(self, when: str) -> None:
        """Raise :class:`Mismatch` if memory is still held."""
        context = self.s.context
        # torch runs a backward pass on another device in a thread of its own, which may hold results of the last one a
        # moment longer than that takes; it drops them before it begins the next
        torch.ones((), device=context.device, requires_grad=True).clone().backward()
        if not context.settles(lambda: all(memory.expired() for memory in self.memories.values())):
            alive = [name for name, memory in self.memories.items() if not memory.expired()]
            raise Mismatch(
                f"{self.s.of}: {when}, the memory of {', '.join(alive)} is still held, with Python's collector off\n"
                "  hint: a cache, an attribute of the runner or of ctx holds it, or a reference cycle; what backward "
                "needs belongs in ctx.save_for_backward"
            )


_FREED = "memory is free without Python's collector"


@_later("freed-inference", f"once results and arguments of a call are dropped, their {_FREED}")
def _freed_inference(context: Context) -> None:
    s = subject(context, "alif", "hard", state=True)
    s.neuron(s.x())
    with no_collector():
        x, start = s.x(), s.start()
        output, final = s.neuron.run(x, state=start)
        memories = _Memories(s, input=x, initial=start, output=output, final=final)
        del x, start, output, final
        memories.check_gone("after a call whose results were dropped")


def _alif(context: Context, **options: Any) -> Subject:
    """From a given state where the backend has gradients of states; called and run backwards once."""
    s = subject(context, "alif", "hard", state=context.declares("state_gradients"), **options)
    _call(s).backward()
    return s


def _call(s: Subject) -> Call:
    return Call(s, "a call", final=s.state is not None).forward()


@_later("freed-unused", f"of a call whose backward pass never comes {_FREED} once its results are dropped", *_BACK)
def _freed_unused(context: Context) -> None:
    s = _alif(context)
    with no_collector():
        call = _call(s)
        memories = _Memories(s, input=call.x, initial=call.start or {}, output=call.output, final=call.final)
        del call
        memories.check_gone("after a call that was never run backwards")


@_later("freed-after-backward", f"what was saved goes after backward, though the results stay: {_FREED}", *_BACK)
def _freed_after(context: Context) -> None:
    s = _alif(context, values={"tau": np.asarray(2.75)})
    with no_collector():
        x, start = s.x(grad=True), s.start(grad=True)
        product, began = x * 1, {name: value * 1 for name, value in (start or {}).items()}
        if start is None:
            results = [s.neuron(product)]
        else:
            output, final = s.neuron.run(product, state=began)
            results = [output, *final.values()]
        memories = _Memories(s, input=product, initial=began)
        torch.autograd.backward([result.sum() for result in results])
        del product, began
        memories.check_gone("after backward, while the results are there")


@_later("freed-gradients", f"after backward cotangents and gradients are nobody else's: {_FREED}", *_BACK)
def _freed_gradients(context: Context) -> None:
    s = _alif(context)
    with no_collector():
        call = _call(s)
        grads = torch.autograd.grad(call.results, [call.x, *(call.start or {}).values()], call.cotangents)
        memories = _Memories(s, gradients=dict(enumerate(grads)), cotangents=dict(enumerate(call.cotangents)))
        del grads
        call.cotangent, call.of_final = call.x, {}
        memories.check_gone("after backward, while the results are there")


@CASES.case("robust/nothing-kept", "robust", "after a call nothing keeps the input alive")
def _nothing_kept(context: Context) -> None:
    """The tensor itself, beside its memory."""
    s = subject(context, "lif", "hard")
    grad = context.declares("gradients")
    x = s.x(grad)
    output = s.neuron(x)
    if grad:
        s.backward(output, torch.ones_like(output))
    gone = weakref.ref(x)
    del x, output
    gc.collect()
    if not context.settles(lambda: gone() is None):
        raise Mismatch(f"{s.of}: the input of a finished call is kept alive")


def _tensors() -> int:
    return sum(1 for each in gc.get_objects() if type(each) is Tensor)


@_later("steady", "thirty calls leave no more tensors alive than three", *_BACK)
def _steady(context: Context) -> None:
    s = subject(context, "lif", "hard")
    cotangent = s.cotangent(s.x())

    def times(count: int) -> int:
        for _ in range(count):
            x = s.x(grad=True)
            s.backward(s.neuron(x), cotangent)
            del x
        return _tensors()

    with no_collector():
        before, after = times(3), times(27)
        more = after > before and not context.settles(lambda: _tensors() <= before)
    if more:
        raise Mismatch(
            f"{s.of}: {before} tensors are alive after 3 calls, {after} after 30, with Python's collector off"
        )


#: Sizes that a runner sees, and then some more: by then a table by size must have stopped growing.
_COUNT, _MORE = 200, 60


@_later("many-sizes", f"what is kept by size is bounded: after {_COUNT} sizes, others leave nothing more behind")
def _many_sizes(context: Context) -> None:
    s = subject(context, "lif", "hard", shape=(2, 7))

    def sizes(first: int, count: int) -> int:
        for n in range(first, first + count):
            s.neuron(torch.ones(2, n, device=context.device))
        gc.collect()
        return len(gc.get_objects())

    before = sizes(1, _COUNT)
    after = sizes(1 + _COUNT, _MORE)
    if after - before >= _MORE:
        raise Mismatch(
            f"{s.of}: after {_COUNT} sizes, {_MORE} more that were not seen before left {after - before} Python "
            "objects behind: a table by size grows without bound"
        )
    s.check_outputs(s.neuron(s.x()), f" after {_COUNT + _MORE} other sizes")
