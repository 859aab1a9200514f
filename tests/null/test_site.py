"""The documentation site: what its extensions write is what the code says."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import spikecore as sc

DOCS = Path(__file__).parents[2] / "docs"
SURROGATES = sorted(set(sc.surrogate.__all__) - {"Surrogate"})
#: What the functions of a printed program are in Python.
FUNCTIONS = {
    "abs": abs,
    "where": lambda condition, a, b: a if condition else b,
    "exp": math.exp,
    "cos": math.cos,
    "floor": math.floor,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "power": math.pow,
    "maximum": max,
    "minimum": min,
    "clamp": lambda x, low, high: min(max(x, low), high),
}


def extension(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of ``docs/_ext``, which Sphinx finds by the path that ``conf.py`` adds."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SURROGATES)
def test_the_formula_of_a_surrogate_is_its_derivative(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The expression that the gallery shows, computed by Python, is what the class computes."""
    formulas = extension("formulas", monkeypatch)
    surrogate = getattr(sc.surrogate, name)()
    shown = ast.unparse(formulas.derivative(str(sc.IF(surrogate=surrogate).program))) if hasattr(ast, "unparse") else ""
    if not shown:
        pytest.skip("Python 3.8 cannot write an expression as text")
    values = {**FUNCTIONS, **vars(surrogate)}
    for u in (-1.7, -0.3, 0.01, 0.4, 2.5):
        wanted = torch.as_tensor(surrogate.derivative(torch.tensor(u, dtype=torch.float64)))
        assert eval(shown, values, {"u": u}) == pytest.approx(float(wanted), rel=1e-6), u


def test_the_formula_of_a_neuron(monkeypatch: pytest.MonkeyPatch) -> None:
    """States before the step have the index t-1, inputs and states after it t; a fraction has its parts."""
    formulas = extension("formulas", monkeypatch)
    text = formulas.of_neuron(str(formulas.named(sc.LIF().program)), frozenset({"v"}))
    words = re.sub(r"<[^>]+>", "", text).replace("\xa0", " ").replace("&#xA0;", " ")
    assert words == "h=vt−1+xt−(vt−1−vreset)τz=[h−ϑ≥0]vt=vreset  where z=1h  elsewhere "
    assert text.count("<mfrac>") == 1


def test_a_page_is_found_by_both_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other spelling of each word, and none of a word that has one spelling, or that is on the page."""
    others = extension("search_words", monkeypatch).others
    assert others(["Quantisation", "optimizer", "colour"]) == ["color", "optimiser", "quantization"]
    assert others(["normalise", "normalize", "comparison", "list", "raise", "size", "neuron", "model"]) == []


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("weight decay", "parameters"),
        ("variable length", "sequences"),
        ("batch_first", "training"),
        ("STBP", "tutorial"),
        ("early stopping", "recipes"),
        ("class imbalance", "recipes"),
        ("Optuna", "recipes"),
    ],
)
def test_a_page_has_the_words_that_readers_search_for(words: str, page: str) -> None:
    """The site's search finds a page by all of them."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8").lower()
    assert all(word in text for word in words.lower().split())


def test_pages_begin_with_what_they_are_about() -> None:
    """None begins with how it was made; the index has the line that installs, before its program."""
    for page in (*DOCS.glob("*.md"), *DOCS.glob("conformance/*.md")):
        assert "do not edit" not in page.read_text(encoding="utf-8")[:400], page.name
    first, second = re.findall(r"```(\w+)\n(\w+)", (DOCS / "index.md").read_text(encoding="utf-8"))
    assert (first, second) == (("sh", "pip"), ("python", "import"))


def test_every_neuron_and_surrogate_is_listed_once() -> None:
    """A class in no family would have no page: base classes alone are left out."""
    listed = {}
    for name in ("gallery", "surrogates"):
        text = (DOCS / f"{name}.rst").read_text(encoding="utf-8")
        listed[name] = " ".join(re.findall(r"(?m)^\.\. gallery::((?:.+\n)+)", text)).split()
    around = ["Recurrent", "layers.NormNeuron", "layers.PSN", "layers.SlidingPSN", "stochastic.EscapeNoise"]
    assert sorted(listed["gallery"]) == sorted([*sc.neurons.MODELS, *around])
    assert sorted(listed["surrogates"]) == [f"surrogate.{name}" for name in SURROGATES]


def test_docstrings_describe_every_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each class that a user makes has a line ``name: what it is`` for each argument, and for no other name."""
    split = extension("docstrings", monkeypatch).split
    modules = (sc, sc.surrogate, sc.neurons, sc.layers, sc.encode, sc.stochastic)
    public = [getattr(module, name) for module in modules for name in module.__all__]
    wrong = {}
    for kind in filter(inspect.isclass, public):
        if getattr(kind.__init__, "__module__", "").startswith("torch."):
            continue  # the arguments of a layer of torch
        described = split(inspect.cleandoc(kind.__doc__ or "").splitlines())[1].keys()
        arguments = inspect.signature(kind).parameters.keys()
        if {*described} != {*arguments}:
            wrong[kind.__name__] = {*described} ^ {*arguments}
    assert wrong == {}


def test_a_list_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that share a line, lines that go on, and a sentence with a colon, which is no argument."""
    lines = ["It does: this.", "", "a, *b: two of them,", "    over two lines.", "c: another.", "", "Raises: nothing."]
    text, arguments = extension("docstrings", monkeypatch).split(lines)
    assert [line for line in text if line] == ["It does: this.", "Raises: nothing."]
    assert arguments == {"a": "two of them, over two lines.", "b": "two of them, over two lines.", "c": "another."}


def test_the_pictures_of_the_readme_are_of_this_code() -> None:
    """The definition's kernel, times and verdicts: ``python docs/picture.py`` writes the files again."""
    spec = importlib.util.spec_from_file_location("picture", DOCS / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    picture = importlib.util.module_from_spec(spec)
    sys.modules["picture"] = picture  # where inspect finds the source of its class
    try:
        spec.loader.exec_module(picture)
        assert picture.PICTURE.read_text(encoding="utf-8") == picture.picture()
        assert picture.BADGES.read_text(encoding="utf-8") == picture.badges()
    finally:
        del sys.modules["picture"]
