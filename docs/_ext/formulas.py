"""Equations of a printed program as MathML, which browsers draw without a script or a font from elsewhere.

``print(program)`` writes equations in Python's syntax, so Python's parser reads them.
"""

from __future__ import annotations

import ast
import math
import re
from html import escape
from typing import Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Tuple

from spikecore.lang import Program

GREEK = {
    name: chr(code)
    for name, code in {
        "alpha": 0x3B1, "beta": 0x3B2, "gamma": 0x3B3, "delta": 0x3B4, "epsilon": 0x3B5, "eta": 0x3B7, "kappa": 0x3BA,
        "lambda": 0x3BB, "mu": 0x3BC, "nu": 0x3BD, "rho": 0x3C1, "sigma": 0x3C3, "tau": 0x3C4, "phi": 0x3C6,
        "omega": 0x3C9, "theta": 0x3D1, "threshold": 0x3D1,
    }.items()
}  # fmt: skip
CONSTANTS = {math.pi: "π", 2 * math.pi: "2π", math.pi / 2: "π/2", math.sqrt(math.pi): "√π", math.sqrt(2): "√2"}
RELATIONS = {ast.LtE: "≤", ast.GtE: "≥", ast.Lt: "<", ast.Gt: ">", ast.Eq: "=", ast.NotEq: "≠"}
#: How tightly an operation binds, so that brackets stand only where they are needed.
SUM, PRODUCT, SIGN, POWER, ATOM = range(5)
#: Between the factors of a product.
THIN = '<mspace width="0.17em"/>'
Text = Tuple[str, int]


class Equation(NamedTuple):
    """One line of a program: what it is (``step``, ``next``, ...), the name on the left, the expression."""

    kind: str
    left: str
    right: ast.expr


def equations(program: str) -> List[Equation]:
    """The equations of a printed program, without its first line, without derivatives of spikes."""
    found = []
    for line in program.splitlines()[1:]:
        kind, _, text = line.strip().partition("  ")
        left, equals, right = text.partition(" = ")
        if equals and kind in ("once", "step", "next"):
            found.append(Equation(kind, left, ast.parse(right, mode="eval").body))
    return found


def derivative(program: str) -> ast.expr:
    """The derivative that a printed program has for its spikes: one expression of ``u`` and the surrogate's fields."""
    known: Dict[str, ast.expr] = {}
    for line in program.splitlines():
        kind, _, text = line.strip().partition("  ")
        if kind == "host":
            name, _, value = text.partition(" = ")
            known[name] = _with(ast.parse(value, mode="eval").body, known)
        elif kind == "grad":
            *parts, last = text.partition(" = ")[2].partition("  #")[0].split("; ")
            for part in parts:
                name, _, value = part.partition(" = ")
                known[name] = _with(ast.parse(value, mode="eval").body, known)
            return _with(ast.parse(last, mode="eval").body, known)
    raise ValueError(f"a program without a spike has no derivative of one:\n{program}")


def _with(tree: ast.expr, known: Mapping[str, ast.expr]) -> ast.expr:
    class Named(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return known.get(node.id, node)

    result: ast.expr = Named().visit(tree)
    return result


def display(lines: List[str]) -> str:
    """Lines of MathML as one block that scrolls where it is too wide."""
    rows = "".join(f'<math display="block">{line}</math>' for line in lines)
    return f'<div class="formula">{rows}</div>'


def named(program: Program) -> Program:
    """The program with the names of its definition, as in ``h = sc.ops.named("h", ...)``, where it has some."""
    values = {name: getattr(program, name) for name in Program.__slots__ if name not in ("key", "labels", "name")}
    labels = {**program.labels, **{node: name for name, node in program.named.items()}}
    return Program(program.name, labels=labels, **values)


def of_neuron(program: str, states: FrozenSet[str]) -> str:
    """The step of a neuron: states before it are those of t - 1, inputs and states after it those of t."""
    program, states = re.sub(r"\[(\d+)\]", r"_\1", program), frozenset(re.sub(r"\[(\d+)\]", r"_\1", s) for s in states)
    found = equations(program)
    # ``v_next = ...`` and ``next v = v_next`` are one equation
    renamed = {e.right.id: e.left for e in found if e.kind == "next" and isinstance(e.right, ast.Name)}
    renamed = {name: state for name, state in renamed.items() if name == f"{state}_next"}
    inputs = frozenset(program.partition("(")[2].partition(";")[0].replace(" ", "").split(","))

    def name(text: str) -> str:
        if text in renamed:
            return symbol(renamed[text], "t")
        if text in states:
            return symbol(text, "t−1")
        return symbol(text, "t" if text in inputs else "")

    lines = []
    for kind, left, right in found:
        if kind == "next" and isinstance(right, ast.Name) and right.id in renamed:
            continue
        shown = symbol(left, "t") if kind == "next" else name(left)
        lines.append(f"<mrow>{shown}<mo>=</mo>{Writer(name).write(right)}</mrow>")
    return display(lines)


def of_surrogate(program: str) -> str:
    """The derivative of a spike."""
    head = f"<msup><mi>z</mi><mo>′</mo></msup>{_bracket('<mi>u</mi>')}"
    return display([f"<mrow>{head}<mo>=</mo>{Writer(symbol).write(derivative(program))}</mrow>"])


def symbol(name: str, time: str = "") -> str:
    """A name: ``v_rest`` and ``a0`` have what follows the first part as an index, beside the time."""
    head, _, index = name.partition("_")
    if not index and head[1:].isdigit():
        head, index = head[0], head[1:]
    letter = GREEK.get(head, head)
    base = f"<mi>{escape(letter)}</mi>"
    index = ",".join(filter(None, [GREEK.get(index, index), time]))
    return f"<msub>{base}<mtext>{escape(index)}</mtext></msub>" if index else base


def _bracket(text: str) -> str:
    return f"<mrow><mo>(</mo>{text}<mo>)</mo></mrow>"


class Writer:
    """Writes one expression, with names as a function shows them."""

    def __init__(self, name: Callable[[str], str]) -> None:
        self.name = name

    def write(self, node: ast.expr, least: int = SUM) -> str:
        """The expression, in brackets where it binds less tightly than ``least``."""
        text, binds = self._text(node)
        return _bracket(text) if binds < least else text

    def _text(self, node: ast.expr) -> Text:
        if isinstance(node, ast.Name):
            return self.name(node.id), ATOM
        if isinstance(node, ast.Constant):
            return self._number(node.value)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.UnaryOp):
            return f"<mo>−</mo>{self.write(node.operand, PRODUCT)}", SUM
        if isinstance(node, ast.Compare):
            right = self.write(node.comparators[0])
            return f"{self.write(node.left)}<mo>{escape(RELATIONS[type(node.ops[0])])}</mo>{right}", SUM
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node.func.id, node.args)
        return f"<mtext>{escape(ast.unparse(node))}</mtext>", SUM

    def _number(self, value: float) -> Text:
        for constant, text in CONSTANTS.items():
            if value == constant:
                return f"<mn>{text}</mn>", PRODUCT if "/" in text or len(text) > 1 else ATOM
        text = f"{value:.6g}"
        mantissa, exponential, exponent = text.partition("e")
        if exponential:
            return f"<msup><mn>10</mn><mn>{int(exponent)}</mn></msup>", POWER
        return f"<mn>{mantissa}</mn>", ATOM if value >= 0 else SUM

    def _binary(self, node: ast.BinOp) -> Text:
        left, right = node.left, node.right
        if isinstance(node.op, ast.Div):
            return f"<mfrac><mrow>{self.write(left)}</mrow><mrow>{self.write(right)}</mrow></mfrac>", POWER
        if isinstance(node.op, ast.Mult):
            if ast.dump(left) == ast.dump(right):
                return f"<msup>{self.write(left, ATOM)}<mn>2</mn></msup>", POWER
            return f"{self.write(left, PRODUCT)}{THIN}{self.write(right, PRODUCT)}", PRODUCT
        if isinstance(node.op, ast.Add):
            return f"{self.write(left)}<mo>+</mo>{self.write(right)}", SUM
        if isinstance(node.op, ast.Sub):
            return f"{self.write(left)}<mo>−</mo>{self.write(right, PRODUCT)}", SUM
        return f"<msup>{self.write(left, ATOM)}{self.write(right)}</msup>", POWER

    def _call(self, name: str, args: List[ast.expr]) -> Text:
        if name in ("where", "select"):
            condition = self.write(args[0]) + ("<mo>=</mo><mn>1</mn>" if name == "select" else "")
            rows = "".join(
                f"<mtr><mtd>{value}</mtd><mtd><mtext>&#xA0;&#xA0;{word}&#xA0;</mtext>{when}</mtd></mtr>"
                for value, word, when in (
                    (self.write(args[1]), "where", condition),
                    (self.write(args[2]), "elsewhere", ""),
                )
            )
            return f'<mtable class="cases">{rows}</mtable>', SUM
        if name == "spike":
            return f"<mrow><mo>[</mo>{self.write(args[0])}<mo>]</mo></mrow>", ATOM
        if name == "abs":
            return f"<mrow><mo>|</mo>{self.write(args[0])}<mo>|</mo></mrow>", ATOM
        if name == "exp":
            return f"<msup><mi>e</mi><mrow>{self.write(args[0])}</mrow></msup>", POWER
        if name == "sqrt":
            return f"<msqrt>{self.write(args[0])}</msqrt>", ATOM
        if name == "power":
            return f"<msup>{self.write(args[0], ATOM)}<mrow>{self.write(args[1])}</mrow></msup>", POWER
        short = {"maximum": "max", "minimum": "min", "sigmoid": "σ"}.get(name, name)
        inside = "<mo>,</mo>".join(self.write(arg) for arg in args)
        return f"<mi>{short}</mi>{_bracket(inside)}", POWER
