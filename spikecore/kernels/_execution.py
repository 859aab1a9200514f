"""From plain tensors to two launches: what happens behind the autograd boundary.

Arguments become what kernels take (:mod:`spikecore.kernels._arguments`), results are allocated, and launches are looked
up by what a call has and wants. Nothing here is differentiable, and nothing waits for a device.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.caches import CALLS, Recent
from spikecore.backend import Range, Spec, Tensors
from spikecore.kernels._arguments import Arguments, Call, Channels
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._launches import BackwardLaunch, ForwardLaunch, KernelParams, Launch, Launcher
from spikecore.kernels._layout import Layout, layout_of
from spikecore.kernels._memory import not_negated, resolved
from spikecore.kernels._parts import parameter_gradient
from spikecore.kernels._passing import passing
from spikecore.kernels._plan import BackwardPlan, ForwardPlan, saved_states
from spikecore.kernels._saved import check_saved
from spikecore.kernels._sized import launch_of
from spikecore.lang import Program

#: Checkpoints, then the cotangents that arrive: of outputs, final states and recorded states.
Arrays = Tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]


class Gradients(NamedTuple):
    """One kind of backward pass: the launch, and which gradients it finds."""

    launch: Launch
    inputs: Tuple[bool, ...]
    state: bool
    final: bool
    #: Indices of the parameters whose gradient is found.
    learn: Tuple[int, ...]


class Execution:
    """One program under one spec, on raw tensors."""

    def __init__(self, backend: Launcher, program: Program, spec: Spec) -> None:
        self.backend, self.program, self.spec = backend, program, spec
        self.arguments = Arguments(program, spec)
        self.chunk = backend.chunk_of(program, spec)
        self.passing = passing(program, spec)
        self.n_outputs = len(program.outputs)
        self.n_final = len(program.states) if spec.final else 0
        # bounded: a network that asks for ever other records or gradients would keep its kernels for ever
        self._forwards: Recent[Any, Launch] = Recent(CALLS)
        self._backwards: Recent[Any, Gradients] = Recent(CALLS)
        #: Whether an initial state is given -> of how many states checkpoints are written. Training asks at each call.
        self._saved: Dict[bool, int] = {}

    # -- forward

    def forward(self, call: Call, tensors: Sequence[Tensor], save: bool) -> List[Tensor]:
        """Outputs, final states, recorded states and, for backward, checkpoints."""
        tensors = resolved(tensors)
        x = tensors[0]
        # behind resolved(), since a lazily negated view is contiguous, too
        if x.numel() and x.is_contiguous() and self.arguments.n_inputs == 1 and not call.record:
            return self._forward_fast_path(call, x, tensors, x.shape[0], save)
        layout = self.layout(tensors)
        results = self.results(call, layout, x, save)
        # there is nothing to compute, and CUDA refuses to launch no block
        if results[0].numel():
            geometry, inputs, state, params = self.arguments.prepared(call, tensors, layout)
            n, m = self.n_outputs, self.n_outputs + self.n_final
            k = m + len(call.record)
            launch: ForwardLaunch = self.forward_launch(call, len(results) > k)
            launch(geometry, inputs, state, params, results[:n], results[n:m], results[m:k], results[k:])
        return results

    def one_step(self, call: Call, tensors: Sequence[Tensor]) -> List[Tensor]:
        """Outputs and final states of one time step, whose one contiguous input ``[*N]`` and outputs have no time."""
        tensors = resolved(tensors)
        return self._forward_fast_path(call, tensors[0].unsqueeze(0), tensors, 0, False)

    def _forward_fast_path(
        self, call: Call, x: Tensor, tensors: Sequence[Tensor], steps: int, save: bool
    ) -> List[Tensor]:
        """Fast path of most calls: one contiguous input, nothing recorded. ``steps`` is 0 for one step without time."""
        results = [torch.empty_like(tensors[0]) for _ in range(self.n_outputs)]
        outputs: Sequence[Tensor] = results
        if not steps:
            # the kernel fills a view with time; the caller gets the tensor without
            steps, outputs = 1, [out.unsqueeze(0) for out in results]
        final: Sequence[Tensor] = ()
        saved: Sequence[Tensor] = ()
        state: Sequence[Tensor] = ()
        params: KernelParams = call.numbers  # type: ignore[assignment]  # no None if no tensor
        channels: Channels = ()
        if self.n_final:
            shape = x.shape[1:]
            final = [x.new_empty(shape, dtype=self.spec.compute) for _ in range(self.n_final)]
            results = [*results, *final]
        # one chunk starts from what the call starts from: it needs no checkpoint
        if save and 0 < self.chunk < steps:
            size = ((steps - 1) // self.chunk, *x.shape[1:])
            saved = [
                torch.empty(size, dtype=self.spec.compute, device=x.device) for _ in range(self.n_checkpoints(call))
            ]
            results = [*results, *saved]
        if len(tensors) > 1:
            moving = self.arguments.n_moving(call)
            state = [value if value.is_contiguous() else value.contiguous() for value in tensors[1:moving]]
            if self.arguments.tensor_params:
                params, channels = self.arguments.params(call, tensors[moving:], Layout(tuple(x.shape)[1:], None))
        launch: ForwardLaunch = self.forward_launch(call, bool(saved))
        launch(Geometry(steps, x.numel() // steps, channels), (x,), state, params, outputs, final, (), saved)
        return results

    def results(self, call: Call, layout: Layout, x: Tensor, save: bool) -> List[Tensor]:
        """The tensors that :meth:`forward` fills, as allocated."""
        compute, chunk = self.spec.compute, self.chunk
        results = [layout.empty_steps(x, self.spec.dtype) for _ in range(self.n_outputs)]
        if self.n_final:
            results += [layout.empty((), x, compute) for _ in range(self.n_final)]
        if call.record:
            results += [layout.empty_steps(x, compute) for _ in call.record]
        if save and chunk and x.shape[0] > chunk:
            results += [layout.empty(((x.shape[0] - 1) // chunk,), x, compute) for _ in range(self.n_checkpoints(call))]
        return results

    def n_checkpoints(self, call: Call) -> int:
        """Of how many states checkpoints are written."""
        initial = call.has_initial_state
        found = self._saved.get(initial)
        if found is None:
            found = self._saved[initial] = len(saved_states(self.program, self.spec, initial))
        return found

    def forward_launch(self, call: Call, checkpoints: bool, ranges: Tuple[Optional[Range], ...] = ()) -> Launch:
        """The launch for calls of this kind, with or without ``checkpoints`` for backward, which puts parameters into
        these ``ranges``.
        """
        initial = call.has_initial_state
        # whatever else a call may differ in, such as sizes, its kernel is the same
        key = (call.record, initial, checkpoints, ranges)
        launch = self._forwards.get(key)
        if launch is None:
            plan = ForwardPlan(
                self.program, self.spec, call.record, initial, self.spec.final, checkpoints, None, ranges
            )
            launch = self._forwards.put(key, launch_of(self.backend.forward, plan, self.backend.sizes))
        return launch

    # -- backward

    def layout(self, tensors: Sequence[Tensor]) -> Layout:
        """The layout in which a call of these tensors is computed, forward and backward."""
        return layout_of(not_negated(tensors[0]), self.backend.rows)

    def backward(
        self,
        call: Call,
        tensors: Sequence[Tensor],
        checkpoints: Tensors,
        grads: Sequence[Optional[Tensor]],
        wanted: Sequence[bool],
        layout: Layout,
    ) -> List[Optional[Tensor]]:
        """Gradients of the tensors of a call, given those of its results; None where not wanted.

        ``layout`` is that of the forward pass. The tensors may lie elsewhere by now, each in its own way: saved-tensor
        hooks, such as those that move tensors to the host, give back tensors with other strides.
        """
        tensors, grads = resolved(tensors), resolved(grads)
        check_saved(self.program, self.spec, call.has_initial_state, tensors, checkpoints, grads, layout)
        checkpoints = tuple([layout.fit_saved(kept) for kept in checkpoints])
        found = self.gradients(call, grads, wanted)
        x, grad = tensors[0], grads[0]
        fast_path = len(tensors) == 1 == len(grads) and layout.order is None and grad is not None and wanted[0]
        if fast_path and x.is_contiguous() and grad.is_contiguous() and x.numel():  # type: ignore[union-attr]  # not None
            return [self.backward_fast_path(found, call, x, checkpoints, grad)]  # type: ignore[arg-type]  # as above
        # gradients of an empty call are empty or zero, and no kernel could be launched for it
        if x.numel():
            arrays = (checkpoints, *self._arriving(layout, x, grads, found.final))
            parts = self.launched(found, call, tensors, layout, arrays)
        else:
            parts = (*self._allocated(layout, x, found), [x.new_zeros(0, dtype=self.spec.compute)] * len(found.learn))
        return self._returned(call, tensors, layout, found, *parts)

    def launched(
        self, found: Gradients, call: Call, tensors: Sequence[Tensor], layout: Layout, arrays: Arrays
    ) -> Tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Gradients of inputs, of states and, in parts, of parameters."""
        grad_inputs, grad_state = self._allocated(layout, tensors[0], found)
        launch: BackwardLaunch = found.launch
        sums = launch(*self.arguments.prepared(call, tensors, layout), *arrays, grad_inputs, grad_state)
        return grad_inputs, grad_state, sums if sums is not None and found.learn else ()

    def backward_fast_path(self, found: Gradients, call: Call, x: Tensor, checkpoints: Tensors, grad: Tensor) -> Tensor:
        """Fast path of most calls: the gradient of one contiguous input from one contiguous cotangent."""
        steps, result = x.shape[0], torch.empty_like(x)
        geometry = Geometry(steps, x.numel() // steps, ())
        found.launch(geometry, (x,), (), call.numbers, checkpoints, (grad,), (), (), (result,), ())
        return result

    def _allocated(self, layout: Layout, x: Tensor, found: Gradients) -> Tuple[List[Tensor], List[Tensor]]:
        inputs = [layout.empty_steps(x, self.spec.dtype) for wants in found.inputs if wants]
        n_states = self.arguments.n_states if found.state else 0
        return inputs, [layout.empty((), x, self.spec.compute) for _ in range(n_states)]

    def gradients_like(
        self, call: Call, tensors: Sequence[Tensor], wanted: Sequence[bool], layout: Layout
    ) -> List[Tensor]:
        """The wanted ones of the gradients that :meth:`backward` returns, as allocated."""
        x, n_moving = tensors[0], self.arguments.n_moving(call)
        results = []
        for i, (tensor, wants) in enumerate(zip(tensors, wanted)):
            if wants and i < self.arguments.n_inputs:
                results.append(layout.empty_steps(x, self.spec.dtype))
            elif wants:
                is_dense = i < n_moving or (tuple(tensor.shape) == layout.shape and layout.holds(tensor))
                results.append(layout.empty((), x, self.spec.compute) if is_dense else tensor.new_empty(tensor.shape))
        return results

    def gradients(self, call: Call, grads: Sequence[Optional[Tensor]], wanted: Sequence[bool]) -> Gradients:
        """The launch for backward passes with such cotangents that want such gradients."""
        present = tuple(grad is not None for grad in grads)
        key = (call.record, call.has_initial_state, present, tuple(wanted))
        found = self._backwards.get(key)
        if found is None:
            n, m, moving = self.n_outputs, self.n_outputs + self.n_final, self.arguments.n_moving(call)
            learn = tuple(i for i, wants in zip(self.arguments.tensor_params, wanted[moving:]) if wants)
            named = tuple(name for name, there in zip(self.program.states, present[n:m]) if there)
            plan = BackwardPlan(
                program=self.program,
                spec=self.spec,
                has_initial_state=call.has_initial_state,
                outputs=present[:n],
                trace=tuple(name for name, there in zip(call.record, present[m:]) if there),
                final=named if 0 < len(named) < self.n_final else bool(named),
                inputs=tuple(wanted[: self.arguments.n_inputs]),
                state=any(wanted[self.arguments.n_inputs : moving]),
                learn=tuple(self.program.params[i] for i in learn),
            )
            launch = launch_of(self.backend.backward, plan, self.backend.sizes)
            gradients = Gradients(launch, plan.inputs, plan.state, bool(plan.final), learn)
            found = self._backwards.put(key, gradients)
        return found

    def fitted(self, layout: Layout, grads: Sequence[Optional[Tensor]]) -> List[Optional[Tensor]]:
        """Cotangents of a call's results as its kernels read them: dense in its layout, copies where they are not."""
        ends = range(self.n_outputs, self.n_outputs + self.n_final)
        return [
            grad if grad is None else layout.fit(grad) if k in ends else layout.fit_steps(grad)
            for k, grad in enumerate(grads)
        ]

    def _arriving(
        self, layout: Layout, x: Tensor, grads: Sequence[Optional[Tensor]], final: bool
    ) -> Tuple[List[Tensor], List[Tensor], List[Tensor]]:
        """The cotangents that are there, of outputs, final states and recorded states."""
        n, m = self.n_outputs, self.n_outputs + self.n_final
        grads = self.fitted(layout, grads)
        ends: List[Tensor] = []
        if final:
            ends = [layout.empty((), x, self.spec.compute).zero_() if g is None else g for g in grads[n:m]]
        return [grad for grad in grads[:n] if grad is not None], ends, [grad for grad in grads[m:] if grad is not None]

    def _returned(
        self,
        call: Call,
        tensors: Sequence[Tensor],
        layout: Layout,
        found: Gradients,
        grad_inputs: Sequence[Tensor],
        grad_state: Sequence[Tensor],
        sums: Sequence[Tensor],
    ) -> List[Optional[Tensor]]:
        each = iter(grad_inputs)
        result: List[Optional[Tensor]] = [next(each) if wants else None for wants in found.inputs]
        if call.has_initial_state:
            result += grad_state if found.state else [None] * self.arguments.n_states
        if self.arguments.tensor_params:
            learnt = dict(zip(found.learn, sums))
            for index, value in zip(self.arguments.tensor_params, tensors[self.arguments.n_moving(call) :]):
                grad = learnt.get(index)
                result.append(
                    None if grad is None else parameter_gradient(self.spec.params[index], grad, value, layout)
                )
        return result
