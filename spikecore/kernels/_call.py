"""A call of a kernel backend: a plan that its signature decides, and one launch in each direction.

The path of a tensor::

    Neuron.forward -> call -> CallPlan -> launch

- *Signature.* Whatever decides how a call is computed: shapes, strides and devices of its tensors, what wants
  gradients, whether it begins with a given state, which states it records, whether it is one step. A neuron looks a
  call up by it and skips all checks where there is a plan; a runner that is called with tensors does the same
  (:mod:`spikecore.kernels._runner`).
- *Bind.* :class:`CallPlan` is made once for a signature. It knows sizes and layout, what to allocate, which tensors a
  kernel reads as they lie and which it copies first. Constant inputs, records, states, single steps and inputs that are
  only added are fields of it; batch normalisation in training has a plan with two passes backward
  (:mod:`spikecore.kernels._batch_norm`), feedback one of its own (:mod:`spikecore.kernels._recurrent`).
- *Launch.* :class:`Kernels` are the launches of one program under one spec, compiled when they are first needed. A
  backend sees :mod:`plans <spikecore.kernels._plan>` and :mod:`launches <spikecore.kernels._layout>` and nothing else.

Autograd ends and begins again in :mod:`spikecore.kernels._autograd`: nothing here is differentiable, and nothing waits
for a device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

import torch
from torch import Tensor

from spikecore._base.bits import Whole, memory_order
from spikecore._base.caches import CALLS, Lock, Recent
from spikecore.backend import Spec
from spikecore.kernels._broadcast import BroadcastInputs
from spikecore.kernels._layout import (
    Launch,
    Layout,
    fits_param,
    fitted_param,
    gradient,
    has_memory,
    layout_of,
    resolved,
    returned_backward,
    returned_forward,
)
from spikecore.kernels._plan import (
    BackwardPlan,
    ForwardPlan,
    Geometry,
    added_inputs,
    saved_states,
)
from spikecore.lang import Node, Program

if TYPE_CHECKING:
    from spikecore.kernels._backend import KernelBackend

#: Shape, strides and dtype of a tensor.
Form = Tuple[Tuple[int, ...], Tuple[int, ...], torch.dtype]
#: A launch of dense tensors, ``launch(tensors, params)``. Those to be filled are among them. It returns the parts of
#: the parameters' gradients, or None where these tensors take another launch.
Dense = Callable[[Sequence[Tensor], Sequence[Any]], Optional[Sequence[Tensor]]]


class Call(NamedTuple):
    """Facts of a call beside its tensors."""

    record: Tuple[str, ...] = ()
    #: True if the initial states are among the tensors, behind the inputs.
    has_initial_state: bool = False
    #: True if inputs and outputs are one step, ``[*N]``.
    single: bool = False


class Kernels:
    """The launches of one program under one spec, and the plans of its calls.

    The tensors of a call are its inputs, its initial states if they are given, and the parameters that are tensors.
    """

    #: The class of the plans.
    plans: Type[CallPlan]

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        self.backend, self.program, self.spec = backend, program, spec
        self.n_inputs, self.n_states, self.n_outputs = len(program.inputs), len(program.states), len(program.outputs)
        self.n_final = self.n_states if spec.final else 0
        #: Indices of the parameters that are tensors.
        self.tensor_params = tuple(i for i, kind in enumerate(spec.params) if kind != "number")
        self.chunk = backend.chunk_of(program, spec)
        self.added = added_inputs(program, spec)
        #: True if a step is computed from an input.
        self.reads = any(node.op == "input" for node in program.nodes)
        #: For each input whether a step is computed from it.
        self.read = [Node("input", (), name) in program.nodes for name in program.inputs]
        # bounded: a network that asks for ever other records or gradients would keep its kernels for ever
        self._launches: Recent[Union[ForwardPlan, BackwardPlan], Launch] = Recent(CALLS)
        self._sizes: Recent[Any, List[Geometry]] = Recent(CALLS)
        self._plans: Recent[Any, CallPlan] = Recent(CALLS)
        self._lock = Lock()

    def placed(self, numbers: Sequence[float]) -> Sequence[Any]:
        """Spread the numeric parameters over all positions; tensor parameters are None."""
        if not self.tensor_params:
            return numbers
        each = iter(numbers)
        return [next(each) if kind == "number" else None for kind in self.spec.params]

    def n_moving(self, call: Call) -> int:
        """Number of a call's tensors that are inputs or initial states; those behind them are parameters."""
        return self.n_inputs + (self.n_states if call.has_initial_state else 0)

    def n_results(self, call: Call) -> int:
        """Number of result tensors of a call: outputs, final states, recorded states."""
        return self.n_outputs + self.n_final + len(call.record)

    def plan(self, call: Call, tensors: Sequence[Tensor], wants: Tuple[bool, ...], views: Any = None) -> CallPlan:
        """The plan of calls with this signature.

        wants: for each tensor, whether its gradient may be asked for. views: the shapes that the parameters which are
        tensors have over the neurons of one time step; None where they have them already.
        """
        key = (call, wants, views, *[(value.shape, value.stride(), value.dtype, value.device) for value in tensors])
        plan = self._plans.get(key)
        return self._plans.put(key, self.plans(self, call, tensors, wants, views)) if plan is None else plan

    def layout(self, x: Tensor) -> Layout:
        """The layout in which a call with this first input is computed, forward and backward."""
        return layout_of(x, self.backend.rows)

    def results(self, call: Call, layout: Layout, x: Tensor, save: bool) -> List[Tensor]:
        """Allocated tensors of a call: its results and, to ``save`` for backward, checkpoints. ``x`` has time."""
        compute, chunk, has_initial_state = self.spec.compute, self.chunk, call.has_initial_state
        results = [layout.empty_steps(x, self.spec.dtype) for _ in range(self.n_outputs)]
        results += [layout.empty((), x, compute) for _ in range(self.n_final)]
        results += [layout.empty_steps(x, compute) for _ in call.record]
        # one chunk starts from what the call starts from: it needs no checkpoint
        if save and chunk and x.shape[0] > chunk:
            saved = saved_states(self.program, self.spec, has_initial_state)
            results += [layout.empty(((x.shape[0] - 1) // chunk,), x, compute) for _ in saved]
        return results

    def forward_plan(self, call: Call, checkpoints: bool) -> ForwardPlan:
        """The forward kernel of such calls, with or without ``checkpoints``."""
        return ForwardPlan(
            self.program, self.spec, call.record, call.has_initial_state, self.spec.final, checkpoints=checkpoints
        )

    def backward_plan(self, call: Call, present: Sequence[bool], needs: Sequence[bool]) -> BackwardPlan:
        """The backward kernel for cotangents of the ``present`` results that finds the needed gradients."""
        n, m, moving = self.n_outputs, self.n_outputs + self.n_final, self.n_moving(call)
        final = tuple([name for name, there in zip(self.program.states, present[n:m]) if there])
        return BackwardPlan(
            program=self.program,
            spec=self.spec,
            has_initial_state=call.has_initial_state,
            outputs=tuple(present[:n]),
            trace=tuple([name for name, there in zip(call.record, present[m:]) if there]),
            final=final if 0 < len(final) < self.n_final else bool(final),
            inputs=tuple(needs[: self.n_inputs]),
            state=any(needs[self.n_inputs : moving]),
            learn=tuple([self.program.params[i] for i, w in zip(self.tensor_params, needs[moving:]) if w]),
        )

    def launch(self, plan: Union[ForwardPlan, BackwardPlan], geometry: Geometry) -> Launch:
        """The launch of a plan, made now if there is none. A backend with ``sizes`` gets the first sizes of a plan each
        as a plan of its own; none is dropped for another, since sizes that change with every batch would compile
        forever.
        """
        make: Callable[[Any], Launch] = self.backend.forward if isinstance(plan, ForwardPlan) else self.backend.backward
        if not self.backend.sizes:
            return self._launches.get_or(plan, lambda: make(plan))
        with self._lock:
            sizes = self._sizes.get_or(plan, list)
            if geometry not in sizes and len(sizes) < self.backend.sizes:
                sizes.append(geometry)
            sized = replace(plan, geometry=geometry if geometry in sizes else None)
            return self._launches.get_or(sized, lambda: make(sized))


class CallPlan:
    """Calls of one signature, bound to their kernels."""

    #: True for a call that launches, and is not traced.
    eager = True
    #: The pass of the last usual call backward, which the next one is likely to take; autograd asks it first.
    usual: Optional[Pass] = None
    #: True if something that autograd saves is computed by forward.
    computes_saved = True

    def __init__(
        self, kernels: Kernels, call: Call, tensors: Sequence[Tensor], wants: Tuple[bool, ...], views: Any = None
    ) -> None:
        self.kernels, self.call, self.added = kernels, call, kernels.added
        self.count, self.moving, self.n_results = len(tensors), kernels.n_moving(call), kernels.n_results(call)
        #: True if the call is a node of autograd; and True if a kernel has to find any of its gradients.
        self.save, self.keeps = True in wants, True in self.left(wants)
        self.packed = packed_inputs(kernels.program, tensors)
        #: The inputs where some broadcast, else None; and the one that has the shape of the call.
        self.spread, self.lead = None, 0
        inputs = self.timed(tensors[: kernels.n_inputs])
        if any(x.shape != inputs[0].shape for x in inputs):
            self.spread = BroadcastInputs(inputs, kernels)
            self.lead = self.spread.lead
        x = inputs[self.lead]
        self.layout = layout = kernels.layout(x)
        self.views = [tuple(value.shape) for value in tensors[self.moving :]] if views is None else views
        #: The parameters with a number for each neuron that have another shape than a step.
        pairs = zip(kernels.tensor_params, tensors[self.moving :])
        self.full = [k for k, value in pairs if kernels.spec.params[k] == "full" and value.shape != layout.shape]
        self.geometry = self._geometry(x)
        # on "meta" a tensor has shape and strides, and no memory
        like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        results = kernels.results(call, layout, like, self.keeps)
        self.n_checkpoints = len(results) - self.n_results
        #: Shapes, strides and dtypes of the results and checkpoints, of a step, and of the tensors as they came.
        self.results = [form_of(value) for value in results]
        if call.single:
            self.results[: kernels.n_outputs] = [_step(form) for form in self.results[: kernels.n_outputs]]
        self.step = form_of(layout.empty((), like, kernels.spec.compute))
        self.device = x.device
        self.tensors = [form_of(value) for value in tensors]
        self.saved = [*self.tensors, *self.results[self.n_results :]]
        self.is_empty = not x.numel()
        self.computes_saved = self.n_checkpoints > 0
        #: True if inputs are all that moves, and a single result is like the one that has the shape of the call.
        self.is_plain = self.moving == kernels.n_inputs and self.results == [self.tensors[self.lead]]
        #: True if kernels read the tensors as given; and True if inputs are dense from end to end.
        self.as_is = self.is_empty or self._holds(tensors)
        # (an input that no step reads may be a view that repeats one step: another tensor stands in its place)
        whole = [value for value in inputs if value.shape == x.shape]
        self.is_dense = (
            not layout.outer
            and (not kernels.reads or x.shape[0] == 1 or all(map(self._becomes_dense, whole)))
            and (self.spread is None or self.spread.is_dense)
        )
        self._forward: Optional[Tuple[Launch, Optional[Dense]]] = None
        self._straight: Optional[Dense] = None
        self._backward: Dict[Any, Pass] = {}

    # -- forward

    def forward(self, numbers: Sequence[Any], tensors: Sequence[Tensor]) -> List[Tensor]:
        """Outputs, final states, recorded states and, for backward, checkpoints. ``numbers`` are all parameters, with
        any value in the place of a tensor.
        """
        if self._straight is not None and has_memory(tensors):  # the usual call: an output that lies as the input
            out, moving, params = torch.empty_like(tensors[self.lead]), tensors, numbers
            if self.views:
                moving, params = tensors[: self.moving], self.params(numbers, tensors)
            if self._straight((*moving, out), params) is None:
                self._launch(self._forward[0], moving, params, [out])  # type: ignore[index]  # bound with the other
            return [out]
        values, owns_outputs = resolved(tensors), self.kernels.backend.owns_outputs
        # there is nothing to compute, and CUDA refuses to launch no block
        results = _empty(self.results, tensors[0].device) if self.is_empty or not owns_outputs else []
        if self.is_empty:
            return results
        is_dense = self.is_dense and values is tensors
        if not (self.as_is and is_dense):
            values = self.fitted(values, values is tensors)
        launch, dense = self._forward or self._bind_forward()
        moving, params = values[: self.moving], self.params(numbers, values) if self.views else numbers
        if owns_outputs:
            n = self.kernels.n_inputs
            return returned_forward(self, launch, (self.timed(moving[:n]), moving[n:], params))
        if not self.kernels.reads:
            moving = [*results[:1] * self.kernels.n_inputs, *moving[self.kernels.n_inputs :]]
        if dense is None or not is_dense or dense((*moving, *results), params) is None:
            self._launch(launch, moving, params, results)
        return results

    def empty(self, tensors: Sequence[Tensor]) -> List[Tensor]:
        """The results of :meth:`forward`, not computed."""
        return _empty(self.results, tensors[0].device)

    def _bind_forward(self) -> Tuple[Launch, Optional[Dense]]:
        kernels, call = self.kernels, self.call
        plan = kernels.forward_plan(call, self.n_checkpoints > 0)
        plan = replace(plan, broadcast=self.spread.kinds) if self.spread else plan
        launch = kernels.launch(plan, self.geometry)
        counts = (
            kernels.n_inputs,
            self.moving - kernels.n_inputs,
            0,
            kernels.n_outputs,
            kernels.n_final,
            len(call.record),
            self.n_checkpoints,
        )
        dense = dense_of(launch, self.geometry, counts, kernels.backend.owns_outputs)
        if self.is_plain and self.as_is and self.is_dense and kernels.reads:
            self._straight = dense
        self._forward = launch, dense
        return self._forward

    def _launch(self, launch: Launch, moving: Sequence[Tensor], params: Any, results: List[Tensor]) -> None:
        """Launch on tensors that may lie in any way a kernel reads."""
        n_inputs, n, k = self.kernels.n_inputs, self.kernels.n_outputs, self.n_results
        m = n + self.kernels.n_final
        inputs, outputs = self.timed(moving[:n_inputs]), self.timed(results[:n])
        groups = outputs, results[n:m], results[m:k], results[k:]
        launch(self.geometry, inputs, moving[n_inputs:], self.shaped(params), *groups)

    # -- backward

    def to_save(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors that autograd keeps for backward: those of the call but for summands, and checkpoints."""
        if self.packed:
            saved = [*tensors, *results[self.n_results :]]
            for index, (_, order, _), whole in self.packed:
                saved[index], right = torch.ops.spikecore.pack_spikes(tensors[index], order, *whole)
                saved.append(right)
            return saved
        if not self.added:
            return (*tensors, *results[self.n_results :]) if len(results) > self.n_results else tensors
        if not self.keeps:
            return ()
        dropped = [index for index, _ in self.added]
        return (*[t for index, t in enumerate(tensors) if index not in dropped], *results[self.n_results :])

    def restored(self, saved: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors of a call, in their number and order. The first input stands in for a dropped one, with its shape and
        dtype: a reader may look at its shape, and must not read its numbers.
        """
        if self.packed:
            tensors, rights = [*saved[: -len(self.packed)]], saved[-len(self.packed) :]
            for (index, (shape, order, dtype), whole), right in zip(self.packed, rights):
                tensors[index] = torch.ops.spikecore.unpack_spikes(saved[index], right, shape, order, *whole, dtype)
            return tensors
        if not self.added:
            return saved
        tensors = [*saved]
        for index, _ in self.added if saved else ():
            tensors.insert(index, saved[0])
        return tensors

    def left(self, needs: Sequence[bool]) -> Sequence[bool]:
        """Flags of the needed gradients that are no cotangent passed on."""
        dropped = [index for index, _ in self.added]
        return [wants and index not in dropped for index, wants in enumerate(needs)] if dropped else needs

    def backward(
        self, numbers: Sequence[Any], saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> List[Optional[Tensor]]:
        """The needed gradients of a call's tensors, from what was kept of it and the cotangents of its results.

        Saved tensors may lie elsewhere by now, each in its own way: saved-tensor hooks, such as those that move tensors
        to the host, give back tensors with other strides.
        """
        if self.is_empty:
            return [torch.zeros_like(value) if wants else None for value, wants in zip(saved, needs)]
        backward_pass, is_dense = self.backward_pass(needs, grads), False
        if backward_pass.is_straight:
            gradients = backward_pass.straight(numbers, saved, grads, backward_pass.needs)
            if gradients is not None:
                self.usual = None if self.added or self.packed else backward_pass
                return gradients
        elif self.is_dense:
            is_dense = self.as_planned(saved, grads)
        values, checkpoints, grads, is_dense = self.as_read(saved, grads, is_dense)
        params = self.params(numbers, values) if self.views else numbers
        results, sums = backward_pass(params, values[: self.moving], checkpoints, grads, is_dense)
        return backward_pass.placed(results, sums, saved)

    def backward_pass(self, needs: Sequence[bool], grads: Sequence[Optional[Tensor]]) -> Pass:
        """The pass for these needs and the cotangents that arrive."""
        there = (grads[0] is not None,) if len(grads) == 1 else tuple([grad is not None for grad in grads])
        key = (tuple(needs), there)
        backward_pass = self._backward.get(key)
        if backward_pass is None:
            backward_pass = self._backward[key] = Pass(self, *key)
        return backward_pass

    def as_read(
        self, saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]], is_dense: bool
    ) -> Tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Optional[Tensor]], bool]:
        """The tensors of a call, checkpoints and cotangents, as kernels read them, and whether all lie as planned,
        which ``is_dense`` says.
        """
        values, checkpoints = saved[: self.count], saved[self.count :]
        if not is_dense:
            values, checkpoints, grads = self._refitted(values, checkpoints, grads)
        if not (is_dense and self.as_is):
            values = self.fitted(values, is_dense)
        return values, checkpoints, grads, is_dense

    def as_planned(self, saved: Sequence[Tensor], grads: Sequence[Optional[Tensor]]) -> bool:
        """True if saved tensors and cotangents lie as the call had them: hooks and users may give anything. Autograd
        gives a cotangent the shape, the dtype and the device of its result.
        """
        device = self.device
        try:
            for grad, (_, strides, _) in zip(grads, self.results):
                if grad is not None and (grad.stride() != strides or not grad.data_ptr() or grad.is_neg()):
                    return False
            for value, (shape, strides, dtype) in zip(saved, self.saved):
                if value.stride() != strides or not value.data_ptr() or value.is_neg():
                    return False
                if value.shape != shape or value.dtype is not dtype or value.device != device:
                    return False
        except RuntimeError:  # tensors wrapped by functorch raise on data_ptr()
            return False
        return True

    def _refitted(
        self, tensors: Sequence[Tensor], checkpoints: Sequence[Tensor], grads: Sequence[Optional[Tensor]]
    ) -> Tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Optional[Tensor]]]:
        """Saved tensors and cotangents, with memory, where kernels read them."""
        tensors, checkpoints, grads = resolved(tensors), resolved(checkpoints), resolved(grads)
        device = next((grad for grad in grads if grad is not None), tensors[0]).device
        for value, (shape, _, dtype) in zip((*tensors, *checkpoints), self.saved):
            if value.shape != shape or value.dtype != dtype or value.device != device:
                raise RuntimeError(
                    f"{self.kernels.program.name}: a saved-tensor hook gave back {value.dtype} {list(value.shape)} on "
                    f"{value.device}, where {dtype} {list(shape)} on {device} was saved; what a hook unpacks must have "
                    "the dtype, shape and device of what it packed"
                )
        return tensors, [self.layout.fit_saved(value) for value in checkpoints], self.read(grads)

    # -- tensors

    def read(self, grads: Sequence[Optional[Tensor]]) -> List[Optional[Tensor]]:
        """Cotangents of a call's results as kernels read them: copies where they lie in another way."""
        n, m, layout = self.kernels.n_outputs, self.kernels.n_outputs + self.kernels.n_final, self.layout
        steps = range(0 if self.call.single else n, m)
        return [
            grad if grad is None else layout.fit(grad) if k in steps else layout.fit_steps(grad)
            for k, grad in enumerate(grads)
        ]

    def fitted(self, tensors: Sequence[Tensor], as_planned: bool) -> List[Tensor]:
        """The tensors of a call where kernels read them: those that lie elsewhere, and parameters of another dtype than
        that of arithmetic, are copied. ``as_planned``: they lie as the call had them.
        """
        layout, n, spec = self.layout, self.kernels.n_inputs, self.kernels.spec
        fit_input = layout.fit if self.call.single else layout.fit_steps
        if self.spread is not None:
            values = self.spread.fitted(self.timed(tensors[:n]), as_planned)
            values = [x.squeeze(0) for x in values] if self.call.single else values
        else:
            values = [fit_input(value) for value in tensors[:n]] if self.kernels.reads else [*tensors[:n]]
        values += [layout.fit(value) for value in tensors[n : self.moving]]
        params = zip(self.kernels.tensor_params, tensors[self.moving :], self.views)
        return values + [
            fitted_param(spec.params[index], value.to(spec.compute), view, layout) for index, value, view in params
        ]

    def _holds(self, tensors: Sequence[Tensor]) -> bool:
        """True if kernels read all tensors of a call in place, so that :meth:`fitted` copies none."""
        layout, n, spec = self.layout, self.kernels.n_inputs, self.kernels.spec
        holds_input = layout.holds if self.call.single else layout.holds_steps
        holds_inputs = all(map(holds_input, tensors[:n])) if self.spread is None else self.spread.as_is
        if self.kernels.reads and not holds_inputs:
            return False
        return all(map(layout.holds, tensors[n : self.moving])) and all(
            value.dtype is spec.compute and fits_param(spec.params[index], value, view, layout)
            for index, value, view in zip(self.kernels.tensor_params, tensors[self.moving :], self.views)
        )

    def _becomes_dense(self, value: Tensor) -> bool:
        """True if an input is dense from end to end where kernels read it; a copy is, but of one step repeated."""
        return value.stride(0) == self.geometry.neurons if self.layout.holds_steps(value) else value.stride(0) != 0

    def params(self, numbers: Sequence[Any], values: Sequence[Tensor]) -> Any:
        """All parameters, as a kernel takes them."""
        params = [*numbers]
        for index, value in zip(self.kernels.tensor_params, values[self.moving :]):
            params[index] = value
        return params

    def shaped(self, params: Any) -> Any:
        """All parameters, those with a number for each neuron in the shape of a step."""
        own, full = self.layout.shape, self.full
        return [value.view(own) if k in full else value for k, value in enumerate(params)] if full else params

    def timed(self, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Inputs or outputs, with a dimension of time."""
        return [value.unsqueeze(0) for value in values] if self.call.single else values

    def _geometry(self, x: Tensor) -> Geometry:
        kernels, layout = self.kernels, self.layout
        channels, rows = channels_of(kernels, layout, self.views), layout.rows if layout.outer else (0, 0)
        period = (0, ()) if self.spread is None else self.spread.sizes
        return Geometry(x.shape[0], x.numel() // x.shape[0], channels, rows, *period)


class Pass:
    """One kind of backward pass of a plan: by which cotangents arrive, and which gradients are wanted."""

    def __init__(self, plan: CallPlan, needs: Tuple[bool, ...], present: Sequence[bool]) -> None:
        kernels, call = plan.kernels, plan.call
        self.plan, self.needs = plan, needs
        backward = kernels.backward_plan(call, present, needs)
        if plan.spread is not None and plan.spread.kinds:
            kinds = plan.spread.kinds
            summed = tuple([k for k in backward.wanted if kernels.backend.sums_periods and kinds[k]])
            backward = replace(backward, broadcast=kinds, summed=summed)
        self.summed_inputs = backward.summed
        self.final, self.state = bool(backward.final), backward.state
        #: The parameters whose gradient is found, and their kinds.
        self.learnt = [(name, backward.kinds[name]) for name in backward.learn]
        self.launch = kernels.launch(backward, plan.geometry)
        #: Forms of the filled tensors: gradients of inputs, and of all states if that of any is wanted.
        self.n_inputs = len(backward.written)
        self.forms = [plan.results[0]] * self.n_inputs + [plan.step] * (kernels.n_states * backward.state)
        #: Positions of these among the tensors of the call; and the parameters, with their kinds, views and channels.
        self.places = [*backward.written]
        self.places += range(kernels.n_inputs, plan.moving) if backward.state else ()
        params = zip(range(plan.moving, plan.count), kernels.tensor_params, plan.views)
        self.summed = [
            (place, kernels.spec.params[index], view, plan.geometry.channels[index])
            for place, index, view in params
            if needs[place]
        ]
        counts = (
            kernels.n_inputs,
            plan.moving - kernels.n_inputs,
            0,
            plan.n_checkpoints,
            sum(backward.outputs),
            kernels.n_final * self.final,
            len(backward.trace),
            self.n_inputs,
            kernels.n_states * backward.state,
        )
        self.dense = dense_of(self.launch, plan.geometry, counts, kernels.backend.owns_outputs)
        #: True if :meth:`straight` computes it: inputs, and the cotangent of one output in the same layout.
        is_one = plan.moving == kernels.n_inputs and len(present) == sum(present) == 1
        is_alike = plan.results[0] == plan.tensors[plan.lead]
        is_read = plan.as_is and plan.is_dense and kernels.reads
        self.is_straight = is_one and is_alike and is_read and self.dense is not None
        shapes = [plan.tensors[place][0] for place in backward.written]
        #: The inputs whose gradient, one number for each neuron, is summed by torch, and their shapes.
        self.broadcast = [(place, shape) for place, shape in zip(backward.written, shapes) if shape != self.forms[0][0]]

    def straight(
        self,
        numbers: Sequence[Any],
        saved: Sequence[Tensor],
        grads: Sequence[Optional[Tensor]],
        needs: Tuple[bool, ...],
    ) -> Optional[List[Optional[Tensor]]]:
        """The wanted gradients of the usual call, None where another pass or another launch takes it."""
        plan = self.plan
        if grads[0] is None or needs != self.needs or not plan.as_planned(saved, grads):
            return None
        if plan.count == 1:
            results: List[Any] = [torch.empty_like(saved[0])]
            return None if self.dense((*saved, grads[0], *results), numbers) is None else results  # type: ignore[misc]  # it is there
        x = saved[plan.lead]
        results = [torch.empty_like(x) for _ in range(self.n_inputs)]
        params = plan.params(numbers, saved) if plan.views else numbers
        sums = self.dense((*saved[: plan.moving], *saved[plan.count :], grads[0], *results), params)  # type: ignore[misc]  # too
        return None if sums is None else self.placed(results, sums, saved)

    def __call__(
        self,
        params: Sequence[Any],
        moving: Sequence[Tensor],
        checkpoints: Sequence[Tensor],
        grads: Sequence[Optional[Tensor]],
        is_dense: bool,
    ) -> Tuple[Sequence[Tensor], Optional[Sequence[Tensor]]]:
        """The wanted gradients of inputs and states, and parts of those of parameters. ``params`` are all parameters,
        ``moving`` inputs and states, as kernels read them.
        """
        plan, kernels, device = self.plan, self.plan.kernels, moving[0].device
        n, m = kernels.n_outputs, kernels.n_outputs + kernels.n_final
        arriving: List[Tensor] = [grad for grad in grads if grad is not None]
        if not kernels.reads and grads[0] is not None:
            moving = [*[grads[0]] * kernels.n_inputs, *moving[kernels.n_inputs :]]
        ends: Sequence[Tensor] = ()
        if self.final:
            (zero,) = _empty([plan.step], device)
            ends = [zero.zero_() if grad is None else grad for grad in grads[n:m]]
            arriving = [*[g for g in grads[:n] if g is not None], *ends, *[g for g in grads[m:] if g is not None]]
        sums = None
        if kernels.backend.owns_outputs:
            results: List[Tensor] = []
        else:
            results = _empty(self.forms, device)
        if is_dense and self.dense is not None:
            sums = self.dense((*moving, *checkpoints, *arriving, *results), params)
        if sums is None:
            inputs, outputs = plan.timed(moving[: kernels.n_inputs]), [grad for grad in grads[:n] if grad is not None]
            trace = [grad for grad in grads[m:] if grad is not None]
            state, params = moving[kernels.n_inputs :], plan.shaped(params)
            groups = (inputs, state, params, checkpoints, plan.timed(outputs), ends, trace)
            if kernels.backend.owns_outputs:
                results, sums = returned_backward(self, groups)
            else:
                filled = plan.timed(results[: self.n_inputs]), results[self.n_inputs :]
                sums = self.launch(plan.geometry, *groups, *filled)
        return results, sums

    def placed(
        self, results: Sequence[Tensor], sums: Optional[Sequence[Tensor]], saved: Sequence[Tensor]
    ) -> List[Optional[Tensor]]:
        """The gradients of the tensors of the call, each in its place."""
        plan = self.plan
        gradients: List[Optional[Tensor]] = [None] * plan.count
        for place, result in zip(self.places, results):
            gradients[place] = result
        for (place, kind, view, channels), part in zip(self.summed, sums or ()):
            gradients[place] = gradient(kind, part, saved[place], view, plan.layout, channels)
        for place, shape in self.broadcast:
            (whole,) = plan.timed([gradients[place]])  # type: ignore[list-item]  # it is there
            gradients[place] = plan.spread.narrowed(place, whole, shape)  # type: ignore[union-attr]  # some broadcast
        for place, part in zip(self.summed_inputs, (sums or ())[len(self.learnt) :]):
            gradients[place] = plan.spread.summed(place, part, plan.tensors[place][0])  # type: ignore[union-attr]  # too
        return gradients


def form_of(value: Tensor) -> Form:
    """Shape, strides and dtype of a tensor."""
    return tuple(value.shape), value.stride(), value.dtype


def _step(form: Form) -> Form:
    shape, strides, dtype = form
    return shape[1:], strides[1:], dtype


def _empty(forms: Sequence[Form], device: torch.device) -> List[Tensor]:
    return [torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in forms]


def channels_of(kernels: Kernels, layout: Layout, views: Sequence[Sequence[int]]) -> Tuple[Tuple[int, int], ...]:
    """:attr:`Geometry.channels` for parameters of these views; empty where every parameter is a number."""
    kinds = kernels.spec.params
    channels = [(0, 0)] * len(kinds) if views else []
    for index, view in zip(kernels.tensor_params, views):
        if kinds[index] == "channel":
            channels[index] = layout.channels_along(view)
    return tuple(channels)


def dense_of(launch: Any, geometry: Geometry, counts: Sequence[int], owns_outputs: bool) -> Optional[Dense]:
    """A launch of dense tensors of these sizes, so many in each of the groups of :mod:`spikecore.kernels._layout`.

    The launch of a backend may have a method ``dense(geometry, counts)`` that gives it. It takes tensors with time and
    without, which are dense from end to end. What it gives may have a method ``steps(columns, params, count)``, for
    many launches of one step: a function that launches one by its number, and takes these tensors every time. Each
    column is a tensor ``[count, ...]`` or ``[1, ...]``, or a tensor for each step.
    """
    make = None if owns_outputs or geometry.rows[0] else getattr(launch, "dense", None)
    return None if make is None else make(geometry, counts)


def packed_inputs(program: Program, tensors: Sequence[Tensor]) -> List[Tuple[int, Tuple[Any, ...], Whole]]:
    """The inputs of a call that autograd keeps as bits: index; shape, order of memory and dtype; and what they hold."""
    packed = []
    for name, whole in program.whole:
        index = program.inputs.index(name)
        x = tensors[index]
        packed.append((index, (x.shape, memory_order(x), x.dtype), whole))
    return packed


Kernels.plans = CallPlan
