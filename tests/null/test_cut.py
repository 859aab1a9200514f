"""The smallest cut: what a backward kernel keeps of a forward step is enough, and no smaller set would be."""

from __future__ import annotations

import itertools
import random
from typing import FrozenSet, List, Sequence, Tuple

import pytest

from spikecore.kernels import smallest_cut
from spikecore.lang import Node, topological
from spikecore.lang.node import const

X, Y = Node("input", (), "x"), Node("input", (), "y")
V, P, G = Node("state", (), "v"), Node("param", (), "p"), Node("out_grad", (), 0)


def op(name: str, *args: Node) -> Node:
    """An operation on these values."""
    return Node(name, args)


def is_enough(kept: FrozenSet[Node], roots: Sequence[Node]) -> bool:
    """Whether the roots can be computed from these values and from what is no input and no state of the step."""
    known = set()
    for node in topological(roots):
        if node in kept or (all(arg in known for arg in node.args) and node.op not in ("input", "state")):
            known.add(node)
    return known.issuperset(roots)


def fewest(roots: Sequence[Node], halves: Sequence[Node] = ()) -> int:
    """How small a set of values is enough, in halves of a value, by trying all sets of numbers of the forward step."""
    behind = {node for node in topological(roots) if node in (G,)}
    for node in topological(roots):
        if any(arg in behind for arg in node.args):
            behind.add(node)
    numbers = [node for node in topological(roots) if node not in behind and not node.is_bool]
    sets = [kept for count in range(len(numbers) + 1) for kept in itertools.combinations(numbers, count)]
    return min(size(kept, halves) for kept in sets if is_enough(frozenset(kept), roots))


def size(kept: Sequence[Node], halves: Sequence[Node]) -> int:
    """How much a set keeps, in halves of a value."""
    return sum(1 if node in halves else 2 for node in kept)


def drawn(seed: int) -> Tuple[Node, ...]:
    """Some roots of a small random step and its adjoint."""
    rng = random.Random(seed)
    forward: List[Node] = [X, Y, V, P]
    for _ in range(rng.randint(3, 6)):
        a, b = rng.choice(forward), rng.choice(forward)
        made = rng.choice(
            [op("sin", a), op("exp", b), op("mul", a, b), op("where", op("ge", a, b), a, rng.choice(forward))]
        )
        forward.append(made)
    back: List[Node] = [G]
    for _ in range(rng.randint(1, 3)):
        factor, above = rng.choice(forward), rng.choice(back)
        back.append(rng.choice([op("mul", above, factor), op("where", op("ge", factor, P), above, const(0.0))]))
    return (back[-1], *rng.sample(back + forward, 2))


@pytest.mark.parametrize("half", [(), (X, Y)], ids=["whole", "half"])
@pytest.mark.parametrize("seed", range(25))
def test_it_is_enough_and_smallest(seed: int, half: Tuple[Node, ...]) -> None:
    """Of random steps, the roots can be computed from what is kept, and no set is smaller. Inputs may lie two to a
    register, and count half then.
    """
    roots = drawn(seed)
    cut = smallest_cut(roots, half)
    assert is_enough(frozenset(cut), roots)
    assert size(cut, half) == fewest(roots, half)
    assert not any(node.is_bool for node in cut)
    order = topological(roots)
    assert half or [order.index(node) for node in cut] == sorted(order.index(node) for node in cut)


def test_two_inputs_are_kept_in_place_of_one_value() -> None:
    """Two halves are not more than one value; of equal sets the one nearest to the roots is kept, as ever."""
    both = op("sin", op("mul", X, Y))
    roots = [op("mul", G, both), op("mul", G, X)]
    assert smallest_cut(roots) == (X, both)
    assert smallest_cut(roots, [X, Y]) == (X, Y)


def test_a_condition_is_never_kept() -> None:
    """A kernel keeps numbers: of a comparison of two values both are kept, not the one condition."""
    assert set(smallest_cut([op("where", op("ge", X, V), G, const(0.0))])) == {X, V}


def test_what_no_step_changes_needs_no_place() -> None:
    """Parameters, constants and cotangents are there in backward: nothing is kept for them."""
    assert smallest_cut([op("mul", G, op("exp", P)), op("add", P, const(2.0))]) == ()
