"""A runner: from a call's arguments to the autograd boundary and back.

The boundary has two entry points that share one implementation (:mod:`spikecore.kernels._execution`): an
``autograd.Function`` (:mod:`spikecore.kernels._boundary`), which is quicker for small layers, and ops registered with
torch (:mod:`spikecore.kernels._registered`), which ``torch.compile`` can look through.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from spikecore.backend import BackendError, ParamValue, Runner, Spec, Tensors, Unsupported, by_call
from spikecore.kernels._again import Instead
from spikecore.kernels._arguments import Call
from spikecore.kernels._boundary import Boundary, OneStep, derived
from spikecore.kernels._direct import Direct
from spikecore.kernels._direct_normalised import DirectNormalised
from spikecore.kernels._flat import is_flat, register_flat, run_flat
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._launches import Launcher, Moved, StatisticsLaunch
from spikecore.kernels._memory import resolved
from spikecore.kernels._normalised import Moments, execution_of
from spikecore.kernels._registered import key_of, register, run_registered
from spikecore.lang import Program
from spikecore.lang._plain import (
    PLAIN,
    dispatch_modes,
    has_tangent,
    is_compiling,
    is_jit_tracing,
    is_plain,
    is_transforming,
)
from spikecore.lang.eager import StraightLine
from spikecore.lang.node import parameters

#: Numbers of an input whose mean and variance are worth some further small operations.
WORTHWHILE = 1 << 20
#: A tensor of another type, be it a state or a parameter, goes through torch's dispatcher, which handles its type.
#: A FakeTensor beside a plain input stands for no values, and is refused as a tensor without memory.
_PLAIN = frozenset((*PLAIN, FakeTensor))


def _plain(tensors: Tensors) -> bool:
    return _PLAIN.issuperset([type(tensor) for tensor in tensors])


class KernelRunner:
    """Runs one program under one spec, for any sizes and layouts."""

    def __init__(self, backend: Launcher, program: Program, spec: Spec) -> None:
        self.program, self.spec = program, spec
        self.execution = execution_of(backend, program, spec)
        self.key = key_of(self.execution)
        register()
        register_flat()
        #: Whether calls at rest have registered ops of their own.
        self.flat = is_flat(self.execution)
        #: Whether the initial state depends on a learnt parameter, so that autograd must see how.
        self.learnt_initial = any(node.attr in spec.learn for node in parameters(program.initial))
        #: The key where calls at rest whose parameters are numbers are one op in a graph, else "".
        self.graph_key = self.key if self.flat and not self.learnt_initial else ""
        self.initial = StraightLine(program.leaves[len(program.inputs) + len(program.states) :], program.initial)
        self.n_outputs = len(program.outputs)
        self.ends = self.n_outputs + self.execution.n_final
        self.instead: Instead = None
        self._moments: Optional[Moments] = None
        self._statistics: Optional[StatisticsLaunch] = None

    def with_other(self, instead: Callable[[BackendError], Runner]) -> KernelRunner:
        """A copy of this runner. Where its backward fails, the runner ``instead(error)`` computes the gradients."""
        twin = copy.copy(self)
        twin.instead = instead
        return twin

    def direct(self, views: Sequence[Optional[Tuple[int, ...]]]) -> Optional[Direct]:
        """See :func:`spikecore.backend.direct`."""
        one = len(self.program.inputs) == 1 == self.n_outputs
        if not one or self.spec.final or self.learnt_initial or self.execution.backend.owns_outputs:
            return None
        # backward of a program with statistics is two launches
        if self.program.statistics:
            return None
        if "full" in self.spec.params:
            return Direct(self.execution, self.instead, views, derived)
        other = DirectNormalised(self.execution, self.spec, self.instead, derived, None, views)
        return Direct(self.execution, self.instead, views, derived, other.of_any_order)

    def direct_normalised(self, views: Sequence[Optional[Tuple[int, ...]]]) -> Optional[DirectNormalised]:
        """See :func:`spikecore._base.running.direct_normalised`."""
        backend = self.execution.backend
        if self.n_outputs > 1 or self.spec.final or self.learnt_initial or backend.owns_outputs:
            return None
        if "full" in self.spec.params:
            return None
        if self._statistics is None:
            self._statistics = backend.statistics(self.spec)
        return DirectNormalised(self.execution, self.spec, self.instead, derived, self._statistics, views)

    def in_graph(self, x: Tensor, numbers: Sequence[float]) -> Optional[Tensor]:
        """See :func:`spikecore._base.running.in_graph`."""
        if not self.graph_key:
            return None
        out: Tensor = torch.ops.spikecore.rest(self.graph_key, x, [], numbers)
        return out

    def moments(self, x: Tensor) -> Optional[Tuple[Tensor, Tensor]]:
        """Mean and variance of an input ``[T, B, C, ...]`` per channel; None where torch's own way is as quick."""
        # on a GPU torch's kernels for channels innermost read at an eighth of the memory's speed
        if not (x.is_cuda and x.numel() >= WORTHWHILE):
            return None
        if self._moments is None:
            self._moments = Moments(self.execution.backend, self.spec)
        return self._moments(x)

    def input_statistics(self, x: Tensor, eps: float, running: Optional[Moved]) -> Optional[Tuple[Tensor, Tensor]]:
        """Mean and 1 / sqrt(variance + eps) of an input ``[T, B, C, ...]`` per channel, by which the running ones were
        moved; None where the backend has no kernel for that.
        """
        if self._statistics is None:
            self._statistics = self.execution.backend.statistics(self.spec)
        (x,) = resolved((x,))
        layout = self.execution.layout((x,))
        if self._statistics is None or layout.outer or not x.numel() or not layout.holds(x[0]):
            return None
        lies = (layout.inner_of(1), x.shape[2])
        return self._statistics(Geometry(x.shape[0], x.numel() // x.shape[0], (lies,)), x, eps, running)

    def __deepcopy__(self, memo: Any) -> KernelRunner:
        return self  # torch.nn.utils.parametrize copies a neuron with its runners, which copies can share

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """See :meth:`spikecore.backend.Backend.compile`."""
        if inputs[0].shape[0] == 0:
            return self._nothing(inputs[0], state, params, record)
        call, tensors = self._call(inputs, state, params, record, inputs[0].shape[1:])
        results = self._cross(call, tensors)
        n, m = self.n_outputs, self.ends
        if n == len(results) and not self.spec.final:  # most calls ask for outputs alone
            return tuple(results), None, ()
        final = tuple(results[n:m]) if self.spec.final else None
        return tuple(results[:n]), final, tuple(results[m : m + len(record)])

    def one_step(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """See :func:`spikecore.backend.one_step`."""
        x = inputs[0]
        # several inputs, an empty one or one in another layout need what a call with time does beforehand
        if len(inputs) > 1 or not (is_plain(x) and x.numel() and x.is_contiguous()):
            return by_call(self, inputs, state, params)
        call, tensors = self._call(inputs, state, params, (), x.shape)
        if not _plain(tensors):
            return by_call(self, inputs, state, params)
        if torch.is_grad_enabled() and True in [tensor.requires_grad for tensor in tensors]:
            results: Sequence[Tensor] = OneStep.apply(self.execution, self.instead, call, *tensors)
        else:
            results = self.execution.one_step(call, tensors)
        n = self.n_outputs
        return tuple(results[:n]), tuple(results[n:]) if self.spec.final else None

    def _call(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        record: Tuple[str, ...],
        shape: torch.Size,
    ) -> Tuple[Call, Tensors]:
        """A call and its tensors; ``shape`` is that of one time step."""
        if self.execution.arguments.tensor_params:
            # converted once for kernel and initial state, so that the gradients of a 16-bit parameter add up in float32
            compute = self.spec.compute
            params = tuple([value.to(compute) if isinstance(value, Tensor) else value for value in params])
        # a kernel that starts at rest gives no gradient of what it starts from, so autograd computes the start
        if state is None and self.learnt_initial:
            state = self._at_rest(inputs[0].device, shape, params)
        tensors = inputs if state is None else (*inputs, *state)
        if not self.execution.arguments.tensor_params:
            return Call(record, state is not None, params), tensors  # type: ignore[arg-type]  # numbers all
        tensors = (*tensors, *[value for value in params if isinstance(value, Tensor)])
        numbers = tuple([None if isinstance(value, Tensor) else value for value in params])
        return Call(record, state is not None, numbers), tensors

    def _cross(self, call: Call, tensors: Tensors) -> Sequence[Tensor]:
        self._refuse(tensors)
        wanted = [tensor.requires_grad for tensor in tensors]
        save = torch.is_grad_enabled() and True in wanted
        # a compiler, a dispatch mode or a tensor of another type follows ops of torch; a launch it would not see
        if self.flat and is_compiling() and not (call.has_initial_state or call.record):
            return run_flat(self.key, call, tensors)
        if is_compiling() or dispatch_modes() or type(tensors[0]) not in PLAIN or not _plain(tensors):
            passing = self.execution.passing
            return run_registered(self.key, call, tensors, save and (passing is None or passing.reads(wanted)))
        if save:
            crossed: Sequence[Tensor] = Boundary.apply(self.execution, self.instead, call, *tensors)
            return crossed
        return self.execution.forward(call, tensors, save=False)

    def _refuse(self, tensors: Tensors) -> None:
        """Raise where torch would follow this call and could not: it would see memory allocated, and never filled."""
        if is_compiling():
            return
        what = "torch.jit.trace" if is_jit_tracing() else "torch.func" if is_transforming() else ""
        if has_tangent(tensors):
            what = "forward-mode differentiation"
        if what:
            name = self.execution.backend.name
            raise Unsupported(f"{what} cannot look through the kernels of backend {name!r}; choose backend='torch'")

    def _at_rest(self, device: torch.device, shape: torch.Size, params: Tuple[ParamValue, ...]) -> Tensors:
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
            tuple([x.clone() for _ in range(self.n_outputs)]),
            tuple([value.clone(memory_format=torch.contiguous_format) for value in state]),
            tuple([x.to(self.spec.compute, copy=True) for _ in record]),
        )
