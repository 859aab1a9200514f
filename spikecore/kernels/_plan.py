"""Plans: what a kernel is compiled for.

A plan is a value: the program, the spec, and which of the optional tensors exist. Sizes are part of it only for a
backend that asks for them (:attr:`~spikecore.kernels.KernelBackend.sizes`). Two launches make a backend: one for a
:class:`ForwardPlan`, one for a :class:`BackwardPlan`. From what was asked, a plan derives which parts of the
program a kernel needs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import (
    Any,
    Callable,
    Collection,
    Deque,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import torch
from torch import Tensor

from spikecore.backend import Spec, Unsupported
from spikecore.lang import Adjoint, Expr, Node, Program, SpikeRule, topological
from spikecore.lang.eager import StraightLine, number
from spikecore.lang.node import const, substitute


class Geometry(NamedTuple):
    """Sizes of one call."""

    #: Number of time steps.
    steps: int
    #: Number of neurons of one time step.
    neurons: int
    #: For each parameter of kind "channel": (neurons between neighbouring channels, channels); else (0, 0). Neuron
    #: ``i`` belongs to channel ``(i // inner) % channels``. Empty where every parameter is a number.
    channels: Tuple[Tuple[int, int], ...]
    #: The neurons of a row, and the dimension of a tensor of all steps whose stride goes from row to row: for backends
    #: with ``rows``. (0, 0) for tensors that are dense in each step.
    rows: Tuple[int, int] = (0, 0)
    #: The numbers of inputs whose kind is "period": neuron ``i`` reads number ``i % period``. Where inputs lie side by
    #: side, the neurons of a row of one. 0 where there are none.
    period: int = 0
    #: For each input that broadcasts how many numbers of a step differ, of which ``period`` is a multiple; 0 for
    #: others. Empty where none broadcasts.
    periods: Tuple[int, ...] = ()


@dataclass(frozen=True)
class _Plan:
    """Base of plans of both directions: their program and spec."""

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


@dataclass(frozen=True)
class ForwardPlan(_Plan):
    """A forward kernel: all steps of a program.

    record: names of the states whose value after every step is written.
    has_initial_state: whether the initial state is an argument; otherwise it is ``program.initial``.
    final: whether the final state is written.
    checkpoints: whether states are written before every chunk of steps but the first, for backward.
    geometry: the sizes of every call of this kernel, if they are fixed.
    broadcast: for each input "" where it has a number for each neuron, "period" where it has one for each of the first
        ``geometry.period`` neurons, which the next ones read again, "step" where it has one number a step; empty where
        none broadcasts.
    side_by_side: the k inputs that lie beside one another in tensors of rows ``[T, rows, k * geometry.period]``, and
        whose gradients do: each is a part of these columns. Empty where every tensor is dense.
    """

    record: Tuple[str, ...] = ()
    has_initial_state: bool = False
    final: bool = False
    checkpoints: bool = False
    geometry: Optional[Geometry] = None
    broadcast: Tuple[str, ...] = ()
    side_by_side: Tuple[int, ...] = ()

    @property
    def roots(self) -> Tuple[Node, ...]:
        """Roots of one step: outputs, and the next value of each state."""
        return (*self.program.outputs, *self.program.next)

    @property
    def initial(self) -> Tuple[Node, ...]:
        """The initial values that the kernel computes from parameters; none where they are arguments."""
        return () if self.has_initial_state else self.program.initial

    @property
    def saved(self) -> Tuple[str, ...]:
        """Names of the states whose checkpoints are written."""
        feedback = self.spec.feedback
        if not self.checkpoints or (feedback is not None and feedback.detach):
            # what comes back is constant: backward takes the inputs of the program alone
            return ()
        return saved_states(self.program, self.spec, self.has_initial_state)

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
        values = _forward(self.program)([*inputs, *state, *params], functions, None)
        outputs, following = split(values, len(self.program.outputs), len(self.program.states))
        return outputs, following


@dataclass(frozen=True)
class BackwardPlan(_Plan):
    """A backward kernel: the adjoint of a program from the last step to the first.

    has_initial_state: whether the initial state is an argument; otherwise it is ``program.initial``.
    outputs: for each output, whether a cotangent arrives.
    trace: names of the recorded states with a cotangent for every step.
    final: names of the final states whose cotangents arrive, True for all, False for none. A kernel whose plan has
        one gets an array for each state: zeros for others.
    inputs: for each input, whether its gradient is written.
    state: whether the gradient of the initial state is written.
    learn: names of the parameters whose gradient is written.
    geometry, broadcast, side_by_side: as in :class:`ForwardPlan`.
    summed: the inputs whose gradient the launch sums over the neurons that read one number.
    """

    has_initial_state: bool
    outputs: Tuple[bool, ...]
    trace: Tuple[str, ...]
    final: Union[bool, Tuple[str, ...]]
    inputs: Tuple[bool, ...]
    state: bool
    learn: Tuple[str, ...]
    geometry: Optional[Geometry] = None
    broadcast: Tuple[str, ...] = ()
    summed: Tuple[int, ...] = ()
    side_by_side: Tuple[int, ...] = ()

    @property
    def arriving(self) -> Tuple[int, ...]:
        """Which outputs have a cotangent: their numbers, in the order of the tensors ``grad_outputs``."""
        return tuple(index for index, there in enumerate(self.outputs) if there)

    @property
    def wanted(self) -> Tuple[int, ...]:
        """Numbers of the inputs that get a gradient."""
        return tuple(index for index, wants in enumerate(self.inputs) if wants)

    @property
    def written(self) -> Tuple[int, ...]:
        """Those of :attr:`wanted` with a number for each neuron, in the order of the tensors ``grad_inputs``."""
        return tuple(index for index in self.wanted if index not in self.summed)

    @property
    def forward(self) -> ForwardPlan:
        """The forward pass that this one differentiates, of which it may recompute steps."""
        kinds: Any = {"broadcast": self.broadcast, "side_by_side": self.side_by_side}
        return ForwardPlan(self.program, self.spec, has_initial_state=self.has_initial_state, **kinds)

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
        results = self._step(values, functions, None)
        grads, carried, learnt = split(results, len(self.wanted), len(self.program.states), len(self.learn))
        return grads, carried, learnt

    @cached_property
    def _step(self) -> Step:
        cotangents = [Node("out_grad", (), index) for index in self.arriving]
        cotangents += [Node("next_grad", (), name) for name in self.program.states]
        inputs = [self.adjoint.inputs[index] for index in self.wanted]
        return Step([*self.program.leaves, *cotangents], [*inputs, *self.adjoint.states, *self.adjoint.params])

    @cached_property
    def adjoint(self) -> Adjoint:
        """The adjoint of one step, without what this plan does not need; an input gradient not wanted is 0."""
        every = self.program.adjoint(self.learn, self.outputs, self.trace, self.final)
        # what only an unwanted gradient is computed from would be carried and recomputed all the same
        inputs = [node if wants else const(0.0) for node, wants in zip(every.inputs, self.inputs)]
        return Adjoint(tuple(inputs), every.states, every.params)

    @cached_property
    def carried_cotangents(self) -> Tuple[str, ...]:
        """Names of the states whose cotangents a kernel carries from step to step: a wanted gradient is computed from
        it, or from one that is computed from it.
        """
        of_state = dict(zip(self.program.states, self.adjoint.states))
        start = set(of_state) if self.state else leaves_of("next_grad", [*self.adjoint.inputs, *self.adjoint.params])
        return in_order(self.program.states, closure(start, "next_grad", of_state))

    @cached_property
    def recomputed_states(self) -> Tuple[str, ...]:
        """Names of the states whose values a kernel recomputes: the adjoint, or such a state, is computed from them."""
        following = dict(zip(self.program.states, self.program.next))
        return in_order(self.program.states, closure(leaves_of("state", self.roots), "state", following))

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

    @cached_property
    def cut(self) -> Tuple[Node, ...]:
        """The fewest values of a forward step from which the adjoint of that step can be computed."""
        return smallest_cut(self.roots)

    @cached_property
    def roots(self) -> Tuple[Node, ...]:
        """Roots of one step of the adjoint: gradients of inputs and parameters, cotangents of carried states."""
        adjoint, carried = self.adjoint, self.carried_cotangents
        states = [node for name, node in zip(self.program.states, adjoint.states) if name in carried]
        return (*[adjoint.inputs[index] for index in self.wanted], *states, *adjoint.params)


@lru_cache(maxsize=64)
def _initial(program: Program) -> Step:
    return Step(program.leaves[len(program.inputs) + len(program.states) :], program.initial)


@lru_cache(maxsize=64)
def _forward(program: Program) -> Step:
    return Step(program.leaves, [*program.outputs, *program.next])


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


@lru_cache(maxsize=256)
def added_inputs(program: Program, spec: Spec) -> Tuple[Tuple[int, int], ...]:
    """The inputs of a program that are only added to an output, as a shortcut is to spikes: for each its index among
    the inputs, and the index of the output. Their gradient is that output's cotangent: autograd keeps nothing of them,
    and kernels write nothing for them. The first input, whose shape a call has, is none of them.
    """
    if len(program.inputs) < 2:
        return ()
    plan = every_gradient(program, spec, True)
    read = leaves_of("input", [*plan.roots, *plan.following.values()])
    return tuple(
        (index, int(grad.attr))  # type: ignore[arg-type]  # of this node it is a number
        for index, (name, grad) in enumerate(zip(program.inputs, plan.adjoint.inputs))
        if index and grad.op == "out_grad" and name not in read
    )


#: op name -> function of a target's values, for every operation that a program uses. That of ``spike`` is called as
#: ``spike(u, strict, derivative, *values)``, where ``derivative(u, *values)`` is its derivative; a target whose own
#: differentiation does not see the step ignores the latter two. Numbers come as floats of Python.
Functions = Mapping[str, Callable[..., Any]]


class Step:
    """Some expressions as a pure function of the values of their leaves."""

    def __init__(self, leaves: Sequence[Node], roots: Sequence[Node]) -> None:
        self.leaves, self.roots = tuple(leaves), tuple(roots)
        self._straight: Optional[StraightLine] = None

    def __call__(self, values: Sequence[Any], functions: Optional[Functions], like: Optional[Tensor]) -> List[Any]:
        """The values of the roots. One that depends on no leaf is a number, or a tensor ``[]``.

        ``like`` has the dtype and the device of tensors; by default they are those of the first tensor.
        """
        if len(values) != len(self.leaves):
            names = ", ".join(f"{leaf.op} {leaf.attr!r}" for leaf in self.leaves)
            raise ValueError(f"{len(values)} values for {len(self.leaves)} leaves; give one for each of: {names}")
        if functions is not None:
            return _evaluated(self.roots, dict(zip(self.leaves, values)), functions)
        if any(isinstance(value, Expr) for value in values):
            nodes = {leaf: _node_of(value) for leaf, value in zip(self.leaves, values)}
            return [Expr(substitute(root, nodes)) for root in self.roots]
        return self._tensors(values, like)

    def _tensors(self, values: Sequence[Any], like: Optional[Tensor]) -> List[Tensor]:
        if like is None:
            like = next((value for value in values if isinstance(value, Tensor)), torch.empty(()))
        if self._straight is None:
            self._straight = StraightLine(self.leaves, self.roots)
        # a bare number would be divided by through its reciprocal on some devices
        return self._straight([v if isinstance(v, Tensor) else number(float(v), like) for v in values], like)


def _node_of(value: Any) -> Node:
    return value.node if isinstance(value, Expr) else const(float(value))


def _evaluated(roots: Sequence[Node], values: Dict[Node, Any], functions: Functions) -> List[Any]:
    """The values of the roots, each operation by its function in the table."""
    known = dict(values)
    for node in topological(roots, known=values):
        if node.op == "const":
            known[node] = float(node.attr)  # type: ignore[arg-type]  # of a constant it is a number
            continue
        function = functions.get(node.op)
        if function is None:
            raise Unsupported(f"the table of functions has none for the operation {node.op!r}; known: {[*functions]}")
        args = [known[arg] for arg in node.args]
        if isinstance(node.attr, SpikeRule):
            args += [node.attr.strict, _derivative(node.attr, functions), *(known[p] for p in node.attr.params)]
        known[node] = function(*args)
    return [known[root] for root in roots]


def _derivative(rule: SpikeRule, functions: Functions) -> Callable[..., Any]:
    leaves = (Node("argument", (), "u"), *rule.params)

    def derivative(*values: Any) -> Any:
        return _evaluated([rule.derivative], dict(zip(leaves, values)), functions)[0]

    return derivative


def split(values: Sequence[Any], *counts: int) -> Tuple[List[Any], ...]:
    """The values in groups of these sizes."""
    ends = [sum(counts[: k + 1]) for k in range(len(counts))]
    return tuple(list(values[end - count : end]) for count, end in zip(counts, ends))


def leaves_of(op: str, roots: Iterable[Node]) -> Set[str]:
    """Names of the leaves of one kind that the roots use."""
    return {str(node.attr) for node in topological(roots) if node.op == op}


def closure(names: Iterable[str], op: str, rule: Mapping[str, Node]) -> FrozenSet[str]:
    """The names, and those of the leaves that their rules use, and so on."""
    closed: Set[str] = set()
    waiting: List[str] = list(names)
    while waiting:
        name = waiting.pop()
        if name not in closed:
            closed.add(name)
            waiting.extend(leaves_of(op, [rule[name]]))
    return frozenset(closed)


def in_order(names: Sequence[str], chosen: Iterable[str]) -> Tuple[str, ...]:
    """The chosen ones of the names, in their order."""
    chosen = set(chosen)
    return tuple(name for name in names if name in chosen)


#: Time-varying leaves of a step, and those that belong to the backward pass.
_MOVING, _ARRIVING = ("input", "state"), ("out_grad", "next_grad")
#: A vertex of the flow network. Each node is split into its entrance (0) and its exit (1), with an edge between them
#: whose capacity is the size of the node's value: to cut that edge is to keep the value.
_Place = Tuple[Node, int]
#: Capacity of the edge of a value, and of one that takes half the memory.
_WHOLE, _HALF = 2, 1
#: Units of flow on each edge.
_Flow = Dict[Tuple[_Place, _Place], int]


def smallest_cut(roots: Sequence[Node], halves: Collection[Node] = ()) -> Tuple[Node, ...]:
    """The fewest nodes, each computed from inputs and states, from which and from parameters the roots can be computed
    without any other input or state; in the order of computation, and as close to the roots as there is a choice.

    A kernel that recomputes the states of a chunk before it runs backwards keeps such values for every step of the
    chunk, so the fewer the better: for LIF one (the potential before the reset) and not two (input and state).
    ``halves`` are nodes that count half, because their values take half the memory of others.
    """
    order = topological(roots)
    forward = _varying(order)
    users: Dict[Node, List[Node]] = {node: [] for node in forward}
    last = {node for node in roots if node in forward}
    for node in order:
        for arg in node.args:
            if arg in forward:
                if node in forward:
                    users[arg].append(node)
                else:
                    last.add(arg)
    # a minimum cut between these and the last: every time-varying value is computed from these, so whatever lies behind
    # the cut can be computed from it
    starts = [node for node in order if node.op in _MOVING]
    flow: _Flow = {}
    sizes = {node: _HALF if node in halves else _WHOLE for node in users}
    # max-flow min-cut: each augmenting path adds one unit, and when there is no further one, the nodes of a minimum cut
    # are together as large as there are units of flow
    while _augment(starts, last, users, sizes, flow):
        pass
    reaching = _reaching(last, users, sizes, flow)
    # of all minimum cuts the one nearest to the roots: least is left for the adjoint to compute again
    return tuple(node for node in order if (node, 1) in reaching and (node, 0) not in reaching)


def _varying(order: Sequence[Node]) -> Set[Node]:
    """The nodes that depend on inputs or states, and on nothing that arrives on the way back."""
    moving: Set[Node] = set()
    arriving: Set[Node] = set()
    for node in order:
        if node.op in _ARRIVING or any(arg in arriving for arg in node.args):
            arriving.add(node)
        elif node.op in _MOVING or any(arg in moving for arg in node.args):
            moving.add(node)
    return moving


def _steps(place: _Place, users: Dict[Node, List[Node]], sizes: Dict[Node, int], flow: _Flow) -> List[_Place]:
    """Places that one more unit of flow can go to. A condition may be computed, but not kept."""
    node, exit_ = place
    further: List[_Place] = []
    if exit_:
        further += [(user, 0) for user in users[node]]
        if flow.get(((node, 0), place)):
            further.append((node, 0))
    else:
        # a condition has unlimited capacity, so that no minimum cut contains it: kernels keep numbers, no truth values
        if node.is_bool or flow.get((place, (node, 1)), 0) < sizes[node]:
            further.append((node, 1))
        # residual edges: flow that came in from an argument can be sent another way
        further += [(arg, 1) for arg in node.args if flow.get(((arg, 1), place))]
    return further


def _augment(
    starts: Sequence[Node], last: Set[Node], users: Dict[Node, List[Node]], sizes: Dict[Node, int], flow: _Flow
) -> bool:
    """Send one more unit of flow from a start to one of the last, if there is a way."""
    came: Dict[_Place, _Place] = {}
    waiting: Deque[_Place] = deque((node, 0) for node in starts)
    seen: Set[_Place] = set(waiting)
    while waiting:
        place = waiting.popleft()
        if place[1] and place[0] in last:
            while place in came:
                before = came[place]
                if flow.get((place, before)):
                    # the path runs against flow that an earlier one sent here: the two cancel
                    flow[place, before] -= 1
                else:
                    flow[before, place] = flow.get((before, place), 0) + 1
                place = before
            return True
        for further in _steps(place, users, sizes, flow):
            if further not in seen:
                seen.add(further)
                came[further] = place
                waiting.append(further)
    return False


def _reaching(last: Set[Node], users: Dict[Node, List[Node]], sizes: Dict[Node, int], flow: _Flow) -> Set[_Place]:
    """The places from which one more unit of flow could reach the last."""
    # backwards from the last along residual edges, which _steps() gives forwards only
    back: Dict[_Place, List[_Place]] = {}
    for node in users:
        for place in ((node, 0), (node, 1)):
            for further in _steps(place, users, sizes, flow):
                back.setdefault(further, []).append(place)
    reaching: Set[_Place] = {(node, 1) for node in last}
    waiting = list(reaching)
    while waiting:
        for place in back.get(waiting.pop(), ()):
            if place not in reaching:
                reaching.add(place)
                waiting.append(place)
    return reaching


def with_reciprocals(order: Sequence[Node], exact: Collection[Node], fixed: Collection[Node]) -> Dict[Node, Node]:
    """Replacement of each of these nodes (arguments first): divisions by nodes in ``fixed``, which are the same at
    every step, become products with reciprocals.

    A kernel computes such a reciprocal once, before its first step. The product is off by two units in the last place
    at most: lost where results are rounded to 16 bits, and there alone a kernel would wait for divisions instead of
    memory. The nodes in ``exact`` stay as they are: those of the program at least, which stands for spikes and states.
    """
    new: Dict[Node, Node] = {}
    for node in order:
        args = tuple(new[arg] for arg in node.args)
        if node in exact or not args:
            new[node] = node
        elif node.op == "div" and node.args[1] in fixed:
            new[node] = Node("mul", (args[0], Node("div", (const(1.0), args[1]))))  # this division stays exact
        else:
            new[node] = Node(node.op, args, node.attr)
    return new
