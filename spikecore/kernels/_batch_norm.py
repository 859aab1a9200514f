"""Batch normalisation in front of a program, in training: mean and variance are functions of the input.

Which inputs are normalised is data: each row of ``program.normalised`` names one, and its parameters. Backward takes
one launch in which mean and standard deviation are given, and what the statistics add to the gradient of each
normalised input: by a launch of the backend (:meth:`~spikecore.kernels.KernelBackend.correction`), or by a second
backward launch. The first one then finds the gradients of weight and bias, which are sums over a channel, and writes
nothing else of the size of the input; the second takes them as parameters (:mod:`spikecore.lang._program`). A backend
has no part in it: both are plans as it knows them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import Spec
from spikecore.kernels._call import Call, CallPlan, Kernels, resolved
from spikecore.kernels._plan import Geometry
from spikecore.lang import Program
from spikecore.lang._program import corrected, moments

if TYPE_CHECKING:
    from spikecore.kernels._backend import KernelBackend


class NormalisingKernels(Kernels):
    """The launches of a program with statistics."""

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        # the first pass finds the gradients of weight and bias whether or not these are learnt
        found = [name for row in program.normalised for name in (row.weight, row.bias)]
        learn = tuple(name for name in program.params if name in (*spec.learn, *found))
        super().__init__(backend, program, replace(spec, learn=learn))
        self.correct = backend.correction(spec)
        #: Where each normalised input stands among the inputs, and where its mean, 1 / standard deviation, weight and
        #: bias stand among the parameters.
        self.statistics = [
            (program.inputs.index(row.input), [program.params.index(name) for name in row[1:]])
            for row in program.normalised
        ]
        #: Of these the weights and biases.
        self.sums = [index for _, places in self.statistics for index in places[2:]]
        self._second: Optional[Tuple[Kernels, Sequence[str]]] = None

    def second(self) -> Tuple[Kernels, Sequence[str]]:
        """The launches of the second pass, and its parameters beside those of the first: the gradients of weight and
        bias of each normalised input, 1 / n.
        """
        if self._second is None:
            program, names = corrected(self.program)
            kinds = dict(zip(self.program.params, self.spec.params))
            kinds.update(dict.fromkeys(names[:-1], "channel"))
            kinds[names[-1]] = "number"
            # the same parameters are learnt, so that the checkpoints of forward are those that it expects
            spec = replace(self.spec, params=tuple(kinds[name] for name in program.params))
            self._second = Kernels(self.backend, program, spec), names
        return self._second


class NormalisingPlan(CallPlan):
    """A call with inputs that are normalised by their own statistics."""

    kernels: NormalisingKernels

    def backward(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> List[Optional[Tensor]]:
        """See :meth:`CallPlan.backward`."""
        kernels, moving = self.kernels, self.moving
        if self.is_empty or not any(needs[place] for place, _ in kernels.statistics):
            return super().backward(numbers, saved, grads, needs)
        grads = self.read(resolved(grads))  # both passes read one copy
        params, learns = kernels.tensor_params, needs[moving:]
        # the gradient of an input needs those of weight and bias, whether or not they are learnt
        first = [wants or index in kernels.sums for index, wants in zip(params, learns)]
        inputs = needs[:moving] if kernels.correct is not None else [False] * moving
        gradients = super().backward(numbers, saved, grads, (*inputs, *first))
        sums = dict(zip(params, gradients[moving:]))
        if kernels.correct is not None:
            moved = gradients[:moving]
            self._correct(saved, moved, sums)
        else:
            moved = self._again(numbers, saved, grads, needs, sums)
        return [*moved, *[sums[index] if wants else None for index, wants in zip(params, learns)]]

    def _correct(
        self, saved: Sequence[Tensor], gradients: Sequence[Optional[Tensor]], sums: Dict[int, Optional[Tensor]]
    ) -> None:
        """Add to each gradient of a normalised input what goes through its statistics, by the backend's launch."""
        values = dict(zip(self.kernels.tensor_params, saved[self.moving : self.count]))
        for place, (mean, rstd, weight, bias) in self.kernels.statistics:
            grad = gradients[place]
            if grad is not None:
                channels: List[Any] = [values[mean], values[rstd], values[weight], sums[weight], sums[bias]]
                x = self.layout.fit_steps(resolved(saved[place : place + 1])[0])
                lies = Geometry(*self.geometry[:2], (self.geometry.channels[mean],))
                self.kernels.correct(lies, x, grad, [value.reshape(-1).contiguous() for value in channels])  # type: ignore[misc]  # not None

    def _again(
        self,
        numbers: Sequence[Any],
        saved: Sequence[Tensor],
        grads: Sequence[Optional[Tensor]],
        needs: Sequence[bool],
        sums: Dict[int, Optional[Tensor]],
    ) -> List[Optional[Tensor]]:
        """Gradients of inputs and states by the second pass."""
        kernels, moving = self.kernels, self.moving
        second, names = kernels.second()
        values = dict(zip(kernels.program.params, self.params(numbers, saved)))
        views = dict(zip([kernels.program.params[index] for index in kernels.tensor_params], self.views))
        found: List[Any] = [sums[index] for index in kernels.sums]
        values.update(zip(names, (*found, found[0].numel() / saved[0].numel())))
        views.update(dict.fromkeys(names[:-1], views[kernels.program.params[kernels.sums[0]]]))
        every = [values[name] for name in second.program.params]
        placed = [every[index] for index in second.tensor_params]
        tensors = [*saved[:moving], *placed]
        where = tuple([views[second.program.params[index]] for index in second.tensor_params])
        plan = second.plan(self.call, tensors, (True,) * len(tensors), where)
        needs_moving = (*needs[:moving], *[False] * len(placed))
        return plan.backward(every, [*tensors, *saved[self.count :]], grads, needs_moving)[:moving]


NormalisingKernels.plans = NormalisingPlan


def channels_of(kernels: Kernels, x: Tensor, dim: int) -> Optional[Geometry]:
    """The sizes of an input and how its channels lie, along a dimension of a time step; None where no kernel finds its
    statistics.
    """
    layout = kernels.layout(x)
    if layout.outer or not x.numel() or not layout.holds(x[0]):
        return None
    return Geometry(x.shape[0], x.numel() // x.shape[0], ((layout.inner_of(dim), x.shape[1 + dim]),))


#: So many samples, and places along each further dimension, are enough to tell where the numbers of a channel lie.
FEW = 4


class Moments:
    """Mean and variance of tensors ``[T, *N]`` per channel, in one pass over them."""

    def __init__(self, backend: KernelBackend, spec: Spec) -> None:
        kinds = ("channel",) * 3
        self.kernels = Kernels(backend, moments(), Spec(spec.dtype, spec.steps, kinds, ("total", "squares"), False))

    def __call__(self, x: Tensor, dim: int) -> Tuple[Tensor, Tensor]:
        """Mean and (biased) variance, ``[C]``, of the channels along a dimension of a time step."""
        # Sums of squares of what lies near the mean lose no digits. The median of some numbers of a channel lies there
        # whatever one of them is: with a first number of 1000 as the shift the variance was off by 0.6 %.
        some = x[0]
        for d in range(some.ndim):
            some = some if d == dim else some.narrow(d, 0, min(FEW, some.shape[d]))
        shift = some.movedim(dim, 0).flatten(1).to(self.kernels.spec.compute).median(1).values
        view = shift.view([-1 if d == dim else 1 for d in range(some.ndim)])
        tensors, needs = (x, view, view, view), (False, False, True, True)
        with torch.no_grad():
            gradients = self.kernels.plan(Call(), tensors, needs).backward((None,) * 3, tensors, (None,), needs)
        share = shift.numel() / x.numel()
        away, squares = (value.view(-1) * share for value in gradients[2:])  # type: ignore[union-attr]  # they were wanted
        return shift + away, torch.addcmul(squares, away, away, value=-1.0).clamp_(min=0.0)
