"""Backward of a program with batch normalisation in front: two passes, each an ordinary launch.

The first launch finds the gradients of weight and bias, which are sums over a channel, and writes nothing else of the
size of the input. The second one takes them as parameters and finds the gradient of the input
(:mod:`spikecore.lang._derived`). A backend has no part in it: both are plans as it knows them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor

from spikecore.backend import Spec, Tensors
from spikecore.kernels._arguments import Call
from spikecore.kernels._execution import Execution
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._launches import CorrectionLaunch, Launcher
from spikecore.kernels._layout import Layout, layout_of
from spikecore.kernels._memory import resolved
from spikecore.kernels._returned import ReturningExecution
from spikecore.kernels._saved import check_saved
from spikecore.lang import Program
from spikecore.lang._derived import corrected, moments


class Second(NamedTuple):
    """The second pass."""

    execution: Execution
    #: Its parameters beside those of the first pass: gradients of weight and bias, 1 / n.
    names: Sequence[str]


class NormalisingExecution(Execution):
    """One program with statistics under one spec."""

    #: What runs the second pass.
    plain: Type[Execution] = Execution

    def __init__(self, backend: Launcher, program: Program, spec: Spec) -> None:
        # the first pass finds the gradients of weight and bias whether or not these are learnt
        learn = tuple(name for name in program.params if name in (*spec.learn, *program.statistics[2:]))
        super().__init__(backend, program, replace(spec, learn=learn))
        self._second: Optional[Second] = None
        #: What takes the place of the second pass, and where it finds its parameters per channel.
        self.correct: Optional[CorrectionLaunch] = backend.correction(spec)
        self.statistics = tuple(program.params.index(name) for name in program.statistics)

    def backward(
        self,
        call: Call,
        tensors: Sequence[Tensor],
        checkpoints: Tensors,
        grads: Sequence[Optional[Tensor]],
        wanted: Sequence[bool],
        layout: Layout,
    ) -> List[Optional[Tensor]]:
        """Gradients of the tensors of a call, as :meth:`Execution.backward` has them."""
        if not (wanted[0] and tensors[0].numel()):
            return super().backward(call, tensors, checkpoints, grads, wanted, layout)
        if self.correct is not None:
            return self._corrected(self.correct, call, tensors, checkpoints, grads, wanted, layout)
        tensors, grads = resolved(tensors), resolved(grads)
        check_saved(self.program, self.spec, call.has_initial_state, tensors, checkpoints, grads, layout)
        # one copy for both passes where one is needed
        grads = self.fitted(layout, grads)
        moving = self.arguments.n_moving(call)
        named = [self.program.params[index] for index in self.arguments.tensor_params]
        summed = self.program.statistics[2:]
        first = [wants or name in summed for wants, name in zip(wanted[moving:], named)]
        sums = super().backward(call, tensors, checkpoints, grads, (*[False] * moving, *first), layout)[moving:]
        values: Dict[str, Any] = dict(zip(self.program.params, call.numbers))
        values.update(zip(named, tensors[moving:]))
        second = self.with_sums()
        found = dict(zip(named, sums))
        share = found[summed[0]].numel() / tensors[0].numel()  # type: ignore[union-attr]  # it was wanted
        values.update(zip(second.names, (*[found[name] for name in summed], share)))
        execution = second.execution
        numbers, placed = [], []
        for name, kind in zip(execution.program.params, execution.spec.params):
            numbers.append(values[name] if kind == "number" else None)
            placed += [] if kind == "number" else [values[name]]
        again = execution.backward(
            call._replace(numbers=tuple(numbers)),
            (*tensors[:moving], *placed),
            checkpoints,
            grads,
            (*wanted[:moving], *[False] * len(placed)),
            layout,
        )
        return [*again[:moving], *[grad if wants else None for grad, wants in zip(sums, wanted[moving:])]]

    def _corrected(
        self,
        correct: CorrectionLaunch,
        call: Call,
        tensors: Sequence[Tensor],
        checkpoints: Tensors,
        grads: Sequence[Optional[Tensor]],
        wanted: Sequence[bool],
        layout: Layout,
    ) -> List[Optional[Tensor]]:
        """Gradients by one pass over all steps, and one over input and gradient."""
        moving = self.arguments.n_moving(call)
        learns = [w or i in self.statistics[2:] for i, w in zip(self.arguments.tensor_params, wanted[moving:])]
        found = super().backward(call, tensors, checkpoints, grads, (*wanted[:moving], *learns), layout)
        where = {index: moving + k for k, index in enumerate(self.arguments.tensor_params)}
        mean, rstd, weight, bias = (where[index] for index in self.statistics)
        x, grad = layout.fit_steps(resolved(tensors)[0]), found[0]
        channels = [tensors[mean], tensors[rstd], tensors[weight], found[weight], found[bias]]
        count = tensors[mean].numel()
        geometry = Geometry(x.shape[0], x.numel() // x.shape[0], ((layout.inner_of(1), count),))
        correct(geometry, x, grad, [value.reshape(-1).contiguous() for value in channels])  # type: ignore[arg-type, union-attr]  # wanted
        kept = [one if wants else None for one, wants in zip(found[moving:], wanted[moving:])]
        return [*found[:moving], *kept]

    def with_sums(self) -> Second:
        """The second pass, made when it is first needed."""
        if self._second is not None:
            return self._second
        program, names = corrected(self.program)
        kinds = dict(zip(self.program.params, self.spec.params))
        kinds.update(zip(names, ("channel", "channel", "number")))
        # the same parameters are learnt, so that the checkpoints of forward are those that it expects
        spec = replace(self.spec, params=tuple(kinds[name] for name in program.params))
        self._second = Second(self.plain(self.backend, program, spec), names)
        return self._second


class NormalisingReturningExecution(NormalisingExecution, ReturningExecution):
    """The same, by launches that return their results."""

    plain = ReturningExecution


#: So many samples, and places along each further dimension, are enough to tell where the numbers of a channel lie.
FEW = 4


class Moments:
    """Mean and variance of tensors ``[T, B, C, ...]`` per channel, in one pass over them."""

    def __init__(self, backend: Launcher, spec: Spec) -> None:
        kinds = ("channel",) * 3
        self.compute = spec.compute
        execution = ReturningExecution if backend.owns_outputs else Execution
        self.execution = execution(backend, moments(), Spec(spec.dtype, spec.steps, kinds, ("total", "squares"), False))

    def __call__(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """Mean and (biased) variance, ``[C]``."""
        # Sums of squares of what lies near the mean lose no digits. The median of some numbers of a channel lies there
        # whatever one of them is: with a first number of 1000 as the shift the variance was off by 0.6 %.
        some = x[0, :FEW]
        for dim in range(2, some.ndim):
            some = some.narrow(dim, 0, min(FEW, some.shape[dim]))
        shift = some.transpose(0, 1).flatten(1).to(self.compute).median(1).values
        view = shift.view(1, -1, *[1] * (x.ndim - 3))
        call = Call((), False, (None, None, None))
        wanted = (False, False, True, True)
        found = self.execution.backward(call, (x, view, view, view), (), (None,), wanted, layout_of(x))
        share = shift.numel() / x.numel()
        away, squares = (value.view(-1) * share for value in found[2:])  # type: ignore[union-attr]  # they were wanted
        return shift + away, torch.addcmul(squares, away, away, value=-1.0).clamp_(min=0.0)


def execution_of(backend: Launcher, program: Program, spec: Spec) -> Execution:
    """What runs a program under a spec on a backend."""
    if program.statistics:
        return (NormalisingReturningExecution if backend.owns_outputs else NormalisingExecution)(backend, program, spec)
    return (ReturningExecution if backend.owns_outputs else Execution)(backend, program, spec)
