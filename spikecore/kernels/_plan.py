"""What a kernel is compiled for.

A plan is a value: the program, the spec, and which of the optional tensors exist. Sizes are part of it only for a
backend that asks for them (:attr:`~spikecore.kernels.KernelBackend.sizes`). Two launches make a backend: one for a
:class:`ForwardPlan`, one for a :class:`BackwardPlan`. From what was asked, a plan derives which parts of the
program a kernel needs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from spikecore.backend import Spec
from spikecore.kernels.cut import smallest_cut
from spikecore.lang import Adjoint, Node, Program, loop_invariant, topological
from spikecore.lang.node import const

#: Kinds of parameters that have one value for all neurons.
UNIFORM_KINDS = ("number", "scalar")


class Geometry(NamedTuple):
    """Sizes of one call."""

    #: Number of time steps.
    steps: int
    #: Number of neurons of one time step.
    neurons: int
    #: For each parameter of kind "channel": (neurons between neighbouring channels, channels); else (0, 0). Neuron
    #: ``i`` belongs to channel ``(i // inner) % channels``. Empty where every parameter is a number.
    channels: Tuple[Tuple[int, int], ...]


class ForwardPlan(NamedTuple):
    """A forward kernel: all steps of a program.

    record: names of the states whose value after every step is written.
    has_initial_state: whether the initial state is an argument; otherwise it is ``program.rest``.
    final: whether the final state is written.
    checkpoints: whether states are written before every chunk of steps but the first, for backward.
    geometry: the sizes of every call of this kernel, if they are fixed.
    """

    program: Program
    spec: Spec
    record: Tuple[str, ...] = ()
    has_initial_state: bool = False
    final: bool = False
    checkpoints: bool = False
    geometry: Optional[Geometry] = None

    @property
    def dtype(self) -> torch.dtype:
        """dtype of inputs and outputs."""
        return self.spec.dtype

    @property
    def compute(self) -> torch.dtype:
        """dtype of state and arithmetic."""
        return self.spec.compute

    @property
    def kinds(self) -> Dict[str, str]:
        """The kind of each parameter, by its name."""
        return dict(zip(self.program.params, self.spec.params))

    @property
    def roots(self) -> Tuple[Node, ...]:
        """What one step computes: outputs, and the next value of each state."""
        return (*self.program.outputs, *self.program.next)

    @property
    def initial(self) -> Tuple[Node, ...]:
        """The initial values that the kernel computes from parameters; none where they are arguments."""
        return () if self.has_initial_state else self.program.rest

    @property
    def saved(self) -> Tuple[str, ...]:
        """Names of the states whose checkpoints are written."""
        return saved_states(self.program, self.spec, self.has_initial_state) if self.checkpoints else ()


class BackwardPlan(NamedTuple):
    """A backward kernel: the adjoint of a program from the last step to the first.

    has_initial_state: whether the initial state is an argument; otherwise it is ``program.rest``.
    outputs: for each output, whether a cotangent arrives.
    trace: names of the recorded states with a cotangent for every step.
    final: whether cotangents of the final state arrive.
    inputs: for each input, whether its gradient is written.
    state: whether the gradient of the initial state is written.
    learn: names of the parameters whose gradient is written.
    geometry: as in :class:`ForwardPlan`.
    """

    program: Program
    spec: Spec
    has_initial_state: bool
    outputs: Tuple[bool, ...]
    trace: Tuple[str, ...]
    final: bool
    inputs: Tuple[bool, ...]
    state: bool
    learn: Tuple[str, ...]
    geometry: Optional[Geometry] = None

    @property
    def dtype(self) -> torch.dtype:
        """dtype of inputs, outputs and their gradients."""
        return self.spec.dtype

    @property
    def compute(self) -> torch.dtype:
        """dtype of state, arithmetic, and the gradients of state and parameters."""
        return self.spec.compute

    @property
    def kinds(self) -> Dict[str, str]:
        """The kind of each parameter, by its name."""
        return dict(zip(self.program.params, self.spec.params))

    @property
    def arriving(self) -> Tuple[int, ...]:
        """Which outputs have a cotangent: their numbers, in the order of the tensors ``grad_outputs``."""
        return tuple(index for index, there in enumerate(self.outputs) if there)

    @property
    def wanted(self) -> Tuple[int, ...]:
        """Which inputs get a gradient: their numbers, in the order of the tensors ``grad_inputs``."""
        return tuple(index for index, wants in enumerate(self.inputs) if wants)

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
        return tuple(node for name, node in zip(self.program.states, self.program.rest) if name in states)

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
        inputs = [node for node, wants in zip(adjoint.inputs, self.inputs) if wants]
        return (*inputs, *states, *adjoint.params)


# A writer asks for these at every state and line, and a program may have thousands of operations.


@lru_cache(maxsize=64)
def _adjoint(plan: BackwardPlan) -> Adjoint:
    found = plan.program.adjoint(plan.learn, plan.outputs, plan.trace, plan.final)
    inputs = [node if wants else const(0.0) for node, wants in zip(found.inputs, plan.inputs)]
    return Adjoint(tuple(inputs), found.states, found.params)


@lru_cache(maxsize=64)
def _carried_cotangents(plan: BackwardPlan) -> Tuple[str, ...]:
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
    everything = BackwardPlan(
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
    return everything.recomputed_states


def hoisted(program: Program, spec: Spec, roots: Sequence[Node]) -> Tuple[Tuple[Node, ...], Tuple[Node, ...]]:
    """What the roots use of the expressions of parameters alone: those that are one value, and one value per neuron.

    Both are computed before the first step. What only another one of them uses is left out, and so is ``detach``: a
    kernel has one symbol for a value and itself detached, which would be computed twice.
    """
    order = topological(roots)
    fixed = loop_invariant(order)
    inside = {node for node in fixed if node.op != "detach"}
    used = {arg for node in order if node not in inside for arg in node.args} | set(roots)
    varying = {Node("param", (), name) for name, kind in zip(program.params, spec.params) if kind not in UNIFORM_KINDS}
    for node in fixed:
        if any(arg in varying for arg in node.args):
            varying.add(node)
    front = [node for node in fixed if node in inside and node in used]
    return tuple(n for n in front if n not in varying), tuple(n for n in front if n in varying)


def is_choice(node: Node) -> bool:
    """Whether a value is chosen among numbers: a spike, a sign, a choice between constants.

    GPU compilers make integers of such values, and an integer has no -0, which the negation of 0 should be.
    """
    if node.op == "detach":
        return is_choice(node.args[0])
    chosen = node.args[1:] if node.op in ("where", "select") else ()
    return node.op in ("spike", "sign") or (bool(chosen) and all(arg.op == "const" or is_choice(arg) for arg in chosen))


def negated_choice(node: Node) -> Optional[int]:
    """Which argument is a choice among numbers that this operation negates; None for others."""
    if node.op == "neg" and is_choice(node.args[0]):
        return 0
    if node.op not in ("mul", "div"):
        return None
    a, b = node.args
    if b.op == "const" and b.attr == -1.0 and is_choice(a):
        return 0
    return 1 if node.op == "mul" and a.op == "const" and a.attr == -1.0 and is_choice(b) else None


def leaves_of(op: str, roots: Iterable[Node]) -> Set[str]:
    """Names of the leaves of one kind that the roots use."""
    return {str(node.attr) for node in topological(roots) if node.op == op}


def closure(names: Iterable[str], op: str, rule: dict[str, Node]) -> FrozenSet[str]:
    """The names, and those of the leaves that their rules use, and so on."""
    found: Set[str] = set()
    waiting: List[str] = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(leaves_of(op, [rule[name]]))
    return frozenset(found)


def in_order(names: Sequence[str], chosen: Iterable[str]) -> Tuple[str, ...]:
    """The chosen ones of the names, in their order."""
    chosen = set(chosen)
    return tuple(name for name in names if name in chosen)
