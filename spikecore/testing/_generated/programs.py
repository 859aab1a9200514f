"""The programs of generated cases: a small fixed pool, as trees of :mod:`spikecore.testing.random_programs`."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Tuple, Union

import numpy as np

from spikecore.testing.random_programs._draw import Drawing
from spikecore.testing.random_programs._tree import Node, Tree

#: The drawn program of the pool: a seed whose program has two inputs, two outputs, two states and two parameters.
DRAWN = 272


class Pooled(NamedTuple):
    """A program by what factors depend on, and how it is made."""

    inputs: Tuple[str, ...]
    outputs: int
    #: Parameter -> the range of its values.
    ranges: Dict[str, Tuple[float, float]]
    make: Callable[[], Tree]


def _n(op: str, *args: Union[Node, float]) -> Node:
    return Node(op, tuple(arg if isinstance(arg, Node) else Node("const", (), float(arg)) for arg in args))


def _x(name: str) -> Node:
    return Node("input", (), name)


def _s(name: str) -> Node:
    return Node("state", (), name)


def _p(name: str) -> Node:
    return Node("param", (), name)


def _spike(u: Node) -> Node:
    return Node("spike", (u,), False)


def _tree(name: str, states: Dict[str, Any], outputs: Tuple[Node, ...], following: Dict[str, Node]) -> Tree:
    pooled = PROGRAMS[name]
    u = Node("u")
    derivative = _n("div", 0.5, _n("add", _n("abs", u), 1.0))
    params = {param: (low + high) / 2 for param, (low, high) in pooled.ranges.items()}
    title = name.title().replace("-", "")
    return Tree(title, pooled.inputs, states, params, list(outputs), following, "Half", {}, derivative)


def _leaked(x: Node) -> Node:
    return _n("add", _s("v"), _n("div", _n("sub", x, _s("v")), _p("tau")))


def _lif_soft() -> Tree:
    h = _leaked(_x("x"))
    z = _spike(_n("sub", h, _p("threshold")))
    return _tree("lif-soft", {"v": 0.0}, (z,), {"v": _n("sub", h, _n("mul", z, _p("threshold")))})


def _lif_hard() -> Tree:
    h = _leaked(_x("x"))
    z = _spike(_n("sub", h, _p("threshold")))
    return _tree("lif-hard", {"v": "rest"}, (z,), {"v": _n("select", z, _p("rest"), h)})


def _swap() -> Tree:
    """Each state becomes what the other was: nothing may be written before both are read."""
    drive = _n("add", _n("mul", _s("a"), _p("keep")), _n("mul", _x("x"), _x("gate")))
    return _tree("swap", {"a": 0.25, "b": "start"}, (_n("sub", drive, _s("b")),), {"a": _s("b"), "b": drive})


def _two() -> Tree:
    h = _n("add", _n("mul", _s("v"), _p("beta")), _n("sub", _x("x"), _n("mul", _x("inhibition"), _p("weight"))))
    z = _spike(_n("sub", h, 1.0))
    return _tree("two", {"v": 0.0}, (z, h), {"v": _n("select", z, 0.0, h)})


def _alif() -> Tree:
    h = _leaked(_x("x"))
    z = _spike(_n("sub", h, _n("add", _p("threshold"), _n("mul", _p("beta"), _s("a")))))
    following = {"v": _n("select", z, 0.0, h), "a": _n("add", _n("mul", _p("rho"), _s("a")), z)}
    return _tree("alif", {"v": 0.0, "a": 0.0}, (z, _n("sub", h, _s("a"))), following)


def _smooth() -> Tree:
    """No spikes, and functions that no two libraries round alike."""
    gate = _n("sigmoid", _n("mul", _x("x"), _p("gain")))
    h = _n("add", _n("mul", _s("h"), _n("sub", 1.0, gate)), _n("mul", gate, _n("tanh", _n("add", _x("x"), _s("h")))))
    return _tree("smooth", {"h": 0.0}, (_n("mul", h, _n("exp", _n("neg", _n("abs", _p("bias"))))),), {"h": h})


def drawn() -> Tree:
    """The drawn program of the pool, with names that a kernel might use for itself."""
    return Drawing(np.random.default_rng(DRAWN), True, True).tree()


def _of_drawn() -> Pooled:
    tree = drawn()
    return Pooled(tree.inputs, len(tree.outputs), dict.fromkeys(tree.params, (0.5, 2.5)), drawn)


PROGRAMS: Dict[str, Pooled] = {
    "lif-soft": Pooled(("x",), 1, {"tau": (1.5, 3.0), "threshold": (0.5, 1.5)}, _lif_soft),
    "lif-hard": Pooled(("x",), 1, {"tau": (1.5, 3.0), "threshold": (0.5, 1.5), "rest": (-0.5, 0.25)}, _lif_hard),
    "swap": Pooled(("x", "gate"), 1, {"keep": (0.25, 0.75), "start": (-0.5, 0.5)}, _swap),
    "two": Pooled(("x", "inhibition"), 2, {"beta": (0.25, 0.9), "weight": (0.25, 1.0)}, _two),
    "alif": Pooled(
        ("x",), 2, {"tau": (1.5, 3.0), "rho": (0.25, 0.9), "beta": (0.1, 0.5), "threshold": (0.5, 1.5)}, _alif
    ),
    "smooth": Pooled(("x",), 1, {"gain": (0.5, 1.5), "bias": (0.25, 1.0)}, _smooth),
    "drawn": _of_drawn(),
}
