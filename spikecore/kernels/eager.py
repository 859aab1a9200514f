"""Single steps of the reference: one node of autograd's graph for each, by straight-line code of torch's operations.

Values are those of :class:`spikecore.interpreter.Interpreter`, bit for bit. Gradients are those of the program's
adjoint, as kernels have them. Derivatives of gradients are autograd's, by the interpreter.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import ParamValue, Tensors, by_call
from spikecore.context import PLAIN, is_plain
from spikecore.interpreter import FRESH, FixedValues, Interpreter, full
from spikecore.kernels._autograd import apply
from spikecore.lang import Node, loop_invariant, topological
from spikecore.lang.eager import PlainLine, StraightLine, operands, with_masks
from spikecore.lang.node import parameters


class SingleSteps:
    """Single steps ``[*N]`` of an interpreter's program, whose tensors nothing but autograd in reverse mode follows."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        program, spec = self.program, self.spec = interpreter.program, interpreter.spec
        self.dtype, self.compute = interpreter.dtype, interpreter.compute
        self.n_inputs, self.n_outputs, self.n_states = len(program.inputs), len(program.outputs), len(program.states)
        self.roots = with_masks([*program.outputs, *program.next])
        n_moving = self.n_inputs + self.n_states
        moving, params = program.leaves[:n_moving], program.leaves[n_moving:]
        self.tensors_among = [leaf for leaf, kind in zip(params, spec.params) if kind != "number"]
        numbers = [leaf for leaf in params if leaf not in self.tensors_among]
        invariant = [node for node in loop_invariant(program.nodes) if {*parameters([node])}.issubset(numbers)]
        #: Leaves of a step: inputs, states, parameters that are tensors, and what depends on numbers alone.
        self.leaves = [*moving, *self.tensors_among, *numbers, *invariant]
        self.of_numbers = FixedValues(StraightLine(numbers, [*numbers, *invariant]))
        self.initial = FixedValues(StraightLine(params, program.initial))
        self.step = PlainLine(self.leaves, self.roots)
        #: True for a result in memory of its own, which no other result shares.
        self.fresh = [node.op in (*FRESH, "spike", "masked") and self.roots.count(node) == 1 for node in self.roots]
        #: True if the first states depend on a learnt parameter, so that the step at rest is no single node.
        self.learnt_initial = any(node.attr in spec.learn for node in parameters(program.initial))
        self._plans: Dict[Any, StepPlan] = {}

    def bind(
        self, inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]
    ) -> Optional[Callable[..., Tuple[Tensors, Optional[Tensors]]]]:
        """A function of ``(inputs, state, params)`` for calls with tensors of these types, of which the same ones want
        gradients, and with or without a state as here. None if such a call is not one node of autograd's graph.
        """
        tensors = (*inputs, *(state or ()), *_tensors(params))
        if self.program.normalised or not is_plain(inputs[0]) or any(type(t) not in PLAIN for t in tensors):
            return None
        wants = tuple([value.requires_grad for value in tensors])
        if not (torch.is_grad_enabled() and True in wants):
            return self._values
        if state is None and self.learnt_initial:
            return None
        key = (wants, state is not None)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = StepPlan(self, *key)
        return plan

    def _values(
        self, inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """Outputs, and states after the step if they are asked for."""
        n, tensors = self.n_outputs, self.tensors(inputs, state, params)
        results = self.results(self.step(*self.values(tensors, state is not None, params)), tensors[0].shape)
        return tuple(results[:n]), tuple(results[n:]) if self.spec.final else None

    def tensors(self, inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]) -> Tensors:
        """The tensors of a call: inputs, states if they are given, and parameters."""
        return (*inputs, *(state or ()), *(_tensors(params) if self.tensors_among else ()))

    def values(self, tensors: Tensors, has_state: bool, params: Sequence[ParamValue]) -> Tuple[List[Tensor], Tensor]:
        """The values of :attr:`leaves` for the tensors of a call, and a tensor of their dtype and device."""
        x, n, compute, numbers = tensors[0], self.n_inputs, self.compute, params
        like = x if x.dtype is compute else x.new_empty((), dtype=compute)
        if self.tensors_among:
            numbers = [value for value in params if not isinstance(value, Tensor)]
        if self.tensors_among or like is not x:
            tensors = _of_dtype(tensors, compute)
        if not has_state:
            initial = self.initial(params, like)
            tensors = (*tensors[:n], *[value.expand(x.shape) for value in initial], *tensors[n:])
        return [*tensors, *self.of_numbers(numbers, like)], like

    def results(self, values: Sequence[Tensor], shape: torch.Size) -> List[Tensor]:
        """Outputs and states as a caller gets them, from the values of a step: memory that nothing else shares."""
        results = [
            value
            if is_fresh and value.shape == shape and value.is_contiguous()
            else full(value, shape).clone(memory_format=torch.contiguous_format)
            for value, is_fresh in zip(values, self.fresh)
        ]
        if self.dtype is not self.compute:
            results[: self.n_outputs] = [value.to(self.dtype) for value in results[: self.n_outputs]]
        return results if self.spec.final else results[: self.n_outputs]


class StepPlan:
    """Single steps of which the same tensors want gradients: a plan of :class:`~spikecore.kernels._autograd.KernelCall`
    that keeps the values which backward reads.
    """

    #: Backward computes derivatives of gradients itself; and no cotangent is passed on as it is.
    eager, added, usual, computes_saved = False, (), None, True

    def __init__(self, steps: SingleSteps, wants: Sequence[bool], has_state: bool) -> None:
        self.steps, self.has_state, program, known = steps, has_state, steps.program, set(steps.leaves)
        self.n_moving = steps.n_inputs + steps.n_states * has_state
        self.n_results = steps.n_outputs + steps.n_states * steps.spec.final
        self.cotangents = [Node("out_grad", (), index) for index in range(steps.n_outputs)]
        self.cotangents += [Node("next_grad", (), name) for name in program.states]
        self._backward: Dict[Any, Tuple[List[int], PlainLine]] = {}
        computed = {node for node in topological(steps.roots, known=known) if node.op != "const"}
        every = self._roots(wants, (True,) * len(self.cotangents))
        read = [*every, *[arg for node in topological(every, known=known | computed) for arg in operands(node)]]
        #: Intermediate values that backward reads, beside the results, which a caller may change.
        self.intermediates = [node for node in dict.fromkeys(read) if node in computed and node not in steps.roots]
        self.step = PlainLine(steps.leaves, [*steps.roots, *self.intermediates])

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """One step, as one node of autograd's graph."""
        results = apply((self, params), *self.steps.tensors(inputs, state, params))
        n = self.steps.n_outputs
        return results[:n], results[n:] if self.steps.spec.final else None

    def forward(self, params: Sequence[ParamValue], tensors: Tensors) -> List[Tensor]:
        """The results of a step, and what backward reads of it."""
        steps = self.steps
        values, n = self.step(*steps.values(tensors, self.has_state, params)), len(steps.roots)
        return [*steps.results(values[:n], tensors[0].shape), *values[n:]]

    def to_save(self, tensors: Tensors, results: Sequence[Tensor]) -> Tensors:
        """Tensors that autograd keeps for backward."""
        return (*tensors, *results[self.n_results :])

    def restored(self, saved: Tensors) -> Tensors:
        """Tensors of a call and its intermediate values: those that autograd kept."""
        return saved

    def backward(
        self, params: Sequence[ParamValue], saved: Tensors, grads: Sequence[Optional[Tensor]], needs: Sequence[bool]
    ) -> Sequence[Optional[Tensor]]:
        """Gradients of a call's tensors, from the cotangents of its results that arrive."""
        count, compute = len(needs), self.steps.compute
        tensors, intermediates = saved[:count], saved[count:]
        if torch.is_grad_enabled():
            return self._differentiable(tensors, params, grads, needs)
        key = (needs, tuple([grad is not None for grad in grads]))
        places, line = self._backward.get(key) or self._backward.setdefault(key, self._adjoint(*key))
        leaves, like = self.steps.values(tensors, self.has_state, params)
        arriving = [grads[place] if place < len(grads) else None for place in places]
        cotangents = tuple([torch.zeros_like(leaves[0]) if g is None else g for g in arriving])
        if self.steps.dtype is not compute:
            cotangents = _of_dtype(cotangents, compute)
        gradients = iter(line([*leaves, *intermediates, *cotangents], like))
        shape = tensors[0].shape
        return [_fitted(next(gradients), value, shape) if wants else None for value, wants in zip(tensors, needs)]

    def _roots(self, needs: Sequence[bool], present: Sequence[bool]) -> List[Node]:
        """The wanted gradients where these cotangents arrive."""
        steps, program = self.steps, self.steps.program
        learn = [str(leaf.attr) for leaf, wants in zip(steps.tensors_among, needs[self.n_moving :]) if wants]
        final = [name for name, there in zip(program.states, present[steps.n_outputs :]) if there]
        adjoint = program.adjoint(learn, present[: steps.n_outputs], (), final)
        moving = [node for node, wants in zip((*adjoint.inputs, *adjoint.states), needs[: self.n_moving]) if wants]
        return with_masks([*moving, *adjoint.params])

    def _adjoint(self, needs: Sequence[bool], present: Sequence[bool]) -> Tuple[List[int], PlainLine]:
        """The adjoint, and the places of the cotangents that it reads."""
        roots = self._roots(needs, (*present, *[False] * (len(self.cotangents) - len(present))))
        leaves = [*self.steps.leaves, *self.intermediates]
        read = topological(roots, known=leaves)
        places = [place for place, node in enumerate(self.cotangents) if node in read]
        return places, PlainLine([*leaves, *[self.cotangents[place] for place in places]], roots)

    def _differentiable(
        self,
        tensors: Tensors,
        params: Sequence[ParamValue],
        grads: Sequence[Optional[Tensor]],
        needs: Sequence[bool],
    ) -> Sequence[Optional[Tensor]]:
        """The gradients as functions of tensors and cotangents: the interpreter computes the step again."""
        local = tuple([value.view_as(value) for value in tensors])  # so that derivatives end here
        n, m = self.steps.n_inputs, self.n_moving
        values = iter(local[m:])
        params = tuple([next(values) if isinstance(value, Tensor) else value for value in params])
        state = local[n:m] if self.has_state else None
        outputs, end = by_call(self.steps.interpreter.interpret, local[:n], state, params)
        pairs = [(a, b) for a, b in zip((*outputs, *(end or ())), grads) if b is not None and a.requires_grad]
        targets = [value for value, wants in zip(local, needs) if wants]
        gradients: Sequence[Optional[Tensor]] = [None] * len(targets)
        if pairs:
            results, arriving = zip(*pairs)
            gradients = torch.autograd.grad(results, targets, arriving, create_graph=True, allow_unused=True)
        totals = iter([torch.zeros_like(a) if b is None else b for a, b in zip(targets, gradients)])
        return [next(totals) if wants else None for wants in needs]


def _tensors(params: Sequence[ParamValue]) -> Tensors:
    return tuple([value for value in params if isinstance(value, Tensor)])


def _of_dtype(values: Sequence[Tensor], dtype: torch.dtype) -> Tensors:
    return tuple([value if value.dtype is dtype else value.to(dtype) for value in values])


def _fitted(gradient: Tensor, value: Tensor, shape: torch.Size) -> Tensor:
    """A gradient of one number per neuron, summed over the neurons that share a value, in its shape and dtype."""
    if gradient.shape != shape:
        gradient = gradient.expand(shape)
    gradient = gradient if value.shape == shape else gradient.sum_to_size(value.shape)
    return gradient if gradient.dtype is value.dtype else gradient.to(value.dtype)
