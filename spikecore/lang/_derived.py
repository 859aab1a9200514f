"""Programs that are made from a program: with batch normalisation in front, and with inputs that never change."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Collection, List, Mapping, NamedTuple, Sequence, Tuple

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


class Derived(NamedTuple):
    """A program made from another one."""

    program: Program
    #: The parameters that it has beside those of the other one.
    names: Tuple[str, ...]


def _changed(program: Program, nodes: Mapping[Node, Node], **values: Any) -> Program:
    """The program with some nodes replaced, and other values of attributes."""

    def replaced(roots: Sequence[Node]) -> List[Node]:
        return [substitute(root, dict(nodes)) for root in roots]

    same = {name: getattr(program, name) for name in ("inputs", "states", "initial", "params", "numbers")}
    labels = dict(zip(replaced([*program.labels]), program.labels.values()))
    outputs, following = replaced(program.outputs), replaced(program.next)
    return Program(program.name, **{**same, "outputs": outputs, "next": following, "labels": labels, **values})


@lru_cache(maxsize=256)
def normalised(program: Program, shortcut: str, statistics: bool) -> Derived:
    """``program`` with its first input normalised, whose parameters in front are mean, rstd, weight and bias.

    shortcut: where a second input is added: to what is normalised ("before"), to the first output ("after"), "" for
    nowhere. statistics: whether mean and rstd are functions of the input; else they are given, as the running ones are.
    """
    taken = [*program.inputs, *program.states, *program.params]
    names = tuple(_free(f"norm_{name}", taken) for name in ("mean", "rstd", "weight", "bias"))
    mean, rstd, weight, bias = map(_param, names)
    x = Expr(Node("input", (), program.inputs[0]))
    y = (x - mean) * (rstd * weight) + bias
    inputs = (*program.inputs, _free("skip", taken)) if shortcut else program.inputs
    skip = Expr(Node("input", (), inputs[-1]))
    if shortcut == "before":
        y = y + skip
    behind = {x.node: y.node}
    values = {"inputs": inputs, "params": _before_numbers(program, names), "statistics": names if statistics else ()}
    if shortcut == "after":
        first, *others = (substitute(node, dict(behind)) for node in program.outputs)
        values["outputs"] = ((Expr(first) + skip).node, *others)
    return Derived(_changed(program, behind, **values), names)


@lru_cache(maxsize=256)
def corrected(program: Program) -> Derived:
    """The program whose adjoint gives the gradient of the first input of a program with ``statistics``.

    Its parameters beside those of the other one are the gradients of weight and bias, and 1 / n.
    """
    taken = [*program.inputs, *program.states, *program.params]
    names = tuple(_free(f"norm_{name}", taken) for name in ("grad_weight", "grad_bias", "share"))
    mean, rstd, weight, _ = map(_param, program.statistics)
    grad_weight, grad_bias, share = map(_param, names)
    centred = Expr(Node("input", (), program.inputs[0])) - mean
    scale = rstd * weight
    # of parameters alone but for one product and one sum per number
    through = -(scale * (grad_bias * share)) - centred * (scale * rstd * (grad_weight * share))
    seeds = [(centred.node, through.node)]
    return Derived(_changed(program, {}, params=_before_numbers(program, names), seeds=seeds), names)


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


@lru_cache(maxsize=256)
def repeated(program: Program) -> Derived:
    """``program`` with a parameter in the place of each input that it reads.

    The names are those of the parameters, one for each input; "" for an input that the program does not read. These
    parameters are the first ones of the program, in this order.
    """
    read = {node.attr for node in program.nodes if node.op == "input"}
    taken = {*program.inputs, *program.states, *program.params}
    own = [_free(f"{name}_constant", taken) for name in program.inputs]
    nodes = {Node("input", (), name): Node("param", (), ours) for name, ours in zip(program.inputs, own)}
    names = tuple(ours if name in read else "" for name, ours in zip(program.inputs, own))
    return Derived(_changed(program, nodes, params=(*filter(None, names), *program.params)), names)
