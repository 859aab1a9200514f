"""The exact gradient of spike times, as another program: EventProp within the language.

A spike is where ``u`` crosses 0 from below. What moves ``u`` by ``du`` moves the spike by ``dt = -du / rise`` steps,
with ``rise`` the growth of ``u`` in the step of the crossing. In place of a surrogate, a spike gets a number ``shift``
whose value is 0 and whose derivative is dt. What a shift does is the difference between a spike that comes one step
later and one that comes now:

- of the output: one step later it is there at the next step, and not at this one, ``y = z - shift + (shift before)``;
- of a state: its value after a step without the spike and one with it, minus that after a step with the spike and one
  without, both from here and with the input of this step.

These are the jumps of the adjoint at a spike in Wunderlich and Pehle (2021), for any equations. Values are those of the
program without it; two states are added, the shift and ``u`` of the step before.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Collection, Dict, List, Tuple

from spikecore.lang._expr import Expr, record
from spikecore.lang._program import Program, changed, free_name
from spikecore.lang.node import Node, SpikeRule, const, substitute

#: Start of ``u`` of the step before: above 0, so that no crossing is seen.
UNKNOWN = 1.0
#: The smallest rise of a crossing: a smaller one counts as this, and its derivative stays finite.
_LOWEST_RISE = 2.0**-64


def names_of(reserved: Collection[str]) -> Tuple[str, str]:
    """The names of the added states, the shift and the last ``u``, where these names are in use."""
    return free_name("time_shift", reserved), free_name("last_u", reserved)


@lru_cache(maxsize=256)
def with_spike_times(program: Program, shift: str, last: str) -> Program:
    """``program`` with the derivative of its spike's time in the place of a surrogate.

    shift, last: the names of the added states. Raises ValueError for a program that has not one spike, as its first
    output.
    """
    spike = _only_spike(program)
    u = Expr(spike.args[0])
    rule: Any = spike.attr
    # without the numbers of the surrogate
    z = Node("detach", (Node("spike", spike.args, SpikeRule(rule.strict, const(0.0), rule.label)),))
    before = _state(last)
    rises = before <= 0.0 if rule.strict else before < 0.0
    steps_per_u = record("where", rises, 1.0 / record("maximum", u - before, _LOWEST_RISE), 0.0)
    moved = (_constant(u) - u) * _constant(record("select", Expr(z), steps_per_u, 0.0))

    def replaced(node: Node) -> Expr:
        return Expr(substitute(node, {spike: z}))

    following = [replaced(node) for node in program.next]
    for k, effect in _effects_of_later(program, spike).items():
        following[k] = following[k] + moved * _constant(effect)
    outputs = [replaced(node) for node in program.outputs]
    outputs[0] = outputs[0] + (_state(shift) - moved)
    return changed(
        program,
        {spike: z},
        states=(*program.states, shift, last),
        initial=(*program.initial, const(0.0), const(UNKNOWN)),
        outputs=[value.node for value in outputs],
        next=[value.node for value in (*following, moved, _constant(u))],
    )


def _only_spike(program: Program) -> Node:
    spikes = [node for node in program.nodes if node.op == "spike"]
    if len(spikes) != 1 or program.outputs[0] != spikes[0]:
        way_out = (
            "a neuron that resets one step later has two: take sc.LIF, sc.Synaptic or another that resets in the step "
            "of its spike"
        )
        if not spikes:
            way_out = "leave gradient= out: its outputs have exact gradients"
        raise ValueError(
            f"{program.name}: gradient='spike_time' needs equations with one spike, the first output, and these have "
            f"{len(spikes)}{'' if len(spikes) != 1 else ', which is not the first output'}; {way_out}"
        )
    return spikes[0]


def _effects_of_later(program: Program, spike: Node) -> Dict[int, Expr]:
    """For each state that a spike changes, its place and what it has after two steps if the spike comes one later."""
    leaves = [Node("state", (), name) for name in program.states]

    silent, fired = _next_where(program, spike, False), _next_where(program, spike, True)
    late = [substitute(node, dict(zip(leaves, silent))) for node in fired]
    on_time = [substitute(node, dict(zip(leaves, fired))) for node in silent]
    return {k: Expr(late[k]) - Expr(on_time[k]) for k in range(len(leaves)) if late[k] != on_time[k]}


def _next_where(program: Program, spike: Node, fires: bool) -> List[Node]:
    """The next states of a step with the spike, or of one without."""
    replace = {spike: const(float(fires))}
    for node in program.nodes:
        if node.op == "select" and node.args[0] == spike:
            replace[node] = substitute(node.args[1 if fires else 2], replace)
    return [substitute(node, replace) for node in program.next]


def _state(name: str) -> Any:
    return Expr(Node("state", (), name))


def _constant(value: Expr) -> Expr:
    return record("detach", value)
