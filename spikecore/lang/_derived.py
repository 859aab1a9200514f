"""Programs that are made from a program: with batch normalisation in front, and with inputs that never change."""

from __future__ import annotations

from functools import lru_cache
from typing import Collection, Dict, List, NamedTuple, Tuple

from spikecore.lang._expr import Expr
from spikecore.lang._program import Program
from spikecore.lang.node import Node, substitute

# -- batch normalisation in front of a program, and the program of its second backward pass
#
# The input x of a program becomes, with ``mean`` and ``rstd`` per channel of x over all steps and neurons,
#
#     y = (x - mean) * (rstd * weight) + bias [+ skip before the neuron]
#
# and a skip behind the neuron is added to the program's first output.
#
# Let g be the cotangent of y, n how many numbers a channel has and ``xhat = (x - mean) * rstd``. The gradients of
# ``bias`` and ``weight`` are the sums of g and of ``g * xhat`` over a channel, and with these
#
#     dL/dx = rstd * weight * (g - sum(g) / n - xhat * sum(g * xhat) / n)
#
# (Ioffe and Szegedy, 2015, where mean and variance are functions of x). So a first backward pass finds the two sums,
# and a second one, which computes g again, the gradient of x: nothing that is normalised is ever stored.


class Normalised(NamedTuple):
    """A program with batch normalisation in front."""

    program: Program
    #: The parameters in front: mean, rstd, weight, bias. They stand before the numbers of surrogates.
    names: Tuple[str, ...]


class Corrected(NamedTuple):
    """The program of the second backward pass."""

    program: Program
    #: Its parameters beside those of the first: the gradients of weight and bias, and 1 / n.
    names: Tuple[str, ...]


@lru_cache(maxsize=256)
def normalised(program: Program, shortcut: str, statistics: bool) -> Normalised:
    """``program`` with its first input normalised.

    shortcut: where a second input is added: to what is normalised ("before"), to the first output ("after"), "" for
    nowhere. statistics: whether mean and rstd are functions of the input; else they are given, as the running ones are.
    """
    taken = [*program.inputs, *program.states, *program.params]
    mean, rstd, weight, bias = names = tuple(
        _free(f"norm_{name}", taken) for name in ("mean", "rstd", "weight", "bias")
    )
    x = Node("input", (), program.inputs[0])
    y = (Expr(x) - _param(mean)) * (_param(rstd) * _param(weight)) + _param(bias)
    inputs = (*program.inputs, _free("skip", taken)) if shortcut else program.inputs
    skip = Expr(Node("input", (), inputs[-1]))
    if shortcut == "before":
        y = y + skip

    def behind(node: Node) -> Node:
        return substitute(node, {x: y.node})

    outputs = [behind(node) for node in program.outputs]
    if shortcut == "after":
        outputs[0] = (Expr(outputs[0]) + skip).node
    return Normalised(
        Program(
            program.name,
            inputs=inputs,
            states=program.states,
            outputs=outputs,
            next=[behind(node) for node in program.next],
            initial=program.initial,
            params=_before_numbers(program, names),
            labels={behind(node): label for node, label in program.labels.items()},
            numbers=program.numbers,
            statistics=names if statistics else (),
        ),
        names,
    )


@lru_cache(maxsize=256)
def corrected(program: Program) -> Corrected:
    """The program whose adjoint gives the gradient of the first input of a program with ``statistics``."""
    taken = [*program.inputs, *program.states, *program.params]
    names = tuple(_free(f"norm_{name}", taken) for name in ("grad_weight", "grad_bias", "share"))
    mean, rstd, weight, _ = (_param(name) for name in program.statistics)
    grad_weight, grad_bias, share = (_param(name) for name in names)
    centred = Expr(Node("input", (), program.inputs[0])) - mean
    scale = rstd * weight
    # of parameters alone but for one product and one sum per number
    through = -(scale * (grad_bias * share)) - centred * (scale * rstd * (grad_weight * share))
    found = Program(
        program.name,
        inputs=program.inputs,
        states=program.states,
        outputs=program.outputs,
        next=program.next,
        initial=program.initial,
        params=_before_numbers(program, names),
        labels=program.labels,
        numbers=program.numbers,
        seeds=[(centred.node, through.node)],
    )
    return Corrected(found, names)


@lru_cache(maxsize=None)
def moments() -> Program:
    """The program whose parameters ``total`` and ``squares`` have the sums of x and of its square for gradients.

    Both of ``x - shift``: a shift near the mean keeps the digits that the difference of two large sums would lose.
    """
    x = Expr(Node("input", (), "x"))
    total, squares = Node("param", (), "total"), Node("param", (), "squares")
    centred = x - _param("shift")
    return Program(
        "Moments",
        inputs=("x",),
        states=(),
        outputs=[x.node],
        next=(),
        initial=(),
        params=("shift", "total", "squares"),
        seeds=[(total, centred.node), (squares, (centred * centred).node)],
    )


def _param(name: str) -> Expr:
    return Expr(Node("param", (), name))


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _before_numbers(program: Program, names: Tuple[str, ...]) -> Tuple[str, ...]:
    own = program.params[: len(program.params) - len(program.numbers)]
    return (*own, *names, *program.numbers)


# -- inputs that are the same at every step: each input as a parameter with one number per neuron
#
# A kernel reads such a parameter once, before the first step, and adds up its gradient over time in registers: forward
# reads 1 / T of a word where it read one, backward writes 1 / T where it wrote one. The arithmetic of a step stays the
# same, bit for bit. The program keeps the input, which no line reads: a call has its steps, dtype and device from it.


class Repeated(NamedTuple):
    """A program whose inputs are parameters."""

    program: Program
    #: For each input the parameter in its place; "" for an input that the program does not read. These parameters are
    #: the first ones of the program, in this order.
    names: Tuple[str, ...]


@lru_cache(maxsize=256)
def repeated(program: Program) -> Repeated:
    """``program`` with a parameter in the place of each input that it reads."""
    read = {node.attr for node in program.nodes if node.op == "input"}
    taken = {*program.inputs, *program.states, *program.params}
    names: List[str] = []
    nodes: Dict[Node, Node] = {}
    for name in program.inputs:
        own = _free(f"{name}_constant", taken)
        names.append(own if name in read else "")
        nodes[Node("input", (), name)] = Node("param", (), own)
    made = Program(
        program.name,
        inputs=program.inputs,
        states=program.states,
        outputs=[substitute(node, nodes) for node in program.outputs],
        next=[substitute(node, nodes) for node in program.next],
        initial=program.initial,
        params=(*filter(None, names), *program.params),
        labels={substitute(node, nodes): label for node, label in program.labels.items()},
        numbers=program.numbers,
    )
    return Repeated(made, tuple(names))
