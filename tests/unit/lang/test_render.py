"""Printed text computes what the program computes, bit for bit, in C++ and in any target that changes the templates."""

from __future__ import annotations

import ctypes
import math
import random
import shutil
import subprocess

import numpy as np
import pytest
import torch

import spikecore as sc
from spikecore.lang import Node, ops, topological
from spikecore.lang._expr import Expr
from spikecore.lang.eager import evaluate
from spikecore.lang.node import OPERATIONS, const
from spikecore.lang.operations import ROWS
from spikecore.lang.render import C_TEMPLATES, PRODUCT, SUM, UNARY, Printer

PRELUDE = """
#include <cmath>
template <typename R> static inline R sigmoid(R x) { return R(1) / (R(1) + std::exp(-x)); }
template <typename R> static inline R softplus(R x) { return std::fmax(x, R(0)) + std::log1p(std::exp(-std::fabs(x))); }
template <typename R> static inline R sign(R x) { return R((x > R(0)) - (x < R(0))); }
template <typename R> static inline R minimum(R a, R b) { return a != a || a < b ? a : b; }
template <typename R> static inline R maximum(R a, R b) { return a != a || a > b ? a : b; }
template <typename R> static inline R clamp(R x, R low, R high) {
    const R raised = x < low ? low : x;
    return raised > high ? high : raised;
}
"""
FLAGS = ["-O2", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
POINTS = 64
DTYPES = {"float": torch.float32, "double": torch.float64}
LEAVES = [Node("input", (), "x"), Node("state", (), "v"), Node("param", (), "tau")]
X, V, TAU = map(Expr, LEAVES)

both_types = pytest.mark.parametrize("real", DTYPES)


class Case:
    """Some expressions, the names that a definition gave to values within, and what text makes of them."""

    def __init__(self, roots, labels=None, leaves=LEAVES):
        self.roots, self.labels, self.leaves = list(roots), labels or {}, list(leaves)

    def text(self, printer):
        """Statements, and one expression per root."""
        names = {leaf: printer.leaf(leaf) for leaf in self.leaves}
        lines = printer.block(self.roots, names, self.labels)
        results = [names.get(root) or printer.expression(root, names) for root in self.roots]
        write = printer.named([*names.values(), *lines, *results])
        return [*map(write, lines)], [*map(write, results)]

    def cpp(self, index, real):
        """A function that computes every root at every point."""
        lines, results = self.text(Printer(real))
        loaded = [f"const {real} {Printer(real).leaf(leaf)} = leaves[{i}][n];" for i, leaf in enumerate(self.leaves)]
        stored = [f"roots[{i}][n] = {result};" for i, result in enumerate(results)]
        body = "\n    ".join([*loaded, *lines, *stored])
        head = f'extern "C" void {real}_{index}(const {real}* const* leaves, {real}* const* roots)'
        return f"{head} {{\n  for (int n = 0; n < {POINTS}; ++n) {{\n    {body}\n  }}\n}}\n"

    def expected(self, values):
        """The roots by torch."""
        found = evaluate(self.roots, dict(zip(self.leaves, values)), like=values[0])
        return [value.expand(POINTS) for value in found]

    def points(self, real, seed):
        """Values of the leaves: ordinary ones, and every tenth one special."""
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(len(self.leaves), POINTS, generator=generator, dtype=DTYPES[real])
        special = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e30, -1e-30], dtype=DTYPES[real])
        chosen = torch.randint(len(special), values.shape, generator=generator)
        rare = torch.rand(values.shape, generator=generator) < 0.1
        values = torch.where(rare, special[chosen], values)
        if any(node.op == "clamp" for node in topological(self.roots)):
            values += 0.0  # no -0: which one torch's clamp makes of -0 and 0 depends on the size of the tensor
        return list(values)


#: Constants with a sign, without a short decimal form, huge, tiny and infinite.
CONSTANTS = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.1, -0.1, 1 / 3, 3.14159265, -2.5e-7, 123456789.0, 3e38, 1e-40, math.inf]


class Writer:
    """Random definitions over the operations that every target computes exactly."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.written = []

    def number(self, depth):
        """A number; sometimes one that was written before."""
        if depth == 0 or self.random.random() < 0.08:
            return self.random.choice([X, V, TAU, Expr(const(self.random.choice(CONSTANTS)))])
        if self.written and self.random.random() < 0.15:
            return self.random.choice(self.written)
        value = self.operation(depth - 1)
        self.written.append(value)
        return value

    def operation(self, depth):
        """An operation on numbers of less depth."""
        kind = self.random.choice("+-*/" * 3 + "nnwsSSdafr")
        a = self.number(depth)
        if kind in "+-*/":
            b = self.number(depth)
            return {"+": a.__add__, "-": a.__sub__, "*": a.__mul__, "/": a.__truediv__}[kind](b)
        if kind == "w":
            return ops.where(self.truth(min(depth, 2)), a, self.number(depth))
        if kind == "s":
            return ops.spike(a, sc.surrogate.ATan(), strict=self.random.random() < 0.5)
        if kind == "S":
            return ops.select(ops.spike(a, sc.surrogate.ATan()), self.number(depth), self.number(depth))
        plain = {
            "n": a.__neg__,
            "a": a.__abs__,
            "r": a.__round__,
            "d": lambda: ops.detach(a),
            "f": lambda: ops.floor(a),
        }
        return plain[kind]()

    def truth(self, depth):
        """A truth value: a comparison, or several combined."""
        kind = self.random.choice("cccao!") if depth else "c"
        if kind == "c":
            a, b = self.number(depth), self.number(depth)
            return self.random.choice([a.__ge__, a.__gt__, a.__le__, a.__lt__, a.__eq__, a.__ne__])(b)
        if kind == "!":
            return ~self.truth(depth - 1)
        a, b = self.truth(depth - 1), self.truth(depth - 1)
        return a & b if kind == "a" else a | b

    def case(self):
        """One or two expressions, some values of which have names, legal ones and others."""
        roots = [self.number(self.random.randint(3, 8)).node for _ in range(self.random.randint(1, 2))]
        inner = [node for node in topological(roots) if node.args]
        named = self.random.sample(inner, min(len(inner), self.random.randint(0, 4)))
        return Case(roots, dict(zip(named, ["h", "float", "x", "t1"])))


RANDOM = [Writer(seed).case() for seed in range(200)]

#: Neurons whose step is made of + - * / alone; the surrogate's derivative is, too.
EXACT = [
    sc.LIF(),
    sc.LIF(reset="soft", decay_input=False, detach_reset=True),
    sc.Leaky(0.9),
    sc.Leaky(0.9, reset="hard", reset_delay=False),
    sc.KLIF(scale_reset=True),
    sc.Synaptic(detach_reset=True),
    sc.ALIF(reset="soft"),
    sc.QIF(),
    sc.Izhikevich(),
]


def step_and_adjoint(neuron):
    """A neuron's step and its adjoint in one block, as a kernel's backward pass has them."""
    program = neuron.program
    adjoint = program.adjoint(program.params)
    roots = [*program.outputs, *program.next, *adjoint.inputs, *adjoint.states, *adjoint.params]
    cotangents = [leaf for leaf in topological(roots) if leaf.op in ("out_grad", "next_grad")]
    return Case(roots, program.labels, [*program.leaves, *cotangents])


NEURONS = [step_and_adjoint(neuron) for neuron in EXACT]

FUNCTIONS_OF_NUMBERS = [row for row in ROWS if row.is_function and row.arity < 3 and row.name != "detach"]
#: Functions that need not be correctly rounded (torch's sqrt on a CPU is not), and those a target defines itself.
FUNCTIONS = [
    Case([formula.node])
    for formula in (
        *(
            getattr(ops, row.name)(*(abs(X) + 0.1 if row.unbounded else X - V, abs(V) + 0.1)[: row.arity])
            for row in FUNCTIONS_OF_NUMBERS
        ),
        -ops.sigmoid(-X),
        ops.sin(X) * 2.0 - ops.cos(V * 3.0),
        ops.power(abs(X) + 0.5, V - 1.0),
        ops.sign(X - 0.25) + ops.round(V * 4.0),
        ops.minimum(X, V) - ops.maximum(X, TAU),
        ops.clamp(X + V, -0.5, 0.75),
        ops.exp(-(X * X)) / ops.sqrt(1.0 + V * V),
    )
]
CASES = [*RANDOM, *NEURONS, *FUNCTIONS]
EXACT_CASES = range(len(RANDOM) + len(NEURONS))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Every case for both types in one shared library."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here to compile the printed text with")
    folder = tmp_path_factory.mktemp("render")
    source = folder / "cases.cpp"
    source.write_text(PRELUDE + "".join(case.cpp(i, real) for real in DTYPES for i, case in enumerate(CASES)))
    command = ["g++", *FLAGS, "-o", str(folder / "cases.so"), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return ctypes.CDLL(str(folder / "cases.so"))


def computed(library, index, real, values):
    """The roots by the compiled text."""
    results = [torch.empty(POINTS, dtype=DTYPES[real]) for _ in CASES[index].roots]

    def pointers(tensors):
        return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))

    getattr(library, f"{real}_{index}")(pointers(values), pointers(results))
    return results


def assert_same_bits(expected, actual, what):
    """Equal bit for bit, the sign of zero included; one NaN is as good as another."""
    number = ~expected.isnan()
    assert torch.equal(expected.isnan(), actual.isnan()), what
    assert torch.equal(expected[number], actual[number]), what
    assert torch.equal(expected[number].signbit(), actual[number].signbit()), what


class TestCompiled:
    @both_types
    def test_exact_programs_agree_bit_for_bit(self, library, real):
        """What is made of + - * / and choices gives torch's bits: parentheses, literals and order are right."""
        for index in EXACT_CASES:
            case = CASES[index]
            values = case.points(real, seed=index)
            for expected, actual in zip(case.expected(values), computed(library, index, real, values)):
                assert_same_bits(expected, actual, case.cpp(index, real))

    @both_types
    @pytest.mark.parametrize("index", range(len(EXACT_CASES), len(CASES)))
    def test_functions_agree(self, library, real, index):
        """The other functions are those of the target's mathematical library, a few roundings from torch's."""
        case = CASES[index]
        values = [value.clamp(-20.0, 20.0) for value in case.points(real, seed=index)]
        rtol = 1e-6 if real == "float" else 1e-14
        for expected, actual in zip(case.expected(values), computed(library, index, real, values)):
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol)

    def test_cases_use_every_operation(self):
        """Between them, the cases print every operation of the language."""
        assert set(OPERATIONS) == {node.op for case in CASES for node in topological(case.roots) if node.args}

    def test_random_programs_are_worth_it(self):
        """Most random programs are deep, share values and end in numbers."""
        sizes = [sum(bool(node.args) for node in topological(case.roots)) for case in RANDOM]
        finite = [case.expected(case.points("double", seed=i))[0].isfinite().any() for i, case in enumerate(RANDOM)]
        assert sorted(sizes)[len(sizes) // 2] > 20
        assert sum(map(bool, finite)) > len(RANDOM) // 2


class NumpyPrinter(Printer):
    """NumPy as a target: other templates, another declaration, another literal, and nothing else."""

    templates = {
        **C_TEMPLATES,
        **{op: (8, f"np.{op}({{0}})") for op in "exp log sqrt sin cos tanh abs floor sign".split()},
        "atan": (8, "np.arctan({0})"),
        "round": (8, "np.rint({0})"),
        "and": (PRODUCT, "{0} & {1}"),
        "or": (SUM, "{0} | {1}"),
        "not": (UNARY, "~{0}"),
        "where": (8, "np.where({0}, {1}, {2})"),
        "select": (8, "np.where({0} != {zero}, {1}, {2})"),
        "spike": (8, "np.where({0} {compare} {zero}, {one}, {zero})"),
    }
    declaration = "{name} = {value}"
    infinity, nan = "np.float32(np.inf)", "np.float32(np.nan)"

    def literal(self, digits):
        """A float32, which keeps the arithmetic in single precision."""
        return f"np.float32({digits})"


def clamp(x, low, high):
    """What the target defines itself."""
    raised = np.where(x < low, low, x)
    return np.where(raised > high, high, raised)


class TestAnotherTarget:
    def test_templates_alone_make_a_target(self):
        """A subclass with other class attributes prints Python that runs and gives torch's float32 bits."""
        for index in EXACT_CASES:
            case = CASES[index]
            values = case.points("float", seed=index)
            lines, results = case.text(NumpyPrinter("float"))
            space = {NumpyPrinter().leaf(leaf): value.numpy() for leaf, value in zip(case.leaves, values)}
            space.update(np=np, clamp=clamp)
            with np.errstate(all="ignore"):
                exec("\n".join(lines), space)
                found = [eval(result, space) for result in results]
            for expected, actual in zip(case.expected(values), found):
                assert np.asarray(actual).dtype == np.float32
                assert_same_bits(
                    expected, torch.from_numpy(np.array(actual)).expand(POINTS), "\n".join([*lines, *results])
                )


def named(printer, lines):
    """Lines with names."""
    return [*map(printer.named(lines), lines)]
