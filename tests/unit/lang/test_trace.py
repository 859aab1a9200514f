"""Tracing: a definition becomes exactly the program that was written."""

from __future__ import annotations

import copy
import pickle
import sys

import numpy as np
import pytest

import spikecore as sc
from spikecore.lang import Node, Program, loop_invariant, trace
from spikecore.lang._expr import Expr
from spikecore.lang.node import SpikeRule, const


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

    def test_sides_are_kept(self):
        """x + v and v + x are different programs, though their values are equal."""
        assert output(lambda x, s, p: x + s.v) != output(lambda x, s, p: s.v + x)

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

    def test_mirrored_comparison(self):
        """A number on the left of a comparison turns it around, which is what Python does."""
        assert repr(output(lambda x, s, p: sc.ops.where(x > 1.0, x, 0.0))) == "where(x > 1, x, 0)"

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

    def test_plus_is_nothing(self):
        """Unary plus is no operation."""
        assert Node("input", (), "x") == output(lambda x, s, p: +x)

    def test_a_whole_number_is_that_number(self):
        """An int, a float and a NumPy float of one value are one constant; another sign or last bit is another."""
        assert const(2) == const(2.0) == output(lambda x, s, p: x * np.float64(2.0)).args[1]
        assert const(0.0) != const(-0.0)
        assert const(0.3) != const(0.1 + 0.2)


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

    def test_only_the_derivative_of_the_surrogate_counts(self):
        """Surrogates of different names with one derivative make one program."""
        u = Node("argument", (), "u")
        x = Node("input", (), "x")
        assert Node("spike", (x,), SpikeRule(False, u, "mine")) == Node("spike", (x,), SpikeRule(False, u, "yours"))

    def test_detach_reset_counts(self):
        """A spike without gradient in the reset is another program."""
        assert Cell().program != Cell(detach_reset=True).program

    def test_names_of_leaves_count(self):
        """A renamed input, state or parameter is another program; a runner gets its values in their order."""

        def step(x, s, p):
            return (getattr(s, *s) + x, dict.fromkeys(s, x))

        base = program(step, states={"v": 0.0})
        assert base != program(step, states={"w": 0.0})
        assert base != program(step, states={"v": 0.0}, inputs=("y",))
        assert base != program(step, states={"v": 1.0})

    def test_names_that_no_expression_has_count(self):
        """States that nobody reads, and the order of states and parameters, are what a runner goes by."""

        def step(x, s, p):
            return x * p.k + p.tau, dict.fromkeys(s, x)

        base = program(step, states={"a": 0.0, "b": 0.0}, params=("k", "tau"))
        assert base != program(step, states={"a": 0.0, "c": 0.0}, params=("k", "tau"))
        assert base != program(step, states={"b": 0.0, "a": 0.0}, params=("k", "tau"))
        assert base != program(step, states={"a": 0.0, "b": 0.0}, params=("tau", "k"))

    def test_labels_do_not_count(self):
        """Names of intermediate values are for people only."""
        made = Cell().program
        other = Program(
            made.name,
            inputs=made.inputs,
            states=made.states,
            outputs=made.outputs,
            next=made.next,
            initial=made.initial,
            params=made.params,
            numbers=made.numbers,
        )
        assert made.labels != other.labels
        assert (made, hash(made)) == (other, hash(other))

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

    def test_rest_is_a_number_or_a_parameter(self):
        """An initial value is recorded as the constant or the parameter it is."""

        def step(x, s, p):
            return (x, {"v": s.v, "w": s.w})

        traced = program(step, states={"v": -0.5, "w": "start"}, params=("start",))
        assert (const(-0.5), Node("param", (), "start")) == traced.initial

    def test_leaves_are_in_runner_order(self):
        """Leaves come as inputs, states, parameters."""
        traced = sc.ALIF().program
        assert [*traced.inputs, *traced.states, *traced.params] == [leaf.attr for leaf in traced.leaves]

    def test_arguments_come_first(self):
        """Every node stands after its arguments, and once."""
        nodes = sc.Izhikevich().program.nodes
        assert len(nodes) == len(set(nodes))
        assert all(nodes.index(arg) < i for i, node in enumerate(nodes) for arg in node.args)

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

    def test_one_output_may_be_a_tuple(self):
        """A tuple of one output is that output."""
        one = program(lambda x, s, p: (x, {"v": x}))
        assert one == program(lambda x, s, p: ((x,), {"v": x}))

    def test_an_output_may_be_a_number(self):
        """A Python number among the results is a constant."""
        traced = program(lambda x, s, p: (1, {"v": 0.5}))
        assert ((const(1.0),), (const(0.5),)) == (traced.outputs, traced.next)

    def test_no_state_at_all(self):
        """A neuron without states is a program."""
        assert program(lambda x, s, p: (x, {}), states={}).next == ()

    def test_next_states_go_by_name(self):
        """The order in which next states are returned does not matter."""

        def step(x, s, p):
            return (x, {"b": s.b, "a": x})

        assert [repr(node) for node in program(step, states={"a": 0.0, "b": 0.0}).next] == ["x", "b"]

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

    def test_no_profiler_stays_behind(self):
        """Tracing sets none."""
        assert Cell().program
        assert sys.getprofile() is None


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

    def test_leaky(self):
        """print(program) shows Leaky as its equations, with what is computed once and what carries no gradient."""
        assert str(sc.Leaky(0.9).program).splitlines() == [
            "Leaky(x; v; beta, threshold)",
            "  rest  v = 0",
            "  once  t1 = clamp(beta, 0, 1)",
            "  step  z = spike(v - threshold > 0)",
            "  step  v_next = t1 * v + x - detach(z) * threshold",
            "  step  z_ = spike(v_next - threshold > 0)",
            "  next  v = v_next",
            "  out   z_",
            "  host  alpha_1 = 1.5707963267948966 * alpha",
            "  host  alpha_2 = alpha / 2",
            "  grad  spike'(u) = t1 = alpha_1 * u; alpha_2 / (1 + t1 * t1)  # ATan(alpha)",
        ]

    def test_short_form(self):
        """repr(program) is its name and the start of its key."""
        made = sc.LIF().program
        assert f"<Program LIF {made.key[:8]}>" == repr(made)
