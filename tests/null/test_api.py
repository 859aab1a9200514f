"""docs/api.md is the list of what is public: modules, names, and nothing private used by others."""

from __future__ import annotations

import importlib

import pytest

import spikecore as sc
from places import check
from public_names import Used, modules, page, plain, texts_outside, uses

LISTED = page()
#: Modules of spikecore that tests of a plugin break on purpose, or put back, to see what the plugin then does.
FOR_TESTS = {
    "plugins/spikecore-numba/tests/test_automatic.py": ("spikecore._plugins.registry", "spikecore._plugins.selection"),
    "plugins/spikecore-numba/tests/test_explain.py": ("spikecore._plugins.selection",),
}


def test_every_module_with_a_plain_name_is_listed() -> None:
    """A module that nobody outside may import begins with ``_``, or a package above it does."""
    there = [name for name in modules() if name.partition(".")[0] == "spikecore" and plain(name)]
    assert [name for name in there if name not in LISTED] == []


@pytest.mark.parametrize("name", LISTED)
def test_a_listed_module_has_the_names_it_is_listed_with(name: str) -> None:
    """It has a plain name, a sentence and names; each name exists and has a sentence; ``__all__`` says the same."""
    assert plain(name)
    sentence, names = LISTED[name]
    assert sentence.rstrip().endswith("."), sentence
    module = importlib.import_module(name)
    assert [each for each in names if not hasattr(module, each) and f"{name}.{each}" not in LISTED] == []
    assert [each for each, sentence in names.items() if not sentence.endswith(".")] == []
    assert names, "a module without public names is not public"
    if hasattr(module, "__all__") and name.partition(".")[0] == "spikecore":
        check(f"docs/api.md: `{name}`", module.__all__, names)


def test_what_is_imported_as_sc_is_listed() -> None:
    """Every name of ``sc`` has its row."""
    check("docs/api.md: `spikecore`", sc.__all__, LISTED["spikecore"].names)


def test_what_is_used_from_outside_is_listed() -> None:
    """Backends, plugins with their tests, examples and pages use listed modules, and of these listed names."""
    known = {name for name in modules() if name.partition(".")[0] == "spikecore"}
    lacking = []
    for text, where in texts_outside():
        for what, line in uses(text, where, known):
            module, _, name = what.rpartition(".")
            if what.startswith(FOR_TESTS.get(where, ())):
                continue
            if what not in LISTED and name not in LISTED.get(module, LISTED["spikecore"])[1]:
                lacking.append(Used(what, line))
    assert lacking == []
