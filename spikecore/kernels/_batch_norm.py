"""Batch normalisation in front of a program, in training: mean and variance are functions of the input.

Which inputs are normalised is data: each row of ``program.normalised`` names one, and its parameters. Backward takes
one launch in which mean and standard deviation are given, and what the statistics add to the gradient of each
normalised input, in one of three ways:

- A launch of the backend adds it (:meth:`~spikecore.kernels.KernelBackend.correction`).
- A shortcut is added to what is normalised, and its gradient is wanted: the first launch writes it, and a second one
  computes the gradient of the normalised input from it, number by number.
- Else the first launch writes nothing of the size of the input, and a second backward launch finds all gradients.

In the last two the first launch finds the gradients of weight and bias, which are sums over a channel, and the second
takes them as parameters (:mod:`spikecore.lang._program`). A backend has no part in it: both are plans as it knows them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.caches import CALLS, Recent
from spikecore.backend import Spec, compute_dtype
from spikecore.kernels._call import Call, CallPlan, Kernels
from spikecore.kernels._layout import Moved, resolved
from spikecore.kernels._plan import Geometry
from spikecore.lang import Program
from spikecore.lang.transform import Derived, added_to_normalised, corrected, gradient_of_normalised, moments

if TYPE_CHECKING:
    from spikecore.kernels._backend import KernelBackend


class NormalisingKernels(Kernels):
    """The launches of a program with statistics."""

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        # the first pass finds the gradients of weight and bias whether or not these are learnt
        affine = [name for row in program.normalised for name in (row.weight, row.bias)]
        learn = tuple(name for name in program.params if name in (*spec.learn, *affine))
        super().__init__(backend, program, replace(spec, learn=learn))
        self.correct = backend.correction(spec)
        #: Launch for the statistics of an input, and the layout of channels of inputs, by shape, strides and dimension.
        self.find_statistics = backend.statistics(spec)
        self._channels: Recent[Any, Optional[Geometry]] = Recent(CALLS)
        #: Position of each normalised input among the inputs, and of its mean, 1 / standard deviation, weight and bias
        #: among the parameters.
        self.normalised = [
            (program.inputs.index(row.input), [program.params.index(name) for name in row[1:]])
            for row in program.normalised
        ]
        #: Of these the weights and biases.
        self.sums = [index for _, places in self.normalised for index in places[2:]]
        #: Position of the shortcut among the inputs whose gradient leads to that of the normalised one.
        self.shortcut = -1 if self.correct is not None else _index(program.inputs, added_to_normalised(program))
        self._again: Optional[Tuple[Kernels, Sequence[int]]] = None
        self._behind: Optional[Tuple[Kernels, Sequence[int]]] = None

    def statistics(self, x: Tensor, dim: int, eps: float, running: Optional[Moved]) -> Optional[Tuple[Tensor, Tensor]]:
        """Implementation of :meth:`KernelRunner.input_statistics`."""
        if self.find_statistics is None:
            return None
        (x,) = resolved((x,))
        lies = x.shape, x.stride(), dim
        geometry = self._channels.get(lies)
        if geometry is None:
            geometry = self._channels.put(lies, channels_of(self, x, dim))
        return None if geometry is None else self.find_statistics(geometry, x, eps, running)

    def again(self) -> Tuple[Kernels, Sequence[int]]:
        """The launches of a second backward pass, and where each of its parameters stands among those of the first, the
        gradients that are :attr:`sums`, and 1 / n.
        """
        if self._again is None:
            # the same parameters are learnt, so that the checkpoints of forward are those that it expects
            self._again = self._with_sums(corrected(self.program), self.spec)
        return self._again

    def behind_shortcut(self) -> Tuple[Kernels, Sequence[int]]:
        """The launches that compute the gradient of the normalised input from that of the shortcut, and where their
        parameters stand, as :meth:`again` has it.
        """
        if self._behind is None:
            spec = replace(self.spec, learn=(), final=False)
            self._behind = self._with_sums(gradient_of_normalised(self.program), spec)
        return self._behind

    def _with_sums(self, derived: Derived, spec: Spec) -> Tuple[Kernels, Sequence[int]]:
        program, names = derived.program, derived.names
        kinds = dict(zip(self.program.params, self.spec.params))
        kinds.update(dict.fromkeys(names[:-1], "channel"))
        kinds[names[-1]] = "number"
        every = (*self.program.params, *names)
        spec = replace(spec, params=tuple(kinds[name] for name in program.params))
        return Kernels(self.backend, program, spec), [every.index(name) for name in program.params]


class TwoPasses:
    """The backward passes of a call for some needs and cotangents that arrive."""

    def __init__(self, plan: NormalisingPlan, needs: Sequence[bool], grads: Sequence[Optional[Tensor]]) -> None:
        self.plan, self.needs = plan, needs
        kernels, moving = plan.kernels, plan.moving
        #: True if the gradient of a shortcut, which the first pass finds, leads to that of the normalised input.
        self.behind_shortcut = kernels.shortcut >= 0 and needs[kernels.shortcut]
        inputs = needs[:moving] if kernels.correct is not None else [False] * moving
        if self.behind_shortcut:
            normalised = kernels.normalised[0][0]
            inputs = [wants and place != normalised for place, wants in enumerate(needs[:moving])]
        # the gradient of an input needs those of weight and bias, whether or not they are learnt
        params = [wants or k in kernels.sums for k, wants in zip(kernels.tensor_params, needs[moving:])]
        self.first = plan.backward_pass((*inputs, *params), grads)
        #: Positions of the second pass's gradients among those of the first, and of those that are not wanted.
        self.sums = [moving + kernels.tensor_params.index(k) for k in kernels.sums]
        self.unwanted = [place for place in range(moving, len(needs)) if not needs[place]]
        channels = plan.geometry.channels[kernels.sums[0]][1]
        #: 1 / n, for n numbers of a channel.
        self.share = channels / (plan.geometry.steps * plan.geometry.neurons)
        #: The views of the second pass's parameters: the gradients of weight and bias lie as these do.
        self._views: Optional[Tuple[Any, ...]] = None

    def second(
        self,
        params: Sequence[Any],
        inputs: Sequence[Tensor],
        checkpoints: Sequence[Tensor],
        grads: Sequence[Optional[Tensor]],
        is_dense: bool,
        gradients: List[Optional[Tensor]],
    ) -> None:
        """Put the gradients in their places that the first pass did not find."""
        kernels = self.plan.kernels
        every = (*params, *[gradients[place] for place in self.sums], self.share)
        if self.behind_shortcut:
            place, second = kernels.normalised[0][0], kernels.behind_shortcut()
            values = [inputs[place], gradients[kernels.shortcut]]
            plan, numbers, tensors = self._planned(second, every, values)
            (gradients[place],) = plan.forward(numbers, tensors)
            return
        plan, numbers, tensors = self._planned(kernels.again(), every, inputs)
        needs = (*self.needs[: self.plan.moving], *[False] * (len(tensors) - self.plan.moving))
        backward_pass = plan.backward_pass(needs, grads)
        results, _ = backward_pass(numbers, inputs, checkpoints, grads, is_dense)
        for place, result in zip(backward_pass.places, results):
            gradients[place] = result

    def _planned(
        self, second: Tuple[Kernels, Sequence[int]], every: Sequence[Any], moving: Sequence[Any]
    ) -> Tuple[CallPlan, Sequence[Any], Sequence[Tensor]]:
        """The plan of the second pass, its parameters and its tensors."""
        plan, (kernels, places) = self.plan, second
        params = [every[index] for index in places]
        tensors = [*moving, *[params[index] for index in kernels.tensor_params]]
        if self._views is None:
            views = dict(zip(plan.kernels.tensor_params, plan.views))
            first = len(plan.kernels.program.params)
            views.update({first + k: views[index] for k, index in enumerate(plan.kernels.sums)})
            self._views = tuple([views[places[index]] for index in kernels.tensor_params])
        call = Call(single=plan.call.single) if self.behind_shortcut else plan.call
        # by the strides of these tensors, which saved-tensor hooks may change from pass to pass
        return kernels.plan(call, tensors, (not self.behind_shortcut,) * len(tensors), self._views), params, tensors


class NormalisingPlan(CallPlan):
    """A call with inputs that are normalised by their own statistics."""

    kernels: NormalisingKernels

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._passes: Dict[Any, TwoPasses] = {}

    def backward(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> List[Optional[Tensor]]:
        """Implementation of :meth:`CallPlan.backward`."""
        kernels = self.kernels
        if self.is_empty or True not in [needs[place] for place, _ in kernels.normalised]:
            return super().backward(numbers, saved, grads, needs)
        # both passes read one copy of what does not lie as planned
        is_dense = self.is_dense and self.as_planned(saved, grads)
        values, checkpoints, grads, is_dense = self.as_read(saved, grads, is_dense)
        key = (tuple(needs), *[grad is not None for grad in grads])
        passes = self._passes.get(key)
        if passes is None:
            passes = self._passes[key] = TwoPasses(self, needs, grads)
        params, inputs = self.params(numbers, values), values[: self.moving]
        gradients = passes.first.placed(*passes.first(params, inputs, checkpoints, grads, is_dense), saved)
        if kernels.correct is not None:
            self._correct(params, inputs, gradients, [gradients[place] for place in passes.sums])  # type: ignore[misc]  # the first pass found them
        else:
            passes.second(params, inputs, checkpoints, grads, is_dense, gradients)
        for place in passes.unwanted:
            gradients[place] = None
        return gradients

    def _correct(
        self,
        params: Sequence[Any],
        inputs: Sequence[Tensor],
        gradients: Sequence[Optional[Tensor]],
        sums: Sequence[Tensor],
    ) -> None:
        """Add to each gradient of a normalised input what goes through its statistics, by the backend's launch."""
        for k, (place, (mean, rstd, weight, _)) in enumerate(self.kernels.normalised):
            grad = gradients[place]
            if grad is not None:
                channels = [params[mean], params[rstd], params[weight], *sums[2 * k : 2 * k + 2]]
                lies = Geometry(*self.geometry[:2], (self.geometry.channels[mean],))
                x, grad = self.timed((inputs[place], grad))
                self.kernels.correct(lies, x, grad, [value.reshape(-1).contiguous() for value in channels])  # type: ignore[misc]  # not None


NormalisingKernels.plans = NormalisingPlan


def _index(names: Sequence[str], name: str) -> int:
    """Position of a name, -1 if it is missing."""
    return names.index(name) if name in names else -1


def channels_of(kernels: Kernels, x: Tensor, dim: int) -> Optional[Geometry]:
    """The sizes of an input and how its channels lie, along a dimension of a time step; None where no kernel finds its
    statistics.
    """
    layout = kernels.layout(x)
    if layout.outer or not x.numel() or not layout.holds(x[0]):
        return None
    return Geometry(x.shape[0], x.numel() // x.shape[0], ((layout.inner_of(dim), x.shape[1 + dim]),))


def statistics_by_torch(x: Tensor, dim: int, eps: float, running: Optional[Moved]) -> Tuple[Tensor, Tensor]:
    """Counterpart of :meth:`NormalisingKernels.statistics` by operations of torch."""
    compute = compute_dtype(x.dtype)
    variance, mean = torch.var_mean(x.to(compute), [d for d in range(x.ndim) if d != 1 + dim], correction=0)
    if running is not None:
        of_mean, of_variance, count, factor = running
        n = x.numel() // x.shape[1 + dim]
        for moved, value in ((of_mean, mean), (of_variance, variance * (n / (n - 1)))):
            moved.lerp_(value.to(moved.dtype), factor)
        if count is not None:
            count.add_(1)
    return mean, torch.rsqrt(variance + eps)


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
