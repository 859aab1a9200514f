"""Programs of thousands of operations, one in the other: traced, computed, hashed, pickled and printed."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import replace
from typing import Any, Dict, Tuple

import pytest
import torch

import spikecore as sc
from spikecore.lang import Node, Program
from spikecore.lang.render import DEEPEST, Printer
from spikecore.testing.naming import plans
from spikecore_cupy.source import print_kernel
from spikecore_cupy.text import Form


class Deep(sc.Neuron):
    """One expression of many operations, of inputs and of parameters alone."""

    states = {"v": 0.0}
    params = {"a": 0.5}
    depth = 3000

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        return _chain(x, s.v, self.depth), {"v": x * _chain(p.a, p.a, self.depth)}


def _chain(first: Any, other: Any, depth: int) -> Any:
    for _ in range(depth // 2):
        first = first * 0.5 + other
    return first


def nested(text: str) -> int:
    """How deep the parentheses of a text are nested."""
    depth = deepest = 0
    for sign in re.sub("[^()]", "", text):
        depth += 1 if sign == "(" else -1
        deepest = max(deepest, depth)
    return deepest


@pytest.fixture(scope="module")
def program() -> Program:
    """The program of a deep neuron."""
    return Deep().program


def test_it_is_pickled_and_copied(program: Program) -> None:
    """A pickle is a list and not as deep as the expression; what comes back is equal."""
    for again in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
        assert again == program
        assert hash(again) == hash(program)
        assert again.outputs == program.outputs
        assert str(again) == str(program)
    (node,) = program.outputs
    assert pickle.loads(pickle.dumps(node)) == copy.deepcopy(node) == node
    assert node in {copy.copy(node)}


def test_shared_values_are_pickled_once() -> None:
    """What is used a thousand times is in a pickle once."""
    node = Node("input", (), "x")
    for _ in range(1000):
        node = Node("add", (node, node))
    assert pickle.loads(pickle.dumps(node)) == node
    assert len(pickle.dumps(node)) < 100_000


def test_it_prints_as_lines(program: Program) -> None:
    """No line of its text is nested deeply."""
    lines = str(program).splitlines()
    assert len(lines) > 2 * Deep.depth // DEEPEST
    assert max(map(nested, lines)) <= DEEPEST
    assert "long expression" in repr(program.outputs[0])


@pytest.mark.parametrize("direction", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("kind", ["number", "channel"])
def test_no_line_of_a_kernel_is_nested_deeply(direction: int, kind: str) -> None:
    """Nor one that computes with parameters alone, one for all neurons or one for each."""
    neuron: Any = type("Deeper", (Deep,), {"depth": 400})()
    plan = plans(neuron)[direction]
    plan = replace(plan, spec=plan.spec.__class__(plan.dtype, None, (kind,), ("a",) * (kind != "number"), final=True))
    if direction:
        plan = replace(plan, learn=plan.spec.learn)
    text = print_kernel(plan, Form(2)).text
    assert max(nested(line) for line in text.split(";")) <= DEEPEST + 4


def test_ordinary_expressions_stay_in_one_line() -> None:
    """What nests less than the limit is written in place."""
    x = Node("input", (), "x")
    for _ in range(DEEPEST - 1):
        x = Node("neg", (x,))
    assert Printer().block([x], {}, name_roots=False) == []
    assert len(Printer().block([Node("neg", (x,))], {}, name_roots=False)) == 1


def test_torch_computes_it() -> None:
    """Values and gradients, against a loop."""
    x, a = torch.rand(1, 2, 3, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    neuron = Deep(a=a, learn=("a",), backend="torch").double()
    leaf = x.clone().requires_grad_()
    out, state = neuron.run(leaf)
    (out.sum() + state["v"].sum()).backward()
    torch.testing.assert_close(out, _chain(x, torch.zeros_like(x), Deep.depth))
    torch.testing.assert_close(state["v"], x[0] * _chain(a, a, Deep.depth))
    torch.testing.assert_close(leaf.grad, torch.full_like(x, _chain(0.5, 0.5, Deep.depth)))
