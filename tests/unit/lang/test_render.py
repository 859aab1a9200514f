"""The text of a program: literals, parentheses, lines of a block, a program of 3000 operations, and names of users."""

from __future__ import annotations

import math
from typing import Any, Dict, Tuple

import pytest
import torch

import spikecore as sc
from kernel_names import same_but_for_names
from spikecore.core.neuron import Neuron
from spikecore.lang import Expr, Node, ops
from spikecore.lang.node import const
from spikecore.lang.render import Printer, ascii_name
from spikecore.testing.naming import namings

LEAVES = [Node("input", (), "x"), Node("state", (), "v"), Node("param", (), "tau")]
X, V, TAU = map(Expr, LEAVES)


class TestNumbers:
    @pytest.mark.parametrize(
        ("value", "single", "double"),
        [
            (1.0, "1.0f", "1.0"),
            (0.1, "0.1f", "0.1"),
            (1 / 3, "0.33333334f", "0.3333333333333333"),
            (1e-45, "1e-45f", "1e-45"),
            (1e300, "INFINITY", "1e+300"),
            (math.inf, "INFINITY", "double(INFINITY)"),
            (math.nan, "NAN", "double(NAN)"),
        ],
    )
    def test_literals(self, value, single, double):
        """A literal is the value that arithmetic of its type uses."""
        assert (single, double) == (Printer("float").number(value), Printer("double").number(value))


class TestExpressions:
    @pytest.mark.parametrize(
        ("formula", "text"),
        [
            (X + (V + TAU), "x + (v + tau)"),
            (X - (V - TAU), "x - (v - tau)"),
            (X - V * TAU, "x - v * tau"),
            ((X - V) * TAU, "(x - v) * tau"),
            (X / (V * TAU), "x / (v * tau)"),
            (-X - -V, "-x - -v"),
            (Expr(Node("neg", ((-X).node,))), "-(-x)"),
            (-Expr(const(-1.0)), "-(-1.0f)"),
            (ops.where(X > V, X, V) * 2.0, "(x > v ? x : v) * 2.0f"),
            (ops.where((X > V) & (X < 1.0) | (V == 0.0), X, V), "x > v && x < 1.0f || v == 0.0f ? x : v"),
            (ops.where((X > V) & ((X < 1.0) | (V == 0.0)), X, V), "x > v && (x < 1.0f || v == 0.0f) ? x : v"),
            (ops.where(X > V, ops.where(V > X, X, V), X), "x > v ? (v > x ? x : v) : x"),
            (ops.select(X - V, X, V) + 1.0, "(x - v != 0.0f ? x : v) + 1.0f"),
            (ops.spike(X - V, sc.surrogate.ATan(), strict=True), "x - v > 0.0f ? 1.0f : 0.0f"),
            (ops.exp(X - V) * 2.0, "expf(x - v) * 2.0f"),
            (ops.detach(X + V) * 2.0, "(x + v) * 2.0f"),
        ],
    )
    def test_parentheses(self, formula, text):
        """Parentheses stand where C would group otherwise, and nowhere else."""
        assert text == Printer("float").read(formula.node)


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
        """A value used twice is computed once, and one used once is written in place."""
        h = X + V
        assert block(h * h - TAU / 2.0) == ["const float t1 = x + v;", "const float t2 = t1 * t1 - tau / 2.0f;"]

    def test_labels_keep_their_names(self):
        """A value that the definition named has a line under this name, used once or not."""
        h = X + V
        assert block(h * 2.0, labels={h: "h"}) == ["const float h = x + v;", "const float t1 = h * 2.0f;"]

    def test_a_detached_value_used_twice_has_a_line(self):
        """Uses of the detached value are uses of the value: it is computed once."""
        fixed = ops.detach(X + V)
        assert block(fixed * X - fixed) == ["const float t1 = x + v;", "const float t2 = t1 * x - t1;"]


class TestNames:
    def test_labels_do_not_clash(self):
        """Two values of one label, and labels like reserved words or generated names, have names of their own."""
        a, b, c, d = X + V, X - V, X * V, X / V
        lines = block(a * b * c * d, labels={a: "h", b: "h", c: "double", d: "t1"})
        assert [line.split()[2] for line in lines] == ["h", "h_", "double_", "t1", "t1_"]


class Decaying(sc.Neuron):
    """A decay from a time constant, and its complement: two values that are computed once."""

    states = {"v": 0.0}
    params = {"tau": 20.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        decay = ops.exp(-1.0 / p.tau)
        v = decay * s.v + (1.0 - decay) * x
        return v, {"v": v}


def test_kernels_call_what_is_computed_once_as_the_listing_does() -> None:
    """``k1`` and ``k2`` of the listing are those of both kernels; a value of the adjoint alone goes on from there."""
    neuron = Decaying(learn=("tau",))
    assert {"  once  k1 = exp(-1 / tau)", "  once  k2 = 1 - k1"} <= set(str(neuron.program).splitlines())
    texts = sc.kernel_source(neuron, backend="cupy")
    for text in texts.values():
        assert "const float k2 = 1.0f - k1;" in text
    assert {name for name, text in texts.items() if "k3" in text} == {"backward"}


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


# -- print(program)


@pytest.mark.parametrize("name", ["exp", "select", "spike", "clamp", "inf", "t1", "u", "rest", "step", "next", "out"])
def test_print_tells_a_value_from_a_function(name: str) -> None:
    """A printed program calls no value like a function beside it, and no two values alike."""

    def equations(neuron: Neuron) -> str:
        first, *lines = [line for line in str(neuron.program).splitlines() if not line.startswith("  grad")]
        return "\n".join([first.partition("(")[2], *(line[8:] for line in lines)])

    for naming in namings([name, "t2", "h", "w", "select_"], 5):
        same_but_for_names(naming, equations)


# -- names of any shape


@pytest.mark.parametrize(
    ("name", "expected"),
    [("h", "h"), ("ﬁ", "fi"), ("τ", "u3c4"), ("my neuron", "my_neuron"), ("1st", "u1st"), ("", "u"), ("ª", "a")],
)
def test_names_are_written_with_letters_that_every_target_has(name: str, expected: str) -> None:
    """In the form in which Python reads them."""
    assert ascii_name(name) == expected


@pytest.mark.parametrize(("name", "expected"), [("_2x", "u2x"), ("__", "u"), ("$²x", "u2x"), ("NULL", "NULL_")])
def test_names_in_c_begin_with_a_letter(name: str, expected: str) -> None:
    """Underscores in front, which the compiler keeps for itself, go; a digit behind them does not begin the name."""
    printer = Printer()
    assert printer.legal(printer.spelled(name)) == expected


# -- symbols
