"""Rows: what an operation says of itself is right, each target has a function for it, and defaults stand once."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import itertools
import math
import re
import sys
from pathlib import Path
from typing import Any, Dict, Iterator

import numpy as np
import pytest
import torch

import spikecore as sc
from places import PLUGINS, ROOT, check, page, sources
from spikecore.lang.operations import COMPOSED, ROWS
from spikecore.testing import edge_table

# -- printers, without importing what needs an accelerator


def printers() -> Dict[str, str]:
    """File and class of each printer with templates of its own -> the module to import."""
    found = {}
    for file, text in sources():
        for node in ast.parse(text).body:
            own = [line.targets for line in getattr(node, "body", ()) if isinstance(line, ast.Assign)]
            if isinstance(node, ast.ClassDef) and any(getattr(name, "id", "") == "templates" for (name, *_) in own):
                parts = Path(file).with_suffix("").parts
                first = next(i for i, part in enumerate(parts) if part.startswith("spikecore") and "-" not in part)
                found[f"{file}: {node.name}.templates"] = ".".join(parts[first:])
    return found


PRINTERS = printers()


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plugins can be imported, installed or not; later tests find only those that are installed."""
    absent = {path.name: path for path in PLUGINS if importlib.util.find_spec(path.name) is None}
    for path in absent.values():
        monkeypatch.syspath_prepend(str(path.parent))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in absent]:
        del sys.modules[name]


def templates(place: str) -> Dict[str, Any]:
    """The operations that a printer has text for."""
    kind = place.partition(": ")[2].partition(".")[0]
    found: Dict[str, Any] = getattr(importlib.import_module(PRINTERS[place]), kind).templates
    return found


def module(place: str) -> str:
    """The module of a printer's functions."""
    kind = place.partition(": ")[2].partition(".")[0]
    return str(getattr(importlib.import_module(PRINTERS[place]), kind).math)


class TestOperations:
    """An operation is a row of :data:`spikecore.lang.operations.ROWS`."""

    def test_the_oracle_knows_which_are_exact(self) -> None:
        """Written apart from the rows, as are values and gradients, which the cases ``edges/*`` need of each."""
        exact = {op for op, edge in edge_table.TABLE.items() if edge.exact and op not in COMPOSED}
        check("spikecore/testing/_oracle/rules.py: EXACT", exact, {row.name for row in ROWS if row.exact}, others=True)
        assert not {row.name for row in ROWS if not row.exact} & exact

    @pytest.mark.parametrize("place", [place for place in PRINTERS if place.startswith("plugins/")])
    def test_every_function_of_a_text_is_there(self, place: str, beside: None) -> None:
        """A function in a template of a plugin is in Python's ``math``, NumPy or Triton, or written in the plugin."""
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

    def test_where_the_sign_of_a_zero_is_open_is_said(self) -> None:
        """A page lists those operations; the suite compares the sign in the values of all others."""
        name = "docs/backends.md"
        (said,) = re.findall(r"in the values of every operation but `([a-z ]+)`", page(name))
        check(f"{name}: the sign of a zero", edge_table.UNSIGNED, said.split())

    def test_an_infinite_derivative_is_known(self) -> None:
        """Rows say which cotangents are not finite somewhere, computed from NumPy's rules."""
        points = (-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 10.0)
        found = set()
        for op, edge in edge_table.TABLE.items():
            if op in COMPOSED:
                continue
            args = [np.array(column) for column in zip(*itertools.product(points, repeat=edge.arity))]
            with np.errstate(all="ignore"):
                parts = edge.back(np.ones_like(args[0]), edge.value(*args), *args)
            if any(part is not None and not np.isfinite(part).all() for part in parts):
                found.add(op)
        check("spikecore/lang/ops.py: unbounded", found, {row.name for row in ROWS if row.unbounded})


@pytest.mark.parametrize("name", sc.neurons.MODELS)
def test_defaults_of_a_neuron_stand_once(name: str) -> None:
    """Values of a neuron without arguments are those of its ``params`` (QIF's ``v_reset`` was 0 there)."""
    made = sc.neurons.example(name)
    with torch.no_grad():
        numbers = [param for param in made.params if param not in made.vectors]
        assert {param: float(getattr(made, param)) for param in numbers} == {p: made.params[p] for p in numbers}
