"""Whoever adds a dtype or a capability is told every place that lacks it: see :mod:`places`."""

from __future__ import annotations

import itertools
import re
from dataclasses import fields
from typing import Dict, Set

import pytest

from places import Place, at_least, check, exactly, page, quoted, supported
from spikecore import dtypes
from spikecore.backend import Capabilities, Feedback, Spec
from spikecore.core.checks import lacking
from spikecore.lang import Node, Program
from spikecore.lang.transform import Normalised
from spikecore.testing.tolerances import EXACT_STEPS, TOLERANCES

# -- dtypes

ALL, NARROW, WIDE = frozenset(dtypes.DTYPES), frozenset(dtypes.NARROW), frozenset(dtypes.WIDE)
QUANTITIES = ("spikes", "output", "potential", "input gradient", "state gradient", "parameter gradient")


#: What the header of the CUDA kernels has for each dtype that is stored with fewer digits than arithmetic.
OF_HEADER = ("struct {name} ", "value({name} x)", "rounded<{name}>", "spike<{name}>")

DTYPE_PLACES: Dict[str, Place] = {
    "spikecore/backend.py: Capabilities": at_least(lambda: ALL, lambda: [field.name for field in fields(Capabilities)]),
    "spikecore/testing/tolerances.py: TOLERANCES": exactly(
        lambda: {*(f"{dtype} {quantity}" for dtype in ALL for quantity in QUANTITIES)},
        lambda: {" ".join(key) for key in TOLERANCES},
    ),
    "spikecore/testing/tolerances.py: EXACT_STEPS": exactly(lambda: ALL, lambda: EXACT_STEPS),
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
    "docs/backends.md: ### Capabilities, of dtypes": at_least(lambda: ALL, lambda: quoted(page("docs/backends.md"))),
    "docs/parameters.md: ## Precision": at_least(lambda: ALL, lambda: re.findall(r"\w+", page("docs/parameters.md"))),
}


def test_arithmetic_is_wide() -> None:
    """State and arithmetic of every dtype have a dtype that is stored as it is computed."""
    assert {dtypes.NAMES[row.compute] for row in dtypes.TABLE} == WIDE


# -- capabilities

CAPABILITIES = tuple(field.name for field in fields(Capabilities))
#: Asked for after the call, and by torch: see docs/backends.md.
NOT_BY_A_CALL = {"torch_compile"}


def asked() -> Set[str]:
    """The capabilities that some call needs."""
    x, v, p = Node("input", (), "x"), Node("state", (), "v"), Node("param", (), "p")
    names = {"inputs": ("x", "y"), "states": ("v",), "params": ("p",)}
    program = Program("All", outputs=[x, v], next=[p], initial=[v], **names)
    found: Set[str] = set()
    programs = (program, Normalised("before", (True, True)).apply(program)[0])
    for program, row, kind in itertools.product(programs, dtypes.TABLE, ("channel", "full")):
        spec = Spec(
            row.dtype, 1, (kind,) * len(program.params), learn=("p",), feedback=Feedback(detach=True, further=(1,))
        )
        found |= {*lacking(Capabilities(), program, spec, gradients=True, state_gradients=True, record=True)}
    return found


def needed() -> Set[str]:
    """The capabilities that some conformance case needs."""
    from spikecore.testing import CASES  # here, since a dtype without a capability stops it

    return {need for case in CASES for need in case.needs}


CAPABILITY_PLACES: Dict[str, Place] = {
    "spikecore/core/checks.py: lacking": exactly(lambda: set(CAPABILITIES) - NOT_BY_A_CALL, asked),
    "spikecore/testing/_cases: a case that needs it": at_least(lambda: CAPABILITIES, needed),
    "docs/backends.md: ### Capabilities": at_least(lambda: CAPABILITIES, lambda: quoted(page("docs/backends.md"))),
    "docs/support.md: Capabilities": at_least(lambda: CAPABILITIES, supported),
}


# -- each place

PLACES: Dict[str, Place] = {**DTYPE_PLACES, **CAPABILITY_PLACES}


@pytest.mark.parametrize("place", PLACES)
def test_every_name_is_in(place: str) -> None:
    """The place has a row for each name."""
    wanted, there, others = PLACES[place]
    check(place, wanted(), there(), others)
