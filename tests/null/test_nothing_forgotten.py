"""Whoever adds an operation, a neuron, a surrogate, a dtype or a capability is told every place that lacks it.

A place is a file and a table or passage in it. Each test is of one place, and says which names it lacks, and which it
has that nothing stands for any more.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Set, Type

import numpy as np
import pytest
import torch
from torch import nn

import spikecore as sc
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
    listed,
    page,
    quoted,
    sources,
    supported,
)
from spikecore import dtypes
from spikecore._shell import ranges
from spikecore._shell.needs import lacking
from spikecore.backend import Capabilities, Spec, Unsupported
from spikecore.lang import Node, Program, ops
from spikecore.lang._foreign_names import FROM_TORCH
from spikecore.lang._grad import RULES
from spikecore.lang._reach import FLAT, UNBOUNDED
from spikecore.lang._text import TextPrinter
from spikecore.lang.eager import TORCH, StraightLine
from spikecore.lang.node import ARITHMETIC, COMPARISONS, LOGIC, OPERATIONS
from spikecore.lang.render import C_TEMPLATES, OPERATOR_TEMPLATES
from spikecore.neuron import Neuron
from spikecore.testing import _edge_table as edge_table
from spikecore.testing._models import MODELS
from spikecore.testing._oracle import operations as oracle_operations
from spikecore.testing._oracle import surrogates as oracle_surrogates
from spikecore.testing._tolerances import EXACT_STEPS, TOLERANCES
from spikecore.testing.random_programs import _rules as rules
from spikecore.testing.random_programs import edges
from spikecore_ipu.functions import PLAIN

#: Operations that Python's operators are, and those that torch has under no name.
OPERATORS = {*OPERATOR_TEMPLATES, "and", "or", "not"} - {"detach"}
NOT_TORCHS = {"select", "spike"}
#: Those that no gradient flows through, and what has a rule of its own.
WITHOUT_RULE = {*FLAT, *COMPARISONS, *LOGIC, "spike"}
#: Neurons with no equation of their own: the base of those that fire, and what repeats another one.
NO_MODEL = {"Membrane", "Recurrent"}


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


# -- operations


def drawn() -> Set[str]:
    """The operations that random programs are made of."""
    return set(re.findall(r"\w+", page("spikecore/testing/random_programs/_draw.py"))) & set(OPERATIONS)


def with_a_rule() -> Set[str]:
    """The operations that a gradient flows through."""
    return set(OPERATIONS) - WITHOUT_RULE


OPERATION_PLACES: Dict[str, Place] = {
    "spikecore/lang/ops.py: functions": at_least(
        lambda: set(OPERATIONS) - OPERATORS, lambda: [name for name in dir(ops) if callable(getattr(ops, name))]
    ),
    "spikecore/lang/eager.py: TORCH": exactly(lambda: OPERATIONS, lambda: TORCH),
    "spikecore/lang/_foreign_names.py: FROM_TORCH": at_least(
        lambda: set(OPERATIONS) - OPERATORS - NOT_TORCHS,
        lambda: [op for op in FROM_TORCH.values() if isinstance(op, str)],
    ),
    "spikecore/lang/_grad.py: RULES (or _reach.py: FLAT)": exactly(with_a_rule, lambda: RULES),
    "spikecore/lang/render.py: C_TEMPLATES": exactly(lambda: OPERATIONS, lambda: C_TEMPLATES),
    "backends/spikecore_ipu/functions.py: PLAIN (or SAME)": exactly(lambda: OPERATIONS, lambda: PLAIN),
    "spikecore/testing/_oracle/operations.py: OPERATIONS": at_least(
        # every case of a comparison has a where
        lambda: set(OPERATIONS) - {"where"},
        lambda: oracle_operations.OPERATIONS,
    ),
    "spikecore/testing/random_programs/_rules.py: VALUE": exactly(
        lambda: set(OPERATIONS) - {"spike"}, lambda: rules.VALUE
    ),
    "spikecore/testing/random_programs/_rules.py: BACK": exactly(with_a_rule, lambda: rules.BACK),
    "spikecore/testing/random_programs/_draw.py: Drawing": exactly(lambda: OPERATIONS, drawn),
    "spikecore/testing/random_programs/edges.py: TABLE": exactly(
        # these take spikes or truth values, which the tables of numbers have not
        lambda: set(OPERATIONS) - {"select", "spike", *LOGIC},
        lambda: edges.TABLE,
    ),
    "spikecore/testing/_edge_table.py: edges": at_least(
        lambda: {"select", "spike", *LOGIC},
        lambda: [edge.name for group in edge_table.GROUPS.values() for edge in group],
    ),
    "tests/unit/lang/test_ops.py: ROWS": at_least(
        lambda: OPERATIONS, lambda: re.findall(r'^    "(\w+)": ', page("tests/unit/lang/test_ops.py"), re.MULTILINE)
    ),
    "tests/unit/lang/test_render.py: CASES": at_least(
        lambda: set(OPERATIONS) - OPERATORS, lambda: re.findall(r"\w+", page("tests/unit/lang/test_render.py"))
    ),
    "tests/unit/lang/test_torch_functions.py: TORCH_NAMES": at_least(
        lambda: set(OPERATIONS) - OPERATORS - NOT_TORCHS,
        lambda: re.findall(r"\w+", page("tests/unit/lang/test_torch_functions.py")),
    ),
    "docs/backends.md: ### Operations": at_least(
        lambda: ARITHMETIC, lambda: re.findall(r"^\| `(\w+)` \| \d \|", page("docs/backends.md"), re.MULTILINE)
    ),
    "docs/backends.md: what holds at special numbers": at_least(
        lambda: set(ARITHMETIC) - {"spike", "select", "detach"},
        lambda: re.findall(r"^\| `(\w+)\(", page("docs/backends.md"), re.MULTILINE),
    ),
    "docs/guide.md: ## Writing a neuron": at_least(
        lambda: set(OPERATIONS) - OPERATORS, lambda: quoted(after(page("docs/guide.md"), "## Writing a neuron"))
    ),
}


class TestOperations:
    """An operation is in :data:`spikecore.lang.node.ARITY`."""

    @every(OPERATION_PLACES)
    def test_every_operation_is_in(self, place: str) -> None:
        """The place has a row for each operation."""
        hold(OPERATION_PLACES, place)

    @pytest.mark.parametrize("place", PRINTERS)
    def test_every_operation_has_a_text_in(self, place: str, beside: None) -> None:
        """Each printer, found in the source, writes every operation; C's functions are not inherited by others."""
        check(place, OPERATIONS, templates(place))

    def test_the_printers_were_found(self) -> None:
        """The readable text's, and one for each plugin; the CUDA printer has C's templates."""
        assert len(PRINTERS) >= 1 + len(PLUGINS)

    @pytest.mark.parametrize("place", [place for place in PRINTERS if place.startswith("plugins/")])
    def test_every_function_of_a_text_is_there(self, place: str, beside: None) -> None:
        """What a template of a plugin calls is in Python's ``math``, NumPy or Triton, or written in the plugin."""
        written = {
            word
            for path in (ROOT / place.partition(":")[0]).parent.glob("*.py")
            if path.name != "printer.py"
            for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
        }
        texts = [text for _, text in templates(place).values()]
        called = {name for text in texts for name in re.findall(r"([a-z][\w.]*)(?:{f})?\(", text)}
        of_libraries = {name for name in called if name.partition(".")[0] in ("math", "np", "tl")}
        assert all(hasattr(math, name[5:]) for name in of_libraries if name.startswith("math."))
        wanted = {name.rpartition(".")[2] for name in called - of_libraries} - set(dir(builtins)) - {"not"}
        check(f"{Path(place).parent}: a function, or its stand-in", wanted, written, others=True)

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
        check("spikecore/lang/_reach.py: UNBOUNDED", found, UNBOUNDED)

    def test_an_operation_without_a_text_is_refused_by_name(self) -> None:
        """A printer that does not know an operation raises Unsupported, which names both."""
        with pytest.raises(Unsupported, match="^TextPrinter has no text for the operation 'novel'$"):
            TextPrinter().read(NOVEL)

    def test_an_operation_without_a_function_is_refused_by_name(self) -> None:
        """The torch interpreter raises Unsupported before anything runs."""
        with pytest.raises(Unsupported, match="^there is no function for the operation 'novel'$"):
            StraightLine([Node("input", (), "x")], [NOVEL])

    def test_an_operation_that_poptorch_may_not_have_is_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The IPU's operations are a list of their own: what the reference learns, it does not take by itself."""
        from spikecore_ipu.backend import IpuBackend

        monkeypatch.setitem(TORCH, "novel", torch.erf)  # type: ignore[arg-type]  # a dict
        with pytest.raises(
            Unsupported, match="'ipu' cannot lower Novel: PopTorch has no handler for the operation 'nov"
        ):
            IpuBackend().compile(NOVEL_PROGRAM, Spec(torch.float32, 1, ()))


NOVEL = Node("novel", (Node("input", (), "x"),))
NOVEL_PROGRAM = Program("Novel", inputs=("x",), states=(), outputs=[NOVEL], next=[], initial=[])


# -- neurons


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


def of_spikingjelly() -> Set[str]:
    """The neurons of SpikingJelly that ours say they are."""
    text = " ".join(str(kind.__doc__) for kind in kinds().values())
    return set(re.findall(r"SpikingJelly's\s+``(\w+)``", text))


def with_a_range(own: bool = False) -> Set[str]:
    """The parameters that a neuron keeps in a range, as ``tau of LIF``; ``own``: those that its class itself names."""
    found: Set[str] = set()
    for name in modelled():
        kind = kinds()[name]
        named = {*vars(kind).get("bounds", ()), *vars(kind).get("positive", ())}
        found |= {f"{param} of {name}" for param in ranges.declared(kind) if param in named or not own}
    return found


def described() -> Set[str]:
    """Those that the guide's table of ranges has."""
    section = after(page("docs/guide.md"), "### Ranges").split("\n### ")[1]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    # `tau` of `LIF`, `KLIF`; `alpha` and `beta` of `Synaptic`: a neuron begins with a capital, a parameter does not
    pairs = re.findall(r"((?:`[a-z]\w*`[ ,and]+)+)of ((?:`[A-Z]\w*`(?:, | and )?)+)", "\n".join(cells))
    return {f"{param} of {name}" for params, names in pairs for param in quoted(params) for name in quoted(names)}


NEURON_PLACES: Dict[str, Place] = {
    "spikecore/neurons/__init__.py: __all__": exactly(neurons, lambda: sc.neurons.__all__),
    "spikecore/__init__.py: __all__": at_least(lambda: neurons() - {"Membrane"}, lambda: sc.__all__),
    "spikecore/testing/_models.py: MODELS": exactly(modelled, lambda: {model.neuron.__name__ for model in MODELS}),
    "docs/support.md: Neurons and surrogates": at_least(modelled, supported),
    "tests/unit/neurons/test_neurons.py: CASES": at_least(
        modelled, lambda: re.findall(r"sc\.(\w+)", listed("tests/unit/neurons/test_neurons.py", "CASES"))
    ),
    "tests/unit/_shell/test_ranges.py: OUTSIDE": at_least(
        lambda: with_a_range(own=True),
        lambda: [
            f"{param} of {name}"
            for name, param in re.findall(
                r'\(sc\.(\w+), {.*?}, "(\w+)"', listed("tests/unit/_shell/test_ranges.py", "OUTSIDE")
            )
        ],
    ),
    "tests/ipu/test_dispatch.py: NEURONS": exactly(
        modelled, lambda: set(re.findall(r"sc\.(\w+)", listed("tests/ipu/test_dispatch.py", "NEURONS")))
    ),
    "plugins/spikecore-triton/tests/test_compiled.py: NEURONS": at_least(
        modelled, lambda: re.findall(r"\w+", listed("plugins/spikecore-triton/tests/test_compiled.py", "NEURONS"))
    ),
    "docs/guide.md: ### Ranges": exactly(with_a_range, described),
    "README.md: Ready-made": at_least(lambda: neurons() - {"Membrane"}, lambda: quoted(page("README.md"))),
    "docs/guide.md: ## Coming from snnTorch or SpikingJelly": at_least(
        of_spikingjelly, lambda: quoted(after(page("docs/guide.md"), "## Coming from snnTorch or SpikingJelly"))
    ),
    "tests/peers/test_spikingjelly.py: NEURONS": at_least(
        of_spikingjelly, lambda: re.findall(r"\w+Node", page("tests/peers/test_spikingjelly.py"))
    ),
}


class TestNeurons:
    """A neuron is a class of a module of spikecore.neurons."""

    @every(NEURON_PLACES)
    def test_every_neuron_is_in(self, place: str) -> None:
        """The place has a row for each neuron."""
        hold(NEURON_PLACES, place)

    @pytest.mark.parametrize("name", sorted(modelled()))
    def test_defaults_stand_once(self, name: str) -> None:
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


NUMBERS = (
    *("seventeen", "eighteen", "nineteen", "twenty", "twenty-one", "twenty-two", "twenty-three", "twenty-four"),
    *("twenty-five", "twenty-six", "twenty-seven", "twenty-eight", "twenty-nine", "thirty"),
)

SURROGATE_PLACES: Dict[str, Place] = {
    "spikecore/surrogate/__init__.py: __all__": exactly(surrogates, lambda: set(sc.surrogate.__all__) - {"Surrogate"}),
    "spikecore/testing/_oracle/surrogates.py: SURROGATES": exactly(surrogates, lambda: oracle_surrogates.SURROGATES),
    "docs/guide.md: There are `ATan`, ...": at_least(surrogates, lambda: quoted(page("docs/guide.md"))),
    "README.md: the number of surrogates": at_least(
        lambda: [f"{NUMBERS[len(surrogates()) - 17]} surrogates"],
        lambda: [" ".join(found) for found in re.findall(r"([a-z-]+)\s+(surrogates)", page("README.md").lower())],
    ),
}


class TestSurrogates:
    """A surrogate is a class of a module of spikecore.surrogate."""

    @every(SURROGATE_PLACES)
    def test_every_surrogate_is_in(self, place: str) -> None:
        """The place has a row for each surrogate."""
        hold(SURROGATE_PLACES, place)


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
    """Each list that someone wrote beside the table: three dtypes or more, or two that a loop goes over."""
    found = []
    for file, tree in sources():
        loops = [node.iter for node in ast.walk(tree) if isinstance(node, (ast.For, ast.comprehension))]
        lists = [node for node in ast.walk(tree) if isinstance(node, (ast.Tuple, ast.List, ast.Set))]
        lists = [node for node in lists if len(node.elts) > (1 if node in loops else 2)]
        named = [(node.lineno, [named_dtype(part) for part in node.elts]) for node in lists]
        found += [
            f"{file}:{line}" for line, dtypes_ in named if set(dtypes_) <= ALL and len(set(dtypes_)) == len(dtypes_)
        ]
    return found


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
    "docs/backends.md: ### Capabilities": at_least(lambda: ALL, lambda: quoted(page("docs/backends.md"))),
    "docs/guide.md": at_least(lambda: ALL, lambda: re.findall(r"\w+", page("docs/guide.md"))),
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
        assert any("printer" in place for place in found)
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
        spec = Spec(row.dtype, 1, (kind,), learn=("p",))
        found |= {*lacking(Capabilities(), program, spec, gradients=True, state_gradients=True, record=True)}
    return found


def needed() -> Set[str]:
    """The capabilities that some conformance case needs."""
    from spikecore.testing._cases import CASES  # here, since a dtype without a capability stops it

    return {need for case in CASES for need in case.needs}


CAPABILITY_PLACES: Dict[str, Place] = {
    "spikecore/_shell/needs.py: lacking": exactly(lambda: set(CAPABILITIES) - NOT_BY_A_CALL, asked),
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
