"""Feedback through a matrix: all steps of a call as one node of autograd.

``(y, s)[t] = program(x[t] + r[t], s[t-1])`` with ``r[t] = y[t-1] @ W.T + b``. The program, its adjoint and its kernels
stay as they are. With ``u[t] = x[t] + r[t]`` as its input, backward is the program's own, where the cotangent of
``y[t]`` is ``grad_out[t] + gu[t+1] @ W``, and the gradients of ``x`` and ``u`` are the same. The gradient of ``W`` is
one product over all steps at the end.

- Forward keeps ``u``, from which the states come again without a product, and the outputs where the weight is learnt.
- A backend may have launches for all steps of a call (:meth:`~spikecore.kernels.KernelBackend.feeds_back`). For any
  other, a step is one product and one launch, in either direction (:mod:`spikecore.kernels._feedback_steps`).
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.context import no_autocast
from spikecore.backend import BackendError, ParamValue, Range, Spec, Tensors
from spikecore.dtypes import compute_dtype
from spikecore.kernels._again import Again, Instead
from spikecore.kernels._arguments import Arguments, Call
from spikecore.kernels._feedback_call import FeedbackCall, Wanted
from spikecore.kernels._feedback_launch import FeedbackLaunch
from spikecore.kernels._feedback_steps import FeedbackSteps
from spikecore.kernels._launches import Launcher, Moved
from spikecore.kernels._layout import Layout
from spikecore.kernels._memory import resolved
from spikecore.kernels._parts import summed
from spikecore.kernels._runner import KernelRunner
from spikecore.lang import Program


class FeedbackArguments(Arguments):
    """The arguments of a call with feedback: one more state, and weight and bias behind the parameters."""

    def __init__(self, program: Program, spec: Spec) -> None:
        super().__init__(program, spec)
        self.n_states += 1


class FeedbackExecution:
    """One program with feedback under one spec, on raw tensors."""

    def __init__(self, backend: Launcher, program: Program, spec: Spec) -> None:
        self.backend, self.program, self.spec = backend, program, spec
        self.arguments: Arguments = FeedbackArguments(program, spec)
        self.n_final = self.arguments.n_states if spec.final else 0
        self.steps, self.launches = FeedbackSteps(backend, program, spec), FeedbackLaunch(backend, program, spec)

    def _way(self, fed: FeedbackCall) -> Any:
        """All steps by one launch, or a launch for each."""
        whole = fed.weight.dtype == self.spec.dtype and self.backend.feeds_back(
            self.program, self.spec, fed.weight.shape[0]
        )
        return self.launches if whole else self.steps

    def parts(self, call: Call, tensors: Sequence[Tensor]) -> FeedbackCall:
        """The tensors of a call by what they are."""
        moving = self.arguments.n_moving(call)
        *state, first = [value.contiguous() for value in tensors[1:moving]]
        own, (weight, *bias) = tensors[moving : moving + self.n_own], tensors[moving + self.n_own :]
        shape = tuple(tensors[0].shape)
        inner = Call(call.record, True, call.numbers[: len(self.spec.params)])
        params: Any = inner.numbers
        channels: Any = ()
        if self.arguments.tensor_params:
            params, channels = self.arguments.params(inner, own, Layout(shape[1:], None))
            if self.backend.owns_outputs:
                kinds = self.spec.params
                params = [p.reshape(-1) if kind == "full" else p for p, kind in zip(params, kinds)]
        return FeedbackCall(inner, shape, state, first, tuple(params), channels, weight, bias[0] if bias else None)

    @property
    def n_own(self) -> int:
        """How many of the program's parameters are tensors."""
        return len(self.arguments.tensor_params)

    def forward(self, call: Call, tensors: Sequence[Tensor], save: bool) -> Tuple[List[Tensor], List[Tensor]]:
        """Output, final states, the last output and recorded states; and what is kept for backward."""
        tensors = resolved(tensors)
        fed = self.parts(call, tensors)
        out, final, trace, kept = self._way(fed).forward(fed, tensors[0], save)
        if self.spec.final:
            final = [*final, out[-1].clone()]
        return [out, *final, *trace], kept

    def backward(
        self,
        call: Call,
        tensors: Sequence[Tensor],
        out: Optional[Tensor],
        kept: Sequence[Tensor],
        grads: Sequence[Optional[Tensor]],
        wanted: Sequence[bool],
    ) -> List[Optional[Tensor]]:
        """Gradients of the tensors of a call, ``tensors`` without values for the input; None where not wanted.

        ``out`` is the output, which is needed where the gradient of the weight is wanted.
        """
        tensors, grads, kept = resolved(tensors), resolved(grads), resolved(kept)
        fed = self.parts(call, tensors)
        moving, n_final = self.arguments.n_moving(call), self.n_final
        to_out = grads[0]
        final = grads[1 : 1 + n_final]
        if final and final[-1] is not None:
            # the last output is the state "feedback", too
            to_out = to_out.contiguous().clone() if to_out is not None else torch.zeros_like(kept[0])
            to_out[-1] += final[-1]
        learn = tuple(wanted[moving : moving + self.n_own])
        asked = Wanted(to_out, tuple(final[:-1]), tuple(grads[1 + n_final :]), any(wanted[1:moving]), learn)
        gu, to_state, sums = self._way(fed).backward(fed, kept, asked)
        result: List[Optional[Tensor]] = [gu if wanted[0] else None]
        result += [*to_state, _through(gu[0], fed.weight)] if asked.state else [None] * (moving - 1)
        for index, value, total in zip(self.arguments.tensor_params, tensors[moving:], sums):
            result.append(None if total is None else self._summed(index, total, value, fed.shape[1:]))
        to_weight, *to_bias = wanted[moving + self.n_own :]
        rows = gu.reshape(-1, fed.shape[-1]).to(fed.weight.dtype)
        result.append(_of_weight(rows, fed, out) if to_weight else None)  # type: ignore[arg-type]  # kept for it
        return [*result, *[_of_bias(gu).to(fed.weight.dtype) if wants else None for wants in to_bias]]

    def _summed(self, index: int, grad: Tensor, value: Tensor, shape: Tuple[int, ...]) -> Tensor:
        kind = self.spec.params[index]
        if kind == "full":
            return grad.reshape(shape).sum_to_size(value.shape).contiguous()
        layout = Layout(shape, None)
        return summed(kind, grad, value, layout.channels_of(value) if kind == "channel" else (0, 0))


def _through(step: Tensor, weight: Tensor) -> Tensor:
    """The cotangent of an output from that of the next input."""
    return (step.to(weight.dtype) @ weight).to(step.dtype)


def _of_weight(rows: Tensor, fed: FeedbackCall, out: Tensor) -> Tensor:
    """The gradient of the weight: the cotangents of all inputs ``[T * B, H]`` times the outputs of the steps before."""
    width = fed.shape[-1]
    batch = rows.shape[0] // fed.shape[0]
    before = out[:-1].reshape(-1, width).to(rows.dtype)
    return (rows[batch:].t() @ before).addmm_(rows[:batch].t(), fed.first.reshape(-1, width).to(rows.dtype))


def _of_bias(gu: Tensor) -> Tensor:
    """The gradient of the bias: the sum of the cotangents of all inputs. Over the steps first: torch's one sum of rows
    took 27 us on an H200 where both take 10 (T = 100, B = 256, H = 128).
    """
    total = gu.sum(0, dtype=compute_dtype(gu.dtype))
    return total.reshape(-1, gu.shape[-1]).sum(0)


class FedContext(NamedTuple):
    """What backward knows of a call beside its tensors."""

    execution: FeedbackExecution
    instead: Instead
    call: Call
    #: How many tensors the call has; whether the first of them, the input, is kept; whether the output is.
    tensors: int
    whole: bool
    output: bool


class FedRunner(KernelRunner):
    """Runs one program with feedback under one spec."""

    def __init__(self, backend: Launcher, program: Program, spec: Spec) -> None:
        self.fed = FeedbackExecution(backend, program, spec)
        super().__init__(backend, program, self.fed.steps.spec)
        #: What it inherits is of one step without feedback: there is no op of a whole call.
        self.graph_key = ""

    def direct(self, views: Sequence[Optional[Tuple[int, ...]]], ranges: Sequence[Optional[Range]] = ()) -> None:
        """There is no quick way."""
        return

    def moments(self, x: Tensor) -> None:
        """No input of a call with feedback is normalised."""
        return

    def input_statistics(self, x: Tensor, eps: float, running: Optional[Moved]) -> None:
        """As ``moments``."""
        return

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """See :meth:`spikecore.backend.Backend.compile`."""
        x, count, compute = inputs[0], len(self.program.params), self.spec.compute
        own = tuple([value.to(compute) if isinstance(value, Tensor) else value for value in params[:count]])
        if state is None:
            shape = x.shape[1:]
            # by autograd, since the start may depend on a parameter that is learnt
            state = (*self._at_rest(x.device, shape, own), x.new_zeros(shape))
        call, tensors = self._call(inputs, state[:-1], own, record, x.shape[1:])
        moving = len(state)
        tensors = (*tensors[:moving], state[-1], *tensors[moving:])
        weights: Any = params[count:]
        call = call._replace(numbers=(*call.numbers, *[None] * len(weights)))
        tensors = (*tensors, *weights)
        self._refuse(tensors)
        if torch.is_grad_enabled() and True in [tensor.requires_grad for tensor in tensors]:
            results: Sequence[Tensor] = _Fed.apply(self.fed, self.instead, call, *tensors)
        else:
            results = self.fed.forward(call, tensors, save=False)[0]
        n = 1 + self.fed.n_final
        return (results[0],), tuple(results[1:n]) if self.fed.n_final else None, tuple(results[n:])


class _Fed(torch.autograd.Function):
    """Where autograd ends and a call with feedback begins."""

    #: See :data:`spikecore._shell.freed.PASSED`.
    _spikecore_passed = False

    @staticmethod
    def forward(
        ctx: Any, execution: FeedbackExecution, instead: Instead, call: Call, *tensors: Tensor
    ) -> Tuple[Tensor, ...]:
        results, kept = execution.forward(call, tensors, save=True)
        moving = execution.arguments.n_moving(call)
        needs = ctx.needs_input_grad[3:]
        # the input itself is read only by another runner, if one may have to compute the call anew
        whole, output = instead is not None, needs[moving + execution.n_own]
        ctx.context = FedContext(execution, instead, call, len(tensors), whole, output)
        held = tensors if whole else tensors[1:]
        ctx.save_for_backward(*held, *results[:1] if output else (), *kept)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        ctx._spikecore_passed = True
        return (None, None, None, *_derived(ctx.context, ctx.needs_input_grad[3:], ctx.saved_tensors, grads))


def _derived(
    context: FedContext, wanted: Sequence[bool], saved: Tensors, grads: Sequence[Optional[Tensor]]
) -> Sequence[Optional[Tensor]]:
    """Gradients of a call's tensors, with a graph of their own under ``create_graph=True``."""
    execution, instead, call, count, whole, output = context
    held = count if whole else count - 1
    tensors, (*kept,) = saved[:held], saved[held:]
    out = kept.pop(0) if output else None
    # where the input is not kept, what stands in its place has its shape, and nobody reads its values
    given = tensors if whole else (kept[0], *tensors)
    arrived = tuple([grad is not None for grad in grads])
    again = Again(execution, instead, call, arrived, wanted)
    try:
        # within autocast a product of float32 would be one of half types, to which the sums behind it do not fit
        with torch.no_grad(), no_autocast(given[0].device.type):
            found: Sequence[Optional[Tensor]] = execution.backward(call, given, out, kept, grads, wanted)
    except BackendError as error:
        return again.gradients(error, grads, given)
    return again.differentiable(found, grads, given) if torch.is_grad_enabled() else found
