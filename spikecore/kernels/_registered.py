"""Kernels as ops of torch, for ``torch.compile``, ``torch.export`` and ``torch.library.opcheck``.

Two ops serve every backend and every program: ``spikecore::forward`` and ``spikecore::backward``. A string names what
they run: a hash of backend, program and spec, so that it means the same in every process. They are defined when they
are first used, by torch 2.4 or newer. Eager calls go past them.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import (
    Any,
    Dict,
    List,
    MutableMapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
    get_type_hints,
)

import torch
from torch import Tensor

from spikecore._base.caches import RUNNERS, Lock, Recent
from spikecore.backend import Unsupported
from spikecore.kernels._arguments import Call
from spikecore.kernels._execution import Execution
from spikecore.kernels._layout import Layout


class ForwardArguments(NamedTuple):
    """The arguments of ``spikecore::forward``: its schema is made from these fields."""

    key: str
    tensors: List[Tensor]
    #: The parameters that are numbers.
    numbers: List[float]
    record: List[str]
    has_initial_state: bool
    #: Whether checkpoints for backward are written.
    save: bool


class BackwardArguments(NamedTuple):
    """The arguments of ``spikecore::backward``: its schema is made from these fields."""

    key: str
    tensors: List[Tensor]
    checkpoints: List[Tensor]
    #: The cotangents of what forward returned, without the checkpoints.
    grads: List[Optional[Tensor]]
    numbers: List[float]
    record: List[str]
    has_initial_state: bool
    wanted: List[bool]
    #: The layout of the forward pass (``Layout.encoded``).
    order: List[int]


#: What a schema of torch calls the types of arguments.
_TYPES: Dict[Any, str] = {
    str: "str",
    bool: "bool",
    List[str]: "str[]",
    List[bool]: "bool[]",
    List[int]: "int[]",
    List[float]: "float[]",
    Tensor: "Tensor",
    Optional[Tensor]: "Tensor?",
    List[Tensor]: "Tensor[]",
    List[Optional[Tensor]]: "Tensor?[]",
}

#: Whether this torch can look through registered ops with all that they need.
SUPPORTED = hasattr(torch.library, "register_autograd")

#: What stays as long as torch's ops do. A second import, after removal from ``sys.modules``, goes on with it.
LASTING: Dict[str, Any] = vars(torch.ops.spikecore)
#: Those of this process by their keys: the last ones used, and those that a runner still holds.
_executions: Recent[str, Execution] = LASTING.setdefault("executions", Recent(RUNNERS))
_held: MutableMapping[str, Execution] = LASTING.setdefault("held", weakref.WeakValueDictionary())
_library: List[Any] = LASTING.setdefault("library", [])
_lock = Lock()


def key_of(execution: Execution) -> str:
    """The name of an execution, the same wherever backend, program and spec are the same."""
    parts = (execution.backend.name, execution.program.key, repr(execution.spec))
    key = hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()
    # kept for graphs that outlive their neuron; the weak table finds those that a runner still holds
    _executions.put(key, execution)
    _held[key] = execution
    return key


def run_registered(key: str, call: Call, tensors: Sequence[Tensor], save: bool) -> Sequence[Tensor]:
    """Outputs, final states and recorded states, through the registered op."""
    if not SUPPORTED:
        raise Unsupported(f"torch.compile through a kernel needs torch 2.4 or newer; this is {torch.__version__}")
    numbers = [number for number in call.numbers if number is not None]
    results: Sequence[Tensor] = torch.ops.spikecore.forward(
        key, list(tensors), numbers, list(call.record), call.has_initial_state, save
    )
    return results


def register() -> None:
    """Define the two ops, once, where torch is new enough."""
    with _lock:
        if _library or not SUPPORTED:
            return
        # FRAGMENT: other parts of a process may define ops of the same namespace
        library = torch.library.Library("spikecore", "FRAGMENT")
        # without, inductor may hand over tensors with other strides than those that the shapes were computed from
        tags = (torch.Tag.needs_fixed_stride_order,)
        for name, arguments, function, fake in (
            ("forward", ForwardArguments, _forward, _forward_fake),
            ("backward", BackwardArguments, _backward, _backward_fake),
        ):
            library.define(f"{name}({schema_of(arguments)}) -> Tensor[]", tags=tags)
            # for every device, and without a derivative, which is registered below
            library.impl(name, function, "CompositeExplicitAutograd")
            torch.library.register_fake(f"spikecore::{name}", fake, lib=library)
        torch.library.register_autograd("spikecore::forward", _differentiate, setup_context=_setup, lib=library)
        _library.append(library)


def schema_of(arguments: Any) -> str:
    """The arguments of an op, from the fields of a named tuple or the signature of a function."""
    hints = get_type_hints(arguments)
    return ", ".join(f"{_TYPES[kind]} {name}" for name, kind in hints.items() if name != "return")


def find(key: str) -> Execution:
    """The execution of this name in this process."""
    execution = _executions.get(key) or _held.get(key)
    if execution is None:
        raise RuntimeError(
            f"no program {key} in this process; build the neuron and call it once before the compiled graph"
        )
    return execution


def _call(execution: Execution, given: Union[ForwardArguments, BackwardArguments]) -> Call:
    each = iter(given.numbers)
    placed = tuple(next(each) if kind == "number" else None for kind in execution.spec.params)
    return Call(tuple(given.record), given.has_initial_state, placed)


def _layout(given: BackwardArguments) -> Layout:
    return Layout.decoded(given.tensors[0].shape[1:], given.order)


def _forward(*arguments: Any) -> List[Tensor]:
    given = ForwardArguments(*arguments)
    execution = find(given.key)
    return execution.forward(_call(execution, given), given.tensors, given.save)


def _forward_fake(*arguments: Any) -> List[Tensor]:
    given = ForwardArguments(*arguments)
    execution, x = find(given.key), given.tensors[0]
    return execution.results(_call(execution, given), execution.layout((x,)), x, given.save)


def _backward(*arguments: Any) -> List[Tensor]:
    given = BackwardArguments(*arguments)
    execution = find(given.key)
    call, checkpoints = _call(execution, given), tuple(given.checkpoints)
    found = execution.backward(call, given.tensors, checkpoints, given.grads, given.wanted, _layout(given))
    # an op returns no None; the wanted ones are put back into their places by _differentiate
    return [grad for grad, wants in zip(found, given.wanted) if wants and grad is not None]


def _backward_fake(*arguments: Any) -> List[Tensor]:
    given = BackwardArguments(*arguments)
    execution = find(given.key)
    return execution.gradients_like(_call(execution, given), given.tensors, given.wanted, _layout(given))


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: List[Tensor]) -> None:
    given = ForwardArguments(*inputs)
    execution = find(given.key)
    count = execution.n_outputs + execution.n_final + len(given.record)
    # tensors are saved by torch, which finds one that is changed in place, and the rest is kept as it is
    ctx.given, ctx.n_tensors, ctx.count = given._replace(tensors=[]), len(given.tensors), count
    ctx.order = execution.layout(given.tensors).encoded
    ctx.wanted = [tensor.requires_grad for tensor in given.tensors]
    passing, kept = execution.passing, given.tensors
    if passing is not None:
        kept = [*passing.kept(kept)] if passing.reads(ctx.wanted) else []
    ctx.save_for_backward(*kept, *output[count:])


def _differentiate(ctx: Any, grads: Sequence[Optional[Tensor]]) -> Tuple[Any, ...]:
    given: ForwardArguments = ctx.given
    grads, passing = grads[: ctx.count], find(given.key).passing

    def by_kernels(wanted: Sequence[bool]) -> Sequence[Optional[Tensor]]:
        return _by_kernels(ctx, wanted, grads)

    # a cotangent that is a gradient does not go through the op, whose results may not be its arguments
    found = by_kernels(ctx.wanted) if passing is None else passing.through(by_kernels, ctx.wanted, grads)
    gradients = {
        "tensors": found,
        # torch takes an empty list for one of tensors, and wants as many gradients back
        "numbers": None if given.numbers else [],
        "record": None if given.record else [],
    }
    return tuple([gradients.get(name) for name in ForwardArguments._fields])


def _by_kernels(ctx: Any, wanted: Sequence[bool], grads: Sequence[Optional[Tensor]]) -> List[Optional[Tensor]]:
    """The ``wanted`` gradients of a call's tensors, through the op."""
    given: ForwardArguments = ctx.given
    execution, saved = find(given.key), ctx.saved_tensors
    saved = saved if execution.passing is None else execution.passing.restored(saved)
    layout = Layout.decoded(saved[0].shape[1:], ctx.order)
    arguments = BackwardArguments(
        key=given.key,
        tensors=list(saved[: ctx.n_tensors]),
        checkpoints=list(saved[ctx.n_tensors :]),
        # copied here and not within the op, so that the compiler writes them as they are to be read: cotangents of a
        # global average pooling, contiguous, were copied six times to channels-last, 1.5 % of a step of SEW-ResNet18
        grads=execution.fitted(layout, grads),
        numbers=given.numbers,
        record=given.record,
        has_initial_state=given.has_initial_state,
        wanted=[*wanted],
        order=ctx.order,
    )
    found = iter(torch.ops.spikecore.backward(*arguments))
    return [next(found) if wants else None for wants in wanted]
