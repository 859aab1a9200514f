"""Imports go down the layers of the project and never in a circle."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.version_info < (3, 10):
    pytest.skip("import-linter needs Python 3.10", allow_module_level=True)

from graphlib import CycleError, TopologicalSorter

grimp = pytest.importorskip("grimp", reason="import-linter, which the extra dev brings, is not installed")

ROOT = Path(__file__).parents[2]
#: Every package of the project: those of the plugins need not be installed.
PACKAGES = ("spikecore", *(path.parent.name for path in ROOT.glob("backends/*/__init__.py")))
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/*/__init__.py") if path.parent.name != "tests")


def circle(graph):
    """Modules that import each other in a circle, a package and its own modules included; empty if there is none."""
    try:
        TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_module_imports_itself_through_others(monkeypatch):
    """Also through its own package, which the contracts of import-linter do not see."""
    for plugin in PLUGINS:
        monkeypatch.syspath_prepend(plugin.parent)
    names = (*PACKAGES, *(plugin.name for plugin in PLUGINS))
    assert {"spikecore_jax", "spikecore_numba", "spikecore_triton", "spikecore_torch"} < set(names)
    assert circle(grimp.build_graph(*names, exclude_type_checking_imports=True, cache_dir=None)) == []


def test_a_circle_through_a_package_is_found(tmp_path, monkeypatch):
    """A module that imports a name from its own package, which imports the module."""
    package = tmp_path / "ringed"
    package.mkdir()
    (package / "__init__.py").write_text("from ringed.inner import VALUE\n\nNAME = 1\n")
    (package / "inner.py").write_text("VALUE = 1\n\n\ndef name():\n    from ringed import NAME\n\n    return NAME\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(circle(grimp.build_graph("ringed", cache_dir=None))) == {"ringed", "ringed.inner"}
