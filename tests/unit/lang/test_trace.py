"""Tracing: a definition becomes the program that was written; what is not part of the language is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import refusals
import spikecore as sc
from spikecore.lang import Expr, Node, TraceError, loop_invariant, topological, trace
from spikecore.lang.node import const
from spikecore.lang.operations import OPERATION, ROWS


def program(dynamics, *, states=None, params=(), **options):
    """The program of a step ``(x, s, p)`` with one state ``v`` unless said otherwise."""
    states = {"v": 0.0} if states is None else states
    return trace(dynamics, **{"name": "Cell", "inputs": ("x",), "states": states, "params": params, **options})


def output(formula, **options):
    """The node of one expression of ``x``, ``s`` and ``p``."""
    return program(lambda x, s, p: (formula(x, s, p), {"v": x}), **options).outputs[0]


def ops_of(traced):
    """The operations of a program, in its own order."""
    return [node.op for node in traced.nodes if node.args]


class Cell(sc.Neuron):
    """A neuron with everything that can vary: its order, a constant, strictness."""

    states = {"v": 0.0}
    params = {"tau": 2.0}

    def __init__(self, variant="base", **options):
        super().__init__(**options)
        self.variant = variant

    def dynamics(self, x, s, p):
        if self.variant == "order":
            h = x / p.tau + s.v * 0.5
        else:
            h = s.v * (0.25 if self.variant == "constant" else 0.5) + x / p.tau
        z = self.spike(h - 1.0, strict=self.variant == "strict")
        return z, {"v": h - z}


class TestOrder:
    def test_grouping_is_kept(self):
        """(a + b) - c and a + (b - c) are different programs."""
        left = output(lambda x, s, p: (x + s.v) - p.c, params=("c",))
        right = output(lambda x, s, p: x + (s.v - p.c), params=("c",))
        assert left != right
        assert (repr(left), repr(right)) == ("x + v - c", "x + (v - c)")

    @pytest.mark.parametrize(
        ("formula", "text"),
        [
            (lambda x: 2.0 - x, "2 - x"),
            (lambda x: 2.0 / x, "2 / x"),
            (lambda x: 2.0 + x, "2 + x"),
            (lambda x: 2.0 * x, "2 * x"),
            (lambda x: 2.0**x, "power(2, x)"),
            (lambda x: 2 - (x - 3), "2 - (x - 3)"),
            (lambda x: -(x * 2) / 3, "-(x * 2) / 3"),
            (lambda x: x / (x * x), "x / (x * x)"),
        ],
    )
    def test_a_number_on_the_left_stays_there(self, formula, text):
        """Reflected operators record the number as the left operand."""
        assert text == repr(output(lambda x, s, p: formula(x)))

    def test_truth_values_print_as_they_are_written(self):
        """The printed text of & | ~ can be copied back into a definition."""
        text = repr(output(lambda x, s, p: sc.ops.where(((x > 0) & (s.v < 1)) | ~(x == 2), 1.0, 0.0)))
        assert text == "where((x > 0) & (v < 1) | ~(x == 2), 1, 0)"
        assert text == repr(output(lambda x, s, p: eval(text, {"where": sc.ops.where, "x": x, "v": s.v})))


class TestIdentity:
    def test_instances_are_equal(self):
        """Two neurons of one definition have one program: equal, with equal hash and key."""
        a, b = Cell().program, Cell(tau=5.0, learn=("tau",)).program
        assert a == b
        assert (hash(a), a.key) == (hash(b), b.key)
        assert len({a, b}) == 1

    @pytest.mark.parametrize("variant", ["constant", "order", "strict"])
    def test_what_is_computed_counts(self, variant):
        """A changed constant, order or strictness is another program."""
        assert Cell().program != Cell(variant).program

    def test_the_surrogate_counts(self):
        """A surrogate with another derivative makes another program, one with other numbers does not."""
        assert Cell().program == Cell(surrogate=sc.surrogate.ATan(alpha=2.0)).program
        assert Cell().program == Cell(surrogate=sc.surrogate.ATan(alpha=3.0)).program
        assert Cell().program != Cell(surrogate=sc.surrogate.Sigmoid()).program

    def test_names_that_no_expression_has_count(self):
        """States that nobody reads, and the order of states and parameters, are what a runner goes by."""

        def step(x, s, p):
            return x * p.k + p.tau, dict.fromkeys(s, x)

        base = program(step, states={"a": 0.0, "b": 0.0}, params=("k", "tau"))
        assert base != program(step, states={"a": 0.0, "c": 0.0}, params=("k", "tau"))
        assert base != program(step, states={"b": 0.0, "a": 0.0}, params=("k", "tau"))
        assert base != program(step, states={"a": 0.0, "b": 0.0}, params=("tau", "k"))


class TestShape:
    def test_dead_code_is_gone(self):
        """A value that neither outputs nor next states need is in no node list."""

        def step(x, s, p):
            unused = sc.ops.exp(x) * p.gone
            assert unused is not None
            return x + s.v, {"v": x}

        traced = program(step, params=("gone",))
        assert ops_of(traced) == ["add"]
        assert traced.params == ()

    def test_work_on_parameters_alone_is_found(self):
        """`once` has exactly the operations on parameters and constants, arguments first."""
        traced = program(
            lambda x, s, p: (x * sc.ops.exp(-1.0 / p.tau) + sc.ops.exp(s.v), {"v": s.v * (p.a * p.tau)}),
            params=("tau", "a"),
        )
        assert [repr(node) for node in loop_invariant(traced.nodes)] == ["-1 / tau", "exp(-1 / tau)", "a * tau"]

    def test_detached_states(self):
        """Spikes carry no gradient in the next values that are named, and do elsewhere."""

        def step(x, s, p):
            z = sc.ops.spike(x, sc.surrogate.ATan())
            return z, {"a": s.a - z, "b": s.b - z}

        traced = program(step, states={"a": 0.0, "b": 0.0}, detached=("a",))
        assert [repr(node) for node in traced.next] == ["a - detach(spike(x >= 0))", "b - spike(x >= 0)"]
        assert traced.outputs[0].op == "spike"


class TestLabels:
    def test_spikes_and_next_values_have_names(self):
        """``z`` for spikes, ``v_next`` for a next value that is read again; nothing else has one."""

        def step(x, s, p):
            h = s.v + x * 2.0
            return h, {"v": h, "a": s.a * h}

        traced = program(step, states={"v": 0.0, "a": 0.0})
        assert {repr(node): label for node, label in traced.labels.items()} == {"v + x * 2": "v_next"}
        assert list(sc.LIF().program.labels.values()) == ["z"]
        assert program(lambda x, s, p: (x, {"v": x})).labels == {}


class TestText:
    def test_lif(self):
        """print(program) shows LIF as its equations."""
        assert str(sc.LIF().program).splitlines() == [
            "LIF(x; v; tau, threshold, v_reset)",
            "  rest  v = v_reset",
            "  step  t1 = v + (x - (v - v_reset)) / tau",
            "  step  z = spike(t1 - threshold >= 0)",
            "  next  v = select(z, v_reset, t1)",
            "  out   z",
            "  host  alpha_1 = 1.5707963267948966 * alpha",
            "  host  alpha_2 = alpha / 2",
            "  grad  spike'(u) = t1 = alpha_1 * u; alpha_2 / (1 + t1 * t1)  # ATan(alpha)",
        ]


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


def decide(x, s, p):
    """A decision on a traced value, in a definition of several lines."""
    h = x + s.v
    if h > 1.0:
        h = h - 1.0
    return h, {"v": h}


TENSOR = torch.ones(3)


def step(write):
    """The program of one expression of an input and a state, with two parameters."""
    return program(write, params=("tau", "threshold"))


class Flat(sc.Surrogate):
    """A derivative that is a comparison."""

    def derivative(self, u):
        return abs(u) < 1.0


class Gaussian(sc.Surrogate):
    """A derivative that uses what the language lacks."""

    def derivative(self, u):
        return math.exp(-u * u)


class TestAdjoint:
    """Which cotangents the expressions of one step have."""

    def test_a_cotangent_that_does_not_arrive_is_in_no_expression(self):
        """A cotangent that does not arrive has no leaf, and a state that no cotangent leads to has none."""
        program = sc.LIF().program
        for asked, ops in (
            ({"final": False}, {"out_grad", "next_grad"}),
            ({"outputs": [False]}, {"next_grad"}),
            ({"outputs": [False], "final": False}, set()),
        ):
            found = program.adjoint(**asked)
            used = {node.op for node in topological([*found.inputs, *found.states]) if node.op.endswith("_grad")}
            assert used == ops, asked

    def test_the_final_states_that_are_asked_for(self):
        """Those that are named have a leaf, and those that a named one is computed from; others have none."""
        program = sc.Synaptic().program  # the potential is computed from the current, and not the other way round
        for final, names in (((), set()), (("v",), {"i", "v"}), (True, {"i", "v"}), (["i"], {"i"})):
            found = program.adjoint(outputs=[False], final=final)
            leaves = topological([*found.inputs, *found.states])
            assert {node.attr for node in leaves if node.op == "next_grad"} == names, final


test_refused = refusals.table(__file__, globals(), np, TraceError, step, Flat, Gaussian)
