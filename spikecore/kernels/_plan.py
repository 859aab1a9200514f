"""What a kernel is compiled for.

A plan is a value: the program, the spec, and which of the optional tensors exist. Sizes are part of it only for a
backend that asks for them (:attr:`~spikecore.kernels.KernelBackend.sizes`). Two launches make a backend: one for a
:class:`ForwardPlan`, one for a :class:`BackwardPlan`. From what was asked, a plan derives which parts of the
program a kernel needs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.backend import Spec
from spikecore.kernels._closure import closure, in_order, leaves_of
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._steps import Functions, Step, split
from spikecore.kernels.cut import smallest_cut
from spikecore.lang import Adjoint, Node, Program
from spikecore.lang.node import const


class _OfSpec:
    """What a plan of either direction takes from its program and its spec."""

    __slots__ = ()
    program: Program
    spec: Spec

    @property
    def dtype(self) -> torch.dtype:
        """dtype of inputs, outputs and their gradients."""
        return self.spec.dtype

    @property
    def compute(self) -> torch.dtype:
        """dtype of arithmetic, of state, and of the gradients of state and parameters."""
        return self.spec.compute

    @property
    def kinds(self) -> Dict[str, str]:
        """The kind of each parameter, by its name."""
        return dict(zip(self.program.params, self.spec.params))


class _ForwardFields(NamedTuple):  # apart from the plan, since a NamedTuple takes no further base
    program: Program
    spec: Spec
    record: Tuple[str, ...] = ()
    has_initial_state: bool = False
    final: bool = False
    checkpoints: bool = False
    geometry: Optional[Geometry] = None


class ForwardPlan(_ForwardFields, _OfSpec):
    """A forward kernel: all steps of a program.

    record: names of the states whose value after every step is written.
    has_initial_state: whether the initial state is an argument; otherwise it is ``program.initial``.
    final: whether the final state is written.
    checkpoints: whether states are written before every chunk of steps but the first, for backward.
    geometry: the sizes of every call of this kernel, if they are fixed.
    """

    __slots__ = ()

    @property
    def roots(self) -> Tuple[Node, ...]:
        """What one step computes: outputs, and the next value of each state."""
        return (*self.program.outputs, *self.program.next)

    @property
    def initial(self) -> Tuple[Node, ...]:
        """The initial values that the kernel computes from parameters; none where they are arguments."""
        return () if self.has_initial_state else self.program.initial

    @property
    def saved(self) -> Tuple[str, ...]:
        """Names of the states whose checkpoints are written."""
        return saved_states(self.program, self.spec, self.has_initial_state) if self.checkpoints else ()

    def initial_state(
        self, params: Sequence[Any], functions: Optional[Functions] = None, like: Optional[Tensor] = None
    ) -> List[Any]:
        """The first value of each state at rest, as a pure function (see :meth:`forward_step`).

        One that depends on no parameter is a number, or a tensor ``[]``: broadcast it. ``like`` is a tensor of the
        dtype and on the device of the result, for parameters of which none is a tensor.
        """
        return _initial(self.program)(params, functions, like)

    def forward_step(
        self,
        inputs: Sequence[Any],
        state: Sequence[Any],
        params: Sequence[Any],
        functions: Optional[Functions] = None,
    ) -> Tuple[List[Any], List[Any]]:
        """One time step as a pure function: ``(outputs, next value of each state)``.

        Values are in the dtype of arithmetic and broadcast against one step ``[*N]``: tensors, expressions
        (:class:`spikecore.lang.Expr`), or whatever a table of ``functions`` computes with (op name -> function, see
        ``spikecore.kernels.Functions``).
        """
        found = _forward(self.program)([*inputs, *state, *params], functions, None)
        outputs, following = split(found, len(self.program.outputs), len(self.program.states))
        return outputs, following


class _BackwardFields(NamedTuple):
    program: Program
    spec: Spec
    has_initial_state: bool
    outputs: Tuple[bool, ...]
    trace: Tuple[str, ...]
    final: Union[bool, Tuple[str, ...]]
    inputs: Tuple[bool, ...]
    state: bool
    learn: Tuple[str, ...]
    geometry: Optional[Geometry] = None


class BackwardPlan(_BackwardFields, _OfSpec):
    """A backward kernel: the adjoint of a program from the last step to the first.

    has_initial_state: whether the initial state is an argument; otherwise it is ``program.initial``.
    outputs: for each output, whether a cotangent arrives.
    trace: names of the recorded states with a cotangent for every step.
    final: names of the final states whose cotangents arrive, True for all, False for none. A kernel whose plan has
        one gets an array for each state: zeros for others.
    inputs: for each input, whether its gradient is written.
    state: whether the gradient of the initial state is written.
    learn: names of the parameters whose gradient is written.
    geometry: as in :class:`ForwardPlan`.
    """

    __slots__ = ()

    @property
    def arriving(self) -> Tuple[int, ...]:
        """Which outputs have a cotangent: their numbers, in the order of the tensors ``grad_outputs``."""
        return tuple(index for index, there in enumerate(self.outputs) if there)

    @property
    def wanted(self) -> Tuple[int, ...]:
        """Which inputs get a gradient: their numbers, in the order of the tensors ``grad_inputs``."""
        return tuple(index for index, wants in enumerate(self.inputs) if wants)

    @property
    def forward(self) -> ForwardPlan:
        """The forward pass that this one differentiates, of which it may recompute steps."""
        return ForwardPlan(self.program, self.spec, has_initial_state=self.has_initial_state)

    def backward_step(
        self,
        inputs: Sequence[Any],
        state: Sequence[Any],
        params: Sequence[Any],
        grad_outputs: Sequence[Any],
        grad_state: Sequence[Any],
        functions: Optional[Functions] = None,
    ) -> Tuple[List[Any], List[Any], List[Any]]:
        """One time step backwards as a pure function: ``(grad_inputs, grad_state, grad_params)`` before the step.

        ``inputs``, ``state`` and ``params`` are those of the step (``state`` before it), values as for
        :meth:`ForwardPlan.forward_step`. ``grad_outputs`` are the cotangents of outputs that arrive
        (:attr:`arriving`), ``grad_state`` those of every state after the step: what the later step gave, and the
        cotangent of that step's recorded state added. The results are gradients of the :attr:`wanted` inputs,
        cotangents of every state before the step, and what the step adds to the gradient of each parameter of
        ``learn``, of one number per neuron. Where a parameter is one for several neurons, sum over these.
        """
        values = [*inputs, *state, *params, *grad_outputs, *grad_state]
        found = _backward(self._replace(geometry=None))(values, functions, None)
        grads, carried, learnt = split(found, len(self.wanted), len(self.program.states), len(self.learn))
        return grads, carried, learnt

    @property
    def adjoint(self) -> Adjoint:
        """The adjoint of one step, without what this plan does not need; an input gradient not wanted is 0."""
        return _adjoint(self._replace(geometry=None))

    @property
    def carried_cotangents(self) -> Tuple[str, ...]:
        """Names of the states whose cotangents a kernel carries from step to step."""
        return _carried_cotangents(self._replace(geometry=None))

    @property
    def recomputed_states(self) -> Tuple[str, ...]:
        """Names of the states whose values a kernel recomputes: the adjoint, or such a state, is computed from them."""
        return _recomputed_states(self._replace(geometry=None))

    @property
    def following(self) -> Dict[str, Node]:
        """The next value of each recomputed state, by its name."""
        states = self.recomputed_states
        return {name: node for name, node in zip(self.program.states, self.program.next) if name in states}

    @property
    def initial(self) -> Tuple[Node, ...]:
        """The initial values of recomputed states that the kernel computes; none where they are arguments."""
        if self.has_initial_state:
            return ()
        states = self.recomputed_states
        return tuple(node for name, node in zip(self.program.states, self.program.initial) if name in states)

    @property
    def saved(self) -> Tuple[str, ...]:
        """Names of the states whose checkpoints forward has written; the recomputed states are among them."""
        return saved_states(self.program, self.spec, self.has_initial_state)

    @property
    def cut(self) -> Tuple[Node, ...]:
        """The fewest values of a forward step from which the adjoint of that step can be computed."""
        return smallest_cut(self.roots)

    @property
    def roots(self) -> Tuple[Node, ...]:
        """What one step of the adjoint computes: gradients of inputs and parameters, cotangents of carried states."""
        adjoint, carried = self.adjoint, self.carried_cotangents
        states = [node for name, node in zip(self.program.states, adjoint.states) if name in carried]
        return (*[adjoint.inputs[index] for index in self.wanted], *states, *adjoint.params)


# A writer asks for these at every state and line, and a program may have thousands of operations.


@lru_cache(maxsize=64)
def _initial(program: Program) -> Step:
    return Step(program.leaves[len(program.inputs) + len(program.states) :], program.initial)


@lru_cache(maxsize=64)
def _forward(program: Program) -> Step:
    return Step(program.leaves, [*program.outputs, *program.next])


@lru_cache(maxsize=64)
def _backward(plan: BackwardPlan) -> Step:
    cotangents = [Node("out_grad", (), index) for index in plan.arriving]
    cotangents += [Node("next_grad", (), name) for name in plan.program.states]
    found = plan.adjoint
    inputs = [found.inputs[index] for index in plan.wanted]
    return Step([*plan.program.leaves, *cotangents], [*inputs, *found.states, *found.params])


@lru_cache(maxsize=64)
def _adjoint(plan: BackwardPlan) -> Adjoint:
    found = plan.program.adjoint(plan.learn, plan.outputs, plan.trace, plan.final)
    # what only an unwanted gradient is computed from would be carried and recomputed all the same
    inputs = [node if wants else const(0.0) for node, wants in zip(found.inputs, plan.inputs)]
    return Adjoint(tuple(inputs), found.states, found.params)


@lru_cache(maxsize=64)
def _carried_cotangents(plan: BackwardPlan) -> Tuple[str, ...]:
    # a cotangent is carried if a wanted gradient is computed from it, or from one that is computed from it
    of_state = dict(zip(plan.program.states, plan.adjoint.states))
    start = set(of_state) if plan.state else leaves_of("next_grad", [*plan.adjoint.inputs, *plan.adjoint.params])
    return in_order(plan.program.states, closure(start, "next_grad", of_state))


@lru_cache(maxsize=64)
def _recomputed_states(plan: BackwardPlan) -> Tuple[str, ...]:
    following = dict(zip(plan.program.states, plan.program.next))
    return in_order(plan.program.states, closure(leaves_of("state", plan.roots), "state", following))


@lru_cache(maxsize=256)
def saved_states(program: Program, spec: Spec, has_initial_state: bool) -> Tuple[str, ...]:
    """Names of the states whose checkpoints a backward pass may read, whatever gradients will be asked for.

    Which cotangents will arrive is not known in forward, so these are the states that a plan with all recomputes.
    """
    return every_gradient(program, spec, has_initial_state).recomputed_states


def every_gradient(program: Program, spec: Spec, has_initial_state: bool) -> BackwardPlan:
    """The backward kernel for all cotangents that finds every gradient: what it reads no other one reads more than."""
    return BackwardPlan(
        program,
        spec,
        has_initial_state=has_initial_state,
        outputs=(True,) * len(program.outputs),
        trace=program.states,
        final=True,
        inputs=(True,) * len(program.inputs),
        state=has_initial_state,
        learn=spec.learn,
    )
