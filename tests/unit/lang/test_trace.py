"""Tracing: a definition becomes exactly the program that was written, and what cannot be recorded is said in words."""

from __future__ import annotations

import copy
import cProfile
import dis
import linecache
import math
import operator
import pickle
import re
import sys

import numpy as np
import pytest
import torch

import spikecore as sc
from spikecore.lang import Node, TraceError, once, trace
from spikecore.lang.expr import Expr
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
        elif self.variant == "label":
            potential = s.v * 0.5 + x / p.tau
            fired = self.spike(potential - 1.0)
            return fired, {"v": potential - fired}
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
        assert set(Cell().program.labels.values()) != set(Cell("label").program.labels.values())
        assert Cell().program == Cell("label").program

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
        assert (const(-0.5), Node("param", (), "start")) == traced.rest

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
        assert [repr(node) for node in once(traced.nodes)] == ["-1 / tau", "exp(-1 / tau)", "a * tau"]

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
    def test_local_variables_give_names(self):
        """An operation is labelled by the local variable that holds it; leaves keep their own names."""

        def step(x, s, p):
            old = s.v
            drive = x * 2.0
            h = old + drive
            return h, {"v": h}

        assert {repr(n): label for n, label in program(step).labels.items()} == {"x * 2": "drive", "v + x * 2": "h"}

    def test_a_local_variable_called_like_a_state(self):
        """A local variable with the name of a leaf is its next value."""

        def step(x, s, p):
            v = s.v + x
            return v, {"v": v}

        assert list(program(step).labels.values()) == ["v_next"]

    def test_the_first_name_stays(self):
        """Of two names for one value the first one counts."""

        def step(x, s, p):
            first = s.v + x
            second = first
            return second, {"v": second}

        assert list(program(step).labels.values()) == ["first"]

    def test_under_a_profiler(self):
        """While a profiler runs, tracing gives the same program and leaves the profiler in place."""
        seen = []

        def profiler(frame, event, arg):
            seen.append(event)

        sys.setprofile(profiler)
        try:
            traced = Cell().program
            assert sys.getprofile() is profiler
        finally:
            sys.setprofile(None)
        assert seen
        assert Cell().program == traced

    def test_under_cprofile(self):
        """cProfile and tracing go together."""
        with cProfile.Profile() as profile:
            traced = Cell().program
        assert Cell().program == traced
        assert any("dynamics" in str(entry.code) for entry in profile.getstats())

    def test_no_profiler_stays_behind(self):
        """After tracing, also after a failed one, no profiler is set."""
        with pytest.raises(ZeroDivisionError):
            program(lambda x, s, p: 1 / 0)
        assert Cell().program
        assert sys.getprofile() is None

    def test_a_definition_without_code(self):
        """Any callable can be traced; without local variables there are just no labels."""

        class Step:
            def __call__(self, x, s, p):
                h = x + s.v
                return h, {"v": h}

        traced = program(Step())
        assert (traced.labels, ops_of(traced)) == ({}, ["add"])


class TestText:
    def test_lif(self):
        """print(program) shows LIF as its equations."""
        assert str(sc.LIF().program).splitlines() == [
            "LIF(x; v; tau, threshold, v_reset)",
            "  rest  v = v_reset",
            "  step  h = v + (x - (v - v_reset)) / tau",
            "  step  z = spike(h - threshold >= 0)",
            "  next  v = select(z, v_reset, h)",
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
            "  once  b = clamp(beta, 0, 1)",
            "  step  r = detach(spike(v - threshold > 0))",
            "  step  u = b * v + x - r * threshold",
            "  step  z = spike(u - threshold > 0)",
            "  next  v = u",
            "  out   z",
            "  host  alpha_1 = 1.5707963267948966 * alpha",
            "  host  alpha_2 = alpha / 2",
            "  grad  spike'(u) = t1 = alpha_1 * u; alpha_2 / (1 + t1 * t1)  # ATan(alpha)",
        ]

    def test_short_form(self):
        """repr(program) is its name and the start of its key."""
        made = sc.LIF().program
        assert f"<Program LIF {made.key[:8]}>" == repr(made)


#: torch's name -> the operation it records.
TORCH_NAMES = {
    **{name: name for name in "exp log sqrt sin cos tanh sigmoid atan abs sign floor round".split()},
    **{name: name for name in "minimum maximum clamp where detach add sub mul div neg ge gt le lt eq ne".split()},
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
ARITY = {"where": 3, "clamp": 3, "clip": 3}
PAIRED = set("pow minimum maximum add sub mul multiply div divide true_divide ge gt le lt eq ne".split())


class TestTorchFunctions:
    def test_the_table_is_complete(self):
        """Every torch function that the language knows is tested here."""
        assert set(sc.ops.FROM_TORCH) == {*TORCH_NAMES, "square", "reciprocal"}

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
        assert expected == getattr(torch, name)(*args).node

    def test_functions_of_several_operations(self):
        """torch.square and torch.reciprocal record the arithmetic they are."""
        x = Expr(Node("input", (), "x"))
        assert (repr(torch.square(x).node), repr(torch.reciprocal(x).node)) == ("x * x", "1 / x")

    def test_a_number_may_come_first(self):
        """torch.add(1, x) keeps the number on the left."""
        assert repr(torch.add(1, Expr(Node("input", (), "x"))).node) == "1 + x"


def decide(x, s, p):
    """A decision on a traced value, in a definition of several lines."""
    h = x + s.v
    if h > 1.0:
        h = h - 1.0
    return h, {"v": h}


TENSOR = torch.ones(3)
DECISION = (
    "a Python decision (`if`, `and`, `or`, `not`, `min`, `max`) on a traced value is not part of the language{here}; "
    "its value is not known here: choose with sc.ops.where(condition, a, b), combine with & | ~, "
    "or use sc.ops.minimum and sc.ops.maximum"
)
NUMBER = (
    "turning a traced value into a Python number (`float`, `int`, `math.*`) is not part of the language{here}; "
    "its value is not known here: use the functions of sc.ops"
)
IN_PLACE = (
    "a change in place of a traced value is not part of the language{here}; it stands for one number per neuron: "
    "choose with sc.ops.where"
)
INDEX = "indexing or iterating a traced value is not part of the language{here}; it stands for one number per neuron"
MIXED = "a Tensor is not part of the language as {role}{{here}}; declare it as a parameter of the neuron"
AS_NUMBER = " got a comparison ({what}){{here}}; turn it into a number with sc.ops.where(comparison, 1.0, 0.0)"
AS_TRUTH = " got a number ({what}){{here}}; compare it with something first, as in v > 0"
ARRAY = "a ndarray is not part of the language as operand of add{here}; declare it as a parameter of the neuron"
METHOD = "the method .{name} is not part of the language{{here}}; write sc.ops.{way_out}"
UNKNOWN = "{what} is not part of the language{{here}}; see sc.ops for what there is"

#: What is written -> what is said, with ``{here}`` for file, line and source.
REFUSED = {
    "if": (decide, DECISION),
    "and": (lambda x, s, p: (x > 0) and (s.v > 0), DECISION),
    "or": (lambda x, s, p: (x > 0) or (s.v > 0), DECISION),
    "not": (lambda x, s, p: not (x > 0), DECISION),
    "chained": (lambda x, s, p: 0 < x < 1, DECISION),
    "min": (lambda x, s, p: min(x, s.v), DECISION),
    "max": (lambda x, s, p: max(x, 0.0), DECISION),
    "float": (lambda x, s, p: float(x), NUMBER),
    "int": (lambda x, s, p: int(x), NUMBER),
    "math.exp": (lambda x, s, p: math.exp(x), NUMBER),
    "math.floor": (lambda x, s, p: math.floor(x), NUMBER),
    "index": (lambda x, s, p: x[0], INDEX),
    "iterate": (lambda x, s, p: list(x), INDEX),
    "len": (lambda x, s, p: len(x), INDEX),
    "in": (lambda x, s, p: 1.0 in x, INDEX),
    "%": (lambda x, s, p: x % 2, UNKNOWN.format(what="the operator %")),
    "number %": (lambda x, s, p: 2 % x, UNKNOWN.format(what="the operator %")),
    "//": (lambda x, s, p: x // 2, "the operator // is not part of the language{here}; write sc.ops.floor(a / b)"),
    "@": (lambda x, s, p: x @ s.v, "the operator @ is not part of the language{here}; put a layer before the neuron"),
    "^": (lambda x, s, p: x ^ s.v, "the operator ^ is not part of the language{here}; write (a & ~b) | (~a & b)"),
    "<<": (lambda x, s, p: x << 1, UNKNOWN.format(what="a shift operator")),
    "round digits": (
        lambda x, s, p: round(x, 2),
        "round to 2 digits is not part of the language{here}; round to a whole number",
    ),
    "numpy ufunc": (lambda x, s, p: np.exp(x), UNKNOWN.format(what="numpy.exp")),
    "numpy array": (lambda x, s, p: np.ones(2) + x, ARRAY),
    "in place": (lambda x, s, p: torch.exp_(x), UNKNOWN.format(what="torch.exp_")),
    "numpy function": (lambda x, s, p: np.clip(x, 0, 1), METHOD.format(name="clip", way_out="clamp(x, low, high)")),
    "torch.erf": (lambda x, s, p: torch.erf(x), UNKNOWN.format(what="torch.erf")),
    "torch.nn.functional": (
        lambda x, s, p: torch.nn.functional.softplus(x),
        UNKNOWN.format(what="torch.softplus"),
    ),
    "torch keyword": (lambda x, s, p: torch.clamp(x, min=0.0), UNKNOWN.format(what="torch.clamp with min")),
    "torch keyword alpha": (lambda x, s, p: torch.add(x, s.v, alpha=2), UNKNOWN.format(what="torch.add with alpha")),
    "tensor + expr": (lambda x, s, p: TENSOR + x, MIXED.format(role="operand of add")),
    "expr + tensor": (lambda x, s, p: x + TENSOR, MIXED.format(role="operand of add")),
    "tensor * expr": (lambda x, s, p: TENSOR * x, MIXED.format(role="operand of mul")),
    "torch.add": (lambda x, s, p: torch.add(x, TENSOR), MIXED.format(role="argument of torch.add")),
    "tensor.add": (lambda x, s, p: TENSOR.add(x), MIXED.format(role="argument of torch.add")),
    "ops tensor": (lambda x, s, p: sc.ops.minimum(x, TENSOR), MIXED.format(role="argument of sc.ops.minimum")),
    "ndarray": (
        lambda x, s, p: x + np.ones(2),
        "a ndarray is not part of the language as operand of add{here}; declare it as a parameter of the neuron",
    ),
    "bool": (
        lambda x, s, p: x * True,
        "a bool is not part of the language as operand of mul{here}; use traced values and Python numbers only",
    ),
    "string": (
        lambda x, s, p: x == "a",
        "a str is not part of the language as operand of eq{here}; use traced values and Python numbers only",
    ),
    "method": (lambda x, s, p: x.exp(), METHOD.format(name="exp", way_out="exp(x)")),
    "comparison + number": (lambda x, s, p: (x > 0) + 1.0, "add" + AS_NUMBER.format(what="x > 0")),
    "exp(comparison)": (lambda x, s, p: sc.ops.exp(x > 0), "exp" + AS_NUMBER.format(what="x > 0")),
    "select(comparison)": (lambda x, s, p: sc.ops.select(x > 0, x, s.v), "select" + AS_NUMBER.format(what="x > 0")),
    "where branch": (lambda x, s, p: sc.ops.where(x > 0, x > 1, x), "where" + AS_NUMBER.format(what="x > 1")),
    "where(number)": (lambda x, s, p: sc.ops.where(x, 1.0, 0.0), "where" + AS_TRUTH.format(what="x")),
    "number & number": (lambda x, s, p: x & s.v, "and" + AS_TRUTH.format(what="x")),
    "divmod": (
        lambda x, s, p: (divmod(x, 2.0)[0], {"v": x}),
        "divmod is not part of the language{here}; write q = sc.ops.floor(a / b) and a - b * q",
    ),
    "divmod of a number": (
        lambda x, s, p: (divmod(2.0, x)[0], {"v": x}),
        "divmod is not part of the language{here}; write q = sc.ops.floor(a / b) and a - b * q",
    ),
    "trunc": (lambda x, s, p: math.trunc(x), NUMBER),
    "pow with a modulus": (
        lambda x, s, p: pow(x, 2, 3),
        "pow with a modulus is not part of the language{here}; write sc.ops.power(x, n)",
    ),
    "an item is set": (lambda x, s, p: operator.setitem(x, 0, 1.0), IN_PLACE),
    "an item is deleted": (lambda x, s, p: operator.delitem(x, 0), IN_PLACE),
    "a call": (
        lambda x, s, p: x(1.0),
        "calling a traced value is not part of the language{here}; it is a number per neuron and no function; is an "
        "operator missing?",
    ),
    "format": (
        lambda x, s, p: f"{x:.2f}",
        "the format '.2f' is not part of the language{here}; its value is not known here: see run(record=)",
    ),
    "an attribute": (lambda x, s, p: setattr(x, "y", 1), "Cell.dynamics: 'Expr' object has no attribute 'y'{here}"),
    "no such state": (lambda x, s, p: (s.q, {"v": x}), "Cell has no state 'q'{here}; its states are: v"),
    "no such parameter": (
        lambda x, s, p: (p.tauu, {"v": x}),
        "Cell has no parameter 'tauu'{here}; its parameters are: tau, threshold",
    ),
    "a next state is missing": (
        lambda x, s, p: (x, {}),
        "Cell.dynamics returns no next value for state 'v'{here}; return one for each of: v",
    ),
    "a next state of no state": (
        lambda x, s, p: (x, {"v": x, "w": x}),
        "Cell.dynamics returns a next value for 'w'{here}, which is no state; its states are: v",
    ),
    "output comparison": (
        lambda x, s, p: (x > 0, {"v": x}),
        "output 0 of Cell is a comparison (x > 0){here}; use sc.ops.where(comparison, 1.0, 0.0)",
    ),
    "next comparison": (
        lambda x, s, p: (x, {"v": x > 0}),
        "the next v of Cell is a comparison (x > 0){here}; use sc.ops.where(comparison, 1.0, 0.0)",
    ),
    "output tensor": (
        lambda x, s, p: (TENSOR, {"v": x}),
        "a Tensor is not part of the language as output 0 of Cell{here}; declare it as a parameter of the neuron",
    ),
    "output None": (
        lambda x, s, p: (None, {"v": x}),
        "a NoneType is not part of the language as output 0 of Cell{here}; use traced values and Python numbers only",
    ),
    "nothing": (
        lambda x, s, p: None,
        "Cell.dynamics must return (output, next states as a dict), or ((output, output, ...), dict); it returned "
        "None{here}",
    ),
    "~number": (lambda x, s, p: ~x, "not" + AS_TRUTH.format(what="x")),
    "spike(comparison)": (
        lambda x, s, p: sc.ops.spike(x > 0, sc.surrogate.ATan()),
        "spike" + AS_NUMBER.format(what="x > 0"),
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("what", REFUSED)
    def test_says_what_and_where(self, what):
        """What cannot be recorded is an error with the line of the definition and a way out."""
        definition, message = REFUSED[what]
        with pytest.raises(TraceError) as caught:
            program(definition, params=("tau", "threshold"))
        before, after = message.split("{here}")
        found = re.fullmatch(
            re.escape(before) + r" at test_trace\.py:(\d+) \(`(.*)`\)" + re.escape(after), str(caught.value)
        )
        assert found, str(caught.value)
        line, source = int(found[1]), found[2]
        assert line in {number for _, number in dis.findlinestarts(definition.__code__)}
        assert linecache.getline(__file__, line).strip() == source

    def test_points_to_the_line_that_did_it(self):
        """In a definition of several lines the message shows the one that cannot be recorded."""
        with pytest.raises(TraceError, match=re.escape("(`if h > 1.0:`)")):
            program(decide)

    def test_code_below_a_folder_named_torch_is_the_users(self):
        """A definition is found wherever it lies, also in a folder called torch."""
        definition = eval(compile("lambda x, s, p: x % 2", "/home/me/torch/cell.py", "eval"))
        with pytest.raises(TraceError, match=re.escape(" at cell.py:1; ")):
            program(definition)

    @pytest.mark.parametrize(
        "definition",
        [
            lambda x, s, p: x,
            lambda x, s, p: (x, x),
            lambda x, s, p: (x, x, {"v": x}),
            lambda x, s, p: [x, {"v": x}],
            lambda x, s, p: ((), {"v": x}),
            lambda x, s, p: None,
        ],
        ids=["output alone", "no dict", "three", "list", "no output", "nothing"],
    )
    def test_says_what_to_return(self, definition):
        """A return value of another shape is an error that shows the right one."""
        shape = (
            "Cell.dynamics must return (output, next states as a dict), or ((output, output, ...), dict); it returned"
        )
        with pytest.raises(TraceError, match=re.escape(shape) + r" .* at test_trace\.py:\d+ \(`lambda x, s, p: .*`\)$"):
            program(definition)

    def test_the_line_that_returned(self):
        """What is wrong with a result is said with the line that returned it, and not with that of the call."""

        def dynamics(x, s, p):
            if not p.tau.node.attr:
                return x, {"v": x}
            h = x + s.v
            return h, {"v": None}

        text = re.escape("a NoneType is not part of the language as the next v of Cell at test_trace.py:")
        with pytest.raises(TraceError, match=text + re.escape(f"{dynamics.__code__.co_firstlineno + 4} (`return h, ")):
            program(dynamics, params=("tau",))
        before = sys.getprofile()
        sys.setprofile(lambda *_: None)
        try:  # a profiler at work leaves the line of the definition
            with pytest.raises(TraceError, match=text + str(dynamics.__code__.co_firstlineno)):
                program(dynamics, params=("tau",))
        finally:
            sys.setprofile(before)

    def test_initial_value_names_a_parameter(self):
        """An initial value that is the name of nothing is an error."""
        message = "Cell: the initial value of state 'v' is 'v_rest', which is no parameter; its parameters are: tau"
        with pytest.raises(TraceError, match=re.escape(message)):
            program(lambda x, s, p: (x, {"v": x}), states={"v": "v_rest"}, params=("tau",))

    def test_surrogate_derivative_is_a_number(self):
        """A surrogate whose derivative is a comparison, or uses what the language lacks, is an error."""

        class Flat(sc.surrogate.Surrogate):
            def derivative(self, u):
                return abs(u) < 1.0

        class Gaussian(sc.surrogate.Surrogate):
            def derivative(self, u):
                return math.exp(-u * u)

        with pytest.raises(TraceError, match="gives a comparison"):
            program(lambda x, s, p: (sc.ops.spike(x, Flat()), {"v": x}))
        with pytest.raises(TraceError, match=re.escape("(`return math.exp(-u * u)`)")):
            program(lambda x, s, p: (sc.ops.spike(x, Gaussian()), {"v": x}))

    def test_values_are_found_but_have_no_special_attributes(self):
        """`is None`, hasattr of special names and repr work on traced values, as tools expect."""
        x = Expr(Node("input", (), "x"))
        assert x is not None
        assert not hasattr(x, "__cuda_array_interface__")
        assert repr(x + 1) == "Expr(x + 1)"
        assert x in {x}

    def test_numpy_scalars_are_numbers(self):
        """A NumPy scalar on either side of an operator is recorded as the number it is."""
        for number in (np.float64(1.5), np.float32(1.5), np.int64(3)):
            plain = float(number)
            assert output(lambda x, s, p, n=number: n * x) == output(lambda x, s, p, n=plain: n * x)
            assert output(lambda x, s, p, n=number: x - n) == output(lambda x, s, p, n=plain: x - n)
            assert output(lambda x, s, p, n=number: n / x) == output(lambda x, s, p, n=plain: n / x)
