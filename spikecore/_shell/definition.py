"""From a neuron to its program: its ``dynamics``, traced."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Sequence

from spikecore._shell.ranges import Interval
from spikecore.lang import Expr, Node, Numbers, Program, topological, trace


class Traced(NamedTuple):
    """What a trace gives."""

    program: Program
    #: The values of its numbers.
    numbers: Dict[str, float]


def traced(neuron: Any, detached: Sequence[str], ranges: Mapping[str, Interval]) -> Traced:
    """Trace a neuron's ``dynamics``, in which spikes carry no gradient into the ``detached`` states, and what is learnt
    is in its range.
    """
    numbers = Numbers(taken=(*neuron.inputs, *neuron.states, *neuron.params))
    params = {name: Expr(Node("param", (), name)) for name in neuron.params}
    for name, value in neuron._parameters.items():
        if name in ranges and value is not None:
            params[name] = ranges[name].equation(params[name], value.dtype)
    program = trace(
        _twin(neuron, params).dynamics,
        name=type(neuron).__name__,
        inputs=neuron.inputs,
        states=neuron.states,
        params=params,
        detached=detached,
        numbers=numbers,
    )
    _learnable(neuron, program)
    return Traced(program, {name: numbers.values[name] for name in program.numbers})


def _twin(neuron: Any, params: Mapping[str, Expr]) -> Any:
    """The neuron as its ``dynamics`` sees it: ``self.tau`` is ``p.tau``, since as a number it would be a constant of
    the program; and what ``dynamics`` sets on it is lost.
    """
    twin = object.__new__(type(neuron))
    twin.__dict__.update(neuron.__dict__)
    twin.__dict__.update(params)
    return twin


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
