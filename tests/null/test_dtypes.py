"""Whoever adds a dtype or a capability is told every place that lacks it: see :mod:`places`."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import fields
from typing import Dict, FrozenSet, List, Set

import torch

from places import (
    Place,
    at_least,
    every,
    exactly,
    hold,
    page,
    quoted,
    sources,
    supported,
)
from spikecore import dtypes
from spikecore._shell.checks import lacking
from spikecore.backend import Capabilities, Feedback, Spec
from spikecore.lang import Node, Program
from spikecore.testing._tolerances import EXACT_STEPS, TOLERANCES

# -- dtypes

ALL, NARROW, WIDE = frozenset(dtypes.DTYPES), frozenset(dtypes.NARROW), frozenset(dtypes.WIDE)
QUANTITIES = ("spikes", "output", "potential", "input gradient", "state gradient", "parameter gradient")


def named_dtype(node: ast.expr) -> str:
    """The dtype that an expression names, as ``torch.float16`` or ``"float16"``; else nothing."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        return node.attr if hasattr(torch, node.attr) and isinstance(getattr(torch, node.attr), torch.dtype) else ""
    return node.value if isinstance(node, ast.Constant) and str(node.value) in ALL else ""


def tables_of_dtypes() -> Dict[str, FrozenSet[str]]:
    """Each dict whose keys are dtypes, and what they are."""
    found = {}
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict) and len(node.keys) > 1 and all(key and named_dtype(key) for key in node.keys):
                found[f"{file}:{node.lineno}"] = frozenset(named_dtype(key) for key in node.keys if key)
    return found


def lists_of_dtypes() -> List[str]:
    """Each list that someone wrote beside the table: two dtypes or more, but for pairs that are rows of a table."""
    found = []
    for file, tree in sources():
        inner = {part for node in ast.walk(tree) if isinstance(node, (ast.Tuple, ast.List)) for part in node.elts}
        lists = [node for node in ast.walk(tree) if isinstance(node, (ast.Tuple, ast.List, ast.Set))]
        lists = [node for node in lists if len(node.elts) > 1 and not (len(node.elts) == 2 and node in inner)]
        named = [(node.lineno, [named_dtype(part) for part in node.elts]) for node in lists]
        found += [
            f"{file}:{line}" for line, dtypes_ in named if set(dtypes_) <= ALL and len(set(dtypes_)) == len(dtypes_)
        ]
    return found


#: What the header of the CUDA kernels has for each dtype that is stored with fewer digits than arithmetic.
OF_HEADER = ("struct {name} ", "value({name} x)", "rounded<{name}>", "spike<{name}>")

DTYPE_PLACES: Dict[str, Place] = {
    "spikecore/backend.py: Capabilities": at_least(lambda: ALL, lambda: [field.name for field in fields(Capabilities)]),
    "spikecore/testing/_tolerances.py: TOLERANCES": exactly(
        lambda: {
            *(f"{dtype} {quantity}" for dtype in ALL for quantity in QUANTITIES),
            *(f"{dtype} second derivative" for dtype in WIDE),
        },
        lambda: {" ".join(key) for key in TOLERANCES},
    ),
    "spikecore/testing/_tolerances.py: EXACT_STEPS": exactly(lambda: ALL, lambda: EXACT_STEPS),
    "spikecore/testing/_cases/parameters.py: DTYPE_PAIRS": at_least(
        lambda: ALL,
        lambda: re.findall(
            r'\("(\w+)",', page("spikecore/testing/_cases/parameters.py").partition("DTYPE_PAIRS = ")[2]
        ),
    ),
    "backends/spikecore_cupy/spikecore.cuh: struct, value, rounded and spike": at_least(
        lambda: {text.format(name=name) for name in NARROW for text in OF_HEADER},
        lambda: [
            text.format(name=name)
            for name in NARROW
            for text in OF_HEADER
            if text.format(name=name) in page("backends/spikecore_cupy/spikecore.cuh")
        ],
    ),
    "plugins/spikecore-numba/spikecore_numba/functions.py: from_ and to_": at_least(
        lambda: {f"{way}_{name}" for name in NARROW for way in ("from", "to")},
        lambda: re.findall(r"^def (\w+)", page("plugins/spikecore-numba/spikecore_numba/functions.py"), re.MULTILINE),
    ),
    "docs/backends.md: ### Capabilities": at_least(lambda: ALL, lambda: quoted(page("docs/backends.md"))),
    "docs/parameters.md: ## Precision": at_least(lambda: ALL, lambda: re.findall(r"\w+", page("docs/parameters.md"))),
}


class TestDtypes:
    """A dtype is a row of :data:`spikecore.dtypes.TABLE`."""

    @every(DTYPE_PLACES)
    def test_every_dtype_is_in(self, place: str) -> None:
        """The place has a row for each dtype."""
        hold(DTYPE_PLACES, place)

    def test_every_table_of_dtypes_is_whole(self) -> None:
        """Each dict in the source that is keyed by dtypes has all of them, all narrow ones, or all others."""
        found = tables_of_dtypes()
        assert any("spikecore_cupy" in place for place in found)
        lacking_ = []
        for place, names in found.items():
            if not names <= ALL:  # integers, too: no table of what an input may be
                continue
            if names not in (ALL, NARROW, WIDE):
                nearest = min((ALL, NARROW, WIDE), key=lambda group: len(group ^ names))
                lacking_.append(f"{place} has no row for: {', '.join(sorted(nearest - names))}")
        assert not lacking_, "\n".join(lacking_)

    def test_no_list_of_dtypes_stands_beside_the_table(self) -> None:
        """There were five: a dtype that is added to one of them is missing in the others."""
        assert [place for place in lists_of_dtypes() if not place.startswith("spikecore/dtypes.py")] == []

    def test_arithmetic_is_wide(self) -> None:
        """State and arithmetic of every dtype have a dtype that is stored as it is computed."""
        assert {dtypes.NAMES[row.compute] for row in dtypes.TABLE} == WIDE


# -- capabilities

CAPABILITIES = tuple(field.name for field in fields(Capabilities))
#: Asked for after the call, and by torch: see docs/backends.md.
NOT_BY_A_CALL = {"double_backward", "torch_compile"}


def asked() -> Set[str]:
    """The capabilities that some call needs."""
    x, v, p = Node("input", (), "x"), Node("state", (), "v"), Node("param", (), "p")
    names = {"inputs": ("x", "y"), "states": ("v",), "params": ("p",), "statistics": ("p",) * 4}
    program = Program("All", outputs=[x, v], next=[p], initial=[v], **names)
    found: Set[str] = set()
    for row, kind in itertools.product(dtypes.TABLE, ("channel", "full")):
        spec = Spec(row.dtype, 1, (kind,), learn=("p",), feedback=Feedback())
        found |= {*lacking(Capabilities(), program, spec, gradients=True, state_gradients=True, record=True)}
    return found


def needed() -> Set[str]:
    """The capabilities that some conformance case needs."""
    from spikecore.testing._cases import CASES  # here, since a dtype without a capability stops it

    return {need for case in CASES for need in case.needs}


CAPABILITY_PLACES: Dict[str, Place] = {
    "spikecore/_shell/checks.py: lacking": exactly(lambda: set(CAPABILITIES) - NOT_BY_A_CALL, asked),
    "spikecore/testing/_cases: a case that needs it": at_least(lambda: CAPABILITIES, needed),
    "docs/backends.md: ### Capabilities": at_least(lambda: CAPABILITIES, lambda: quoted(page("docs/backends.md"))),
    "docs/support.md: Capabilities": at_least(lambda: CAPABILITIES, supported),
}


class TestCapabilities:
    """A capability is a field of :class:`spikecore.backend.Capabilities`."""

    @every(CAPABILITY_PLACES)
    def test_every_capability_is_in(self, place: str) -> None:
        """The place has a row for each capability."""
        hold(CAPABILITY_PLACES, place)

    def test_a_capability_is_off_until_it_is_declared(self) -> None:
        """A backend that says nothing of a new one does not have it."""
        assert Capabilities().names() == ()
