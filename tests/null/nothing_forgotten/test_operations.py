"""Whoever adds an operation is told every place that lacks it: see :mod:`places`."""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import math
import re
from pathlib import Path
from typing import Any, Dict, Set

import numpy as np
import pytest
import torch

from places import (
    PLUGINS,
    ROOT,
    Place,
    after,
    at_least,
    check,
    every,
    exactly,
    hold,
    page,
    quoted,
    sources,
)
from spikecore.backend import Spec, Unsupported
from spikecore.lang import Node, Program, ops
from spikecore.lang._program import FLAT, UNBOUNDED
from spikecore.lang.eager import StraightLine
from spikecore.lang.node import ARITHMETIC, COMPARISONS, LOGIC, OPERATIONS
from spikecore.lang.render import OPERATOR_TEMPLATES, TextPrinter
from spikecore.testing import _edge_table as edge_table
from spikecore.testing._oracle import operations as oracle_operations
from spikecore.testing._oracle import rules
from spikecore.testing.random_programs._draw import BOUNDED

#: Operations that Python's operators are.
OPERATORS = {*OPERATOR_TEMPLATES, "and", "or", "not"} - {"detach"}
#: Those that no gradient flows through, and what has a rule of its own.
WITHOUT_RULE = {*FLAT, *COMPARISONS, *LOGIC, "spike"}


# -- printers, without importing what needs an accelerator


def printers() -> Dict[str, str]:
    """File and class of each printer with templates of its own -> the module to import."""
    found = {}
    for file, tree in sources():
        for node in tree.body:
            own = [line.targets for line in getattr(node, "body", ()) if isinstance(line, ast.Assign)]
            if isinstance(node, ast.ClassDef) and any(getattr(name, "id", "") == "templates" for (name, *_) in own):
                parts = Path(file).with_suffix("").parts
                first = next(i for i, part in enumerate(parts) if part.startswith("spikecore") and "-" not in part)
                found[f"{file}: {node.name}.templates"] = ".".join(parts[first:])
    return found


PRINTERS = printers()


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins can be imported, installed or not."""
    for path in PLUGINS:
        monkeypatch.syspath_prepend(str(path.parent))


def templates(place: str) -> Dict[str, Any]:
    """The operations that a printer has text for."""
    kind = place.partition(": ")[2].partition(".")[0]
    found: Dict[str, Any] = getattr(importlib.import_module(PRINTERS[place]), kind).templates
    return found


def module(place: str) -> str:
    """The module of a printer's functions."""
    kind = place.partition(": ")[2].partition(".")[0]
    return str(getattr(importlib.import_module(PRINTERS[place]), kind).math)


def drawn() -> Set[str]:
    """The operations that random programs are made of: those called by name, and Python's operators."""
    text = page("spikecore/testing/random_programs/_draw.py")
    return ({*BOUNDED, *re.findall(r"\w+", text)} | OPERATORS) & set(OPERATIONS)


def with_a_rule() -> Set[str]:
    """The operations that a gradient flows through."""
    return set(OPERATIONS) - WITHOUT_RULE


OPERATION_PLACES: Dict[str, Place] = {
    "spikecore/lang/ops.py: functions": at_least(
        lambda: set(OPERATIONS) - OPERATORS, lambda: [name for name in dir(ops) if callable(getattr(ops, name))]
    ),
    "spikecore/testing/_oracle/operations.py: OPERATIONS": at_least(
        # every case of a comparison has a where
        lambda: set(OPERATIONS) - {"where"},
        lambda: oracle_operations.OPERATIONS,
    ),
    "spikecore/testing/_oracle/rules.py: VALUE": exactly(lambda: set(OPERATIONS) - {"spike"}, lambda: rules.VALUE),
    "spikecore/testing/_oracle/rules.py: BACK": exactly(with_a_rule, lambda: rules.BACK),
    "spikecore/testing/random_programs/_draw.py: operations": exactly(lambda: OPERATIONS, drawn),
    "spikecore/testing/_edge_table.py: edges": at_least(
        lambda: {"select", "spike", *LOGIC},
        lambda: [edge.name for group in edge_table.GROUPS.values() for edge in group],
    ),
    "docs/api.md: `spikecore.lang.ops`": at_least(
        lambda: set(OPERATIONS) - OPERATORS,
        lambda: quoted(after(page("docs/api.md"), "### `spikecore.lang.ops`", "\n### ")),
    ),
    "docs/backends.md: ### Operations": at_least(
        lambda: ARITHMETIC, lambda: re.findall(r"^\| `(\w+)` \| \d \|", page("docs/backends.md"), re.MULTILINE)
    ),
    "docs/backends.md: what holds at special numbers": at_least(
        lambda: set(ARITHMETIC) - {"spike", "select", "detach"},
        lambda: re.findall(r"^\| `(\w+)\(", page("docs/backends.md"), re.MULTILINE),
    ),
}


class TestOperations:
    """An operation is a row of :data:`spikecore.lang.operations.ROWS`."""

    @every(OPERATION_PLACES)
    def test_every_operation_is_in(self, place: str) -> None:
        """The place has a row for each operation."""
        hold(OPERATION_PLACES, place)

    @pytest.mark.parametrize("place", PRINTERS)
    def test_every_operation_has_a_text_in(self, place: str, beside: None) -> None:
        """Each printer, found in the source, writes every operation; C's functions are not inherited by others."""
        check(place, OPERATIONS, templates(place))

    def test_the_printers_were_found(self) -> None:
        """The readable text's, and one for each plugin that prints; the CUDA printer has C's templates."""
        assert len(PRINTERS) >= 1 + len([path for path in PLUGINS if (path / "printer.py").exists()]) >= 3

    @pytest.mark.parametrize("place", [place for place in PRINTERS if place.startswith("plugins/")])
    def test_every_function_of_a_text_is_there(self, place: str, beside: None) -> None:
        """What a template of a plugin calls is in Python's ``math``, NumPy or Triton, or written in the plugin."""
        written = {
            word
            for path in (ROOT / place.partition(":")[0]).parent.glob("*.py")
            if path.name != "printer.py"
            for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
        }
        texts = [text.replace("{math}", module(place)) for _, text in templates(place).values()]
        called = {name for text in texts for name in re.findall(r"([a-z][\w.]*)(?:{f})?\(", text)}
        of_libraries = {name for name in called if name.partition(".")[0] in ("math", "np", "tl", "libdevice")}
        assert all(hasattr(math, name[5:]) for name in of_libraries if name.startswith("math."))
        wanted = {name.rpartition(".")[2] for name in called - of_libraries} - set(dir(builtins)) - {"not"}
        check(f"{Path(place).parent}: a function, or its stand-in", wanted, written, others=True)

    @pytest.mark.parametrize("name", ["docs/neurons.md", "docs/backends.md"])
    def test_where_the_sign_of_a_zero_is_open_is_said(self, name: str) -> None:
        """A page lists those operations; the suite compares the sign in the values of all others."""
        (said,) = re.findall(r"in the values of every operation but `([a-z ]+)`", page(name))
        check(f"{name}: the sign of a zero", edge_table.UNSIGNED, said.split())

    def test_an_infinite_derivative_is_known(self) -> None:
        """UNBOUNDED has the operations whose cotangents are not finite somewhere, computed from NumPy's rules."""
        points = (-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 10.0)
        found = set()
        for op, back in rules.BACK.items():
            grid = [np.array(column) for column in zip(*itertools.product(points, repeat=ARITHMETIC.get(op, 3)))]
            args = [grid[0] > 0, *grid[1:]] if op == "where" else grid
            with np.errstate(all="ignore"):
                parts = back(np.ones_like(grid[0]), rules.VALUE[op](*args), *args)
            if any(part is not None and not np.isfinite(part).all() for part in parts):
                found.add(op)
        check("spikecore/lang/operations.py: unbounded", found, UNBOUNDED)

    def test_an_operation_without_a_text_is_refused_by_name(self) -> None:
        """A printer that does not know an operation raises Unsupported, which names both."""
        with pytest.raises(Unsupported, match="^TextPrinter has no text for the operation 'novel'$"):
            TextPrinter().read(NOVEL)

    def test_an_operation_without_a_function_is_refused_by_name(self) -> None:
        """The torch interpreter raises Unsupported before anything runs."""
        with pytest.raises(Unsupported, match="^there is no function for the operation 'novel'$"):
            StraightLine([Node("input", (), "x")], [NOVEL])

    def test_an_operation_that_the_ipu_has_not_is_refused_by_name(self) -> None:
        """The IPU's table refuses before PopTorch sees the program."""
        from spikecore_ipu.backend import IpuBackend

        with pytest.raises(
            Unsupported, match="'ipu' cannot lower Novel: PopTorch has no handler for the operation 'nov"
        ):
            IpuBackend().compile(NOVEL_PROGRAM, Spec(torch.float32, 1, ()))


NOVEL = Node("novel", (Node("input", (), "x"),))
NOVEL_PROGRAM = Program("Novel", inputs=("x",), states=(), outputs=[NOVEL], next=[], initial=[])
