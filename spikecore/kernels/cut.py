"""The fewest values that a backward kernel must keep of each forward step.

The adjoint of a step is computed from the step's inputs and states, or from anything between them and what the adjoint
uses of the step. A kernel that recomputes the states of a chunk before it runs backwards keeps such values for every
step of the chunk, so the fewer the better: for LIF one (the potential before the reset) and not two (input and state).
"""

from __future__ import annotations

from collections import deque
from typing import Collection, Deque, Dict, List, Sequence, Set, Tuple

from spikecore.lang import Node, topological

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

    ``halves`` are nodes that count half, because their values take half the memory of others.
    """
    order = topological(roots)
    forward = _forward(order)
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


def _forward(order: Sequence[Node]) -> Set[Node]:
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
    """Where one more unit of flow can go from a place. A condition may be computed, but not kept."""
    node, exit_ = place
    found: List[_Place] = []
    if exit_:
        found += [(user, 0) for user in users[node]]
        if flow.get(((node, 0), place)):
            found.append((node, 0))
    else:
        # a condition has unlimited capacity, so that no minimum cut contains it: kernels keep numbers, no truth values
        if node.is_bool or flow.get((place, (node, 1)), 0) < sizes[node]:
            found.append((node, 1))
        # residual edges: flow that came in from an argument can be sent another way
        found += [(arg, 1) for arg in node.args if flow.get(((arg, 1), place))]
    return found


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
    found: Set[_Place] = {(node, 1) for node in last}
    waiting = list(found)
    while waiting:
        for place in back.get(waiting.pop(), ()):
            if place not in found:
                found.add(place)
                waiting.append(place)
    return found
