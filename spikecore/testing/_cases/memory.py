"""Memory: every result has its own, arguments stay as they are, and nothing is held after a call."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from spikecore.dtypes import WIDE
from spikecore.testing._calls import Call
from spikecore.testing._case import Collection
from spikecore.testing._cases.rows import BACK, BOTH
from spikecore.testing._config import Config
from spikecore.testing._config_check import add_row, cotangents_of, leaves_of, results_of
from spikecore.testing._context import Context
from spikecore.testing._oracle import Array
from spikecore.testing._subject import Subject, subject
from spikecore.testing.compare import Mismatch, unchanged
from spikecore.testing.tolerances import OTHER_DTYPES

CASES = Collection()
_later = CASES.family("sequences")
_case = CASES.family("ownership")
_BACK = ("gradients",)
Named = Mapping[str, Optional[Tensor]]


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
    """True if two tensors have a byte in common. Views of one allocation may lie between each other."""
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
        self.values = {name: value.detach().clone() for name, value in self.tensors.items()}
        self.versions = {name: value._version for name, value in self.tensors.items()}

    def check(self, of: str, when: str) -> None:
        """Raise :class:`Mismatch` where one of them was written to."""
        for name, value in self.tensors.items():
            unchanged(f"{name} {when}", of, [value], [self.values[name]])
            if value._version != self.versions[name]:
                raise Mismatch(
                    f"{name} {when} of {of} was written to in place (version {self.versions[name]}, now "
                    f"{value._version}): the caller's own backward pass is refused by torch"
                )


_OWN = "no result shares memory with an argument or another result, or has two elements in one place"
_OF_GRADIENTS = f"{_OWN}; gradients and cotangents likewise"
_STAY = "values and version counters of arguments stay as they were"
#: Sizes at which a copy may be forgotten: no steps, one step, no neurons, one neuron.
_SIZES: Mapping[str, Tuple[int, ...]] = {
    "usual": (12, 3, 7),
    "long": (20, 3, 7),
    "no-steps": (0, 3, 7),
    "one-step": (1, 3, 7),
    "no-neurons": (12, 0, 7),
    "one-neuron": (12, 1),
}


def _owned(context: Context, config: Config) -> None:
    """Every result and gradient of the call has its own memory, and nothing that was given is written to."""
    s = Subject(context, config)
    leaves = leaves_of(s, config)
    parameters = {name: getattr(s.neuron, name) for name in s.params}
    tensors = {name: value for name, value in parameters.items() if isinstance(value, Tensor)}
    arguments = {**leaves, **{f"parameter {name}": value for name, value in tensors.items()}}
    watched = Watched(arguments)
    results = results_of(s, config, leaves)
    distinct(s.of, results, arguments)
    watched.check(s.of, "after the call")
    if not config.given:
        return
    cotangents = cotangents_of(s, config)
    ends = {name: results[name] for name in cotangents if results[name].requires_grad}
    given = {f"the cotangent of {name}": cotangents[name] for name in ends}
    watched = Watched({**arguments, **given, **{name: value.detach() for name, value in results.items()}})
    by = {name: value for name, value in {**leaves, **dict(s.neuron.named_parameters())}.items() if value.requires_grad}
    grads = torch.autograd.grad([*ends.values()], [*by.values()], [*given.values()], allow_unused=True)
    gradients = {f"the gradient of {name}": grad for name, grad in zip(by, grads)}
    distinct(s.of, gradients, {**arguments, **results, **given})
    watched.check(s.of, "after forward and backward")


def _own(name: str, holds: str, *configs: Config, tier: str = "ownership") -> None:
    add_row(CASES, name if "/" in name else f"ownership/{name}", tier, holds, *configs, run=_owned)


def _both(*configs: Config) -> Tuple[Config, ...]:
    """At rest, and from a given state."""
    return (*configs, *(replace(config, state=True) for config in configs))


def _add_owned() -> None:
    for name, shape in _SIZES.items():
        _own(f"results-{name}", _OWN, *_both(Config("alif", shape=shape)))
        if shape[0]:
            _own(f"gradients-{name}", _OF_GRADIENTS, Config("alif", "soft", shape=shape, **BOTH))
    for dtype in OTHER_DTYPES:
        for name in ("usual", "no-steps", "one-step"):
            _own(f"results-{name}-{dtype}", _OWN, *_both(Config("alif", dtype=dtype, shape=_SIZES[name])))
        _own(f"gradients-{dtype}", _OF_GRADIENTS, Config("alif", "soft", dtype=dtype, **BACK))
    for dtype in WIDE:
        passed = [Config("passing", "none", dtype=dtype, shape=(steps, 5)) for steps in (0, 1, 3)]
        _own(f"results-passed-through-{dtype}", f"{_OWN}: states and inputs that pass through", *_both(*passed))
    models = (("alif", "hard"), ("if", "none"), ("li", "none"), ("passing", "none"))
    traced = [Config(*which, shape=(steps, 5), record=("*",)) for which in models for steps in (0, 1, 4)]
    _own(
        "results-trace", f"{_OWN}: a record whose last value is the final state, or that is the output", *_both(*traced)
    )
    equal = Config("li", "none", shape=(1, 5), exact=True, **BOTH)
    _own("gradients-equal", f"{_OF_GRADIENTS}; those of input and state are equal in LI of tau 2", equal)
    _own("several", f"{_OF_GRADIENTS}; two inputs, and two outputs", Config("turn", "none", **BOTH))
    kinds = Config("alif", "soft", params="full/channel/scalar", learn=("*",), **BACK)
    _own("gradients-parameters", f"{_OF_GRADIENTS}; those of learnt parameters of every kind likewise", kinds)
    scalars = _both(Config("alif", "none", params="scalar"))
    _own("state/inputs-stay", "inputs, parameters and given states are not written to", *scalars, tier="core")
    _own("arguments", f"{_STAY}, without gradients", *scalars)
    several = _both(Config("turn", "none", params="full/channel/scalar", record=("*",)))
    _own("arguments-several", f"{_STAY}: two inputs, three states and parameters of every kind", *several)
    layouts = [Config("alif", g=layout, **BACK) for layout in ("contiguous", "strided", "expanded-steps")]
    _own("arguments-backward", f"{_STAY}, forward and backward, and so do cotangents and results", *layouts)


_add_owned()


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
    return Call(s, "a call").forward()


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
