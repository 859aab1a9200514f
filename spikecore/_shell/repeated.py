"""One step that stands for all: tensors that repeat it over time, and the step as autograd knows it.

``repeat`` gives ``[T, *N]`` as a view of ``[*N]`` whose stride from step to step is 0. Whoever computes the same for
every step asks ``step_of`` for the one step and computes once.

Where derivatives are followed the step cannot be had from the view itself: the derivative of ``x[0]`` writes
``[T, *N]`` numbers, nearly all of them 0, which the derivative of the view then adds up. So the view has the step as an
attribute. Any operation gives a tensor without it, which is then computed step by step, as every other tensor. A tensor
that has no derivative, such as a batch, repeats one step if its stride over time is 0, as after ``x.expand(T, ...)``.
A result that is computed from such a tensor is copied to every step (``repeated_as``), because the user may want to
write into one step of it, and steps that share memory cannot be written one by one.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from spikecore._base import regions
from spikecore.lang._plain import is_compiling, is_jit_tracing, is_transforming

#: The attribute of a view that has its one step.
_STEP = "_spikecore_step"
#: The same of a view that is made within a graph of torch.compile.
_MADE = "_spikecore_made_of"
#: Whether torch.compile follows attributes of tensors that are made within a graph; an older one would break the graph.
_FOLLOWED = torch.__version__ >= "2.11"


def repeat(step: Tensor, steps: int) -> Tensor:
    """``[*N] -> [steps, *N]``, a view without a copy."""
    plain = steps > 1 and not (is_compiling() or is_jit_tracing() or is_transforming())
    # torch refuses every write into what unbind gave, and into views of that, where it follows derivatives: of a view
    # by expand alone, y[0] = 0 would write into all steps
    guarded = plain and step.requires_grad and torch.is_grad_enabled()
    x = (step.unsqueeze(0).unbind(0)[0] if guarded else step).unsqueeze(0).expand(steps, *step.shape)
    if plain and type(x) is Tensor:
        setattr(x, _STEP, step)
    elif _FOLLOWED and steps > 1 and is_compiling():
        setattr(x, _MADE, step)
    return x


def repeated_as(x: Tensor, y: Tensor) -> Tensor:
    """``y`` ``[*N]``, computed of the step that ``x`` ``[T, ...]`` repeats, for every step: a view as ``x`` is where
    :func:`repeat` made ``x``, else a copy for each step, whose dimensions lie in memory as those of ``y``.
    """
    made = getattr(x, _STEP, None) is not None or (is_compiling() and made_step(x) is not None)
    if made:
        return repeat(y, x.shape[0])
    order = sorted(range(y.ndim), key=y.stride, reverse=True)
    steps = y.permute(order).unsqueeze(0).expand(x.shape[0], *[y.shape[dim] for dim in order]).contiguous()
    return steps.permute(0, *[1 + order.index(dim) for dim in range(y.ndim)])


def made_step(x: Tensor) -> Optional[Tensor]:
    """Within a graph of torch.compile, the one step ``[*N]`` that ``x`` was made of by :func:`repeat` in there."""
    step: Optional[Tensor] = getattr(x, _MADE, None) if _FOLLOWED else None
    # of a leaf the derivative is asked for step by step
    return None if step is None or (x.requires_grad and x.is_leaf) else step


def step_of(x: Tensor) -> Optional[Tensor]:
    """The one step ``[*N]`` that ``x`` ``[T, *N]`` repeats, with its graph; None where each step may be another one, or
    where a derivative with respect to ``x`` itself is asked for.
    """
    if is_compiling():
        if not (x.ndim and x.shape[0] > 1 and x.stride(0) == 0):
            return None
        # of x[0] the compiler computes the derivative together with that of the view, by a reduction over time: 0.12 ms
        # of 3.4 for the first layer of six 256-channel convolutions, eight steps, on an H200
        made = made_step(x)
        return x[0] if made is None else made
    # before anything is asked of x: within a trace the question itself would be part of it
    if type(x) is not Tensor or is_jit_tracing() or is_transforming():
        return None
    step: Optional[Tensor] = getattr(x, _STEP, None)
    if step is None and not _repeats_data(x):
        return None
    # a region of sc.checkpoint that runs again gets other tensors, without the attribute, and must save the
    # same tensors as when it ran first
    if regions.current():
        return None
    if step is None:
        return x[0]
    # what a view stands for can be replaced: x.data = y, x.set_(y)
    same = x.shape[1:] == step.shape and x.dtype == step.dtype and x.stride() == (0, *step.stride())
    if not same or x.data_ptr() != step.data_ptr():
        return None
    if not (x.requires_grad and torch.is_grad_enabled()):
        return step.detach() if step.requires_grad else step
    # a leaf asks for the derivative of x, which one step has not
    if not step.requires_grad or x.is_leaf or _watched(x):
        return None
    # not view_as(), which gives dimensions of size 1 other strides: of one sample in channels-last memory torch's batch
    # normalisation on a CPU then computes wrong gradients in evaluation mode, without an error (seen with torch 2.13)
    read = step[...]
    read.register_hook(_LateHooks(x))
    return read


def _watched(x: Tensor) -> bool:
    """Whether a hook or ``retain_grad()`` asks for the derivative with respect to ``x``."""
    return bool(x._backward_hooks) or x.retains_grad


class _LateHooks:
    """A hook that the backward pass of a layer calls, which read one step of ``x``: the derivative with respect to
    ``x`` itself is not computed, so a hook that was registered on ``x`` since then would not be called.

    It holds ``x`` up to the first backward pass. A weak reference would miss a hook on a tensor that its user dropped,
    and a reference for as long as the graph would keep a whole activation for each loss that a program collects.
    """

    #: torch.save and pickle leave it out without a warning.
    __torch_unserializable__ = True

    def __init__(self, x: Tensor) -> None:
        self._x: Optional[Tensor] = x

    def __call__(self, _: Tensor) -> None:
        x = self._x
        if x is not None and _watched(x):
            raise RuntimeError(
                f"a hook or retain_grad() was set on a tensor of shape {[*x.shape]} after a layer had read it; the "
                f"tensor repeats one step {x.shape[0]} times, so the layer computed one step and has no gradient of "
                "the others: set it before the layer reads the tensor, or give the layer a copy, tensor.clone()"
            )
        self._x = None


def _repeats_data(x: Tensor) -> bool:
    """Whether a tensor without a derivative repeats one step, by its stride."""
    if x.requires_grad or x.layout is not torch.strided or x.is_nested or not x.ndim:
        return False
    return x.shape[0] > 1 and x.stride(0) == 0


def folded(x: Tensor) -> Tensor:
    """``x`` ``[T, B, ...]`` with time and batch as one, ``[T * B, ...]``."""
    # Of one sample in channels-last memory, flatten() gives strides from which torch's batch normalisation on a CPU
    # computes wrong gradients, without an error (seen with torch 2.13).
    return x.squeeze(0) if x.shape[0] == 1 == x.shape[1] else x.flatten(0, 1)


def unfolded(y: Tensor, steps: int, batch: int) -> Tensor:
    """``y`` ``[T * B, ...]`` as ``[T, B, ...]``."""
    return y.unsqueeze(0) if steps == 1 == batch else y.view(steps, batch, *y.shape[1:])
