"""Feedback through a matrix: all steps of a call as one node of autograd.

``(y, s)[t] = program(x[t] + r[t], s[t-1])`` with ``r[t] = y[t-1] @ W.T + b``. The program, its adjoint and its kernels
stay as they are. With ``u[t] = x[t] + r[t]`` as its input, backward is the program's own, where the cotangent of
``y[t]`` is ``grad_out[t] + gu[t+1] @ W``, and the gradients of ``x`` and ``u`` are the same. The gradient of ``W`` is
one product over all steps at the end.

- Forward keeps ``u``, from which the states come again without a product, and the outputs where the weight is learnt.
- Where the output that comes back is a constant, backward is that of a call without feedback whose input is ``u``.
- A backend may have launches for all steps of a call (:meth:`~spikecore.kernels.KernelBackend.feeds_back`). For any
  other, a step is one product and one launch, in either direction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore._base.running import BoundCall
from spikecore.backend import MAX_STATIC_STEPS, Feedback, ParamValue, Spec, Tensors
from spikecore.context import no_autocast
from spikecore.dtypes import compute_dtype
from spikecore.kernels._autograd import KernelCall, apply
from spikecore.kernels._call import Call, Kernels, channels_of
from spikecore.kernels._delays import Delays
from spikecore.kernels._feedback_steps import Cotangents, FeedbackCall, FeedbackLaunch, FeedbackSteps
from spikecore.kernels._layout import Layout, fitted_param, gradient, resolved
from spikecore.kernels._runner import KernelRunner
from spikecore.kernels._spike_products import Split, gradient_is_quicker, of_gradient
from spikecore.lang import Program

if TYPE_CHECKING:
    from spikecore.kernels._backend import KernelBackend


class FedKernels(Kernels):
    """One program with feedback under one spec. Behind the states of a call stands the last output, behind its
    parameters the weight and, if there is one, the bias.
    """

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        super().__init__(backend, program, replace(spec, learn=spec.learnt(program), feedback=None))
        #: Feedback: its output, its input, and whether it is constant.
        self.fed = spec.feedback or Feedback()
        #: True if the fed-back output is spikes of 0 and 1.
        self.spikes = program.outputs[self.fed.output].op == "spike"
        self.n_own, count = len(self.tensor_params), len(program.params)
        #: The last output and, with delays, the outputs before it.
        self.n_fed = 1 + self.fed.delays
        self.n_states += self.n_fed
        self.n_final = self.n_states if spec.final else 0
        behind = 1 + self.fed.bias + self.fed.delays
        self.tensor_params = (*self.tensor_params, *range(count, count + behind))
        self.steps, self.launches = FeedbackSteps(backend, program, spec), FeedbackLaunch(backend, program, spec)
        self.feedback_spec = spec
        self._detached: Dict[Optional[int], Kernels] = {}

    def way(self, weight: Tensor) -> Union[FeedbackSteps, FeedbackLaunch]:
        """All steps of a call with this weight by one launch, or a launch for each."""
        spec = self.feedback_spec
        whole = weight.dtype == spec.dtype and self.backend.feeds_back(self.program, spec, weight.shape[0])
        return self.launches if whole else self.steps

    def detached(self, steps: int) -> Kernels:
        """Kernels of so many steps without feedback, for gradients if the fed-back output is a constant."""
        fixed = steps if steps <= MAX_STATIC_STEPS else None
        if fixed not in self._detached:
            self._detached[fixed] = Kernels(self.backend, self.program, replace(self.spec, steps=fixed))
        return self._detached[fixed]


class FedPlan:
    """A call with feedback, as :class:`~spikecore.kernels._call.CallPlan` is one without.

    way: :meth:`FedKernels.way`. wants: for each tensor, whether its gradient may be asked for.
    """

    added, eager = (), True

    def __init__(
        self,
        kernels: FedKernels,
        way: Union[FeedbackSteps, FeedbackLaunch],
        call: Call,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
    ) -> None:
        self.kernels, self.way, self.call, self.count = kernels, way, call, len(tensors)
        self.moving, self.n_results = kernels.n_moving(call), kernels.n_results(call)
        #: Behind the program's states, before the last output.
        self.first = self.moving - (kernels.n_fed if call.has_initial_state else 0)
        self.views = [tuple(value.shape) for value in tensors[self.moving :]]
        self.weight = self.moving + kernels.n_own
        #: ``[T, ..., H]``, and how its steps and parameters per channel lie.
        self.shape = tuple(tensors[0].shape)
        self.layout = Layout(self.shape[1:], None)
        self.channels = channels_of(kernels, self.layout, self.views[: kernels.n_own])
        #: True if the output is saved, for the gradient of the weight.
        self.output = wants[self.weight]
        self.save = True in wants

    def forward(self, numbers: Sequence[Any], tensors: Sequence[Tensor]) -> List[Tensor]:
        """Outputs, final states, the last output and recorded states; and, for backward, what is saved."""
        tensors = resolved(tensors)
        fed = self._fed(numbers, tensors)
        back = fed.memory()
        outputs, final, trace, saved = self.way.forward(fed, tensors[: self.kernels.n_inputs], back, self.save)
        if self.kernels.n_final:
            final = [*final, outputs[self.kernels.fed.output][-1].clone()]
            final += [] if fed.delays is None else [fed.delays.behind(back.history)]
        return [*outputs, *final, *trace, *saved]

    def to_save(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors that autograd saves."""
        into, output = self.kernels.fed.into, self.kernels.fed.output
        inputs = (*tensors[:into], *tensors[into + 1 :])
        return (*inputs, *results[output : output + self.output], *results[self.n_results :])

    def restored(self, saved: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors of a call, in their number and order. The stand-in for the input has its shape, and nobody reads its
        values.
        """
        into = self.kernels.fed.into
        return (*saved[:into], saved[self.count - 1 + self.output], *saved[into:])

    def backward(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> List[Optional[Tensor]]:
        """Gradients of the tensors of a call; None where not wanted."""
        # within autocast a product of float32 would be one of half types, to which the sums behind it do not fit
        with no_autocast(saved[0].device.type):
            return self._gradients(numbers, resolved(saved), resolved(grads), needs)

    def _gradients(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> List[Optional[Tensor]]:
        kernels, moving, n_final = self.kernels, self.moving, self.kernels.n_final
        tensors, (*behind,) = saved[: self.count], saved[self.count :]
        out = behind.pop(0) if self.output else None
        fed, n = self._fed(numbers, tensors), kernels.n_outputs
        outputs, final = [*grads[:n]], grads[n : n + n_final]
        to_out = outputs[fed.feedback.output]
        final, ends = final[: n_final - kernels.n_fed], final[n_final - kernels.n_fed :]
        outputs[fed.feedback.output], of_past = fed.with_ends(to_out, ends)
        learn = tuple(needs[moving : self.weight])
        state = any(needs[kernels.n_inputs : moving])
        cotangents = Cotangents(outputs, tuple(final), tuple(grads[n + n_final :]), state, learn, needs)
        result: List[Optional[Tensor]]
        of_steps = None
        if fed.feedback.detach:
            result = self._apart(numbers, tensors, behind[0], cotangents)
            gu: Any = result[fed.feedback.into]
            gu = torch.zeros_like(behind[0]) if gu is None else gu  # of outputs that do not depend on it
            result[self.first : self.first] = fed.to_first(None, of_past, state)
        else:
            to_inputs, to_state, sums, of_steps = self.way.backward(fed, behind, cotangents)
            gu = to_inputs[fed.feedback.into]
            result = [*to_inputs]
            result += [*to_state] if state else [None] * (self.first - kernels.n_inputs)
            result += fed.to_first(gu, of_past, state)
            kinds, layout = kernels.spec.params, self.layout
            for index, value, total in zip(kernels.tensor_params, tensors[moving:], sums):
                channels = fed.channels[index]
                result.append(
                    None if total is None else gradient(kinds[index], total, value, value.shape, layout, channels)
                )
        if not needs[fed.feedback.into]:
            result[fed.feedback.into] = None
        to_weight, *to_bias = needs[self.weight : self.count - fed.feedback.delays]
        split = kernels.backend.split if kernels.spikes and kernels.backend.quick_split else None
        result.append(_of_weight(gu, fed, out, split) if to_weight else None)  # type: ignore[arg-type]  # saved for it
        result += [_as(fed.weight.dtype, _of_bias(gu, of_steps)) if wants else None for wants in to_bias]
        return [*result, None] if fed.feedback.delays else result

    def _apart(self, numbers: Sequence[Any], saved: Sequence[Tensor], us: Tensor, cotangents: Cotangents) -> List[Any]:
        """Gradients of the inputs, of the program's states and of its parameters, of a call whose input is ``u`` and
        into which nothing comes back.
        """
        kernels, moving, into = self.kernels.detached(len(us)), self.moving, self.kernels.fed.into
        tensors = [*saved[:into], us, *saved[into + 1 : self.first]]
        tensors += saved[moving : self.weight]
        needs = (
            *cotangents.needed_inputs(kernels.n_inputs, into),
            *[cotangents.state] * (self.first - kernels.n_inputs),
            *cotangents.learn,
        )
        plan = kernels.plan(self.call, tensors, needs, tuple(self.views[: self.weight - moving]))
        grads = (*cotangents.outputs, *cotangents.final, *cotangents.trace)
        checkpoints = plan.forward(numbers, tensors)[plan.n_results :] if plan.n_checkpoints else ()
        return plan.backward(numbers, (*tensors, *checkpoints), grads, needs)

    def _fed(self, numbers: Sequence[Any], tensors: Sequence[Tensor]) -> FeedbackCall:
        """The tensors of a call by what they are."""
        kernels, spec, into = self.kernels, self.kernels.spec, self.kernels.fed.into
        inputs = [value if k == into else value.contiguous() for k, value in enumerate(tensors[: kernels.n_inputs])]
        state: Sequence[Tensor] = ()
        first = delays = None
        if self.call.has_initial_state:
            state = [value.contiguous() for value in tensors[kernels.n_inputs : self.first]]
            first = tensors[self.first].contiguous()
        weight, *bias = tensors[self.weight :]
        if kernels.fed.delays:
            past = tensors[self.first + 1]
            delays = Delays(bias.pop(), past.shape[-1], past)
        params = [*numbers[: len(spec.params)]]
        for index, value in zip(kernels.tensor_params, tensors[self.moving : self.weight]):
            kind = spec.params[index]
            params[index] = fitted_param(kind, value, value.shape, self.layout)
            if kind == "full" and kernels.backend.owns_outputs:
                params[index] = params[index].reshape(-1)
        some_bias = bias[0] if bias else None
        return FeedbackCall(
            self.call, self.shape, inputs, state, first, tuple(params), self.channels, weight, some_bias,
            kernels.fed, delays,
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
        if fed.n_own or fed.fed.delays or fed.way(weight) is not fed.launches:
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
    ) -> FedPlan:
        """The plan of a call with these tensors."""
        wants = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
        return FedPlan(self.fed, way, Call(tuple(record), has_initial_state), tensors, wants)

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """Implementation of :meth:`spikecore.backend.Backend.compile`."""
        x, count, compute = inputs[self.fed.fed.into], len(self.program.params), self.spec.compute
        arguments = tuple([value.to(compute) if isinstance(value, Tensor) else value for value in params[:count]])
        weights: Any = params[count:]
        longest = weights[-1] if self.fed.fed.delays else 0
        way = self.fed.way(weights[0])
        # a launch of all steps begins at rest by itself
        if state is None and (way is self.fed.steps or self.learnt_initial or self.fed.fed.delays):
            state = self._start(x, arguments)
            state = (*state, x.new_zeros((*x.shape[1:], longest))) if self.fed.fed.delays else state
        tensors = (*inputs, *(state or ()), *[value for value in (*arguments, *weights) if isinstance(value, Tensor)])
        self._followed_by()
        plan = self._plan(way, record, tensors, state is not None)
        every = (*arguments, *weights)
        if plan.save:
            results: Sequence[Tensor] = KernelCall.apply((plan, every), *tensors)
        else:
            results = plan.forward(every, tensors)
        k, n = self.fed.n_outputs, self.fed.n_outputs + self.fed.n_final
        return tuple(results[:k]), tuple(results[k:n]) if self.fed.n_final else None, tuple(results[n:])

    def _start(self, x: Tensor, params: Tuple[ParamValue, ...]) -> Tensors:
        """The states and the output before the first step, where none is given."""
        shape, program, compute = x.shape[1:], self.program, self.spec.compute
        values = dict(zip(program.params, params))
        starts: List[Any] = [values[str(node.attr)] if node.op == "param" else node.attr for node in program.initial]
        constant = all(node.op in ("const", "param") for node in program.initial)
        if not constant or any(isinstance(start, Tensor) for start in starts):
            # by autograd, since the start may depend on a parameter that is learnt
            return (*self._at_rest(x.device, shape, params), x.new_zeros(shape))
        if x.dtype == compute and not any(starts):
            # one launch for all
            return x.new_zeros((len(starts) + 1, *shape)).unbind(0)
        return (*[x.new_full(shape, start, dtype=compute) for start in starts], x.new_zeros(shape))


def _as(dtype: torch.dtype, value: Tensor) -> Tensor:
    """``value.to(dtype)``, without a call of torch where that is the same."""
    return value if value.dtype == dtype else value.to(dtype)


def _rows(value: Tensor, first: int, steps: int) -> Tensor:
    """So many steps of ``[T, ..., H]`` from the first one on, as rows ``[K, H]``: one view, not two."""
    value, width = value.contiguous(), value.shape[-1]
    apart = value.numel() // len(value)  # no stride, which may be any number where there is one step
    return value.as_strided((steps * apart // width, width), (width, 1), value.storage_offset() + first * apart)


def _of_weight(gu: Tensor, fed: FeedbackCall, out: Tensor, split: Optional[Split]) -> Tensor:
    """The gradient of the weight: the cotangents of all inputs times the outputs of the steps before. ``split``: of a
    backend, where these are spikes.
    """
    steps, width, dtype = fed.shape[0], fed.shape[-1], fed.weight.dtype
    if fed.delays is not None:
        history = torch.cat([fed.memory(0).history, out])
        arrived = fed.delays.arriving(history, 0, steps).reshape(-1, width)
        return _as(dtype, _rows(gu, 0, steps)).t() @ _as(dtype, arrived)
    later, before = _as(dtype, _rows(gu, 1, steps - 1)), _rows(out, 0, steps - 1)
    if split is not None and before.dtype == later.dtype and gradient_is_quicker(later):
        total = of_gradient(later, before, split)
    else:
        total = torch.mm(later.t(), _as(dtype, before))
    if fed.first is None:
        return total
    # it may be no spike
    return total.addmm_(_as(dtype, _rows(gu, 0, 1)).t(), fed.first.reshape(-1, width).to(dtype))


def _of_bias(gu: Tensor, total: Optional[Tensor]) -> Tensor:
    """The gradient of the bias: the sum of the cotangents of all inputs, from that over the steps if a launch gave it.
    Over the steps first: torch's one sum of rows took 27 us on an H200 where both take 10 (T = 100, B = 256, H = 128).
    """
    if total is None:
        total = gu.sum(0, dtype=compute_dtype(gu.dtype))
    return total.view(-1, gu.shape[-1]).sum(0)
