"""Whoever adds an operation, a neuron, a surrogate, a dtype or a capability is told each table that lacks it: see
:mod:`places`.
"""

from __future__ import annotations

import importlib
import itertools
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Dict, Set, Type

import numpy as np
import pytest
import torch
from torch import nn

import spikecore as sc
from places import PLUGINS, ROOT, Place, after, at_least, check, exactly, listed, page, quoted, sources, supported
from spikecore import dtypes
from spikecore._shell import ranges
from spikecore._shell.checks import lacking
from spikecore.backend import Capabilities, Feedback, Spec, Unsupported
from spikecore.lang import Node, Program, ops
from spikecore.lang._program import FLAT, UNBOUNDED
from spikecore.lang.eager import StraightLine
from spikecore.lang.node import ARITHMETIC, COMPARISONS, LOGIC, OPERATIONS
from spikecore.lang.render import OPERATOR_TEMPLATES, TextPrinter
from spikecore.neuron import Neuron
from spikecore.testing import _edge_table as edge_table
from spikecore.testing._models import MODELS
from spikecore.testing._oracle import operations as oracle_operations
from spikecore.testing._oracle import rules
from spikecore.testing._oracle import surrogates as oracle_surrogates
from spikecore.testing._tolerances import EXACT_STEPS, TOLERANCES
from spikecore.testing.random_programs._draw import BOUNDED

# -- neurons

#: Neurons with no equation of their own: the base of those that fire, and what repeats another one.
NO_MODEL = {"Membrane", "Recurrent"}


def kinds() -> Dict[str, Type[Neuron]]:
    """Every neuron that a module of spikecore.neurons defines, exported or not."""
    found: Dict[str, Type[Neuron]] = {}
    for path in (ROOT / "spikecore" / "neurons").glob("_[a-z]*.py"):
        module = importlib.import_module(f"spikecore.neurons.{path.stem}")
        own = (value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__)
        found.update({kind.__name__: kind for kind in own if isinstance(kind, type) and issubclass(kind, nn.Module)})
    return {name: kind for name, kind in found.items() if not name.startswith("_")}


def neurons() -> Set[str]:
    """Their names."""
    return set(kinds())


def modelled() -> Set[str]:
    """Those with an equation of their own."""
    return neurons() - NO_MODEL


def with_a_range() -> Set[str]:
    """The parameters that a neuron keeps in a range, as ``tau of LIF``."""
    return {f"{param} of {name}" for name in modelled() for param in ranges.declared(kinds()[name])}


def of_escape_noise() -> Set[str]:
    """The same of the neuron that fires at random, which is in no module of spikecore.neurons."""
    return {f"{param} of EscapeNoise" for param in ranges.declared(sc.EscapeNoise)}


def described() -> Set[str]:
    """Those that the table of ranges has."""
    section = after(page("docs/parameters.md"), "## Ranges")
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    # `tau` of `LIF`, `KLIF`; `alpha` and `beta` of `Synaptic`; `R` of `Lapicque`: a neuron begins with a capital
    # and has more letters, a parameter does not
    pairs = re.findall(r"((?:`(?:[a-z]\w*|[A-Z])`[ ,and]+)+)of ((?:`[A-Z]\w*`(?:, | and )?)+)", "\n".join(cells))
    return {f"{param} of {name}" for params, names in pairs for param in quoted(params) for name in quoted(names)}


NEURON_PLACES: Dict[str, Place] = {
    "spikecore/neurons/__init__.py: __all__": exactly(neurons, lambda: set(sc.neurons.__all__) - {"MODELS", "example"}),
    "spikecore/__init__.py: __all__": at_least(lambda: neurons() - {"Membrane"}, lambda: sc.__all__),
    "spikecore/testing/_models.py: MODELS": exactly(modelled, lambda: {model.neuron.__name__ for model in MODELS}),
    "docs/support.md: Neurons and surrogates": at_least(modelled, supported),
    "docs/parameters.md: ## Ranges": exactly(lambda: with_a_range() | of_escape_noise(), described),
    "README.md: Ready-made": at_least(lambda: neurons() - {"Membrane"}, lambda: quoted(page("README.md"))),
    "docs/_ext/units.py: PARAMETERS": at_least(
        lambda: {param for name in modelled() for param in kinds()[name].params},
        lambda: re.findall(r'"(?:\w+\.)?(\w+)": \(', listed("docs/_ext/units.py", "PARAMETERS")),
    ),
}


@pytest.mark.parametrize("name", sorted(modelled()))
def test_defaults_stand_once(name: str) -> None:
    """What a neuron has without arguments is what its ``params`` say (QIF's ``v_reset`` was 0 there)."""
    kind: Any = kinds()[name]
    made = kind(kind.params["beta"]) if name == "Leaky" else kind()
    with torch.no_grad():
        assert {param: float(getattr(made, param)) for param in kind.params} == kind.params


# -- surrogates


def surrogates() -> Set[str]:
    """Every surrogate that a module of spikecore.surrogate defines, exported or not."""
    found: Set[str] = set()
    for path in (ROOT / "spikecore" / "surrogate").glob("_[a-z]*.py"):
        module = importlib.import_module(f"spikecore.surrogate.{path.stem}")
        own = (value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__)
        found |= {kind.__name__ for kind in own if isinstance(kind, type) and issubclass(kind, sc.Surrogate)}
    return {name for name in found if not name.startswith("_")} - {"Surrogate"}


SURROGATE_PLACES: Dict[str, Place] = {
    "spikecore/surrogate/__init__.py: __all__": exactly(surrogates, lambda: set(sc.surrogate.__all__) - {"Surrogate"}),
    "spikecore/testing/_oracle/surrogates.py: SURROGATES": exactly(surrogates, lambda: oracle_surrogates.SURROGATES),
    "spikecore/testing/_oracle/surrogates.py: OTHER_ARGUMENTS": exactly(
        lambda: {name for name in surrogates() if fields(getattr(sc.surrogate, name))},
        lambda: oracle_surrogates.OTHER_ARGUMENTS,
    ),
    "tests/unit/test_surrogate.py: FORMULAS": at_least(
        surrogates, lambda: re.findall(r"S\.(\w+)\(", listed("tests/unit/test_surrogate.py", "FORMULAS"))
    ),
    "docs/neurons.md: There are `ATan`, ...": at_least(surrogates, lambda: quoted(page("docs/neurons.md"))),
    "docs/_ext/units.py: FIELDS": at_least(
        lambda: {field.name for name in surrogates() for field in fields(getattr(sc.surrogate, name))},
        lambda: re.findall(r'"(?:\w+\.)?(\w+)": \(', listed("docs/_ext/units.py", "FIELDS")),
    ),
}


# -- operations

#: Operations that Python's operators are.
OPERATORS = {*OPERATOR_TEMPLATES, "and", "or", "not"} - {"detach"}
#: Those that no gradient flows through, and what has a rule of its own.
WITHOUT_RULE = {*FLAT, *COMPARISONS, *LOGIC, "spike"}


# -- printers, without importing what needs an accelerator


def printers() -> Dict[str, str]:
    """File and class of each printer with templates of its own -> the module to import."""
    found = {}
    for file, text in sources():
        for name in re.findall(r"(?ms)^class (\w+)\b(?:(?!^class ).)*?^    templates\b", text):
            parts = Path(file).with_suffix("").parts
            first = next(i for i, part in enumerate(parts) if part.startswith("spikecore") and "-" not in part)
            found[f"{file}: {name}.templates"] = ".".join(parts[first:])
    return found


PRINTERS = printers()


def drawn() -> Set[str]:
    """The operations that random programs are made of."""
    return {*BOUNDED, *re.findall(r"\w+", page("spikecore/testing/random_programs/_draw.py"))} & set(OPERATIONS)


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
    "spikecore/testing/random_programs/_draw.py: Drawing": exactly(lambda: OPERATIONS, drawn),
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


@pytest.mark.parametrize("place", PRINTERS)
def test_every_operation_has_a_text_in(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each printer writes every operation; C's functions are not inherited by others."""
    for path in PLUGINS:  # installed or not
        monkeypatch.syspath_prepend(str(path.parent))
    kind = place.partition(": ")[2].partition(".")[0]
    check(place, OPERATIONS, getattr(importlib.import_module(PRINTERS[place]), kind).templates)


def test_the_printers_were_seen() -> None:
    """The readable text's, and one for each plugin that prints; the CUDA printer has C's templates."""
    assert len(PRINTERS) >= 1 + len([path for path in PLUGINS if (path / "printer.py").exists()]) >= 3


def test_an_infinite_derivative_is_known() -> None:
    """UNBOUNDED has the operations whose cotangents are not finite somewhere, computed from NumPy's rules."""
    points = (-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 10.0)
    infinite = set()
    for op, back in rules.BACK.items():
        grid = [np.array(column) for column in zip(*itertools.product(points, repeat=ARITHMETIC.get(op, 3)))]
        args = [grid[0] > 0, *grid[1:]] if op == "where" else grid
        with np.errstate(all="ignore"):
            parts = back(np.ones_like(grid[0]), rules.VALUE[op](*args), *args)
        if any(part is not None and not np.isfinite(part).all() for part in parts):
            infinite.add(op)
    check("spikecore/lang/operations.py: unbounded", infinite, UNBOUNDED)


def test_an_operation_that_a_target_has_not_is_refused_by_name() -> None:
    """A printer, the interpreter and the IPU's table raise Unsupported, which names it, before anything runs."""
    from spikecore_ipu.backend import IpuBackend

    novel = Node("novel", (Node("input", (), "x"),))
    program = Program("Novel", inputs=("x",), states=(), outputs=[novel], next=[], initial=[])
    with pytest.raises(Unsupported, match="^TextPrinter has no text for the operation 'novel'$"):
        TextPrinter().read(novel)
    with pytest.raises(Unsupported, match="^there is no function for the operation 'novel'$"):
        StraightLine([Node("input", (), "x")], [novel])
    with pytest.raises(Unsupported, match="'ipu' cannot lower Novel: PopTorch has no handler for the operation 'nov"):
        IpuBackend().compile(program, Spec(torch.float32, 1, ()))


# -- dtypes

ALL, NARROW, WIDE = frozenset(dtypes.DTYPES), frozenset(dtypes.NARROW), frozenset(dtypes.WIDE)
QUANTITIES = ("spikes", "output", "potential", "input gradient", "state gradient", "parameter gradient")


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
    "docs/backends.md: ### Capabilities, of dtypes": at_least(lambda: ALL, lambda: quoted(page("docs/backends.md"))),
    "docs/parameters.md: ## Precision": at_least(lambda: ALL, lambda: re.findall(r"\w+", page("docs/parameters.md"))),
}


def test_arithmetic_is_wide() -> None:
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


# -- each place

PLACES: Dict[str, Place] = {
    **NEURON_PLACES,
    **SURROGATE_PLACES,
    **OPERATION_PLACES,
    **DTYPE_PLACES,
    **CAPABILITY_PLACES,
}


@pytest.mark.parametrize("place", PLACES)
def test_every_name_is_in(place: str) -> None:
    """The place has a row for each name."""
    wanted, there, others = PLACES[place]
    check(place, wanted(), there(), others)
