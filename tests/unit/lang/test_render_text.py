"""The text that a printer writes: literals, parentheses, lines of a block, names."""

from __future__ import annotations

import ctypes
import math
import re
import struct

import numpy as np
import pytest

import spikecore as sc
from spikecore.lang import Node, ops
from spikecore.lang._expr import Expr
from spikecore.lang.node import const
from spikecore.lang.render import Printer, shortest

LEAVES = [Node("input", (), "x"), Node("state", (), "v"), Node("param", (), "tau")]
X, V, TAU = map(Expr, LEAVES)


def floats32(count, seed):
    """Finite float32 numbers of random bits."""
    bits = np.random.default_rng(seed).integers(0, 2**32, 2 * count, dtype=np.uint32)
    values = bits.view(np.float32)
    return values[np.isfinite(values)][:count]


class TestNumbers:
    def test_single_literals_read_back(self):
        """Of 10 000 float32 numbers the shortest text gives the number back, read as a double or as a float."""
        read = ctypes.CDLL(None).strtof
        read.restype, read.argtypes = ctypes.c_float, [ctypes.c_char_p, ctypes.c_void_p]
        for value in floats32(10_000, seed=1):
            text = shortest(float(value), single=True)
            for again in (np.float32(float(text)), np.float32(read(text.encode(), None))):
                assert again.tobytes() == value.tobytes(), text

    def test_double_literals_read_back(self):
        """Of 10 000 float64 numbers the text gives the number back."""
        bits = np.random.default_rng(2).integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
        for value in bits[np.isfinite(bits)][:10_000]:
            assert struct.pack("d", float(shortest(float(value), single=False))) == struct.pack("d", value)

    def test_single_literals_are_short(self):
        """No float32 needs more digits than NumPy's shortest form has, and every text is a floating-point literal."""
        for value in floats32(1_000, seed=3):
            text = shortest(float(value), single=True)
            digits = len(text.lstrip("-").split("e")[0].replace(".", "").strip("0"))
            needed = len(np.format_float_scientific(value, trim="-").lstrip("-").split("e")[0].replace(".", ""))
            assert digits <= needed, text
            assert "." in text or "e" in text

    @pytest.mark.parametrize(
        ("value", "single", "double"),
        [
            (1.0, "1.0f", "1.0"),
            (0.1, "0.1f", "0.1"),
            (-0.0, "-0.0f", "-0.0"),
            (1 / 3, "0.33333334f", "0.3333333333333333"),
            (16777217.0, "16777216.0f", "16777217.0"),
            (1e16, "1e+16f", "1e+16"),
            (3.4028234663852886e38, "3.4028235e+38f", "3.4028234663852886e+38"),
            (1e-45, "1e-45f", "1e-45"),
            (1e-300, "0.0f", "1e-300"),
            (1e300, "INFINITY", "1e+300"),
            (-1e300, "-INFINITY", "-1e+300"),
            (math.inf, "INFINITY", "double(INFINITY)"),
            (-math.inf, "-INFINITY", "double(-INFINITY)"),
            (math.nan, "NAN", "double(NAN)"),
        ],
    )
    def test_literals(self, value, single, double):
        """A literal is the value that arithmetic of its type uses."""
        assert (single, double) == (Printer("float").number(value), Printer("double").number(value))

    def test_unknown_type(self):
        """A type that is no arithmetic type is an error that says which there are."""
        with pytest.raises(ValueError, match="real='half': the arithmetic type is 'float' or 'double'"):
            Printer("half")


class TestExpressions:
    @pytest.mark.parametrize(
        ("formula", "text"),
        [
            (X + V + TAU, "x + v + tau"),
            (X + (V + TAU), "x + (v + tau)"),
            (X - (V - TAU), "x - (v - tau)"),
            (X - V * TAU, "x - v * tau"),
            ((X - V) * TAU, "(x - v) * tau"),
            (X / V * TAU, "x / v * tau"),
            (X / (V * TAU), "x / (v * tau)"),
            (-X - -V, "-x - -v"),
            (0.0 - -X, "0.0f - -x"),
            (Expr(Node("neg", ((-X).node,))), "-(-x)"),
            (-(X * V), "-(x * v)"),
            ((-X) * V, "-x * v"),
            (X - -1.0, "x - -1.0f"),
            (-Expr(const(-1.0)), "-(-1.0f)"),
            (ops.where(X > V, X, V) * 2.0, "(x > v ? x : v) * 2.0f"),
            (ops.where(~(X > V), X, V), "!(x > v) ? x : v"),
            (ops.where((X > V) & (X < 1.0) | (V == 0.0), X, V), "x > v && x < 1.0f || v == 0.0f ? x : v"),
            (ops.where((X > V) & ((X < 1.0) | (V == 0.0)), X, V), "x > v && (x < 1.0f || v == 0.0f) ? x : v"),
            (ops.where(X > V, ops.where(V > X, X, V), X), "x > v ? (v > x ? x : v) : x"),
            (ops.select(X - V, X, V) + 1.0, "(x - v != 0.0f ? x : v) + 1.0f"),
            (ops.spike(X - V, sc.surrogate.ATan(), strict=True), "x - v > 0.0f ? 1.0f : 0.0f"),
            (ops.exp(X - V) * 2.0, "expf(x - v) * 2.0f"),
            (ops.clamp(X + V, -1.0, TAU), "clamp(x + v, -1.0f, tau)"),
            (ops.detach(X + V) * 2.0, "(x + v) * 2.0f"),
        ],
    )
    def test_parentheses(self, formula, text):
        """Parentheses stand where C would group otherwise, and nowhere else."""
        assert text == Printer("float").read(formula.node)

    def test_double_functions_have_no_suffix(self):
        """In double precision literals and functions are C's double ones."""
        assert Printer("double").read((ops.exp(X) + 0.5).node) == "exp(x) + 0.5"


def block(*roots, labels=None, **options):
    """The lines of a block, by expressions."""
    printer = Printer("float")
    labels = {value.node: label for value, label in (labels or {}).items()}
    lines = printer.block([root.node for root in roots], {}, labels, **options)
    return [*map(printer.named(lines), lines)]


def named(printer, lines):
    """Lines with names."""
    return [*map(printer.named(lines), lines)]


class TestBlocks:
    def test_a_value_used_twice_has_a_line(self):
        """What is used twice is computed once, and what is used once is written in place."""
        h = X + V
        assert block(h * h - TAU / 2.0) == ["const float t1 = x + v;", "const float t2 = t1 * t1 - tau / 2.0f;"]

    def test_labels_keep_their_names(self):
        """A value that the definition named has a line under this name, used once or not."""
        h = X + V
        assert block(h * 2.0, labels={h: "h"}) == ["const float h = x + v;", "const float t1 = h * 2.0f;"]

    def test_truth_values_have_their_type(self):
        """A comparison with a line of its own is a truth value."""
        hot = X > V
        lines = block(ops.where(hot, X, V) - ops.where(hot, V, X))
        assert lines == ["const bool t1 = x > v;", "const float t2 = (t1 ? x : v) - (t1 ? v : x);"]

    def test_known_values_are_not_computed_again(self):
        """What an earlier block named is used by its name."""
        h, names, printer = X + V, {}, Printer("float")
        lines = printer.block([h.node], names, {h.node: "h"})
        lines += printer.block([(h * 2.0).node], names)
        lines += printer.block([(h * 3.0).node], names)
        assert named(printer, lines) == [
            "const float h = x + v;",
            "const float t1 = h * 2.0f;",
            "const float t2 = h * 3.0f;",
        ]

    def test_roots_may_stay_in_place(self):
        """With name_roots=False a root that is used once has no line."""
        assert block(X + V, name_roots=False) == []

    def test_detach_leaves_no_line(self):
        """A detached value goes by the name of what it is, wherever it is used."""
        h = X + V
        lines = block(ops.detach(h) * 2.0 - h, labels={h: "h"})
        assert lines == ["const float h = x + v;", "const float t1 = h * 2.0f - h;"]

    def test_a_detached_value_used_twice_has_a_line(self):
        """Uses of the detached value are uses of the value: it is computed once."""
        fixed = ops.detach(X + V)
        assert block(fixed * X - fixed) == ["const float t1 = x + v;", "const float t2 = t1 * x - t1;"]

    def test_the_label_of_a_detached_value_names_it(self):
        """Where only the detached value has a name, the value itself gets it."""
        r = ops.detach(ops.spike(X, sc.surrogate.ATan()))
        lines = block(V - r * TAU, labels={r: "r"})
        assert lines == ["const float r = x >= 0.0f ? 1.0f : 0.0f;", "const float t1 = v - r * tau;"]

    def test_a_detached_root_has_a_name(self):
        """A root that is detached is computed under a name like any other."""
        names, printer = {}, Printer("float")
        root = ops.detach(X + V)
        lines = [*printer.block([root.node], names), names[root.node]]
        assert named(printer, lines) == ["const float t1 = x + v;", "t1"]

    def test_detach_of_a_leaf_is_the_leaf(self):
        """A detached leaf or number needs no name of its own."""
        assert block(ops.detach(X) - ops.detach(Expr(const(-1.0)))) == ["const float t1 = x - -1.0f;"]


class TestNames:
    def test_labels_do_not_clash(self):
        """Two values of one label, and labels like reserved words or generated names, have names of their own."""
        a, b, c, d = X + V, X - V, X * V, X / V
        lines = block(a * b * c * d, labels={a: "h", b: "h", c: "double", d: "t1"})
        assert [line.split()[2] for line in lines] == ["h", "h_", "double_", "t1", "t1_"]

    def test_labels_do_not_hide_leaves(self):
        """A label, or a generated name, like a leaf that nobody named does not take its place."""
        state = Expr(Node("state", (), "t1"))
        h = X + V
        lines = block((h + state) * TAU, labels={h: "tau"})
        names = {line.split()[2]: line for line in lines}
        assert len(names) == 2
        assert {"t1", "tau"} & {*names} == {*names} - {"tau_", "t1_"}
        assert len({*re.findall(r"\b(?:t1|tau)_*\b", " ".join(lines))}) == 4

    def test_leaves_have_readable_names(self):
        """Inputs, states and parameters keep their names; cotangents say what they are of."""
        names = [Printer().leaf(node) for node in (*LEAVES, Node("out_grad", (), 1), Node("next_grad", (), "v"))]
        assert names == ["x", "v", "tau", "grad_out1", "grad_next_v"]
