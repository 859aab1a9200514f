"""``import spikecore`` is light: a name is imported when it is first used, with what it needs and no more."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

import spikecore as sc
import warm

#: Parts that no neuron, layer, encoder or loss needs.
WINGS = "cli kernels parallel plot testing training inspect".split()
#: Names that ``dir(sc)`` does not list, in their modules: some of each.
MOVED = (
    "spikecore.backend.Backend spikecore_convert.Conversion spikecore.functional.project spikecore.inspect.Explanation "
    "spikecore.lang.Program spikecore.layers.pack spikecore.parallel.Pipeline spikecore.stochastic.EscapeNoise "
    "spikecore.training.TrainingStep spikecore_online.STDP"
).split()
#: As many modules of spikecore may be imported for everything that a network is built of.
MOST = 110


def loaded(code: str) -> List[str]:
    """The modules of spikecore, and torch, that a program imports."""
    names = "sorted(n for n in sys.modules if n.startswith(('spikecore', 'torch')) and n.count('.') < 3)"
    command = [sys.executable, "-c", f"import sys; {code}; print(*{names})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def imported_for_checkers() -> Dict[str, List[str]]:
    """Names that ``spikecore/__init__.py`` imports where a type checker reads it: module -> names."""
    (block,) = (
        node
        for node in ast.parse(Path(sc.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    )
    names: Dict[str, List[str]] = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            names.setdefault(node.module or "", []).extend(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            names.setdefault("extensions", []).extend(alias.name for alias in node.names)
    return names


def test_the_import_alone_imports_nothing() -> None:
    """Neither torch, nor a module of spikecore beside its version."""
    assert loaded("import spikecore") == ["spikecore", "spikecore._version"]


def test_a_network_needs_no_wing() -> None:
    """Neurons, layers, encoders, losses and what acts on networks import at most so many modules, and no wing."""
    names = "LIF Recurrent layers encode losses functional stochastic reset set_backend use_backend fuse"
    there = loaded(f"import spikecore as sc; [getattr(sc, name) for name in {names.split()}]")
    own = [name for name in there if name.partition(".")[0] == "spikecore"]
    assert len(own) <= MOST, own
    assert [wing for wing in WINGS if f"spikecore.{wing}" in own] == []
    assert [name for name in there if name.startswith("spikecore_") and name != "spikecore_pytest"] == []


def test_checkers_see_the_names_that_the_table_has() -> None:
    """The imports for type checkers, the table and ``__all__`` name the same; the models are all of their package."""
    seen = imported_for_checkers()
    modules = {*seen.pop("spikecore"), *(name.partition("_")[2] for name in seen.pop("extensions"))}
    assert seen.pop("spikecore.neurons") == ["*"]
    for module, names in seen.items():
        for name in names:
            assert getattr(sc, name) is getattr(importlib.import_module(module), name), name
    named = {name for names in seen.values() for name in names} | {*sc.neurons.MODELS, "Recurrent"}
    assert named <= {*sc.__all__}
    assert {*sc.__all__} - named <= modules


def test_a_head_holds_the_names() -> None:
    """At most 50 stand in ``dir(sc)`` beside neurons; those that left the list are what their modules have."""
    public = [name for name in dir(sc) if not name.startswith("_")]
    assert public == sc.__all__
    assert len({*public} - {*sc.neurons.MODELS}) <= 50
    for module, _, name in (place.rpartition(".") for place in MOVED):
        assert getattr(sc, name) is getattr(importlib.import_module(module), name)
        assert name not in public
    assert sc.load_state is sc.load_weights
    assert (sc.load_state_dict_of_state, sc.state_dict_of_state) == (sc.set_state, sc.get_state)


def test_public_modules_are_attributes() -> None:
    """``sc.training`` needs no import of its own."""
    names = {name: f"spikecore.{name}" for name in imported_for_checkers()["spikecore"]}
    names.update(models="spikecore_models", nir="spikecore_nir", quant="spikecore_chips.quant")
    code = f"import spikecore as sc; print([n for n, m in {names}.items() if getattr(sc, n).__name__ != m])"
    done = warm.run("-c", code, timeout=120)
    assert done.stdout == "[]\n", done.stderr


def test_a_name_that_is_not_there_is_said() -> None:
    """The error is Python's; names that are gone say what to write now. A star imports all others."""
    with pytest.raises(AttributeError, match=r"module 'spikecore' has no attribute 'nothing'"):
        sc.nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"sc\.layers\.pack\(net\)"):
        sc.packed_spikes  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"sc\.hoist is gone: .*sc\.encode\.Constant\(T\).*sc\.LIF\(repeat=T\)"):
        sc.hoist  # type: ignore[attr-defined]  # noqa: B018
    names: Dict[str, object] = {}
    exec("from spikecore import *", names)
    assert set(sc.__all__) <= set(names)


def test_a_neuron_needs_no_compiler() -> None:
    """``torch._dynamo``, which takes seconds to import, is imported by nobody who does not compile."""
    assert "torch._dynamo" not in loaded("import torch, spikecore as sc; sc.LIF(backend='torch')(torch.rand(3, 2, 4))")
