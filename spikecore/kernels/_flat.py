"""Registered ops of the calls that networks are full of: one input at rest, one output, nothing else.

For ``spikecore::forward`` torch makes lists, and runs Python twice on the way to the launch: once for the derivative,
which a compiled graph has no use for. In a small layer that takes longer than the rest of the call. The ops here take
and give tensors one by one. Their derivative is a kernel for torch's autograd keys, which ``torch.compile`` runs when
it traces; when the compiled graph runs, it goes straight to the launch.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.caches import RUNNERS, Lock
from spikecore.kernels._arguments import Call
from spikecore.kernels._execution import Execution
from spikecore.kernels._layout import Layout
from spikecore.kernels._memory import resolved
from spikecore.kernels._registered import LASTING, SUPPORTED, find, schema_of
from spikecore.kernels._straight import Straight, whole
from spikecore.lang._plain import is_followed

_library: List[Any] = LASTING.setdefault("library of flat calls", [])
_lock = Lock()
#: Which gradients are wanted where that of the input is the only one.
_INPUT = (True,)


class Flat:
    """What the ops of one execution run."""

    def __init__(self, execution: Execution) -> None:
        self.execution, self.kinds = execution, execution.spec.params
        #: The launches of plain contiguous tensors, by the shapes of the parameters that are tensors.
        self._straight: Dict[Tuple[Any, ...], Straight] = {}
        #: The same where all parameters are numbers.
        self._alone = Straight(execution, (None,) * len(self.kinds)) if {*self.kinds} <= {"number"} else None

    def call(self, numbers: Sequence[float]) -> Call:
        """A call with these parameters that are numbers."""
        return Call((), False, tuple(self._placed(numbers)))

    def _placed(self, numbers: Sequence[float]) -> Sequence[Any]:
        if len(numbers) == len(self.kinds):
            return numbers
        each = iter(numbers)
        return [next(each) if kind == "number" else None for kind in self.kinds]

    def kept(self, call: Call, x: Tensor, layout: Layout) -> Tensor:
        """Checkpoints ``[states, K, *N]``, as allocated; ``[0]`` where there are none."""
        execution = self.execution
        chunk, count = execution.chunk, execution.n_checkpoints(call)
        if not (0 < chunk < x.shape[0] and count):
            return x.new_empty(0, dtype=execution.spec.compute)
        return layout.empty((count, (x.shape[0] - 1) // chunk), x, execution.spec.compute)

    def straight(self, params: Sequence[Tensor]) -> Optional[Straight]:
        """The launches for parameters of these shapes."""
        if self._alone is not None or "full" in self.kinds:
            return self._alone
        shapes = tuple([value.shape for value in params])
        found = self._straight.get(shapes)
        if found is None:
            each = iter(shapes)
            views = [None if kind == "number" else tuple(next(each)) for kind in self.kinds]
            found = self._straight[shapes] = Straight(self.execution, views)
        return found

    def forward(self, x: Tensor, params: List[Tensor], numbers: List[float], save: bool) -> Tuple[Tensor, Tensor]:
        """The output, and checkpoints if they are to be saved; else anything."""
        straight = self.straight(params)
        if straight is not None and not save and whole(x) and (not params or straight.takes(params)):
            sizes = straight.sizes(x)
            if sizes is not None:
                return straight.forward(sizes, x, straight.params(self._placed(numbers), params), ()), x
        execution, call, layout = self.execution, self.call(numbers), self.execution.layout((x,))
        out = layout.empty_steps(x, execution.spec.dtype)
        kept = self.kept(call, x, layout) if save else x
        if out.numel():
            saved = kept.unbind(0) if save and kept.numel() else ()
            prepared = execution.arguments.prepared(call, resolved([x, *params]), layout)
            execution.forward_launch(call, bool(saved))(*prepared, (out,), (), (), saved)
        return out, kept

    def backward(
        self,
        x: Tensor,
        grad: Tensor,
        kept: Optional[Tensor],
        params: List[Tensor],
        numbers: List[float],
        wanted: Sequence[bool],
        order: List[int],
    ) -> Sequence[Optional[Tensor]]:
        """Gradients of input and parameters; None where not wanted."""
        saved = () if kept is None or not kept.numel() else kept.unbind(0)
        straight = None if order else self.straight(params)
        if straight is not None and whole(x):
            sizes = straight.sizes(x)
            if sizes is not None:
                given = (x, *params, *saved)
                found = straight.gradients(tuple(wanted), sizes, self._placed(numbers), given, grad)
                if found is not None:
                    # of the parameters as they were given, which lie over the neurons of a time step
                    return found
        layout = Layout.decoded(x.shape[1:], order)
        return self.execution.backward(self.call(numbers), [x, *params], saved, [grad], wanted, layout)


def is_flat(execution: Execution) -> bool:
    """Whether calls of this execution that begin at rest and record nothing are those that these ops are for."""
    one = execution.arguments.n_inputs == 1 == execution.n_outputs and not execution.spec.final
    # backward of a program with statistics is two launches
    return SUPPORTED and one and not execution.backend.owns_outputs and not execution.program.statistics


def run_flat(key: str, call: Call, tensors: Sequence[Tensor]) -> Tuple[Tensor]:
    """The output of such a call, through the registered op."""
    x, *params = tensors
    return (torch.ops.spikecore.rest(key, x, params, [number for number in call.numbers if number is not None]),)


def register_flat() -> None:
    """Define the ops, once, where torch is new enough."""
    with _lock:
        if _library or not SUPPORTED:
            return
        library = torch.library.Library("spikecore", "FRAGMENT")
        for function, fake, gives in (
            (_rest, _rest_fake, "Tensor"),
            (_rest_saving, _rest_saving_fake, "(Tensor, Tensor)"),
            (_rest_backward, _rest_backward_fake, "Tensor"),
            (_rest_gradients, _rest_gradients_fake, "Tensor[]"),
        ):
            name = function.__name__[1:]
            library.define(f"{name}({schema_of(function)}) -> {gives}", tags=(torch.Tag.needs_fixed_stride_order,))
            library.impl(name, function, "CompositeExplicitAutograd")
            torch.library.register_fake(f"spikecore::{name}", fake, lib=library)
        library.impl("rest", _rest_autograd, "Autograd")
        _library.append(library)


@functools.lru_cache(maxsize=RUNNERS)  # quicker than Recent, and looked up in every call
def _flat(key: str) -> Flat:
    return Flat(find(key))


def _rest(key: str, x: Tensor, params: List[Tensor], numbers: List[float]) -> Tensor:
    return _flat(key).forward(x, params, numbers, False)[0]


def _rest_fake(key: str, x: Tensor, params: List[Tensor], numbers: List[float]) -> Tensor:
    execution = find(key)
    return execution.layout((x,)).empty_steps(x, execution.spec.dtype)


def _rest_saving(key: str, x: Tensor, params: List[Tensor], numbers: List[float]) -> Tuple[Tensor, Tensor]:
    return _flat(key).forward(x, params, numbers, True)


def _rest_saving_fake(key: str, x: Tensor, params: List[Tensor], numbers: List[float]) -> Tuple[Tensor, Tensor]:
    flat = _flat(key)
    layout = flat.execution.layout((x,))
    return layout.empty_steps(x, flat.execution.spec.dtype), flat.kept(flat.call(numbers), x, layout)


def _rest_backward(
    key: str,
    x: Tensor,
    grad: Tensor,
    kept: Optional[Tensor],
    params: List[Tensor],
    numbers: List[float],
    order: List[int],
) -> Tensor:
    wanted = (True, *[False] * len(params)) if params else _INPUT
    found = _flat(key).backward(x, grad, kept, params, numbers, wanted, order)[0]
    return x.new_zeros(x.shape) if found is None else found


def _rest_backward_fake(
    key: str,
    x: Tensor,
    grad: Tensor,
    kept: Optional[Tensor],
    params: List[Tensor],
    numbers: List[float],
    order: List[int],
) -> Tensor:
    return Layout.decoded(x.shape[1:], order).empty_steps(x, find(key).spec.dtype)


def _rest_gradients(
    key: str,
    x: Tensor,
    grad: Tensor,
    kept: Optional[Tensor],
    params: List[Tensor],
    numbers: List[float],
    order: List[int],
    wanted: List[bool],
) -> List[Tensor]:
    found = _flat(key).backward(x, grad, kept, params, numbers, wanted, order)
    return [one for one, wants in zip(found, wanted) if wants and one is not None]


def _rest_gradients_fake(
    key: str,
    x: Tensor,
    grad: Tensor,
    kept: Optional[Tensor],
    params: List[Tensor],
    numbers: List[float],
    order: List[int],
    wanted: List[bool],
) -> List[Tensor]:
    flat, layout = _flat(key), Layout.decoded(x.shape[1:], order)
    return flat.execution.gradients_like(flat.call(numbers), [x, *params], wanted, layout)


def _rest_autograd(key: str, x: Tensor, params: List[Tensor], numbers: List[float]) -> Tensor:
    """``spikecore::rest`` for torch's autograd keys."""
    wanted = torch.is_grad_enabled() and (x.requires_grad or True in [value.requires_grad for value in params])
    if wanted:
        crossed: Tensor = _Rest.apply(key, numbers, x, *params)
        return crossed
    if type(x) is Tensor and not is_followed():
        return _rest(key, x, params, numbers)
    with torch._C._AutoDispatchBelowAutograd():
        out: Tensor = torch.ops.spikecore.rest(key, x, params, numbers)
    return out


class _Rest(torch.autograd.Function):
    """The derivative of ``spikecore::rest``: what torch.compile traces is the op of each direction."""

    @staticmethod
    def forward(ctx: Any, key: str, numbers: List[float], x: Tensor, *params: Tensor) -> Tensor:
        execution = find(key)
        out: Tensor
        kept: Sequence[Tensor] = ()
        with torch._C._AutoDispatchBelowAutograd():
            if 0 < execution.chunk < x.shape[0]:
                out, *kept = torch.ops.spikecore.rest_saving(key, x, params, numbers)
            else:
                out = torch.ops.spikecore.rest(key, x, params, numbers)
        ctx.context = key, numbers, len(params), execution.layout([x]).encoded
        ctx.save_for_backward(x, *params, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        key, numbers, count, order = ctx.context
        x, *saved = ctx.saved_tensors
        params, kept = saved[:count], saved[count] if saved[count:] else None
        wanted = list(ctx.needs_input_grad[2:])
        # as in spikecore::backward: what has to be copied is copied where the compiler sees it
        grad = Layout.decoded(x.shape[1:], order).fit_steps(grad)
        if wanted == [True, *[False] * count]:
            found = torch.ops.spikecore.rest_backward(key, x, grad, kept, params, numbers, order)
            return (None, None, found, *[None] * count)
        each = iter(torch.ops.spikecore.rest_gradients(key, x, grad, kept, params, numbers, order, wanted))
        return (None, None, *[next(each) if wants else None for wants in wanted])
