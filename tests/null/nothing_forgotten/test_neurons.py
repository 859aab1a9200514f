"""Whoever adds a neuron or a surrogate is told every place that lacks it: see :mod:`places`."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from typing import Any, Dict, Set, Type

import pytest
import torch
from torch import nn

import spikecore as sc
from places import (
    ROOT,
    Place,
    after,
    at_least,
    every,
    exactly,
    hold,
    listed,
    page,
    quoted,
    supported,
)
from spikecore._shell import ranges
from spikecore.neuron import Neuron
from spikecore.testing._models import MODELS
from spikecore.testing._oracle import surrogates as oracle_surrogates

#: Neurons with no equation of their own: the base of those that fire, and what repeats another one.
NO_MODEL = {"Membrane", "Recurrent"}


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
    "README.md: the number of neurons": exactly(
        lambda: [str(len({*(neurons() - {"Membrane"}), "EscapeNoise"}))],
        lambda: re.findall(r"\| neurons built in \| \[(\d+)\]", page("README.md")),
    ),
    "docs/_ext/units.py: PARAMETERS": at_least(
        lambda: {param for name in modelled() for param in kinds()[name].params},
        lambda: re.findall(r'"(?:\w+\.)?(\w+)": \(', listed("docs/_ext/units.py", "PARAMETERS")),
    ),
    "docs/coming-from.md": at_least(of_spikingjelly, lambda: quoted(page("docs/coming-from.md"))),
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
