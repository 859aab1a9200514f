"""Feedback through a matrix: all steps of a call as one node of autograd.

``(y, s)[t] = program(x[t] + r[t], s[t-1])`` with ``r[t] = y[t-1] @ W.T + b``. The program, its adjoint and its kernels
stay as they are. With ``u[t] = x[t] + r[t]`` as its input, backward is the program's own, where the cotangent of
``y[t]`` is ``grad_out[t] + gu[t+1] @ W``, and the gradients of ``x`` and ``u`` are the same. The gradient of ``W`` is
one product over all steps at the end.

- Forward keeps ``u``, from which the states come again without a product, and the outputs where the weight is learnt.
- Where the output that comes back is a constant, backward is that of a call without feedback whose input is ``u``.
- A backend may have launches for all steps of a call (:meth:`~spikecore.kernels.KernelBackend.feeds_back`). For any
  other, a step is one product and one launch, in either direction.
- Of several matrices, or of one into several inputs, each input that something comes back to has a ``u`` of its own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore._base.running import BoundCall, unpacked
from spikecore.backend import MAX_STATIC_STEPS, Feedback, ParamValue, Runner, Spec, Tensors
from spikecore.context import no_autocast
from spikecore.dtypes import compute_dtype
from spikecore.kernels._autograd import KernelCall, apply
from spikecore.kernels._call import Call, Kernels, channels_of
from spikecore.kernels._feedback_call import Cotangents, Delays, Drives, FeedbackCall
from spikecore.kernels._feedback_steps import FeedbackLaunch, FeedbackSteps
from spikecore.kernels._layout import Layout, fitted_param, gradient, resolved
from spikecore.kernels._runner import KernelRunner
from spikecore.kernels.spike_products import Split, gradient_is_quicker, of_gradient
from spikecore.lang import Program

if TYPE_CHECKING:
    from spikecore.kernels._backend import KernelBackend

#: Rows up to which the gradients of a matrix of several inputs are one batched product: it does not split their sum
#: (H200, LSTM: 1,600 rows 0.96 of the time of a step, 8,000 rows 1.07).
FEW_ROWS = 2048


class FedKernels(Kernels):
    """One program with feedback under one spec. Behind the states of a call stand the last outputs, behind its
    parameters weight and, if there is one, bias of each feedback.
    """

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        own = replace(spec, learn=spec.learnt(program), feedback=None, further=())
        super().__init__(backend, program, own)
        self.feedbacks, self.backs, self.drives = spec.feedbacks, spec.backs, spec.drives
        self.delays = self.feedbacks[0].delays
        self.n_own, count = len(self.tensor_params), len(program.params)
        #: The last outputs and, with delays, the outputs before.
        self.n_fed = len(self.backs) + self.delays
        self.n_states += self.n_fed
        self.n_final = self.n_states if spec.final else 0
        behind = sum([1 + feedback.bias for feedback in self.feedbacks]) + self.delays
        self.tensor_params = (*self.tensor_params, *range(count, count + behind))
        self.steps, self.launches = FeedbackSteps(backend, program, spec), FeedbackLaunch(backend, program, spec)
        self.feedback_spec = spec
        self._detached: Dict[Optional[int], Kernels] = {}

    def way(self, weight: Tensor) -> Union[FeedbackSteps, FeedbackLaunch]:
        """All steps of a call with this weight by one launch, or a launch for each."""
        spec = self.feedback_spec
        takes = len(self.feedbacks) == 1 and (len(self.drives) == 1 or self.backend.feeds_gates)
        whole = takes and weight.dtype == spec.dtype and self.backend.feeds_back(self.program, spec, weight.shape[1])
        return self.launches if whole else self.steps

    def detached(self, steps: int) -> Kernels:
        """Kernels of so many steps without feedback, for gradients if the fed-back output is a constant."""
        fixed = steps if steps <= MAX_STATIC_STEPS else None
        if fixed not in self._detached:
            self._detached[fixed] = Kernels(self.backend, self.program, replace(self.spec, steps=fixed))
        return self._detached[fixed]


class FedPlan:
    """A call with feedback, as :class:`~spikecore.kernels._call.CallPlan` is one without.

    way: :meth:`FedKernels.way`. wants: for each tensor, whether its gradient may be asked for. packed: the drives,
    where the first tensor has them side by side.
    """

    added, eager, usual, computes_saved = (), True, None, True

    def __init__(
        self,
        kernels: FedKernels,
        way: Union[FeedbackSteps, FeedbackLaunch],
        call: Call,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
        packed: Tuple[int, ...] = (),
    ) -> None:
        self.packed, self.n_given = packed, kernels.n_inputs - max(len(packed) - 1, 0)
        wants, behind = self._each(wants), tensors[self.n_given :]
        self.kernels, self.way, self.call, self.count = kernels, way, call, len(wants)
        self.moving, self.n_results = kernels.n_moving(call), kernels.n_results(call)
        #: Behind the program's states, before the last output.
        self.first = self.moving - (kernels.n_fed if call.has_initial_state else 0)
        self.views = [tuple(value.shape) for value in behind[self.moving - kernels.n_inputs :]]
        self.weight = self.moving + kernels.n_own
        #: Of each feedback, where its weight stands.
        self.weights = [self.weight]
        for feedback in kernels.feedbacks[:-1]:
            self.weights.append(self.weights[-1] + 1 + feedback.bias)
        #: ``[T, ..., H]``, and how its steps and parameters per channel lie.
        *front, width = tensors[0].shape
        self.shape = (*front, width // max(len(packed), 1))
        self.layout = Layout(self.shape[1:], None)
        self.channels = channels_of(kernels, self.layout, self.views[: kernels.n_own])
        #: Outputs that are saved, for the gradients of weights.
        learnt = {feedback.output for feedback, at in zip(kernels.feedbacks, self.weights) if wants[at]}
        self.kept = [output for output in kernels.backs if output in learnt]
        self.save = True in wants
        self.drives = Drives(kernels.drives, bool(packed) or len(kernels.drives) == 1)
        #: The other inputs, which are saved.
        self.others = [number for number in range(kernels.n_inputs) if number not in kernels.drives]

    def forward(self, numbers: Sequence[Any], tensors: Sequence[Tensor]) -> List[Tensor]:
        """Outputs, final states, the last output and recorded states; and, for backward, what is saved."""
        packed = resolved(tensors[:1])[0] if self.packed else None
        tensors = resolved(self._apart(tensors))
        fed = self._fed(numbers, tensors, packed)
        back = fed.memory()
        outputs, final, trace, saved = self.way.forward(fed, tensors[: self.kernels.n_inputs], back, self.save)
        if self.kernels.n_final:
            final = [*final, *[outputs[output][-1].clone() for output in self.kernels.backs]]
            final += [] if fed.delays is None else [fed.delays.behind(back.history)]
        return [*outputs, *final, *trace, *saved]

    def to_save(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors that autograd saves."""
        every = self._apart(tensors) if self.others else ()
        inputs = [every[k] for k in self.others]
        return (
            *inputs,
            *tensors[self.n_given :],
            *[results[output] for output in self.kept],
            *results[self.n_results :],
        )

    def restored(self, saved: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors of a call, in their number and order. The stand-in for an input that something comes back to has its
        shape, and nobody reads its values.
        """
        drives, others = self.drives, iter(saved)
        whole = saved[self.count - len(drives.numbers) + len(self.kept)]
        us = dict(zip(drives.numbers, drives.parts(whole)))
        return (*[us[k] if k in us else next(others) for k in range(self.kernels.n_inputs)], *others)

    def backward(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> List[Optional[Tensor]]:
        """Gradients of the tensors of a call; None where not wanted."""
        # within autocast a product of float32 would be one of half types, to which the sums behind it do not fit
        with no_autocast(saved[0].device.type):
            gu, result = self._gradients(numbers, resolved(saved), resolved(grads), self._each(needs))
        if not self.packed:
            return result
        return [gu if needs[0] else None, *[value for k, value in enumerate(result) if k not in self.packed]]

    def _apart(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The tensors of a call as they are given, and every input for itself."""
        if not self.packed:
            return tensors
        return (*unpacked(tensors[: self.n_given], self.packed), *tensors[self.n_given :])

    def _each(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Flags of given tensors for :meth:`_apart`."""
        if not self.packed:
            return flags
        each = iter(flags[1:])
        inputs = [flags[0] if k in self.packed else next(each) for k in range(self.n_given - 1 + len(self.packed))]
        return (*inputs, *each)

    def _gradients(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> Tuple[Tensor, List[Optional[Tensor]]]:
        """Gradients of the drives in one tensor, and of all tensors."""
        kernels, moving, n_final = self.kernels, self.moving, self.kernels.n_final
        tensors, behind = saved[: self.count], saved[self.count :]
        outs, behind = dict(zip(self.kept, behind)), behind[len(self.kept) :]
        fed, n = self._fed(numbers, tensors), kernels.n_outputs
        final = grads[n : n + n_final]
        final, ends = final[: n_final - kernels.n_fed], final[n_final - kernels.n_fed :]
        outputs, of_past = fed.with_ends(grads[:n], ends)
        learn = tuple(needs[moving : self.weight])
        state = any(needs[kernels.n_inputs : moving])
        cotangents = Cotangents(outputs, tuple(final), tuple(grads[n + n_final :]), state, learn, needs)
        result: List[Optional[Tensor]]
        of_steps = None
        if all(feedback.detach for feedback in fed.feedbacks):
            us = fed.drives.parts(behind[0])
            result = self._constant(numbers, tensors, us, cotangents)
            gu = fed.drives.new(behind[0], fed.shape)
            for k, part in zip(fed.drives.numbers, fed.drives.parts(gu)):
                # zeros of outputs that do not depend on it
                value = result[k]
                part.zero_() if value is None else part.copy_(value)
            result[self.first : self.first] = fed.to_firsts(None, of_past, state)
        else:
            gu, to_inputs, to_state, sums, of_steps = self.way.backward(fed, behind, cotangents)
            result = [*to_inputs]
            result += [*to_state] if state else [None] * (self.first - kernels.n_inputs)
            result += fed.to_firsts(gu, of_past, state)
            kinds, layout = kernels.spec.params, self.layout
            for index, value, total in zip(kernels.tensor_params, tensors[moving:], sums):
                channels = fed.channels[index]
                result.append(
                    None if total is None else gradient(kinds[index], total, value, value.shape, layout, channels)
                )
        for k in fed.drives.numbers:
            result[k] = result[k] if needs[k] else None
        for number, (feedback, at) in enumerate(zip(fed.feedbacks, self.weights)):
            spikes = kernels.program.outputs[feedback.output].op == "spike" and kernels.backend.quick_split
            split, dtype = kernels.backend.split if spikes else None, fed.matrices[number][0].dtype
            result.append(_of_weight(gu, fed, number, outs.get(feedback.output), split) if needs[at] else None)
            if feedback.bias:
                result.append(_as(dtype, _of_bias(gu, fed, feedback, of_steps)) if needs[at + 1] else None)
        return gu, [*result, None] if kernels.delays else result

    def _constant(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], us: Sequence[Tensor], cotangents: Cotangents
    ) -> List[Any]:
        """Gradients of the inputs, of the program's states and of its parameters, of a call whose inputs are ``u`` and
        into which nothing comes back.
        """
        kernels, moving = self.kernels.detached(len(us[0])), self.moving
        drives = dict(zip(self.drives.numbers, us))
        tensors = [drives.get(k, value) for k, value in enumerate(saved[: self.first])]
        tensors += saved[moving : self.weight]
        needs = (
            *cotangents.needed_inputs(kernels.n_inputs, self.drives.numbers),
            *[cotangents.state] * (self.first - kernels.n_inputs),
            *cotangents.learn,
        )
        plan = kernels.plan(self.call, tensors, needs, tuple(self.views[: self.weight - moving]))
        grads = (*cotangents.outputs, *cotangents.final, *cotangents.trace)
        checkpoints = plan.forward(numbers, tensors)[plan.n_results :] if plan.n_checkpoints else ()
        return plan.backward(numbers, (*tensors, *checkpoints), grads, needs)

    def _fed(self, numbers: Sequence[Any], tensors: Sequence[Tensor], packed: Optional[Tensor] = None) -> FeedbackCall:
        """The tensors of a call by what they are. ``packed``: the drives as they are given."""
        kernels, spec = self.kernels, self.kernels.spec
        given = tensors[: kernels.n_inputs]
        inputs = [value if k in self.drives.numbers else value.contiguous() for k, value in enumerate(given)]
        state: Sequence[Tensor] = ()
        firsts: Sequence[Tensor] = ()
        delays = None
        if self.call.has_initial_state:
            state = [value.contiguous() for value in tensors[kernels.n_inputs : self.first]]
            firsts = [value.contiguous() for value in tensors[self.first : self.first + len(kernels.backs)]]
        if kernels.delays:
            past = tensors[self.moving - 1]
            delays = Delays(tensors[-1], past.shape[-1], past)
        params = [*numbers[: len(spec.params)]]
        for index, value in zip(kernels.tensor_params, tensors[self.moving : self.weight]):
            kind = spec.params[index]
            params[index] = fitted_param(kind, value, value.shape, self.layout)
            if kind == "full" and kernels.backend.owns_outputs:
                params[index] = params[index].reshape(-1)
        matrices = [
            (tensors[at], tensors[at + 1] if feedback.bias else None)
            for feedback, at in zip(kernels.feedbacks, self.weights)
        ]
        return FeedbackCall(
            self.call, self.shape, inputs, state, firsts, tuple(params), self.channels, matrices,
            kernels.feedbacks, kernels.backs, self.drives, delays, packed,
        )  # fmt: skip


class FedRunner(KernelRunner):
    """Runs one program with feedback under one spec."""

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        self.fed = FedKernels(backend, program, spec)
        super().__init__(backend, program, self.fed.steps.spec)
        #: No key: the inherited op computes one step without feedback, and there is no op of a whole call.
        self.graph_key = ""

    def bind(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Sequence[ParamValue],
        views: Sequence[Optional[Tuple[int, ...]]],
        single: bool,
    ) -> Optional[BoundCall]:
        """Bound call for calls that are one launch, of a neuron whose parameters are numbers. Elsewhere the product of
        every step takes longer than binding saves.
        """
        fed, count = self.fed, len(self.program.params)
        weight: Any = params[count]
        if fed.n_own or fed.delays or fed.way(weight) is not fed.launches:
            return None
        plan = self._plan(fed.launches, (), (*inputs, *(state or ()), *params[count:]), state is not None)
        n, m = fed.n_outputs, fed.n_outputs + fed.n_final

        def call(inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]) -> Any:
            tensors: Any = (*inputs, *(state or ()), *params[count:])
            if plan.save:
                results: Sequence[Tensor] = apply((plan, params), *tensors)
            else:
                results = plan.forward(params, tensors)
            return tuple(results[:n]), tuple(results[n:m]) if fed.n_final else None

        return call

    def _plan(
        self,
        way: Union[FeedbackSteps, FeedbackLaunch],
        record: Sequence[str],
        tensors: Sequence[Any],
        has_initial_state: bool,
        packed: Tuple[int, ...] = (),
    ) -> FedPlan:
        """The plan of a call with these tensors."""
        wants = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
        return FedPlan(self.fed, way, Call(tuple(record), has_initial_state), tensors, wants, packed)

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """Implementation of :meth:`spikecore.backend.Backend.compile`."""
        return self._run((), inputs, state, params, record)

    def packed(self, numbers: Tuple[int, ...]) -> Optional[Runner]:
        """Implementation of :func:`spikecore._base.running.packed`: neither inputs nor their gradients are copied."""
        fed = self.fed
        takes = fed.backend.side_by_side and len(fed.feedbacks) == 1 and len(numbers) > 1 and numbers == fed.drives
        return partial(self._run, numbers) if takes else None

    def _run(
        self,
        packed: Tuple[int, ...],
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        record: Tuple[str, ...],
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        x, count, compute = inputs[0], len(self.program.params), self.spec.compute
        x = x.detach()[..., : x.shape[-1] // len(packed)] if packed else x
        arguments = tuple([value.to(compute) if isinstance(value, Tensor) else value for value in params[:count]])
        weights: Any = params[count:]
        longest = weights[-1] if self.fed.delays else 0
        way = self.fed.way(weights[0])
        # a launch of all steps begins at rest by itself
        if state is None and (way is self.fed.steps or self.learnt_initial or self.fed.delays):
            state = self._start(x, arguments)
            state = (*state, x.new_zeros((*x.shape[1:], longest))) if self.fed.delays else state
        tensors = (*inputs, *(state or ()), *[value for value in (*arguments, *weights) if isinstance(value, Tensor)])
        self._followed_by()
        plan = self._plan(way, record, tensors, state is not None, packed)
        every = (*arguments, *weights)
        if plan.save:
            results: Sequence[Tensor] = KernelCall.apply((plan, every), *tensors)
        else:
            results = plan.forward(every, tensors)
        k, n = self.fed.n_outputs, self.fed.n_outputs + self.fed.n_final
        return tuple(results[:k]), tuple(results[k:n]) if self.fed.n_final else None, tuple(results[n:])

    def _start(self, x: Tensor, params: Tuple[ParamValue, ...]) -> Tensors:
        """The states and the outputs before the first step, where none is given."""
        shape, program, compute, count = x.shape[1:], self.program, self.spec.compute, len(self.fed.backs)
        values = dict(zip(program.params, params))
        starts: List[Any] = [values[str(node.attr)] if node.op == "param" else node.attr for node in program.initial]
        constant = all(node.op in ("const", "param") for node in program.initial)
        if not constant or any(isinstance(start, Tensor) for start in starts):
            # by autograd, since the start may depend on a parameter that is learnt
            return (*self._at_rest(x.device, shape, params), *x.new_zeros((count, *shape)).unbind(0))
        if x.dtype == compute and not any(starts):
            # one launch for all
            return x.new_zeros((len(starts) + count, *shape)).unbind(0)
        states = [x.new_full(shape, start, dtype=compute) for start in starts]
        return (*states, *x.new_zeros((count, *shape)).unbind(0))


def _as(dtype: torch.dtype, value: Tensor) -> Tensor:
    """``value.to(dtype)``, without a call of torch where that is the same."""
    return value if value.dtype == dtype else value.to(dtype)


def _of_weight(gu: Tensor, fed: FeedbackCall, number: int, out: Optional[Tensor], split: Optional[Split]) -> Tensor:
    """The gradient of a weight: the cotangents of drives times the outputs of the steps before. ``split``: of a
    backend, where these are spikes.
    """
    feedback, (weight, _), steps, width = fed.feedbacks[number], fed.matrices[number], fed.shape[0], fed.shape[-1]
    total, dtype = torch.empty_like(weight, memory_format=torch.contiguous_format), weight.dtype
    first = fed.firsts[fed.backs.index(feedback.output)] if fed.firsts else None
    if fed.delays is not None:
        history = torch.cat([fed.memory(0).history, out])  # type: ignore[list-item]  # saved for it
        arrived = fed.delays.arriving(history, 0, steps).reshape(-1, width)
        return torch.mm(_as(dtype, gu.reshape(-1, width)).t(), _as(dtype, arrived), out=total)
    before = out.reshape(-1, width)  # type: ignore[union-attr]  # saved for it
    batch = len(before) // steps
    before = before[: len(before) - batch]
    stacked = first is None and split is None and fed.is_stacked and before.dtype == gu.dtype == dtype
    if stacked and len(before) <= FEW_ROWS:
        # one launch for all inputs
        later = gu[:, 1:].flatten(1, -2).transpose(1, 2)
        before = before.expand(len(gu), *before.shape)
        return torch.bmm(later, before, out=total.view(len(gu), width, width)).view_as(total)
    for drive, part in fed.pairs(number, gu, total):
        every = _as(dtype, drive.flatten(0, -2))
        later = every[batch:]
        if split is not None and before.dtype == later.dtype and gradient_is_quicker(later):
            part.copy_(of_gradient(later, before, split))
        else:
            torch.mm(later.t(), _as(dtype, before), out=part)
        if first is not None:
            # it may be no spike
            part.addmm_(every[:batch].t(), first.reshape(-1, width).to(dtype))
    return total


def _of_bias(gu: Tensor, fed: FeedbackCall, feedback: Feedback, total: Optional[Tensor]) -> Tensor:
    """The gradient of the bias: the sum of the cotangents of all inputs, from that over the steps if a launch gave it.
    Over the steps first: torch's one sum of rows took 27 us on an H200 where both take 10 (T = 100, B = 256, H = 128).
    """
    compute, width = compute_dtype(gu.dtype), fed.shape[-1]
    if fed.is_stacked:
        return gu.sum(1, dtype=compute).view(len(gu), -1, width).sum(1).flatten()
    each = [drive.sum(0, dtype=compute) if total is None else total for drive in fed.drives.of(gu, feedback)]
    sums = [value.view(-1, gu.shape[-1]).sum(0) for value in each]
    return sums[0] if len(sums) == 1 else torch.cat(sums)
