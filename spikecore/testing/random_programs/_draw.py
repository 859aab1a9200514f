"""Drawing neurons: random steps that neither blow up nor die, with names that a kernel might use for itself."""

from __future__ import annotations

import keyword
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

import numpy as np
import torch

import spikecore as sc
from spikecore._shell.checks import COMMON
from spikecore.lang.operations import ROWS
from spikecore.testing.random_programs._tree import Node, Tree, order

#: Names of kernel frames, of C, CUDA, Triton and NumPy, and other awkward ones.
NAMES = (
    "j i t k n T N V U u0 t0 t1 t2 k0 out out0 outs grad grad_x grad_v sum neurons steps begin end count chunk "
    "whole step adjoint value rounded load store channel channels block_sum hold Pack NULL M_PI HUGE_VAL INFINITY "
    "NAN EOF int float double half bool auto main tl at inside chunks turn first tail BLOCK float32 libdevice "
    "sigmoid scratch width length start stop saved past math np torch_ expf signf lesser greater minimum maximum "
    "clamp select where_ state inputs params x_ v w a b c h z tau rho mask zero one new_v kept between following "
    "sum_tau threadIdx blockIdx assert_ printf τ größe naïve v_before v_next x_step l O "
    "very_long_name_of_a_quantity_that_goes_on_and_on_over_a_whole_line"
).split()
#: The same program with names that nobody can object to.
PLAIN = tuple(f"q{i}q" for i in range(60))

#: Functions of one number that neither grow quickly nor have an argument that is out of range; ``abs`` is drawn apart.
BOUNDED = tuple(
    row.name
    for row in ROWS
    if row.is_function and row.arity == 1 and row.gradient and not row.unbounded and row.name != "abs"
    if float(row.torch(torch.tensor(20.0))) < 21.0
)


class Drawing:
    """One neuron in the making."""

    def __init__(self, rng: np.random.Generator, exact: bool, hostile: bool) -> None:
        self.rng, self.exact = rng, exact
        taken = (*dir(sc.Neuron), *COMMON, "training", *keyword.kwlist)
        pool = [name for name in NAMES if name not in taken] if hostile else list(PLAIN)
        self.names = [str(name) for name in rng.permutation(np.array(pool))]
        self.hostile = hostile
        self.leaves: List[Node] = []
        self.made: List[Node] = []

    def name(self) -> str:
        """A name that nothing has yet."""
        return self.names.pop()

    def chance(self, share: float) -> bool:
        """True so often."""
        return bool(self.rng.random() < share)

    def one(self, of: Sequence[Any]) -> Any:
        """One of them."""
        return of[int(self.rng.integers(len(of)))]

    def const(self, *values: float) -> Node:
        """A number, mostly one with few binary digits."""
        value = self.one(values or (0.25, 0.5, 1.0, 1.5, 2.0, -0.5, -1.0, 0.75, 0.1, 0.7, 1e-3))
        return Node("const", (), float(value))

    # -- expressions

    def leaf(self) -> Node:
        """An input, a state or a parameter, or something computed before."""
        found: Node = self.one(self.made if self.made and self.chance(0.3) else self.leaves)
        return found

    def value(self, depth: int) -> Node:
        """A random expression."""
        if depth <= 0 or self.chance(0.1):
            return self.leaf()
        kinds: List[Callable[[int], Node]] = [self._sum, self._sum, self._product, self._quotient, self._bounded]
        kinds += [self._extremum, self._choice, self._flat, self._unary]
        node: Node = self.one(kinds)(depth - 1)
        self.made.append(node)
        return node

    def _other(self, depth: int) -> Node:
        return self.const() if self.chance(0.3) else self.value(depth)

    def _sided(self, op: str, a: Node, b: Node) -> Node:
        return Node(op, (a, b) if self.chance(0.5) else (b, a))

    def _sum(self, depth: int) -> Node:
        return self._sided(self.one(("add", "sub")), self.value(depth), self._other(depth))

    def _product(self, depth: int) -> Node:
        return self._sided("mul", self.value(depth), self._other(depth))

    def _quotient(self, depth: int) -> Node:
        below = Node("add", (Node("abs", (self.value(depth),)), self.const(0.5, 1.0)))
        return (
            Node("div", (self._other(depth), below))
            if self.chance(0.6)
            else Node(
                "div", (self.value(depth), self.one([leaf for leaf in self.leaves if leaf.op == "param"] or [below]))
            )
        )

    def _bounded(self, depth: int) -> Node:
        x = self.value(depth)
        if self.exact:
            return Node("clamp", (x, *self._bounds(depth)))
        op = self.one((*BOUNDED, "clamp", "exp", "log", "power"))
        if op == "clamp":
            return Node("clamp", (x, *self._bounds(depth)))
        if op == "exp":
            return Node("exp", (Node("minimum", (x, self.const(1.0, 0.5))),))
        if op == "log":
            return Node("log", (Node("add", (Node("abs", (x,)), self.const(0.5, 1.0))),))
        if op == "power":
            return Node("power", (Node("add", (Node("abs", (x,)), self.const(0.5))), self._exponent(depth)))
        return Node(op, (x,))

    def _exponent(self, depth: int) -> Node:
        params = [leaf for leaf in self.leaves if leaf.op == "param"]
        return self.one(params) if params and self.chance(0.5) else self.const(0.5, 2.0, -1.0, 1.5)

    def _bounds(self, depth: int) -> Tuple[Node, Node]:
        low = self.const(-1.0, -0.5, 0.0) if self.chance(0.7) else self.leaf()
        high = self.const(0.5, 1.0, 2.0) if self.chance(0.7) else self.leaf()
        return low, high

    def _extremum(self, depth: int) -> Node:
        return self._sided(self.one(("minimum", "maximum")), self.value(depth), self._other(depth))

    def _flat(self, depth: int) -> Node:
        return Node(self.one(("sign", "floor", "round", "detach")), (self.value(depth),))

    def _unary(self, depth: int) -> Node:
        if self.chance(0.3):
            return Node("sqrt", (Node("add", (Node("abs", (self.value(depth),)), self.const(0.25, 1.0))),))
        return Node(self.one(("neg", "abs")), (self.value(depth),))

    def condition(self, depth: int) -> Node:
        """A comparison, or several combined."""
        if depth > 0 and self.chance(0.3):
            if self.chance(0.3):
                return Node("not", (self.condition(depth - 1),))
            return Node(self.one(("and", "or")), (self.condition(depth - 1), self.condition(depth - 1)))
        return Node(self.one(("ge", "gt", "le", "lt", "eq", "ne")), (self.value(depth), self._other(depth)))

    def spike(self, depth: int) -> Node:
        """A spike."""
        return Node("spike", (Node("sub", (self.value(depth), self._other(depth))),), self.chance(0.3))

    def _choice(self, depth: int) -> Node:
        a, b = self._other(depth), self._other(depth)
        if self.chance(0.5):
            return Node("where", (self.condition(min(depth, 1)), a, b))
        return Node("select", (self.spike(depth), a, b))

    # -- the neuron

    def tree(self) -> Tree:
        """The whole neuron."""
        inputs = tuple(self.name() for _ in range(self.one((1, 1, 2, 3))))
        params = {self.name(): float(self.rng.integers(8, 25)) / 8 for _ in range(self.one((0, 1, 2, 3)))}
        rests: List[Union[float, str]] = [0.0, 0.5, -0.25, *params]
        states = {self.name(): self.one(rests) for _ in range(self.one((0, 1, 1, 2, 3)))}
        self.leaves = [Node("input", (), name) for name in inputs]
        self.leaves += [Node("state", (), n) for n in states] + [Node("param", (), n) for n in params]
        following = {name: self._next(name) for name in states}
        outputs = [self._output() for _ in range(self.one((1, 1, 2)))]
        fields = {self.name(): self.one((0.5, 1.0, 2.0, 1.25)) for _ in range(self.one((0, 1, 2)))}
        tree = Tree(
            self._class(),
            inputs,
            states,
            params,
            outputs,
            following,
            self._class(),
            fields,
            self._derivative(fields),
            detach_reset=self.chance(0.3),
            reset_states=tuple(n for n in states if self.chance(0.5)) if self.chance(0.3) else None,
            by_torch=self.chance(0.3),
        )
        nodes = [n for n in order(tree.roots) if n.args and self.chance(0.4)]
        tree.locals = {node: self.name() for node in nodes[: max(len(self.names) - 10, 0)]}
        return tree

    def _class(self) -> str:
        return self.one(("Neuron 1", "2nd", "a-b", "größer", "int", "Lif")) if self.hostile else "Drawn"

    def _next(self, name: str) -> Node:
        """A next value that does not grow without bound, mostly."""
        state = Node("state", (), name)
        drive = self.value(3)
        kind = self.one(("decay", "leak", "reset", "soft", "free"))
        decayed = Node("add", (Node("mul", (state, self.const(0.25, 0.5, 0.75, 0.9))), drive))
        if kind == "leak":
            return Node("add", (state, Node("div", (Node("sub", (drive, state)), self.const(1.5, 2.0, 3.0)))))
        if kind == "reset":
            return Node("select", (self.spike(1), self._other(1), decayed))
        if kind == "soft":
            return Node("sub", (decayed, Node("mul", (self.spike(1), self.const(0.5, 1.0)))))
        return drive if kind == "free" else decayed

    def _output(self) -> Node:
        return self.spike(2) if self.chance(0.4) else self.value(3)

    def _derivative(self, fields: Dict[str, float]) -> Node:
        """A surrogate's derivative: smooth, or with jumps."""
        u = Node("u")
        scale = Node("field", (), self.one(list(fields))) if fields else self.const(0.5, 1.0, 2.0)
        size = Node("abs", (u,))
        if fields:
            size = Node("mul", (size, scale))
        if self.chance(0.4):
            return Node("where", (Node("lt", (Node("abs", (u,)), scale)), self.const(0.5, 1.0), self.const(0.0, 0.1)))
        if self.exact or self.chance(0.5):
            return Node("div", (self.const(0.5, 1.0), Node("add", (size, self.const(1.0, 2.0)))))
        return Node("exp", (Node("neg", (size,)),))
