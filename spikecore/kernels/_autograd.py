"""Boundary of autograd and kernels: one ``autograd.Function``, and the same call as an op of torch.

Eager calls go through :class:`KernelCall`. Torch's compiler, its modes and tensors of other types follow ops of torch
and would not see a launch: for them a call is the op ``spikecore::forward``, whose derivative is
``spikecore::backward``. The two serve every backend and every program. A string names what they run: a hash of backend,
program and spec, so that it means the same in every process. They are defined when they are first used, by torch 2.4 or
newer.

Kernels give first derivatives: a second backward pass through their gradients raises.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, Callable, Dict, List, MutableMapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.caches import RUNNERS, Lock, Recent
from spikecore.backend import Tensors, Unsupported
from spikecore.context import COMPILES, EAGER, PLAIN, is_unread, require_compiler, world
from spikecore.kernels._batch_norm import statistics_by_torch
from spikecore.kernels._call import Call, CallPlan, Kernels, packed_inputs
from spikecore.kernels._layout import Layout, Moved


class KernelCall(torch.autograd.Function):
    """A call by kernels. Its first argument is all but tensors: the plan, and the parameters, with any value in the
    place of a tensor.
    """

    @staticmethod
    def forward(ctx: Any, context: Any, *tensors: Tensor) -> Tuple[Tensor, ...]:
        # one argument beside the tensors: torch looks at each one, and wants a gradient back for it
        plan, numbers = ctx.context = context
        # within activation checkpointing the last call of a group runs for what it saves, which are its tensors
        is_needed = not is_unread() or plan.computes_saved
        results = plan.forward(numbers, tensors) if is_needed else plan.empty(tensors)
        # tensors go through torch, which frees them after backward and finds those that were changed in place
        ctx.save_for_backward(*plan.to_save(tensors, results))
        # a cotangent that does not arrive is None, and the backward kernel has no argument for it
        ctx.set_materialize_grads(False)
        return tuple(results[: plan.n_results])

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        (plan, numbers), needs, saved = ctx.context, ctx.needs_input_grad[1:], ctx.saved_tensors
        if plan.usual is not None and not torch.is_grad_enabled():
            gradients = plan.usual.straight(numbers, saved, grads, needs)
            if gradients is not None:
                return (None, *gradients)
        saved = plan.restored(saved)
        if not plan.added:
            return (None, *_gradients(ctx.context, needs, saved, grads))
        left = plan.left(needs)
        gradients = [None] * len(left)
        if True in left:
            gradients = [*_gradients(ctx.context, left, saved, grads)]
        for index, output in plan.added:
            gradients[index] = grads[output] if needs[index] else None
        return (None, *gradients)


#: ``KernelCall.apply`` without what torch does there for tensors of ended functorch transforms, which have no memory.
apply = super(torch.autograd.Function, KernelCall).apply


def _gradients(
    context: Any, needs: Sequence[bool], saved: Tensors, grads: Sequence[Optional[Tensor]]
) -> Sequence[Optional[Tensor]]:
    """Gradients of a call's tensors by its kernels. Under ``create_graph=True`` each is a call without a derivative."""
    plan, numbers = context
    if not (plan.eager and torch.is_grad_enabled()):
        return plan.backward(numbers, saved, grads, needs)  # type: ignore[no-any-return]  # a list
    with torch.no_grad():
        gradients = plan.backward(numbers, saved, grads, needs)
    context, sources = (_Gradient(plan.kernels.backend.name), ()), (*grads, *saved[: plan.count])
    # kernels compute the gradients of all states if that of any is wanted
    return [
        KernelCall.apply(context, gradient, *sources)[0] if wants else None for gradient, wants in zip(gradients, needs)
    ]


class _Gradient:
    """The plan of a gradient that a kernel computed, its first tensor: of the others it has no derivative."""

    n_results, added, eager, usual, computes_saved = 1, (), False, None, True

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def forward(self, numbers: Any, tensors: Sequence[Tensor]) -> List[Tensor]:
        """The gradient."""
        return [tensors[0].view_as(tensors[0])]

    def to_save(self, *_: Any) -> Tensors:
        """Nothing."""
        return ()

    restored = to_save

    def backward(self, *_: Any) -> Any:
        """The error of a second derivative."""
        raise Unsupported(
            f"backend {self.backend!r} derives first derivatives only; for a second one choose backend='torch'"
        )


# -- ops of torch

#: The arguments of the ops of a call. ``order`` is that of the layout of forward, in which checkpoints lie.
_CALL = "float[] numbers, str[] record, bool has_initial_state"
_SCHEMAS = {
    "forward": f"(str key, Tensor[] tensors, {_CALL}, bool save) -> Tensor[]",
    "backward": f"(str key, Tensor[] tensors, Tensor[] checkpoints, Tensor?[] grads, {_CALL}, bool[] needs, "
    "int[] order) -> Tensor[]",
    "statistics": "(str key, Tensor x, int dim, float eps, Tensor(a!)? mean, Tensor(b!)? variance, Tensor(c!)? count, "
    "float factor) -> (Tensor, Tensor)",
}
#: Caches that live as long as torch's ops do. A second import, after removal from ``sys.modules``, goes on with it.
_LASTING: Dict[str, Any] = vars(torch.ops.spikecore)
#: Kernels of this process by their keys: the last ones used, and those that a runner still holds.
_recent: Recent[str, Kernels] = _LASTING.setdefault("recent kernels", Recent(RUNNERS))
_shared: MutableMapping[str, Kernels] = _LASTING.setdefault("held kernels", weakref.WeakValueDictionary())
_library: List[Any] = _LASTING.setdefault("library of calls", [])
_lock = Lock()


def key_of(kernels: Kernels) -> str:
    """The name of a program's kernels, the same wherever backend, program and spec are the same."""
    parts = (kernels.backend.name, kernels.program.key, repr(kernels.spec))
    key = hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()
    # kept for graphs that outlive their neuron; the weak table finds those that a runner still holds
    _recent.put(key, kernels)
    _shared[key] = kernels
    return key


def find(key: str) -> Kernels:
    """The kernels of this name in this process."""
    kernels = _recent.get(key) or _shared.get(key)
    if kernels is None:
        raise RuntimeError(
            f"no program {key} in this process; build the neuron and call it once before the compiled graph"
        )
    return kernels


def run_op(key: str, call: Call, numbers: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The results of a call, through the op. ``numbers`` are the parameters that are none of ``tensors``."""
    require_compiler("torch.compile through a kernel")
    about = (list(call.record), call.has_initial_state, False)
    results: Sequence[Tensor] = torch.ops.spikecore.forward(key, list(tensors), numbers, *about)
    return results


def statistics_op(key: str, x: Tensor, dim: int, eps: float, running: Optional[Moved]) -> Tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of an input, through the op: see ``KernelRunner.input_statistics``."""
    with torch.no_grad():
        moved = running or (None, None, None, 0.0)
        return torch.ops.spikecore.statistics(key, x.detach(), dim, eps, *moved)  # type: ignore[no-any-return]  # two


def register() -> None:
    """Define the ops, once, where torch is new enough."""
    with _lock:
        if _library or not COMPILES:
            return
        library = torch.library.Library("spikecore", "FRAGMENT")
        functions: Dict[str, Tuple[Callable[..., Any], Callable[..., Any]]] = {
            "forward": (_forward, _forward_fake),
            "backward": (_backward, _backward_fake),
            "statistics": (_statistics, _statistics_fake),
        }
        for name, (function, fake) in functions.items():
            # kernels read strides, so a compiler must not hand over other strides than the shapes were computed from
            tags = (torch.Tag.needs_fixed_stride_order,)
            library.define(name + _SCHEMAS[name], tags=tags)
            # for every device, and without a derivative
            library.impl(name, function, "CompositeExplicitAutograd")
            torch.library.register_fake(f"spikecore::{name}", fake, lib=library)
        library.impl("forward", _forward_autograd, "Autograd")
        _library.append(library)


def _statistics(
    key: str,
    x: Tensor,
    dim: int,
    eps: float,
    mean: Optional[Tensor],
    variance: Optional[Tensor],
    count: Optional[Tensor],
    factor: float,
) -> Tuple[Tensor, Tensor]:
    kernels: Any = find(key)
    running = None if mean is None or variance is None else (mean, variance, count, factor)
    return kernels.statistics(x, dim, eps, running) or statistics_by_torch(x, dim, eps, running)


def _statistics_fake(key: str, x: Tensor, dim: int, *others: Any) -> Tuple[Tensor, Tensor]:
    compute, channels = find(key).spec.compute, x.shape[1 + dim]
    return x.new_empty(channels, dtype=compute), x.new_empty(channels, dtype=compute)


class _Op(CallPlan):
    """The plan of a call whose launches are the ops, for graphs."""

    eager = False

    def __init__(self, key: str, tensors: Sequence[Tensor], record: List[str], has_initial_state: bool) -> None:
        self.key, self.kernels, self.arguments = key, find(key), (record, has_initial_state)
        self.call, self.count, self.added = Call(tuple(record), has_initial_state), len(tensors), self.kernels.added
        self.n_results, self.layout = self.kernels.n_results(self.call), self.kernels.layout(tensors[0])
        self.packed = packed_inputs(self.kernels.program, tensors)
        self.keeps = True in self.left([value.requires_grad for value in tensors])

    def forward(self, numbers: Sequence[Any], tensors: Sequence[Tensor]) -> List[Tensor]:
        """Implementation of :meth:`CallPlan.forward`; ``numbers`` are those of the op."""
        with torch._C._AutoDispatchBelowAutograd():
            results: List[Tensor] = torch.ops.spikecore.forward(
                self.key, list(tensors), numbers, *self.arguments, self.keeps
            )
        return results

    def backward(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> List[Optional[Tensor]]:
        """Implementation of :meth:`CallPlan.backward`."""
        # copied here and not within the op, so that the compiler writes them as they are to be read: cotangents of a
        # global average pooling, contiguous, were copied six times to channels-last, 1.5 % of a step of SEW-ResNet18
        tensors, checkpoints, arriving = list(saved[: self.count]), list(saved[self.count :]), self.read(grads)
        layout = self.layout.encoded
        gradients = iter(
            torch.ops.spikecore.backward(
                self.key, tensors, checkpoints, arriving, numbers, *self.arguments, list(needs), layout
            )
        )
        return [next(gradients) if wants else None for wants in needs]


def _forward_autograd(
    key: str, tensors: List[Tensor], numbers: List[float], record: List[str], has_initial_state: bool, save: bool
) -> List[Tensor]:
    """``spikecore::forward`` for torch's autograd keys: what a compiler traces is the op of each direction. When the
    compiled graph runs, this goes straight to the launch.
    """
    if torch.is_grad_enabled() and True in [value.requires_grad for value in tensors]:
        return list(KernelCall.apply((_Op(key, tensors, record, has_initial_state), numbers), *tensors))
    if all(type(value) in PLAIN for value in tensors) and world() is EAGER:
        return _forward(key, tensors, numbers, record, has_initial_state, save)
    with torch._C._AutoDispatchBelowAutograd():
        results: List[Tensor] = torch.ops.spikecore.forward(key, tensors, numbers, record, has_initial_state, save)
    return results


def _forward(
    key: str, tensors: List[Tensor], numbers: List[float], record: List[str], has_initial_state: bool, save: bool
) -> List[Tensor]:
    kernels = find(key)
    plan = kernels.plan(Call(tuple(record), has_initial_state), tensors, (save,) * len(tensors))
    return plan.forward(kernels.placed(numbers), tensors)


def _forward_fake(
    key: str, tensors: List[Tensor], numbers: List[float], record: List[str], has_initial_state: bool, save: bool
) -> List[Tensor]:
    kernels, x = find(key), tensors[0]
    return kernels.results(Call(tuple(record), has_initial_state), kernels.layout(x), x, save)


def _backward(
    key: str,
    tensors: List[Tensor],
    checkpoints: List[Tensor],
    grads: List[Optional[Tensor]],
    numbers: List[float],
    record: List[str],
    has_initial_state: bool,
    needs: List[bool],
    order: List[int],
) -> List[Tensor]:
    kernels, layout = find(key), Layout.decoded(tensors[0].shape[1:], order)
    # that of the forward pass, whose checkpoints lie in it
    if kernels.layout(tensors[0]) != layout:
        tensors = [layout.fit_steps(tensors[0]), *tensors[1:]]
    plan = kernels.plan(Call(tuple(record), has_initial_state), tensors, (True,) * len(tensors))
    gradients = plan.backward(kernels.placed(numbers), [*tensors, *checkpoints], grads, needs)
    # an op returns no None; the wanted ones are put back into their places by _Op
    return [grad for grad, wants in zip(gradients, needs) if wants and grad is not None]


def _backward_fake(
    key: str,
    tensors: List[Tensor],
    checkpoints: List[Tensor],
    grads: List[Optional[Tensor]],
    numbers: List[float],
    record: List[str],
    has_initial_state: bool,
    needs: List[bool],
    order: List[int],
) -> List[Tensor]:
    kernels, x = find(key), tensors[0]
    layout, moving = Layout.decoded(x.shape[1:], order), kernels.n_moving(Call(tuple(record), has_initial_state))
    results = []
    for i, value in enumerate(tensors):
        if needs[i] and i < kernels.n_inputs:
            results.append(layout.empty_steps(x, kernels.spec.dtype))
        elif needs[i]:
            is_step = i < moving or (tuple(value.shape) == layout.shape and layout.holds(value))
            results.append(layout.empty((), x, kernels.spec.compute) if is_step else value.new_empty(value.shape))
    return results
