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
from math import isqrt, prod
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore._base.caches import CALLS, Recent
from spikecore._base.context import no_autocast
from spikecore._base.running import BoundCall
from spikecore.backend import MAX_STATIC_STEPS, Feedback, ParamValue, Spec, Tensors
from spikecore.dtypes import compute_dtype
from spikecore.kernels._autograd import KernelCall, apply
from spikecore.kernels._call import Call, Kernels, channels_of, resolved
from spikecore.kernels._delays import Delays
from spikecore.kernels._layout import Launch, Layout, fitted_param, gradient
from spikecore.kernels._plan import Geometry, saved_states
from spikecore.kernels._runner import KernelRunner
from spikecore.kernels._spike_products import SpikesTimes, Split, gradient_is_quicker, is_quicker, of_gradient
from spikecore.lang import Program

if TYPE_CHECKING:
    from spikecore.kernels._backend import KernelBackend


class FedKernels(Kernels):
    """One program with feedback under one spec. Behind the states of a call stands the last output, behind its
    parameters the weight and, if there is one, the bias.
    """

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        super().__init__(backend, program, replace(spec, learn=spec.learnt(program), feedback=None))
        #: What comes back: of which output, into which input, and whether it is constant.
        self.fed = spec.feedback or Feedback()
        #: Whether what comes back is spikes of 0 and 1.
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
        """What computes so many steps without feedback: gradients where the output that comes back is a constant."""
        fixed = steps if steps <= MAX_STATIC_STEPS else None
        if fixed not in self._detached:
            self._detached[fixed] = Kernels(self.backend, self.program, replace(self.spec, steps=fixed))
        return self._detached[fixed]


class FedPlan:
    """A call with feedback, as :class:`~spikecore.kernels._call.CallPlan` is one without.

    way: :meth:`FedKernels.way`. wants: for each tensor, whether its gradient may be asked for. whole: whether the input
    itself is kept, which only another runner reads that may have to compute the call anew.
    """

    added, eager = (), True

    def __init__(
        self,
        kernels: FedKernels,
        way: Union[FeedbackSteps, FeedbackLaunch],
        call: Call,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
        whole: bool,
    ) -> None:
        self.kernels, self.way, self.call, self.whole, self.count = kernels, way, call, whole, len(tensors)
        self.moving, self.n_results = kernels.n_moving(call), kernels.n_results(call)
        #: Behind the program's states, before the last output.
        self.first = self.moving - (kernels.n_fed if call.has_initial_state else 0)
        self.views = [tuple(value.shape) for value in tensors[self.moving :]]
        self.weight = self.moving + kernels.n_own
        #: ``[T, ..., H]``, and how its steps and parameters per channel lie.
        self.shape = tuple(tensors[0].shape)
        self.layout = Layout(self.shape[1:], None)
        self.channels = channels_of(kernels, self.layout, self.views[: kernels.n_own])
        #: Whether the output is saved, for the gradient of the weight.
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
        """What autograd saves."""
        into, output = self.kernels.fed.into, self.kernels.fed.output
        inputs = tensors if self.whole else (*tensors[:into], *tensors[into + 1 :])
        return (*inputs, *results[output : output + self.output], *results[self.n_results :])

    def restored(self, saved: Sequence[Tensor]) -> Sequence[Tensor]:
        """As many tensors as a call had. What stands in the place of the input has its shape, and nobody reads its
        values.
        """
        if self.whole:
            return saved
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
        #: What it inherits is of one step without feedback: there is no op of a whole call.
        self.graph_key = ""

    def bind(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Sequence[ParamValue],
        views: Sequence[Optional[Tuple[int, ...]]],
        single: bool,
    ) -> Optional[BoundCall]:
        """As of other runners, of calls that are one launch, of a neuron whose parameters are numbers: a product of
        every step takes longer than what that saves.
        """
        fed, count = self.fed, len(self.program.params)
        weight: Any = params[count]
        if fed.n_own or fed.fed.delays or fed.way(weight) is not fed.launches:
            return None
        plan = self._plan(fed.launches, (), (*inputs, *(state or ()), *params[count:]), state is not None)
        instead, n, m = self.instead, fed.n_outputs, fed.n_outputs + fed.n_final

        def call(inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]) -> Any:
            tensors: Any = (*inputs, *(state or ()), *params[count:])
            if plan.save:
                results: Sequence[Tensor] = apply((plan, params, instead), *tensors)
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
        return FedPlan(self.fed, way, Call(tuple(record), has_initial_state), tensors, wants, self.instead is not None)

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """See :meth:`spikecore.backend.Backend.compile`."""
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
        self._refuse(tensors)
        plan = self._plan(way, record, tensors, state is not None)
        every = (*arguments, *weights)
        if plan.save:
            results: Sequence[Tensor] = KernelCall.apply((plan, every, self.instead), *tensors)
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


def _through(step: Tensor, weight: Tensor) -> Tensor:
    """The cotangent of an output from that of the next input."""
    return (step.to(weight.dtype) @ weight).to(step.dtype)


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


class Memory(NamedTuple):
    """Where the output that comes back is written: behind the outputs before the call, with delays."""

    history: Any
    output: Optional[Tensor]

    def outputs(self, fed: FeedbackCall, like: Tensor, count: int) -> List[Tensor]:
        """The outputs of a call, to be filled."""
        outputs = [like.new_empty(fed.shape) for _ in range(count)]
        if self.output is not None:
            outputs[fed.feedback.output] = self.output
        return outputs


class FeedbackCall(NamedTuple):
    """A call with feedback: its tensors, in natural layout."""

    #: The call of its steps, from a given state.
    call: Call
    #: ``[T, ..., H]``.
    shape: Tuple[int, ...]
    #: As they came; in backward nobody reads that which is added to.
    inputs: Sequence[Tensor]
    #: The first states of the program, and the output before the first step; contiguous. None of them at rest, if a
    #: launch takes all steps and there are no delays.
    state: Sequence[Tensor]
    first: Any
    #: As a kernel takes them.
    params: Tuple[Any, ...]
    channels: Tuple[Tuple[int, int], ...]
    weight: Tensor
    bias: Optional[Tensor]
    feedback: Feedback
    delays: Optional[Delays] = None

    def memory(self, steps: Optional[int] = None) -> Memory:
        """Where the output that comes back is written."""
        if self.delays is None:
            return Memory(None, None)
        history = self.delays.history(self.first, self.shape[0] if steps is None else steps)
        # no view, which autograd would treat in a way of its own
        at, shape = self.delays.rows * history[0].numel(), (history.shape[0] - self.delays.rows, *self.shape[1:])
        return Memory(history, history.new_empty(0).set_(history.untyped_storage(), at, shape, history.stride()))

    def with_ends(
        self, to_out: Optional[Tensor], ends: Sequence[Optional[Tensor]]
    ) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """The cotangent of the output that comes back, with those of the states that are outputs, too; and, in rows,
        what is for outputs before the call.
        """
        last, past = (*ends, None, None)[:2]
        if last is None and past is None:
            return to_out, None
        steps, total = (
            self.shape[0],
            self.inputs[self.feedback.into].new_zeros(self.shape) if to_out is None else to_out.contiguous().clone(),
        )
        if last is not None:
            total[-1] += last
        if past is None:
            return total, None
        rows = past.movedim(-1, 0)
        inside = min(steps - 1, len(rows))
        total[steps - 1 - inside : steps - 1] += rows[len(rows) - inside :]
        return total, rows[: len(rows) - inside]

    def to_first(self, gu: Optional[Tensor], of_past: Optional[Tensor], needed: bool) -> List[Optional[Tensor]]:
        """The gradients of the last output before the call and, with delays, of those before it. ``gu`` are those of
        the drive, None where the output is a constant.
        """
        if self.first is None:
            return []
        if self.delays is None:
            return [None if gu is None or not needed else _through(gu[0], self.weight)]
        if not needed or (gu is None and of_past is None):
            return [None, None]
        came = (
            self.first.new_zeros((1, *self.shape[1:])) if gu is None else _through(gu[: self.delays.rows], self.weight)
        )
        total = self.delays.to_earlier(came, of_past)
        return [total[-1], total[:-1].movedim(0, -1)]

    def geometry(self, steps: int) -> Geometry:
        """The sizes of a launch of so many steps."""
        return Geometry(steps, prod(self.shape[1:]), self.channels)


class Cotangents(NamedTuple):
    """The cotangents of a call, and which gradients are wanted."""

    outputs: Sequence[Optional[Tensor]]
    #: Of the program's states, and of those that were recorded.
    final: Tuple[Optional[Tensor], ...]
    trace: Tuple[Optional[Tensor], ...]
    #: Whether the gradients of the first states are wanted, and of which parameters that are tensors.
    state: bool
    learn: Tuple[bool, ...]
    #: Whether the gradient of each tensor of the call is wanted, inputs first.
    needs: Sequence[bool]

    def needed_inputs(self, count: int, into: int) -> Tuple[bool, ...]:
        """Of which of so many inputs a kernel finds the gradient: always of that which is added to."""
        return tuple([wants or k == into for k, wants in enumerate(self.needs[:count])])


#: Outputs, final states, recorded states, and what is saved for backward.
Results = Tuple[List[Tensor], List[Tensor], List[Tensor], List[Tensor]]
#: Gradients of the inputs, of the first states, and of the parameters that are learnt, in parts; and the sum over the
#: steps of that of the input which is added to, if a launch gives it.
Gradients = Tuple[List[Any], Sequence[Tensor], List[Optional[Tensor]], Optional[Tensor]]


def filling(launch: Launch, count: int) -> Launch:
    """A launch of a backend with ``owns_outputs`` as one that fills its last ``count`` groups of contiguous tensors."""

    def fills(geometry: Geometry, *groups: Any) -> Any:
        steps, neurons = geometry[:2]
        flat = list(groups[:-count])
        for index, sizes in (
            (0, (steps, neurons)),
            (1, (neurons,)),
            (4, (steps, neurons)),
            (5, (neurons,)),
            (6, (steps, neurons)),
        ):
            if index < len(flat):
                flat[index] = tuple([value.view(sizes) for value in flat[index]])
        results = launch(geometry, *flat)
        for targets, values in zip(groups[-count:], results):
            for target, value in zip(targets, values):
                target.copy_(value.view_as(target))
        return results[count] if len(results) > count else None

    return fills


class FeedbackLaunch:
    """One launch for all steps, of a backend that feeds back by itself."""

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        self.kernels = Kernels(backend, program, replace(spec, learn=spec.learnt(program)))
        #: By what of a call decides its plan, which is quicker to compare than a plan.
        self._launches: Recent[Any, Launch] = Recent(CALLS)

    def forward(self, fed: FeedbackCall, inputs: Sequence[Tensor], memory: Memory, save: bool) -> Results:
        """All steps of the inputs."""
        kernels, geometry, shape = self.kernels, self._geometry(fed), fed.shape
        launch = self._launches.get_or(
            (fed.call, save), lambda: kernels.launch(kernels.forward_plan(fed.call, save), geometry)
        )
        compute, chunk = kernels.spec.compute, kernels.chunk
        inputs = [value.contiguous() for value in inputs]
        x = inputs[fed.feedback.into]
        outputs = memory.outputs(fed, x, kernels.n_outputs)
        final = [x.new_empty(shape[1:], dtype=compute) for _ in range(kernels.n_final)]
        trace = [x.new_empty(shape, dtype=compute) for _ in fed.call.record]
        to_save = [torch.empty_like(x)] if save else []
        if save and chunk and not fed.feedback.detach:
            states = saved_states(kernels.program, kernels.spec, fed.call.has_initial_state)
            to_save += [x.new_empty(((shape[0] - 1) // chunk, *shape[1:]), dtype=compute) for _ in states]
        bias = () if fed.bias is None else (fed.bias.contiguous(),)
        params = (*fed.params, fed.weight.contiguous(), *bias, *self._lags(fed))
        state = (*fed.state, fed.first) if fed.call.has_initial_state else ()
        launch(geometry, inputs, state, params, outputs, final, trace, to_save)
        return outputs, final, trace, to_save

    def backward(self, fed: FeedbackCall, saved: Sequence[Tensor], cotangents: Cotangents) -> Gradients:
        """All steps, from the last to the first; ``saved`` is what :meth:`forward` saved."""
        (us, *checkpoints), kernels, geometry = saved, self.kernels, self._geometry(fed)
        into, output = fed.feedback.into, fed.feedback.output
        every = (*cotangents.outputs, *cotangents.final, *cotangents.trace)
        present = tuple([grad is not None or k == output for k, grad in enumerate(every)])
        needs_inputs = cotangents.needed_inputs(kernels.n_inputs, into)
        needs = (*needs_inputs, *[cotangents.state] * len(fed.state), *cotangents.learn)
        launch = self._launches.get_or(
            (fed.call, present, needs),
            lambda: kernels.launch(kernels.backward_plan(fed.call, present, needs), geometry),
        )
        compute, step, new = kernels.spec.compute, fed.shape[1:], us.new_empty
        grads = [None if grad is None else _steps(grad) for grad in cotangents.outputs]
        if grads[output] is None:
            grads[output] = new(step).zero_().expand(fed.shape)
        final = cotangents.final if any(grad is not None for grad in cotangents.final) else ()
        ends = [new(step, dtype=compute).zero_() if g is None else g.contiguous() for g in final]
        traces = [_steps(g) for g in cotangents.trace if g is not None]
        gus = [torch.empty_like(us, memory_format=torch.contiguous_format) if wants else None for wants in needs_inputs]
        to_state = [new(step, dtype=compute) for _ in range(kernels.n_states)] if cotangents.state else []
        params = (*fed.params, fed.weight.contiguous(), *self._lags(fed))
        filled: List[Any] = [*to_state]
        if fed.delays is not None:
            absent = [] if to_state else [None] * kernels.n_states
            filled += [*absent, new((fed.delays.rows, *step), dtype=compute).zero_()]
        sums = launch(
            geometry, _with(fed.inputs, into, us.contiguous()), fed.state, params, (None, *checkpoints),
            [grad for grad in grads if grad is not None], ends, traces,
            [gu for gu in gus if gu is not None], filled,
        )  # fmt: skip
        each = iter(sums if sums is not None else ())
        return gus, to_state, [next(each) if wants else None for wants in cotangents.learn], next(each, None)

    def _lags(self, fed: FeedbackCall) -> Tuple[Tensor, ...]:
        """Delays as numbers of arithmetic, and behind them how many steps may still come back."""
        if fed.delays is None:
            return ()
        return (torch.nn.functional.pad(fed.delays.lags.to(self.kernels.spec.compute), (0, 1), value=fed.delays.rows),)

    def _geometry(self, fed: FeedbackCall) -> Geometry:
        # behind the parameters stand up to three tensors
        channels = (*fed.channels, *[(0, 0)] * 3) if fed.channels else ()
        return Geometry(fed.shape[0], prod(fed.shape[1:]), channels)


def _with(inputs: Sequence[Tensor], into: int, drive: Tensor) -> List[Tensor]:
    """Inputs, with the drive in the place of that which is added to."""
    return [drive if k == into else value for k, value in enumerate(inputs)]


def _steps(grad: Tensor) -> Tensor:
    """A cotangent of all steps, each of them contiguous."""
    return grad if grad.is_contiguous() or (grad.shape[0] and grad[0].is_contiguous()) else grad.contiguous()


class FeedbackSteps:
    """One product and one launch for each step."""

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        self.backend, self.program = backend, program
        #: What one step is compiled for.
        self.spec = replace(spec, steps=1, final=True, learn=spec.learnt(program), feedback=None)
        self.final = spec.final
        self._kernels: Dict[Optional[int], Kernels] = {}

    def kernels(self, steps: int) -> Kernels:
        """What runs so many steps without feedback."""
        fixed = steps if steps <= MAX_STATIC_STEPS else None
        kernels = self._kernels.get(fixed)
        if kernels is None:
            made = Kernels(self.backend, self.program, replace(self.spec, steps=fixed))
            kernels = self._kernels.setdefault(fixed, made)
        return kernels

    def _forward(self, fed: FeedbackCall, call: Call, steps: int) -> Launch:
        kernels = self.kernels(steps)
        launch = kernels.launch(kernels.forward_plan(call, False), fed.geometry(steps))
        return filling(launch, 4) if self.backend.owns_outputs else launch

    def forward(self, fed: FeedbackCall, inputs: Sequence[Tensor], memory: Memory, save: bool) -> Results:
        """All steps of the inputs."""
        into, output, x = fed.feedback.into, fed.feedback.output, inputs[fed.feedback.into]
        compute, (steps, *shape) = self.spec.compute, fed.shape
        new = x.new_empty
        outputs = memory.outputs(fed, x, len(self.program.outputs))
        us = new(fed.shape if save else [1, *shape])
        trace = [new(fed.shape, dtype=compute) for _ in fed.call.record]
        each = chunk_of(steps)
        count = max(1, steps // each) - 1 if save and not fed.feedback.detach else 0
        states = range(len(self.program.states))
        checkpoints = [new([count, *shape], dtype=compute) for _ in states] if count else []
        current: Sequence[Tensor] = fed.state
        # states come and go in turns in two sets of tensors; the first is that of the caller
        spare = [[new(shape, dtype=compute) for _ in states] for _ in range(min(2, steps))]
        launch, geometry = self._forward(fed, fed.call, 1), fed.geometry(1)
        product = _Product(fed, self.backend.split if self.program.outputs[output].op == "spike" else None)
        last = fed.first
        for t in range(steps):
            u = us[t if save else 0]
            if fed.delays is not None:
                last = fed.delays.arriving(memory.history, t, 1)[0]
            torch.add(x[t], product(last, t > fed.delays.longest if fed.delays else t > 0), out=u)
            chunk, inside = divmod(t + 1, each)
            is_checkpoint = checkpoints and not inside and chunk <= count
            following = [values[chunk - 1] for values in checkpoints] if is_checkpoint else spare[t % 2]
            last = outputs[output][t]
            traced, results = [values[t : t + 1] for values in trace], [values[t : t + 1] for values in outputs]
            drives = _with([value[t : t + 1] for value in fed.inputs], into, u[None])
            launch(geometry, drives, current, fed.params, results, following, traced, ())
            current = following
        return outputs, list(current) if self.final else [], trace, [us, *checkpoints] if save else []

    def backward(self, fed: FeedbackCall, saved: Sequence[Tensor], cotangents: Cotangents) -> Gradients:
        """All steps, from the last to the first; ``saved`` is what :meth:`forward` saved."""
        compute, (steps, *shape) = self.spec.compute, fed.shape
        us, *checkpoints = saved
        new, program, into, output = us.new_empty, self.program, fed.feedback.into, fed.feedback.output
        traced = [k for k, grad in enumerate(cotangents.trace) if grad is not None]
        arrived = [name for name, grad in zip(program.states, cotangents.final) if grad is not None]
        outputs = [grad is not None or k == output for k, grad in enumerate(cotangents.outputs)]
        live = program.reach(outputs, tuple([fed.call.record[k] for k in traced]), arrived).live
        # a state that no cotangent reaches has none, at every step
        present = [*outputs, *[name in live for name in program.states]]
        present += [grad is not None for grad in cotangents.trace]
        needs_inputs = cotangents.needed_inputs(len(program.inputs), into)
        plan = self.kernels(1).backward_plan(
            fed.call, present, (*needs_inputs, *[True] * len(program.states), *cotangents.learn)
        )
        launch = self.kernels(1).launch(plan, fed.geometry(1))
        launch = filling(launch, 2) if self.backend.owns_outputs else launch
        gus, to_out = [new(us.shape) if wants else None for wants in needs_inputs], new([1, *shape])
        gu: Any = gus[into]
        sets = [[new(shape, dtype=compute).zero_() for _ in program.states] for _ in range(2)]
        for first, grad in zip(sets[0], cotangents.final):
            if grad is not None:
                first.copy_(grad)
        sums: List[Optional[Tensor]] = [None] * len(plan.learn)
        geometry, back = fed.geometry(1), _Back(fed, to_out)
        before: List[Sequence[Tensor]] = []
        start = steps
        for t in range(steps - 1, -1, -1):
            if t < start:
                start, before = self._again(fed, us, checkpoints, t)
            arriving = [None if g is None else g[t : t + 1] for g in cotangents.outputs]
            back(t, gu[t + 1] if t + 1 < steps else None, arriving[output])
            arriving[output] = to_out
            grads = [g.contiguous() for g in arriving if g is not None]
            drives = _with([value[t : t + 1] for value in fed.inputs], into, us[t : t + 1])
            filled = [value[t : t + 1] for value in gus if value is not None]
            traces = [cotangents.trace[k][t : t + 1].contiguous() for k in traced]  # type: ignore[index]  # these are there
            final, initial = sets[(steps - 1 - t) % 2], sets[(steps - t) % 2]
            parts = launch(
                geometry, drives, before[t - start], fed.params, (), grads,
                final if plan.final else (), traces, filled, initial,
            )  # fmt: skip
            if sums:
                sums = [part if total is None else total + part for total, part in zip(sums, parts)]
        each = iter(sums)
        return gus, sets[steps % 2], [next(each) if wants else None for wants in cotangents.learn], None

    def _again(
        self, fed: FeedbackCall, us: Tensor, checkpoints: Sequence[Tensor], t: int
    ) -> Tuple[int, List[Sequence[Tensor]]]:
        """The first step of the chunk that step ``t`` ends, and the states before each of its steps."""
        shape = fed.shape[1:]
        each = chunk_of(fed.shape[0])
        # the last chunk has what the others leave over, so that none is short
        chunk = min(t // each, max(1, fed.shape[0] // each) - 1)
        start, new = chunk * each, us.new_empty
        first = [values[chunk - 1] for values in checkpoints] if chunk else fed.state
        steps = t - start
        if not steps:
            return start, [first]
        names, compute = self.program.states, self.spec.compute
        trace = [new([steps, *shape], dtype=compute) for _ in names]
        final = [new(shape, dtype=compute) for _ in names]
        launch = self._forward(fed, Call(names, True), steps)
        outputs = [new([steps, *shape]) for _ in self.program.outputs]
        drives = _with([value[start:t] for value in fed.inputs], fed.feedback.into, us[start:t])
        launch(fed.geometry(steps), drives, first, fed.params, outputs, final, trace, ())
        return start, [first, *[[values[k] for values in trace] for k in range(steps)]]


def chunk_of(steps: int) -> int:
    """Steps between two checkpoints: the root of all, so that checkpoints and recomputed states are fewest together;
    more than a kernel is compiled for, so that chunks of all lengths have one kernel.
    """
    return max(MAX_STATIC_STEPS + 2, isqrt(steps))


class _Product:
    """What one step gives to the next: ``y @ W.T + b``, with the bits of ``torch.nn.functional.linear``; where spikes
    are multiplied as exact parts, with its accuracy (:class:`SpikesTimes`). ``split``: of a backend, where these are
    spikes.
    """

    def __init__(self, fed: FeedbackCall, split: Optional[Split]) -> None:
        self.quick: Optional[SpikesTimes] = None
        batch = fed.first.shape[:-1].numel()
        if split is not None and fed.first.dtype == fed.weight.dtype and is_quicker(fed.weight, batch, fed.shape[0]):
            self.quick = SpikesTimes(fed.weight, fed.bias, batch, split)
        self.weight, self.bias = fed.weight.t(), fed.bias
        self.shape, self.rows = fed.shape[1:], (-1, fed.shape[-1])
        like = torch.empty(self.shape, dtype=fed.weight.dtype, device=fed.weight.device)
        self.out = like.view(self.rows)

    def __call__(self, last: Tensor, inside: bool) -> Tensor:
        """For an output of this call, or one before it, which may be no spike."""
        rows = last.view(self.rows).to(self.weight.dtype)
        if self.quick is not None and inside:
            return self.quick(rows).view(self.shape)
        if self.bias is None:
            torch.mm(rows, self.weight, out=self.out)
        else:
            torch.addmm(self.bias, rows, self.weight, out=self.out)
        return self.out.view(self.shape)


class _Back:
    """The cotangent of an output: what arrives, and what comes back from the next step."""

    def __init__(self, fed: FeedbackCall, out: Tensor) -> None:
        self.weight, self.rows, self.out = fed.weight, (-1, fed.shape[-1]), out
        #: With delays, what comes from each step, for earlier outputs.
        self.delays, self.later = fed.delays, None
        if fed.delays is not None:
            self.later = out.new_zeros((fed.shape[0] + fed.delays.rows, *fed.shape[1:]))

    def __call__(self, step: int, following: Optional[Tensor], arriving: Optional[Tensor]) -> None:
        if self.delays is not None and self.later is not None:
            if following is not None:
                self.later[step + 1] = _through(following, self.weight)
            sent = self.delays.sent(self.later, step)
            self.out.copy_(sent[None] if arriving is None else sent + arriving)
            return
        if following is None:
            if arriving is None:
                self.out.zero_()
            else:
                self.out.copy_(arriving)
            return
        rows, out = following.view(self.rows), self.out.view(self.rows)
        if self.weight.dtype != out.dtype:
            out.copy_(rows.to(self.weight.dtype) @ self.weight)
            if arriving is not None:
                self.out += arriving
        elif arriving is None:
            torch.mm(rows, self.weight, out=out)
        else:
            torch.addmm(arriving.reshape(self.rows), rows, self.weight, out=out)
