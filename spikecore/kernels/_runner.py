"""Runners of kernel backends: from the tensors of a call to its plan.

See :mod:`spikecore.kernels._call` for the path of a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from spikecore._base.running import BoundCall
from spikecore.backend import ParamValue, Spec, Tensors, Unsupported
from spikecore.context import COMPILED, EAGER, PLAIN, TRANSFORMED, dispatch_modes, is_compiling, world
from spikecore.kernels._autograd import KernelCall, apply, key_of, register, run_op, statistics_op
from spikecore.kernels._batch_norm import Moments, NormalisingKernels
from spikecore.kernels._broadcast import whole_shape
from spikecore.kernels._call import Call, CallPlan, Kernels
from spikecore.kernels._layout import Moved, has_memory
from spikecore.lang import Program
from spikecore.lang.eager import StraightLine
from spikecore.lang.node import parameters

if TYPE_CHECKING:
    from spikecore.kernels._backend import KernelBackend

#: Numbers of an input whose mean and variance are worth some further small operations.
WORTHWHILE = 1 << 20
#: A tensor of another type, be it a state or a parameter, goes through torch's dispatcher, which handles its type.
#: A FakeTensor beside a plain input stands for no values, and is refused as a tensor without memory.
_PLAIN = frozenset((*PLAIN, FakeTensor))
#: Numbers of a parameter above which autograd must keep it once: as a tensor that it saves, which can be let go of.
_SMALL = 1 << 12


#: For each parameter the shape that it has over the neurons of one time step; None for a number.
Views = Sequence[Optional[Tuple[int, ...]]]


def _without_tensors(params: Sequence[ParamValue]) -> Sequence[ParamValue]:
    """Parameters with 0 in the place of each tensor, which is among the tensors of the call."""
    return [0.0 if isinstance(value, Tensor) else value for value in params]


class KernelRunner:
    """Runs one program under one spec, for any sizes and layouts."""

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        self.program, self.spec = program, spec
        self.kernels = (NormalisingKernels if program.normalised else Kernels)(backend, program, spec)
        self.key = key_of(self.kernels)
        register()
        #: True for calls whose inputs may broadcast. One that is only added to an output is a cotangent's in backward.
        self.broadcasts = not (program.normalised or self.kernels.added or spec.feedback)
        #: True if the initial state depends on a learnt parameter, so that autograd must see how.
        self.learnt_initial = any(node.attr in spec.learn for node in parameters(program.initial))
        #: The key where a call at rest whose parameters are numbers is one op with one result, else "".
        is_one_op = len(program.inputs) == 1 == len(program.outputs) and not (spec.final or self.learnt_initial)
        self.graph_key = self.key if is_one_op and not backend.owns_outputs else ""
        self.initial = StraightLine(program.leaves[len(program.inputs) + len(program.states) :], program.initial)
        self._moments: Optional[Moments] = None

    # -- calls

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """Implementation of :meth:`spikecore.backend.Backend.compile`."""
        if inputs[0].shape[0] == 0:
            return self._nothing(inputs[0], state, params, record)
        results = self._cross(*self._arranged(inputs, state, params, Call(tuple(record))))
        n, m = self.kernels.n_outputs, self.kernels.n_outputs + self.kernels.n_final
        return tuple(results[:n]), tuple(results[n:m]) if self.spec.final else None, tuple(results[m:])

    def bind(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Sequence[ParamValue],
        views: Views,
        single: bool,
    ) -> Optional[BoundCall]:
        """Implementation of :func:`spikecore._base.running.bound`."""
        if not inputs[0].numel() or world() is not EAGER:
            return None
        call, tensors, _ = self._arranged(inputs, state, params, Call(single=single), views)
        if not (all(type(value) in PLAIN for value in tensors) and has_memory(tensors)):
            return None
        shapes, grad = tuple([view for view in views if view is not None]), torch.is_grad_enabled()
        plan = self.kernels.plan(call, tensors, tuple([grad and value.requires_grad for value in tensors]), shapes)
        places: Any = self.kernels.tensor_params
        large = any(params[index].numel() > _SMALL for index in places)
        if call.has_initial_state or self.spec.final:
            return self._bound(plan, views, large)
        return self._straight(plan, places, large)

    def _straight(self, plan: CallPlan, places: Tuple[int, ...], large: bool) -> BoundCall:
        """Calls at rest for outputs alone. ``places``: where the parameters stand that are tensors; ``large``: they are
        not for autograd to keep beside those that it saves.
        """

        def call(inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]) -> Any:
            tensors: Any = (*inputs, *[params[index] for index in places]) if places else inputs
            if plan.save:
                return apply((plan, _without_tensors(params) if large else params), *tensors), None
            return tuple(plan.forward(params, tensors)), None

        return call

    def _bound(self, plan: CallPlan, views: Views, large: bool) -> BoundCall:
        """Any other call of one signature."""
        n, kind = self.kernels.n_outputs, Call(single=plan.call.single)

        def call(inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]) -> Any:
            _, tensors, values = self._arranged(inputs, state, params, kind, views)
            numbers = _without_tensors(values) if large else values
            results = apply((plan, numbers), *tensors) if plan.save else tuple(plan.forward(numbers, tensors))
            return results[:n], results[n:] if self.spec.final else None

        return call

    def one_step(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """Implementation of :func:`spikecore.backend.one_step`."""
        results = self._cross(*self._arranged(inputs, state, params, Call(single=True)))
        n = self.kernels.n_outputs
        return tuple(results[:n]), tuple(results[n:]) if self.spec.final else None

    def in_graph(self, x: Tensor, numbers: Sequence[float]) -> Optional[Tensor]:
        """Implementation of :func:`spikecore._base.running.in_graph`."""
        if not self.graph_key:
            return None
        results: List[Tensor] = torch.ops.spikecore.forward(self.graph_key, [x], numbers, [], False, False)
        return results[0]

    def _arranged(
        self, inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue], call: Call, views: Views = ()
    ) -> Tuple[Call, Tensors, Sequence[ParamValue]]:
        """A call, its tensors, and its parameters. views: the shapes of these over the neurons of one time step, where
        they do not have them.
        """
        tensor_params = self.kernels.tensor_params
        if self.learnt_initial and tensor_params:
            # converted once for kernel and initial state, so that the gradients of a 16-bit parameter add up in float32
            compute = self.spec.compute
            params = [value.to(compute) if isinstance(value, Tensor) else value for value in params]
        # a kernel that starts at rest gives no gradient of what it starts from, so autograd computes the start
        if state is None and self.learnt_initial:
            over = [p.view(view) if isinstance(p, Tensor) and view is not None else p for p, view in zip(params, views)]
            shape = whole_shape(inputs)
            state = self._at_rest(inputs[0].device, shape[0 if call.single else 1 :], over or params)
        if state is not None:
            call = Call(call.record, True, call.single)
        tensors: Any = inputs if state is None else (*inputs, *state)
        if tensor_params:
            tensors = (*tensors, *[params[index] for index in tensor_params])
        return call, tensors, params

    def _cross(self, call: Call, tensors: Tensors, params: Sequence[ParamValue]) -> Sequence[Tensor]:
        mode = self._followed_by()
        # a compiler, a dispatch mode or a tensor of another type follows ops of torch; a launch it would not see
        kinds = [type(tensor) for tensor in tensors]
        if mode is COMPILED or dispatch_modes() or kinds[0] not in PLAIN or not _PLAIN.issuperset(kinds):
            return self._by_op(call, tensors, params)
        grad = torch.is_grad_enabled()
        wants = tuple([grad and tensor.requires_grad for tensor in tensors])
        plan = self.kernels.plan(call, tensors, wants)
        if plan.save:
            crossed: Sequence[Tensor] = KernelCall.apply((plan, _without_tensors(params)), *tensors)
            return crossed
        return plan.forward(params, tensors)

    def _by_op(self, call: Call, tensors: Tensors, params: Sequence[ParamValue]) -> Sequence[Tensor]:
        numbers = [value for value, kind in zip(params, self.spec.params) if kind == "number"]
        moving, n = self.kernels.n_moving(call), self.kernels.n_inputs
        if any(x.shape != tensors[0].shape for x in tensors[1:n]):
            tensors = (*torch.broadcast_tensors(*tensors[:n]), *tensors[n:])
        tensors = (*tensors[:moving], *[value.to(self.spec.compute) for value in tensors[moving:]])
        if not call.single:
            return run_op(self.key, call, numbers, tensors)
        m = self.kernels.n_outputs
        timed = [*[x.unsqueeze(0) for x in tensors[:n]], *tensors[n:]]
        results = run_op(self.key, Call(call.record, call.has_initial_state), numbers, timed)
        return [*[out.squeeze(0) for out in results[:m]], *results[m:]]

    def _followed_by(self) -> str:
        """Tracing mode of the call. Raises :class:`Unsupported` for a transform, which would see
        memory allocated, and never filled.
        """
        mode = world()
        if mode is TRANSFORMED:
            raise Unsupported(
                "torch.func and forward-mode differentiation cannot look through the kernels of backend "
                f"{self.kernels.backend.name!r}; choose backend='torch'"
            )
        return mode

    def _at_rest(self, device: torch.device, shape: Sequence[int], params: Sequence[ParamValue]) -> Tensors:
        like = torch.empty((), dtype=self.spec.compute, device=device)
        values = [p.to(like.dtype) if isinstance(p, Tensor) else like.new_full((), p) for p in params]
        return tuple([value.expand(shape) for value in self.initial(values, like)])

    def _nothing(
        self, x: Tensor, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """No steps: the state stays what it is."""
        state = self._at_rest(x.device, x.shape[1:], params) if state is None else state
        # copies: a caller may change a result in place, and must not change an argument with it
        return (
            tuple([x.clone() for _ in range(self.kernels.n_outputs)]),
            tuple([value.clone(memory_format=torch.contiguous_format) for value in state]),
            tuple([x.to(self.spec.compute, copy=True) for _ in record]),
        )

    # -- batch normalisation

    def moments(self, x: Tensor, dim: int) -> Optional[Tuple[Tensor, Tensor]]:
        """Mean and variance of an input ``[T, *N]`` for each channel along a dimension of a time step; None where
        torch's own way is as quick.
        """
        # on a GPU torch's kernels for channels innermost read at an eighth of the memory's speed
        if not (x.is_cuda and x.numel() >= WORTHWHILE):
            return None
        if self._moments is None:
            self._moments = Moments(self.kernels.backend, self.spec)
        return self._moments(x, dim)

    def input_statistics(
        self, x: Tensor, dim: int, eps: float, running: Optional[Moved]
    ) -> Optional[Tuple[Tensor, Tensor]]:
        """Mean and 1 / sqrt(variance + eps) of an input ``[T, *N]`` for each channel along a dimension of a time step,
        by which the running ones were moved; None where the backend has no kernel for that.
        """
        kernels = self.kernels
        if not isinstance(kernels, NormalisingKernels) or kernels.find_statistics is None:
            return None
        return (
            statistics_op(self.key, x, dim, eps, running)
            if is_compiling()
            else kernels.statistics(x, dim, eps, running)
        )
