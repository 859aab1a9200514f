"""What a call leaves behind, counted without Python's collector, and calls from several threads."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from spikecore.testing._calls import Call, backward_together, pair
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject
from spikecore.testing._threads import at_once

_BACK = ("gradients",)
_SHAPES = ((12, 3, 7), (12, 5), (20, 4, 3), (5, 2, 3, 2))
#: Sizes that a runner sees, and then some more: by then what it keeps by size must have stopped growing.
_SIZES, _MORE = 200, 60


def add_to(cases: Collection) -> None:
    """Add the cases of this theme."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = ()) -> None:
        cases.add(f"sequences/{name}", "sequences", holds, run, needs)

    freed = "memory is free without Python's collector"
    add("freed-inference", f"once results and arguments of a call are dropped, their {freed}", freed_inference)
    add(
        "freed-unused",
        f"of a call whose backward pass never comes {freed} once its results are dropped",
        freed_unused,
        _BACK,
    )
    add(
        "freed-after-backward",
        f"after backward what was saved goes, though the results are kept: {freed}",
        freed_after,
        _BACK,
    )
    add(
        "freed-gradients",
        f"after backward cotangents and gradients are nobody else's: {freed}",
        freed_gradients,
        _BACK,
    )
    add("steady", "thirty calls leave no more tensors alive than three", steady, _BACK)
    bound = f"what is kept by size is bounded: after {_SIZES} sizes, others leave nothing more behind"
    add("many-sizes", bound, many_sizes)
    add(
        "threads-shapes",
        "threads that share a neuron, with other shapes and values, get their own gradients",
        shapes,
        _BACK,
    )
    add(
        "threads-backward", "a backward pass in another thread than its call gives the same gradients", elsewhere, _BACK
    )
    back = "a call in a thread that has ended is run backwards in another"
    add("threads-forward", back, partial(elsewhere, forward=True), _BACK)


@contextmanager
def no_collector() -> Iterator[None]:
    """Python's collector off; what is freed is freed because nobody refers to it."""
    on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _memories(**named: Any) -> Dict[str, StorageWeakRef]:
    """Weak references to the memory of tensors, by name; they see what autograd holds, too."""
    found = {}
    for name, value in named.items():
        for key, tensor in value.items() if isinstance(value, dict) else [("", value)]:
            found[f"{name} {key}".strip()] = StorageWeakRef(tensor.untyped_storage())
    return found


def _gone(s: Subject, memories: Dict[str, StorageWeakRef], when: str) -> None:
    # torch runs a backward pass on another device in a thread of its own, which may hold results of the last one a
    # moment longer than that takes; it drops them before it begins the next
    torch.ones((), device=s.context.device, requires_grad=True).clone().backward()
    if not s.context.settles(lambda: all(memory.expired() for memory in memories.values())):
        alive = [name for name, memory in memories.items() if not memory.expired()]
        raise Mismatch(
            f"{s.of}: {when}, the memory of {', '.join(alive)} is still held, with Python's collector off\n"
            "  hint: a cache, an attribute of the runner or of ctx holds it, or a reference cycle; what backward needs "
            "belongs in ctx.save_for_backward"
        )


def freed_inference(context: Context) -> None:
    """A call without gradients from a given state."""
    s = Subject(context, "alif", "hard", state=True)
    s.neuron(s.x())
    with no_collector():
        x, start = s.x(), s.start()
        output, final = s.neuron.run(x, state=start)
        memories = _memories(input=x, initial=start, output=output, final=final)
        del x, start, output, final
        _gone(s, memories, "after a call whose results were dropped")


def _subject(context: Context, **options: Any) -> Subject:
    """ALIF, from a given state where the backend has gradients of states."""
    return Subject(context, "alif", "hard", state=context.declares("state_gradients"), **options)


def _call(s: Subject) -> Call:
    return Call(s, "a call", final=s.state is not None).forward()


def freed_unused(context: Context) -> None:
    """Results are dropped, then arguments."""
    s = _subject(context)
    _call(s).backward()
    with no_collector():
        call = _call(s)
        memories = _memories(input=call.x, initial=call.start or {}, output=call.output, final=call.final)
        del call
        _gone(s, memories, "after a call that was never run backwards")


def freed_after(context: Context) -> None:
    """The results and their graph are kept."""
    s = _subject(context, values={"tau": np.asarray(2.75)})
    _call(s).backward()
    with no_collector():
        x, start = s.x(grad=True), s.start(grad=True)
        now, began = x * 1, {name: value * 1 for name, value in (start or {}).items()}
        if start is None:
            results = [s.neuron(now)]
        else:
            output, final = s.neuron.run(now, state=began)
            results = [output, *final.values()]
        memories = _memories(input=now, initial=began)
        torch.autograd.backward([result.sum() for result in results])
        del now, began
        _gone(s, memories, "after backward, while the results are kept")


def freed_gradients(context: Context) -> None:
    """Cotangents and gradients, while the results are kept."""
    s = _subject(context)
    _call(s).backward()
    with no_collector():
        call = _call(s)
        given = list((call.start or {}).values())
        found = torch.autograd.grad(call.results, [call.x, *given], call.cotangents)
        memories = _memories(
            gradients={str(i): value for i, value in enumerate(found)},
            cotangents={str(i): value for i, value in enumerate(call.cotangents)},
        )
        del found
        call.cotangent, call.of_final = call.x, {}
        _gone(s, memories, "after backward, while the results are kept")


def _tensors() -> int:
    return sum(1 for each in gc.get_objects() if type(each) is Tensor)


def steady(context: Context) -> None:
    """Forward and backward each time, of one size."""
    s = Subject(context, "lif", "hard")
    cotangent = s.cotangent(s.x())

    def times(count: int) -> int:
        for _ in range(count):
            x = s.x(grad=True)
            s.backward(s.neuron(x), cotangent)
            del x
        return _tensors()

    with no_collector():
        before = times(3)
        after = times(27)
        if after > before and context.settles(lambda: _tensors() <= before):
            after = before
    if after > before:
        raise Mismatch(
            f"{s.of}: {before} tensors are alive after 3 calls, {after} after 30, with Python's collector off"
        )


def many_sizes(context: Context) -> None:
    """One neuron, two steps, 200 sizes and 60 more; then a right result."""
    s = Subject(context, "lif", "hard", shape=(2, 7))

    def sizes(first: int, count: int) -> int:
        for n in range(first, first + count):
            s.neuron(torch.ones(2, n, device=context.device))
        gc.collect()
        return len(gc.get_objects())

    before = sizes(1, _SIZES)
    after = sizes(1 + _SIZES, _MORE)
    if after - before >= _MORE:
        raise Mismatch(
            f"{s.of}: after {_SIZES} sizes, {_MORE} more that were not seen before left {after - before} Python "
            "objects behind: a table by size grows without bound"
        )
    s.check_outputs(s.neuron(s.x()), f" after {_SIZES + _MORE} other sizes")


def shapes(context: Context) -> None:
    """Four threads on one neuron, each of a shape of its own, all at once."""
    s = Subject(context, "lif", "hard", shape=_SHAPES[0])
    subjects = [
        Subject(context, "lif", "hard", shape=shape, draw=i, neuron=s.neuron) for i, shape in enumerate(_SHAPES)
    ]

    def work(i: int) -> None:
        for again in range(3):
            call = Call(subjects[i], f"call {again + 1} of thread {i + 1}, of shape {list(_SHAPES[i])},").forward()
            call.check_outputs().backward().check_inputs()

    at_once(work, len(_SHAPES))


def elsewhere(context: Context, forward: bool = False) -> None:
    """Two calls here and one backward in a thread, or the reverse."""
    s = Subject(context, "lif", "hard")
    calls: List[Call] = list(pair(s))

    def run(work: Callable[[], Any]) -> None:
        at_once(lambda _: work(), 1)

    for call in calls:
        if forward:
            run(call.forward)
        else:
            call.forward()
    if forward:
        backward_together(calls)
    else:
        run(partial(backward_together, calls))
    for call in calls:
        call.check_outputs()
        call.check_inputs(*[other for other in calls if other is not call])
