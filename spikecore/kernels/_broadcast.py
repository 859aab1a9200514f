"""Inputs that broadcast over the neurons of a step: how kernels read them, and how their gradients are summed.

In the order of memory neurons lie as rows of dimensions, outermost first. An input ``[T, 1, C]`` has one number for
each of the last C neurons, and the C neurons before them have the same: its *period* is C. An input ``[T]`` has one
number a step. Where dimensions that broadcast are not the outermost in memory, those behind the first one that does not
are made dense: ``[T, 1, C, 1, 1]`` becomes ``[T, 1, C, H, W]``, and ``[T, B, 1]`` is copied for all neurons.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from spikecore.kernels._call import Kernels

#: Kinds of inputs, as plans have them: one number for each neuron, for each neuron of a period, for each step.
FULL, PERIOD, STEP = "", "period", "step"


class _Form(NamedTuple):
    """An input of the call as kernels read it."""

    kind: str
    #: Its shape with time; in the order of memory the sizes of the dimensions behind those in front that broadcast; and
    #: their product.
    shape: Tuple[int, ...]
    dense: Tuple[int, ...]
    numbers: int
    #: True if the numbers of a step lie side by side; and if kernels read them there.
    lies: bool
    as_is: bool


def whole_shape(inputs: Sequence[Tensor]) -> Tuple[int, ...]:
    """The shape that inputs broadcast to: one dimension alone is that of time."""
    dims = max([x.ndim for x in inputs])
    return tuple(torch.broadcast_shapes(*[with_dims(x, dims).shape for x in inputs]))


def with_dims(x: Tensor, dims: int) -> Tensor:
    """An input with that many dimensions."""
    return x if x.ndim == dims else x.view(*x.shape, *[1] * (dims - x.ndim))


class BroadcastInputs:
    """The inputs of calls of one signature, ``[T, ...]`` each, of which some broadcast."""

    def __init__(self, inputs: Sequence[Tensor], kernels: Kernels) -> None:
        self.whole = whole_shape(inputs)
        inputs = [with_dims(x, len(self.whole)) for x in inputs]
        #: The first input that does not broadcast, whose layout is that of the call.
        self.lead = next(k for k, x in enumerate(inputs) if x.shape == self.whole)
        #: Those that no step reads: that one stands in their place.
        self.unread = [k for k, x in enumerate(inputs) if x.shape != self.whole and not kernels.read[k]]
        self.layout, self.steps, self.dtype = kernels.layout(inputs[self.lead]), self.whole[0], kernels.spec.dtype
        self.order = self.layout.order or tuple(range(len(self.layout.shape)))
        reads = kernels.backend.reads_periods
        forms = [self._form(x, reads and k not in self.unread) for k, x in enumerate(inputs)]
        #: The numbers of a period, the same for all inputs: the longest, which a shorter one is repeated for.
        self.period = max([form.numbers for form in forms if form.kind == PERIOD], default=0)
        if self.period == prod(self.layout.shape):  # as many numbers as all neurons have
            self.period, forms = 0, [f._replace(kind=FULL, lies=False) if f.kind == PERIOD else f for f in forms]
        self.forms = [
            form._replace(as_is=form.lies and (form.kind != PERIOD or form.numbers == self.period)) for form in forms
        ]
        #: The kind of each input; empty where kernels read a number for each neuron of all.
        self.kinds = tuple([form.kind for form in forms]) if any(form.kind for form in forms) else ()
        periods = tuple([form.numbers if form.kind else 0 for form in self.forms])
        #: The last two numbers of the geometry.
        self.sizes = (self.period, periods) if self.kinds else (0, ())
        #: True if there is nothing to fit; and if what broadcasts is dense from end to end where kernels read it. A
        #: copy is, but of one step repeated.
        self.as_is = all(form.as_is for form in self.forms) and not self.unread
        apart = {PERIOD: self.period, STEP: 1}
        self.is_dense = all(
            x.stride(0) == apart[form.kind] if form.as_is else bool(x.stride(0))
            for x, form in zip(inputs, self.forms)
            if form.shape != self.whole
        )

    def _form(self, x: Tensor, is_read: bool) -> _Form:
        shape = tuple(x.shape)
        own, sizes = ([of[d] for d in self.order] for of in (shape[1:], self.layout.shape))
        first = next((k for k, size in enumerate(own) if size != 1), len(own))
        dense = tuple(sizes[first:])
        if shape == self.whole or not is_read:
            return _Form(FULL, shape, dense, prod(dense), shape == self.whole and self.layout.holds_steps(x), False)
        moved = x.permute(0, *[1 + d for d in self.order])[0]
        lies = tuple(own[first:]) == dense and moved.is_contiguous()
        return _Form(PERIOD if dense else STEP, shape, dense, prod(dense), lies, False)

    def fitted(self, inputs: Sequence[Tensor], as_planned: bool) -> List[Tensor]:
        """Inputs with time where kernels read them: ``[T, *N]``, ``[T, period]``, or ``[T, ...]``. ``as_planned``: they
        lie as those did that this was made of.
        """
        pairs = zip(inputs, self.forms)
        values = [x if as_planned and form.as_is else self._fit(x, form, as_planned) for x, form in pairs]
        for place in self.unread:
            values[place] = values[self.lead]
        return values

    def _fit(self, x: Tensor, form: _Form, as_planned: bool) -> Tensor:
        x = with_dims(x, len(self.whole))
        if form.kind == STEP:
            return x
        if form.kind == FULL:
            return self.layout.fit_steps(x if form.shape == self.whole else x.expand(self.whole))
        if not (as_planned and form.lies):
            moved = x.permute(0, *[1 + d for d in self.order])
            x = moved.expand(-1, *[1] * (x.ndim - 1 - len(form.dense)), *form.dense).contiguous()
        rows = self.period // form.numbers
        return x.as_strided((self.steps, rows, form.numbers), (x.stride(0), 0, 1)).reshape(self.steps, self.period)

    def narrowed(self, place: int, gradient: Tensor, own: Sequence[int]) -> Tensor:
        """The gradient of an input, of the shape ``own``, from one ``[T, *N]``."""
        return gradient.sum_to_size(self.forms[place].shape).reshape(own)

    def summed(self, place: int, parts: Tensor, own: Sequence[int]) -> Tensor:
        """The gradient of an input, of the shape ``own``, from partial sums ``[T, k * p]``, where ``p`` numbers of a
        step differ.
        """
        shape, dense, numbers = self.forms[place][1:4]
        if parts.numel() != self.steps * numbers:
            parts = parts.view(self.steps, -1, numbers).sum(1)
        parts = parts if parts.dtype is self.dtype else parts.to(self.dtype)
        if self.layout.order is None and parts.numel() == prod(shape):
            return parts.view(own)
        sums = parts.view(self.steps, *[1] * (len(self.order) - len(dense)), *dense)
        back = sums.permute(0, *[1 + self.order.index(d) for d in range(len(self.order))])
        return back.sum_to_size(shape).reshape(own)
