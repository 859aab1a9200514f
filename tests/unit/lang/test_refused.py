"""What is not part of the language is refused where it is written, and the error says what to write instead."""

from __future__ import annotations

import math
import operator
import re
import sys

import numpy as np
import pytest
import torch

import spikecore as sc
from spikecore.lang import Node, TraceError, trace
from spikecore.lang._expr import Expr


def program(dynamics, *, states=None, params=(), **options):
    """The program of a step ``(x, s, p)`` with one state ``v`` unless said otherwise."""
    states = {"v": 0.0} if states is None else states
    return trace(dynamics, **{"name": "Cell", "inputs": ("x",), "states": states, "params": params, **options})


def output(formula, **options):
    """The node of one expression of ``x``, ``s`` and ``p``."""
    return program(lambda x, s, p: (formula(x, s, p), {"v": x}), **options).outputs[0]


def decide(x, s, p):
    """A decision on a traced value, in a definition of several lines."""
    h = x + s.v
    if h > 1.0:
        h = h - 1.0
    return h, {"v": h}


TENSOR = torch.ones(3)
#: What Python adds to the error of an attribute that an object with slots lacks.
NO_DICT = " and no __dict__ for setting new attributes" if sys.version_info >= (3, 13) else ""
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
SPIKE = (
    "for a spike write self.spike(v - 1) in place of v > 1; sc.ops.where(comparison, 1.0, 0.0) is a number without a "
    "gradient"
)
AS_NUMBER = f" got a comparison ({{what}}){{{{here}}}}; {SPIKE}"
AS_TRUTH = " got a number ({what}){{here}}; compare it with something first, as in v > 0"
ARRAY = "a ndarray is not part of the language as operand of add{here}; declare it as a parameter of the neuron"
METHOD = "the method .{name} is not part of the language{{here}}; write sc.ops.{way_out}"
UNKNOWN = "{what} is not part of the language{{here}}; see sc.ops for what there is"

#: What is written -> what is said, with ``{here}`` for the definition.
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
    "torch.erfc": (lambda x, s, p: torch.erfc(x), UNKNOWN.format(what="torch.erfc")),
    "torch.nn.functional": (
        lambda x, s, p: torch.nn.functional.gelu(x),
        UNKNOWN.format(what="torch.gelu"),
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
        "pow with a modulus is not part of the language{here}; write sc.ops.power(x, exponent)",
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
    "an attribute": (
        lambda x, s, p: setattr(x, "y", 1),
        # Python's own words
        f"Cell.dynamics: 'Expr' object has no attribute 'y'{NO_DICT}",
    ),
    "no such state": (lambda x, s, p: (s.q, {"v": x}), "Cell has no state 'q'{here}; its states are: v"),
    "no such parameter": (
        lambda x, s, p: (p.tauu, {"v": x}),
        "Cell has no parameter 'tauu'{here}; its parameters are: tau, threshold",
    ),
    "a next state is missing": (
        lambda x, s, p: (x, {}),
        "Cell.dynamics returns no next value for state 'v'; return one for each of: v",
    ),
    "a next state of no state": (
        lambda x, s, p: (x, {"v": x, "w": x}),
        "Cell.dynamics returns a next value for 'w', which is no state; its states are: v",
    ),
    "output comparison": (
        lambda x, s, p: (x > 0, {"v": x}),
        f"output 0 of Cell is a comparison (x > 0); {SPIKE}",
    ),
    "next comparison": (
        lambda x, s, p: (x, {"v": x > 0}),
        f"the next v of Cell is a comparison (x > 0); {SPIKE}",
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
        "Cell.dynamics must return (output, next states as a dict), or ((output, output, ...), dict); it returned None",
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
        """What cannot be recorded is an error with the definition and a way out."""
        definition, message = REFUSED[what]
        with pytest.raises(TraceError) as caught:
            program(definition, params=("tau", "threshold"))
        assert str(caught.value) == message.replace("{here}", " in Cell.dynamics")

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
        with pytest.raises(TraceError, match=re.escape(shape)):
            program(definition)

    def test_a_next_value_that_is_none(self):
        """It is said by the name of the state."""
        text = "a NoneType is not part of the language as the next v of Cell in Cell.dynamics; use traced values and"
        with pytest.raises(TraceError, match=re.escape(text)):
            program(lambda x, s, p: (x, {"v": None}))

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
        with pytest.raises(TraceError, match="turning a traced value into a Python number"):
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
