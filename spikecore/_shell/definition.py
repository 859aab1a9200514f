"""What a neuron's definition reads: its program is traced again when that changes.

Rules of this module:

- A program depends on every attribute that was read while it was traced, private ones included, and on the
  configuration. Code that is shown all attributes at once (``vars``), or cannot be watched, may have read any.
- An attribute that is set or deleted is seen as it happens. What else was read is looked at in each call
  (:mod:`spikecore._shell.watch`).
"""

from __future__ import annotations

import sys
from typing import Any, Container, Dict, FrozenSet, NamedTuple, Optional, Sequence

from torch import nn

from spikecore._base import reading
from spikecore._shell.watch import EVERY, Watch, watch
from spikecore.lang import Expr, Node, Numbers, Program, topological, trace
from spikecore.lang._renewal import Renewal, renewal_of
from spikecore.lang._trace import Ran

#: Private attributes of the shell around a definition, which say nothing about it.
SHELL: FrozenSet[str] = frozenset(vars(nn.Module())) | {
    reading.NOTED,
    "_cache",
    "_calls",
    "_carrying",
    "_given",
    "_inside",
    "_loading",
    "_passed",
    "_prologue",
    "_ranges",
    "_request",
    "_state",
}
_OWN = SHELL | {"bounds", "learn"}


class Traced(NamedTuple):
    """What is known of a definition."""

    program: Program
    #: The values of its numbers.
    numbers: Dict[str, float]
    #: The names of the attributes it depends on.
    read: Container[str]
    #: What tells whether something that was read has changed since, where it can.
    watch: Optional[Watch]
    #: What gives the numbers of another surrogate, if the definition does nothing with it but ``self.spike``.
    renewal: Optional[Renewal]


def traced(neuron: Any, detached: Sequence[str]) -> Traced:
    """Trace a neuron's ``dynamics``, in which spikes carry no gradient into the ``detached`` states."""
    # in dynamics self.tau means p.tau: as a number it would be frozen into the program
    params = {name: Expr(Node("param", (), name)) for name in neuron.params}
    # under a profiler it is not known which code runs
    twin, noted = (None, None) if sys.getprofile() is not None else reading.noting_twin(neuron, params)
    ran, numbers = Ran(), _numbers_of(neuron)
    program = None
    if noted is not None:
        try:
            program = _run(neuron, twin, detached, numbers, ran)
        except Exception:
            if not _asks_for_class(ran):
                raise
    if program is None or _asks_for_class(ran):
        noted, ran, numbers = None, Ran(), _numbers_of(neuron)
        program = _run(neuron, reading.plain_twin(neuron, params), detached, numbers, ran)
    _learnable(neuron, program)
    read: Container[str] = EVERY
    renewal = None
    if noted is not None and not noted.all:
        # names in the code as well: it may have the neuron itself from elsewhere
        named = {name for code in ran.codes for name in code.co_names}
        read = frozenset((*noted.names, *named, *neuron.configuration))
        if "surrogate" not in named | noted.by_others:
            renewal = renewal_of(numbers)
    left_out = _OWN.union(neuron.params, neuron.configuration)
    values = {name: numbers.values[name] for name in program.numbers}
    return Traced(program, values, read, watch(neuron, read, left_out, ran), renewal)


def _learnable(neuron: Any, program: Program) -> None:
    """Raise ValueError if a parameter is to be learnt that only surrogates read: it has no gradient."""
    read = {
        str(node.attr)
        for node in topological([*program.outputs, *program.next, *program.initial])
        if node.op == "param"
    }
    for name in neuron.learn:
        if name in program.params and name not in read:
            raise ValueError(
                f"{program.name}: learn={tuple(neuron.learn)!r}: only the derivative of a spike reads {name!r}, and no "
                "gradient flows through that. Let the equations read it, too, as a width that follows a decay factor "
                f"(Lian et al., 2023); or leave {name!r} out of learn and set it between steps of training"
            )


def _numbers_of(neuron: Any) -> Numbers:
    return Numbers(taken=(*neuron.inputs, *neuron.states, *neuron.params))


def _run(neuron: Any, twin: Any, detached: Sequence[str], numbers: Numbers, ran: Ran) -> Program:
    return trace(
        twin.dynamics,
        name=type(neuron).__name__,
        inputs=neuron.inputs,
        states=neuron.states,
        params=tuple(neuron.params),
        detached=detached,
        numbers=numbers,
        ran=ran,
    )


def _asks_for_class(ran: Ran) -> bool:
    """Whether a noting twin gave the definition another answer than the neuron would, or missed what it read."""
    return not all(reading.PAST.isdisjoint(code.co_names) for code in ran.codes)
