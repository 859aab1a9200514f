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

from spikecore._base.caches import CALLS, Recent
from spikecore.backend import Spec, compute_dtype
from spikecore.kernels._call import Call, CallPlan, Kernels, Pass, resolved
from spikecore.kernels._layout import Moved
from spikecore.kernels._plan import Geometry
from spikecore.lang import Program
from spikecore.lang._program import corrected, moments

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
        #: What finds the statistics of an input, and how the channels of inputs lie, by shape, strides and dimension.
        self.find_statistics = backend.statistics(spec)
        self._channels: Recent[Any, Optional[Geometry]] = Recent(CALLS)
        #: Where each normalised input stands among the inputs, and where its mean, 1 / standard deviation, weight and
        #: bias stand among the parameters.
        self.normalised = [
            (program.inputs.index(row.input), [program.params.index(name) for name in row[1:]])
            for row in program.normalised
        ]
        #: Of these the weights and biases.
        self.sums = [index for _, places in self.normalised for index in places[2:]]
        self._second: Optional[Tuple[Kernels, Sequence[int]]] = None

    def statistics(self, x: Tensor, dim: int, eps: float, running: Optional[Moved]) -> Optional[Tuple[Tensor, Tensor]]:
        """See :meth:`KernelRunner.input_statistics`."""
        if self.find_statistics is None:
            return None
        (x,) = resolved((x,))
        lies = x.shape, x.stride(), dim
        geometry = self._channels.get(lies)
        if geometry is None:
            geometry = self._channels.put(lies, channels_of(self, x, dim))
        return None if geometry is None else self.find_statistics(geometry, x, eps, running)

    def second(self) -> Tuple[Kernels, Sequence[int]]:
        """The launches of the second pass, and where each of its parameters stands among those of the first, the
        gradients that are :attr:`sums`, and 1 / n.
        """
        if self._second is None:
            program, names = corrected(self.program)
            kinds = dict(zip(self.program.params, self.spec.params))
            kinds.update(dict.fromkeys(names[:-1], "channel"))
            kinds[names[-1]] = "number"
            # the same parameters are learnt, so that the checkpoints of forward are those that it expects
            spec = replace(self.spec, params=tuple(kinds[name] for name in program.params))
            every = (*self.program.params, *names)
            self._second = Kernels(self.backend, program, spec), [every.index(name) for name in program.params]
        return self._second


class TwoPasses:
    """The backward passes of a call for some needs and cotangents that arrive."""

    def __init__(self, plan: NormalisingPlan, needs: Sequence[bool], grads: Sequence[Optional[Tensor]]) -> None:
        self.plan, self.needs = plan, needs
        kernels, moving = plan.kernels, plan.moving
        # the gradient of an input needs those of weight and bias, whether or not they are learnt
        params = [wants or k in kernels.sums for k, wants in zip(kernels.tensor_params, needs[moving:])]
        inputs = needs[:moving] if kernels.correct is not None else [False] * moving
        self.first = plan.backward_pass((*inputs, *params), grads)
        #: None until the first one has run, and where a backend corrects its gradients.
        self.second: Optional[Pass] = None
        #: Where the gradients that the second pass takes stand among those of the first, and which of all are not
        #: wanted.
        self.sums = [moving + kernels.tensor_params.index(k) for k in kernels.sums]
        self.unwanted = [place for place in range(moving, len(needs)) if not needs[place]]
        channels = plan.geometry.channels[kernels.sums[0]][1]
        #: 1 / n, for n numbers of a channel.
        self.share = channels / (plan.geometry.steps * plan.geometry.neurons)

    def second_pass(self, params: Sequence[Any], inputs: Sequence[Tensor], grads: Sequence[Optional[Tensor]]) -> Pass:
        """The second pass, for parameters of its own: the gradients of weight and bias lie as these do."""
        if self.second is None:
            plan = self.plan
            kernels, places = plan.kernels.second()
            views = dict(zip(plan.kernels.tensor_params, plan.views))
            first = len(plan.kernels.program.params)
            views.update({first + k: views[index] for k, index in enumerate(plan.kernels.sums)})
            tensors = [*inputs, *[params[index] for index in kernels.tensor_params]]
            of_params = tuple([views[places[index]] for index in kernels.tensor_params])
            again = kernels.plan(plan.call, tensors, (True,) * len(tensors), of_params)
            needs = (*self.needs[: plan.moving], *[False] * (len(tensors) - plan.moving))
            self.second = again.backward_pass(needs, grads)
        return self.second


class NormalisingPlan(CallPlan):
    """A call with inputs that are normalised by their own statistics."""

    kernels: NormalisingKernels

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._passes: Dict[Any, TwoPasses] = {}

    def backward(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> List[Optional[Tensor]]:
        """See :meth:`CallPlan.backward`."""
        kernels = self.kernels
        if self.is_empty or True not in [needs[place] for place, _ in kernels.normalised]:
            return super().backward(numbers, saved, grads, needs)
        # both passes read one copy of what does not lie as planned
        is_dense = self.is_dense and self._as_planned(saved, grads)
        values, checkpoints, grads, is_dense = self.as_read(saved, grads, is_dense)
        key = (tuple(needs), *[grad is not None for grad in grads])
        passes = self._passes.get(key)
        if passes is None:
            passes = self._passes[key] = TwoPasses(self, needs, grads)
        params, inputs = self.params(numbers, values), values[: self.moving]
        gradients = passes.first.placed(*passes.first(params, inputs, checkpoints, grads, is_dense), saved)
        sums: List[Any] = [gradients[place] for place in passes.sums]
        if kernels.correct is not None:
            self._correct(params, inputs, gradients, sums)
        else:
            every = (*params, *sums, passes.share)
            params = [every[index] for index in kernels.second()[1]]
            second = passes.second_pass(params, inputs, grads)
            results, _ = second(params, inputs, checkpoints, grads, is_dense)
            for place, result in zip(second.places, results):
                gradients[place] = result
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


def channels_of(kernels: Kernels, x: Tensor, dim: int) -> Optional[Geometry]:
    """The sizes of an input and how its channels lie, along a dimension of a time step; None where no kernel finds its
    statistics.
    """
    layout = kernels.layout(x)
    if layout.outer or not x.numel() or not layout.holds(x[0]):
        return None
    return Geometry(x.shape[0], x.numel() // x.shape[0], ((layout.inner_of(dim), x.shape[1 + dim]),))


def statistics_by_torch(x: Tensor, dim: int, eps: float, running: Optional[Moved]) -> Tuple[Tensor, Tensor]:
    """As :meth:`NormalisingKernels.statistics`, by operations of torch."""
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
