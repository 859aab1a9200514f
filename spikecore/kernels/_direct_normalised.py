"""Direct calls of programs with batch normalisation in front: the shortest way to their kernels and back.

As :mod:`spikecore.kernels._direct`. Beside the input there may be a shortcut, and inputs lie in any order of memory
without gaps, as images with channels innermost do: direct calls of other programs with such inputs are these, too.
Where mean and standard deviation are functions of the input, backward is two launches
(:mod:`spikecore.kernels._normalised`).
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.caches import CALLS, Recent
from spikecore.backend import BackendError, ParamValue, Range, Spec, Tensors
from spikecore.kernels._arguments import Call
from spikecore.kernels._direct import Derive
from spikecore.kernels._execution import Execution
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._laid import Laid, in_memory, laid_as
from spikecore.kernels._launches import CorrectionLaunch, Launch, Moved, StatisticsLaunch
from spikecore.kernels._normalised import NormalisingExecution
from spikecore.kernels._parts import summed
from spikecore.kernels._straight import dense_of, whole
from spikecore.lang._plain import PLAIN, is_transformed


class Pass(NamedTuple):
    """One backward launch: its name among those of an input, and what it is given."""

    name: str
    execution: Execution
    geometry: Geometry
    params: Sequence[Any]


class DirectNormalised:
    """Direct calls of neurons whose parameters have one form.

    spec: that of the runner, which says what is learnt. instead, derive: as in :class:`Direct`. views: for each
    parameter of the program the shape that it has over the neurons of one time step; None for a number. ranges: those
    that forward launches put parameters into, of calls that do not normalise.
    """

    def __init__(
        self,
        execution: Execution,
        spec: Spec,
        instead: Any,
        derive: Derive,
        statistics: Optional[StatisticsLaunch],
        views: Sequence[Optional[Tuple[int, ...]]],
        ranges: Tuple[Optional[Range], ...] = (),
    ) -> None:
        self.execution, self.instead, self.derive, self.views = execution, instead, derive, tuple(views)
        self.ranges = ranges
        self.dtype, self.compute = spec.dtype, spec.compute
        self.n_inputs = execution.arguments.n_inputs
        #: Indices of the parameters that are tensors, and a call at rest without them.
        self.tensors = execution.arguments.tensor_params
        self.at_rest = Call((), False, (None,) * len(self.views))
        self._kinds, self._learns, self._find = spec.params, bool(spec.learn), statistics
        program = execution.program
        #: Of a program with statistics: its parameters of normalisation, of which the first pass finds the gradients of
        #: the last two in any case; what finishes the gradient of the input, or a second pass, and where its parameters
        #: stand among those of the first and the three that it has beside them.
        self._statistics: Tuple[int, ...] = ()
        self._correct: Optional[CorrectionLaunch] = None
        self._second: Optional[Execution] = None
        self._order: Tuple[int, ...] = ()
        if isinstance(execution, NormalisingExecution):
            self._statistics, self._correct = execution.statistics, execution.correct
            if self._correct is None:
                second = execution.with_sums()
                every = (*program.params, *second.names)
                self._second = second.execution
                self._order = tuple(every.index(name) for name in second.execution.program.params)
        self._last, self._by_lie = Laid((), (), None), Recent[Any, Laid](CALLS)

    def __deepcopy__(self, memo: Any) -> DirectNormalised:
        return self  # as runners, which copies of a neuron share

    def laid(self, x: Tensor, skip: Optional[Tensor], tensors: Sequence[Any]) -> Optional[Laid]:
        """What follows from how ``x`` lies; None for a call that is left to the runner. ``tensors`` are those of the
        parameters that are there before the statistics are.
        """
        if is_transformed() or not in_memory(x):
            return None
        laid = self._last
        if laid.shape != x.shape or laid.strides != x.stride():
            lie = (tuple(x.shape), x.stride())
            laid = self._last = self._by_lie.get_or(lie, lambda: self._laid_as(x))
        if laid.layout is None:
            return None
        if skip is not None:
            # kernels read a shortcut's memory as they read the input's
            alike = type(skip) is Tensor and skip.dtype is x.dtype and skip.device == x.device
            if not (alike and laid.holds(skip)):
                return None
        for value in tensors:
            if type(value) not in PLAIN or value.dtype is not self.compute or not whole(value):
                return None
        return laid

    def statistics(
        self, laid: Laid, x: Tensor, eps: float, running: Optional[Moved]
    ) -> Optional[Tuple[Tensor, Tensor]]:
        """Mean and 1 / sqrt(variance + eps) of an input per channel, by which the running ones were moved; None where
        the backend has no kernel for that.
        """
        return None if self._find is None else self._find(laid.lies, x, eps, running)

    def of_any_order(self, x: Tensor, params: Tuple[ParamValue, ...]) -> Optional[Tensors]:
        """Outputs of a call of a program that has no statistics; None if it is for the runner."""
        laid = self.laid(x, None, [params[index] for index in self.tensors])
        return None if laid is None else self(laid, (x,), params)

    def __call__(self, laid: Laid, inputs: Tensors, params: Tuple[ParamValue, ...]) -> Optional[Tensors]:
        """Outputs of a call; None if it is for the runner."""
        try:
            if torch.is_grad_enabled() and (self._learns or True in [x.requires_grad for x in inputs]):
                return (_apply((self, laid, params), *inputs, *[params[index] for index in self.tensors]),)
            return (self.forward(laid, inputs, params, ()),)
        except BackendError:  # the runner meets it, too, and does what is to be done then
            return None

    def forward(self, laid: Laid, inputs: Sequence[Tensor], params: Sequence[Any], saved: Sequence[Tensor]) -> Tensor:
        """The output; ``saved`` are checkpoints to be filled."""
        out = torch.empty_like(inputs[0])
        dense = laid.forward[bool(saved)]
        if dense is None:
            launch = self.execution.forward_launch(self.at_rest, bool(saved), self.ranges)
            counts = (len(inputs), 0, 0, 1, 0, 0, len(saved))
            dense = laid.forward[bool(saved)] = dense_of(launch, laid.geometry, counts)
        if dense((*inputs, out, *saved), params) is None:
            launch = self.execution.forward_launch(self.at_rest, bool(saved), self.ranges)
            launch(laid.geometry, inputs, (), params, (out,), (), (), saved)
        return out

    def checkpoints(self, laid: Laid, x: Tensor) -> Sequence[Tensor]:
        """Checkpoints for backward, as allocated."""
        if laid.kept is None:
            return ()
        count = self.execution.n_checkpoints(self.at_rest)
        return [torch.empty_strided(*laid.kept, dtype=self.compute, device=x.device) for _ in range(count)]

    def gradients(
        self, wanted: Sequence[bool], laid: Laid, numbers: Sequence[Any], saved: Tensors, grad: Tensor
    ) -> Optional[List[Optional[Tensor]]]:
        """The ``wanted`` gradients of inputs and parameters that are tensors, from a cotangent of the output; None if
        these tensors are not for this way. ``saved`` are inputs, parameters and checkpoints.
        """
        n, m = self.n_inputs, self.n_inputs + len(self.tensors)
        inputs, values, checkpoints = saved[:n], saved[n:m], saved[m:]
        if not self._fit(laid, inputs, values, checkpoints, grad):
            return None
        params = [*numbers]
        for index, value in zip(self.tensors, values):
            params[index] = value
        first = tuple(wanted)
        if self._statistics and wanted[0]:
            # the gradient of the input needs those of weight and bias, whether or not they are learnt
            learns = [w or i in self._statistics[2:] for i, w in zip(self.tensors, wanted[n:])]
            first = (*([False] * n if self._correct is None else wanted[:n]), *learns)
        one = Pass("first", self.execution, laid.geometry, params)
        found, sums = self._launched(laid, one, inputs, checkpoints, grad, first)
        each = iter(sums)
        # what was summed, by the index of its parameter
        learnt: Dict[int, Tensor] = {}
        for index, value, wants in zip(self.tensors, values, first[n:]):
            if wants:
                part = next(each)
                whole_sum = part.shape == value.shape
                channels = laid.geometry.channels[index]
                learnt[index] = part if whole_sum else summed(self._kinds[index], part, value, channels)
        if self._correct is not None and wanted[0]:
            mean, rstd, weight, bias = self._statistics
            channels_of = [params[mean], params[rstd], params[weight], learnt[weight], learnt[bias]]
            self._correct(laid.lies, inputs[0], found[0], channels_of)
        if self._second is not None and wanted[0]:
            share = laid.lies.channels[0][1] / inputs[0].numel()
            every = [*params, *[learnt[index] for index in self._statistics[2:]], share]
            again = Pass("second", self._second, laid.second, [every[index] for index in self._order])
            only_inputs = (*wanted[:n], *[False] * sum(kind != "number" for kind in self._second.spec.params))
            found, _ = self._launched(laid, again, inputs, checkpoints, grad, only_inputs)
        grads = iter(found)
        result: List[Optional[Tensor]] = [next(grads) if wants else None for wants in wanted[:n]]
        return result + [learnt[i] if wants else None for i, wants in zip(self.tensors, wanted[n:])]

    def _laid_as(self, x: Tensor) -> Laid:
        return laid_as(x, self.execution, self.views, self._order, self._find is not None or bool(self._statistics))

    def placed(self, values: Sequence[Tensor]) -> List[Tensor]:
        """Parameters that are tensors, as they lie over the neurons of one time step."""
        return [value.view(self.views[index]) for index, value in zip(self.tensors, values)]  # type: ignore[arg-type]

    def _fit(self, laid: Laid, inputs: Tensors, values: Tensors, checkpoints: Tensors, grad: Tensor) -> bool:
        """Whether cotangent and saved tensors are as forward had them: a saved-tensor hook may give back anything."""
        device = grad.device
        for one in (grad, *inputs):
            if one.dtype is not self.dtype or one.device != device or not laid.holds(one):
                return False
        channels = laid.geometry.channels
        for index, value in zip(self.tensors, values):
            if value.dtype is not self.compute or value.device != device or not whole(value):
                return False
            if value.numel() != (channels[index][1] or 1):
                return False
        for one in checkpoints:
            there = one.dtype is self.compute and one.device == device and in_memory(one)
            if not there or (tuple(one.shape), one.stride()) != laid.kept:
                return False
        return True

    def _launched(
        self,
        laid: Laid,
        one: Pass,
        inputs: Tensors,
        checkpoints: Tensors,
        grad: Tensor,
        wanted: Tuple[bool, ...],
    ) -> Tuple[List[Tensor], Sequence[Tensor]]:
        """Gradients of inputs, and of parameters in parts."""
        result = [torch.empty_like(x) for x, wants in zip(inputs, wanted) if wants]
        dense = laid.backward.get((one.name, wanted))
        if dense is None:
            counts = (len(inputs), 0, 0, len(checkpoints), 1, 0, 0, len(result), 0)
            dense = dense_of(self._launch(one, grad, wanted), one.geometry, counts)
            laid.backward[one.name, wanted] = dense
        sums = dense((*inputs, *checkpoints, grad, *result), one.params)
        if sums is None:
            launch = self._launch(one, grad, wanted)
            sums = launch(one.geometry, inputs, (), one.params, checkpoints, (grad,), (), (), result, ())
        return result, sums or ()

    def _launch(self, one: Pass, grad: Tensor, wanted: Tuple[bool, ...]) -> Launch:
        call = Call((), False, (None,) * len(one.params))
        return one.execution.gradients(call, (grad,), wanted).launch


class _Crossing(torch.autograd.Function):
    """Where autograd ends and kernels begin, for direct calls that normalise."""

    @staticmethod
    def forward(ctx: Any, context: Any, *tensors: Tensor) -> Tensor:
        direct, laid, params = ctx.context = context
        inputs, passing = tensors[: direct.n_inputs], direct.execution.passing
        save = passing is None or passing.reads(ctx.needs_input_grad[1:])
        checkpoints = direct.checkpoints(laid, inputs[0]) if save else ()
        out: Tensor = direct.forward(laid, inputs, params, checkpoints)
        kept = tensors if passing is None else passing.kept(tensors) if save else ()
        ctx.save_for_backward(*kept, *checkpoints)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        saved, wanted, passing = ctx.saved_tensors, ctx.needs_input_grad[1:], ctx.context[0].execution.passing
        if passing is None:
            return (None, *_found(ctx, wanted, saved, grad))
        saved = passing.restored(saved)
        return (None, *passing.through(lambda left: _found(ctx, left, saved, grad), wanted, (grad,)))


def _found(ctx: Any, wanted: Sequence[bool], saved: Tensors, grad: Optional[Tensor]) -> Sequence[Optional[Tensor]]:
    """The ``wanted`` gradients of inputs and parameters."""
    direct, laid, numbers = ctx.context
    if grad is not None and not torch.is_grad_enabled():
        try:
            found: Optional[Sequence[Optional[Tensor]]] = direct.gradients(wanted, laid, numbers, saved, grad)
        except BackendError:  # the other way meets it, too, and knows what to do then
            found = None
        if found is not None:
            return found
    n, end = direct.n_inputs, direct.n_inputs + len(direct.tensors)
    values = saved[n:end]
    call = direct.at_rest._replace(numbers=tuple([None if isinstance(p, Tensor) else p for p in numbers]))
    context = direct.execution, direct.instead, call, end, laid.layout
    results = direct.derive(context, wanted, (*saved[:n], *direct.placed(values), *saved[end:]), (grad,))
    shaped = [one if one is None else one.view(value.shape) for one, value in zip(results[n:], values)]
    return (*results[:n], *shaped)


#: As in :mod:`spikecore.kernels._direct`.
_apply = super(torch.autograd.Function, _Crossing).apply
