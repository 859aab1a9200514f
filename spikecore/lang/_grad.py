"""Reverse rules: the adjoint of one step, derived from its expressions.

Each rule is one line of calculus, with torch's convention where a function has no derivative: half to each at a tie of
``minimum`` and ``maximum``, 1 at the bounds of ``clamp``, 0 for ``abs`` at 0. The forward values that a rule needs are
the program's own nodes, so an adjoint shares them with the recomputed step.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

from spikecore.lang._expr import Expr, make
from spikecore.lang._graph import topological
from spikecore.lang._reach import FLAT
from spikecore.lang.node import Node, SpikeRule, const, substitute

#: Contributions of one node's cotangent to its arguments; None for none.
Contributions = Sequence[Optional[Expr]]
Rule = Callable[[Expr, Expr, Sequence[Expr]], Contributions]


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return Expr(make("where", condition.node, a.node, b.node))


def _select(z: Expr, a: Expr, b: Expr) -> Expr:
    return Expr(make("select", z.node, a.node, b.node))


def _function(op: str, x: Expr) -> Expr:
    return Expr(make(op, x.node))


_ZERO = Expr(const(0.0))
#: The derivative of ``erf`` at 0.
_TWO_BY_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _extremum(g: Expr, a: Expr, b: Expr, a_loses: Expr, b_loses: Expr) -> Contributions:
    shared = _where(a == b, g / 2.0, g)
    return _where(a_loses, _ZERO, shared), _where(b_loses, _ZERO, shared)


def _power(g: Expr, y: Expr, args: Sequence[Expr]) -> Contributions:
    x, n = args
    to_x = _where(n == 0.0, _ZERO, g * (n * x ** (n - 1.0)))
    to_n = g * _where((x == 0.0) & (n >= 0.0), _ZERO, y * _function("log", x))
    return to_x, to_n


def _clamp(g: Expr, y: Expr, args: Sequence[Expr]) -> Contributions:
    x, low, high = args
    return (
        _where((x >= low) & (x <= high), g, _ZERO),
        _where((low < high) & (x < low), g, _ZERO),
        _where((x > high) | (high < low), g, _ZERO),
    )


#: op -> rule(g, y, args): g the cotangent of the node, y its value. ``spike`` is differentiated by its own rule.
RULES: Dict[str, Rule] = {
    "add": lambda g, y, a: (g, g),
    "sub": lambda g, y, a: (g, -g),
    "mul": lambda g, y, a: (g * a[1], g * a[0]),
    "div": lambda g, y, a: (g / a[1], -g * (y / a[1])),
    "neg": lambda g, y, a: (-g,),
    "exp": lambda g, y, a: (g * y,),
    "log": lambda g, y, a: (g / a[0],),
    "sqrt": lambda g, y, a: (g / (2.0 * y),),
    "sin": lambda g, y, a: (g * _function("cos", a[0]),),
    "cos": lambda g, y, a: (-g * _function("sin", a[0]),),
    "tanh": lambda g, y, a: (g * (1.0 - y * y),),
    "sigmoid": lambda g, y, a: (g * (1.0 - y) * y,),
    "softplus": lambda g, y, a: (g * _function("sigmoid", a[0]),),
    "atan": lambda g, y, a: (g / (a[0] * a[0] + 1.0),),
    "erf": lambda g, y, a: (g * (_TWO_BY_ROOT_PI * _function("exp", -(a[0] * a[0]))),),
    "abs": lambda g, y, a: (g * _function("sign", a[0]),),
    "power": _power,
    "minimum": lambda g, y, a: _extremum(g, a[0], a[1], a[0] > a[1], a[0] < a[1]),
    "maximum": lambda g, y, a: _extremum(g, a[0], a[1], a[0] < a[1], a[0] > a[1]),
    "clamp": _clamp,
    "where": lambda g, y, a: (None, _where(a[0], g, _ZERO), _where(a[0], _ZERO, g)),
    "select": lambda g, y, a: (g * (a[1] - a[2]), _select(a[0], g, _ZERO), _select(a[0], _ZERO, g)),
}


def _contributions(node: Node, g: Expr) -> Contributions:
    if isinstance(node.attr, SpikeRule):
        derivative = substitute(node.attr.derivative, {Node("argument", (), "u"): node.args[0]})
        return (g * Expr(derivative),)
    return RULES[node.op](g, Expr(node), [Expr(arg) for arg in node.args])


def _active(order: Sequence[Node], wanted: Set[Node]) -> Set[Node]:
    """Nodes through which a gradient flows to a wanted leaf."""
    active = set(wanted)
    for node in order:
        if node.op not in FLAT and not node.is_bool and any(arg in active for arg in node.args):
            active.add(node)
    return active


def reverse(roots: Sequence[Tuple[Node, Node]], wanted: Sequence[Node]) -> List[Node]:
    """Cotangents of the wanted leaves, given pairs of (root, its cotangent). Zero where none arrives."""
    order = topological([root for root, _ in roots])
    active = _active(order, set(wanted))
    cotangent: Dict[Node, Expr] = {}

    def add(node: Node, g: Expr) -> None:
        cotangent[node] = cotangent[node] + g if node in cotangent else g

    for root, g in roots:
        add(root, Expr(g))
    for node in reversed(order):
        if node in active and node in cotangent and node.args:
            for arg, g_arg in zip(node.args, _contributions(node, cotangent[node])):
                if g_arg is not None and arg in active:
                    add(arg, g_arg)
    return [cotangent[leaf].node if leaf in cotangent else const(0.0) for leaf in wanted]
