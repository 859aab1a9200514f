"""Kernels as ops of torch, for ``torch.compile``, ``torch.export`` and ``torch.library.opcheck``.

Two ops serve every backend and every program: ``spikecore::forward`` and ``spikecore::backward``. A string names what
they run: a hash of backend, program and spec, so that it means the same in every process. They are defined when they
are first used, by torch 2.4 or newer. Eager calls go past them.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, List, MutableMapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.locking import Lock
from spikecore._base.recent import RUNNERS, Recent
from spikecore.backend import Unsupported
from spikecore.kernels._arguments import Call
from spikecore.kernels._execution import Execution
from spikecore.kernels._layout import Layout, layout_of

_FORWARD = (
    "forward(str key, Tensor[] tensors, float[] numbers, str[] record, bool has_initial_state, bool save) -> Tensor[]"
)
_BACKWARD = (
    "backward(str key, Tensor[] tensors, Tensor[] checkpoints, Tensor?[] grads, float[] numbers, str[] record, "
    "bool has_initial_state, bool[] wanted, int[] order) -> Tensor[]"
)

#: Whether this torch can look through registered ops with all that they need.
SUPPORTED = hasattr(torch.library, "register_autograd")

#: Those of this process by their keys: the last ones used, and those that a runner still holds.
_executions: Recent[str, Execution] = Recent(RUNNERS)
_held: MutableMapping[str, Execution] = weakref.WeakValueDictionary()
_library: List[Any] = []
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
        tags = (torch.Tag.needs_fixed_stride_order,)
        for schema, function, fake in ((_FORWARD, _forward, _forward_fake), (_BACKWARD, _backward, _backward_fake)):
            name = schema.partition("(")[0]
            library.define(schema, tags=tags)
            library.impl(name, function, "CompositeExplicitAutograd")
            torch.library.register_fake(f"spikecore::{name}", fake, lib=library)
        torch.library.register_autograd("spikecore::forward", _differentiate, setup_context=_setup, lib=library)
        _library.append(library)


def _find(key: str) -> Execution:
    execution = _executions.get(key) or _held.get(key)
    if execution is None:
        raise RuntimeError(
            f"no program {key} in this process; build the neuron and call it once before the compiled graph"
        )
    return execution


def _call(execution: Execution, numbers: Sequence[float], record: Sequence[str], has_initial_state: bool) -> Call:
    each = iter(numbers)
    placed = tuple(next(each) if kind == "number" else None for kind in execution.spec.params)
    return Call(tuple(record), has_initial_state, placed)


def _layout(x: Tensor, order: Sequence[int]) -> Layout:
    """The layout of the forward pass, which the op gets as numbers: the order of dimensions, none for the natural."""
    return Layout(tuple(x.shape)[1:], tuple(order) or None)


def _forward(
    key: str, tensors: List[Tensor], numbers: List[float], record: List[str], has_initial_state: bool, save: bool
) -> List[Tensor]:
    execution = _find(key)
    return execution.forward(_call(execution, numbers, record, has_initial_state), tensors, save)


def _forward_fake(
    key: str, tensors: List[Tensor], numbers: List[float], record: List[str], has_initial_state: bool, save: bool
) -> List[Tensor]:
    execution = _find(key)
    call = _call(execution, numbers, record, has_initial_state)
    return execution.results(call, layout_of(tensors[0]), tensors[0], save)


def _backward(
    key: str,
    tensors: List[Tensor],
    checkpoints: List[Tensor],
    grads: List[Optional[Tensor]],
    numbers: List[float],
    record: List[str],
    has_initial_state: bool,
    wanted: List[bool],
    order: List[int],
) -> List[Tensor]:
    execution = _find(key)
    call = _call(execution, numbers, record, has_initial_state)
    found = execution.backward(call, tensors, tuple(checkpoints), grads, wanted, _layout(tensors[0], order))
    return [grad for grad, wants in zip(found, wanted) if wants and grad is not None]


def _backward_fake(
    key: str,
    tensors: List[Tensor],
    checkpoints: List[Tensor],
    grads: List[Optional[Tensor]],
    numbers: List[float],
    record: List[str],
    has_initial_state: bool,
    wanted: List[bool],
    order: List[int],
) -> List[Tensor]:
    execution = _find(key)
    call = _call(execution, numbers, record, has_initial_state)
    return execution.gradients_like(call, tensors, wanted, _layout(tensors[0], order))


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: List[Tensor]) -> None:
    key, tensors, numbers, record, has_initial_state, _ = inputs
    execution = _find(key)
    count = execution.n_outputs + execution.n_final + len(record)
    order = list(execution.layout(tensors).order or ())
    ctx.context = key, len(tensors), numbers, record, has_initial_state, count, order
    ctx.wanted = [tensor.requires_grad for tensor in tensors]
    ctx.save_for_backward(*tensors, *output[count:])


def _differentiate(ctx: Any, grads: Sequence[Optional[Tensor]]) -> Tuple[Any, ...]:
    key, n, numbers, record, has_initial_state, count, order = ctx.context
    saved = ctx.saved_tensors
    found = iter(
        torch.ops.spikecore.backward(
            key,
            list(saved[:n]),
            list(saved[n:]),
            list(grads[:count]),
            numbers,
            record,
            has_initial_state,
            ctx.wanted,
            order,
        )
    )
    tensors = [next(found) if wants else None for wants in ctx.wanted]
    # torch takes an empty list for one of tensors, and wants as many gradients back
    return None, tensors, None if numbers else [], None if record else [], None, None
