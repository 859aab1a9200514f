"""Functions and methods of torch in a definition record the operation of the language that they stand for."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from spikecore.lang import Node
from spikecore.lang._expr import Expr
from spikecore.lang.node import const
from spikecore.lang.operations import OPERATION, ROWS

#: torch's name -> the operation it records.
TORCH_NAMES = {
    **{name: row.name for row in ROWS for name in row.names if hasattr(torch, name)},
    **{name: name for name in "add sub mul div neg ge gt le lt eq ne".split()},
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "negative": "neg",
    "logical_and": "and",
    "logical_or": "or",
    "logical_not": "not",
}


class TestTorchFunctions:
    @pytest.mark.parametrize("name", TORCH_NAMES)
    def test_records_the_same_node(self, name):
        """torch.<name> of a traced value is the node of our operation, arguments in their order."""
        x, y = Expr(Node("input", (), "x")), Expr(Node("state", (), "v"))
        if name.startswith("logical"):
            args = (x > y, x < 2.0)[: 1 if name == "logical_not" else 2]
        elif name == "where":
            args = (x > y, x, y)
        elif name in ("clamp", "clip"):
            # torch 2.0 takes two numbers or two tensors
            args = (x, 0.0, y) if torch.__version__ >= "2.1" else (x, 0.0, 1.0)
        else:
            args = (x, y)[: OPERATION[TORCH_NAMES[name]].arity]
        expected = Node(TORCH_NAMES[name], tuple(a.node if isinstance(a, Expr) else const(a) for a in args))
        assert expected == getattr(torch if hasattr(torch, name) else torch.nn.functional, name)(*args).node

    def test_functions_of_several_operations(self):
        """torch.square, torch.reciprocal and torch.relu record what they are made of."""
        x = Expr(Node("input", (), "x"))
        assert (repr(torch.square(x).node), repr(torch.reciprocal(x).node)) == ("x * x", "1 / x")
        assert repr(torch.relu(x).node) == "where(x <= 0, 0, x)"

    def test_other_names(self):
        """torch.special.erf and torch.nn.functional.relu are known; relu in place is refused."""
        x = Expr(Node("input", (), "x"))
        assert torch.special.erf(x).node == sc.ops.erf(x).node
        assert torch.nn.functional.relu(x).node == sc.ops.relu(x).node == torch.relu(x).node
        with pytest.raises(sc.lang.TraceError, match="torch.relu with inplace is not part of the language"):
            torch.nn.functional.relu(x, inplace=True)

    def test_a_number_may_come_first(self):
        """torch.add(1, x) keeps the number on the left."""
        assert repr(torch.add(1, Expr(Node("input", (), "x"))).node) == "1 + x"
