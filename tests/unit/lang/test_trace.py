"""Tracing: a definition becomes exactly the program that was written, and functions of torch are the language's."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import spikecore as sc
from spikecore.lang import Node, loop_invariant, trace
from spikecore.lang._expr import Expr
from spikecore.lang.node import const
from spikecore.lang.operations import ROWS


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
        """What prints for & | ~ can be copied back into a definition."""
        text = repr(output(lambda x, s, p: sc.ops.where(((x > 0) & (s.v < 1)) | ~(x == 2), 1.0, 0.0)))
        assert text == "where((x > 0) & (v < 1) | ~(x == 2), 1, 0)"
        assert text == repr(output(lambda x, s, p: eval(text, {"where": sc.ops.where, "x": x, "v": s.v})))

    @pytest.mark.parametrize(
        "formula",
        [lambda x: 1.0 * x, lambda x: x + 0.0, lambda x: x - 0.0, lambda x: x / 1.0, lambda x: x * 0.0, lambda x: x**1],
        ids=["1*x", "x+0", "x-0", "x/1", "x*0", "x**1"],
    )
    def test_nothing_is_folded(self, formula):
        """An operation that changes nothing is still an operation."""
        assert formula(Expr(Node("input", (), "x"))).node != Node("input", (), "x")

    def test_constants_are_kept_apart(self):
        """Constants are combined by Python alone: x + 0.1 + 0.2 has two of them, x + (0.1 + 0.2) one."""
        kept = output(lambda x, s, p: x + 0.1 + 0.2)
        folded = output(lambda x, s, p: x + (0.1 + 0.2))
        assert (repr(kept), repr(folded)) == ("x + 0.1 + 0.2", "x + 0.30000000000000004")


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

    @pytest.mark.parametrize("again", [lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy, copy.copy])
    def test_copies_are_equal(self, again):
        """Pickling and copying give back the same program with the same names and text."""
        original = sc.ALIF(reset="soft").program
        restored = again(original)
        assert original == restored
        assert (str(original), original.labels, original.params) == (str(restored), restored.labels, restored.params)

    def test_programs_and_nodes_never_change(self):
        """Setting anything on a program or a node is an error."""
        made = Cell().program
        with pytest.raises(AttributeError, match="a program never changes; 'outputs' cannot be set"):
            made.outputs = ()
        with pytest.raises(AttributeError, match="a node never changes; 'op' cannot be set"):
            made.outputs[0].op = "add"

    def test_equal_subexpressions_are_one_node(self):
        """What is written twice is computed once."""
        twice = program(lambda x, s, p: (x * s.v + x * s.v, {"v": x * s.v}))
        assert ops_of(twice) == ["mul", "add"]


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

    def test_parameters_are_there_if_used(self):
        """Used parameters keep the declared order; one that only sets an initial value is used."""

        def step(x, s, p):
            return (x * p.c + p.a, {"v": s.v})

        assert program(step, states={"v": "start"}, params=("a", "b", "c", "start")).params == ("a", "c", "start")

    def test_work_on_parameters_alone_is_found(self):
        """`once` has exactly the operations on parameters and constants, arguments first."""
        traced = program(
            lambda x, s, p: (x * sc.ops.exp(-1.0 / p.tau) + sc.ops.exp(s.v), {"v": s.v * (p.a * p.tau)}),
            params=("tau", "a"),
        )
        assert [repr(node) for node in loop_invariant(traced.nodes)] == ["-1 / tau", "exp(-1 / tau)", "a * tau"]

    def test_several_inputs_and_outputs(self):
        """Several inputs come as a named tuple, several outputs go as a tuple."""

        def step(x, s, p):
            current, gate = x
            assert (current is x.current, gate is x.gate) == (True, True)
            return (current * gate, s.v), {"v": gate}

        traced = program(step, inputs=("current", "gate"))
        assert [repr(node) for node in traced.outputs] == ["current * gate", "v"]
        assert [repr(node) for node in traced.next] == ["gate"]

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
    **{row.name: row.name for row in ROWS if row.is_function and row.name in row.names},
    **{name: name for name in "add sub mul div neg ge gt le lt eq ne".split()},
    "arctan": "atan",
    "absolute": "abs",
    "pow": "power",
    "clip": "clamp",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "negative": "neg",
    "logical_and": "and",
    "logical_or": "or",
    "logical_not": "not",
}
PAIRED = set("pow minimum maximum add sub mul multiply div divide true_divide ge gt le lt eq ne".split())


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
            args = (x, y) if name in PAIRED else (x,)
        expected = Node(TORCH_NAMES[name], tuple(a.node if isinstance(a, Expr) else const(a) for a in args))
        assert expected == getattr(torch if hasattr(torch, name) else torch.nn.functional, name)(*args).node

    def test_other_names(self):
        """torch.special.erf and torch.nn.functional.relu are known; relu in place is refused."""
        x = Expr(Node("input", (), "x"))
        assert torch.special.erf(x).node == sc.ops.erf(x).node
        assert torch.nn.functional.relu(x).node == sc.ops.relu(x).node == torch.relu(x).node
        with pytest.raises(sc.lang.TraceError, match="torch.relu with inplace is not part of the language"):
            torch.nn.functional.relu(x, inplace=True)
