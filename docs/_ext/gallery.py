"""A page for each neuron and surrogate, and a card for each on the page of its kind, all written from the classes.

``gallery.rst`` and ``surrogates.rst`` list the classes by family, in the directive ``gallery``. The pages are written
into ``docs/gallery``, where git ignores them, before Sphinx reads. The line of code of each page runs in the build.
"""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping

import docstrings
import formulas
import pictures
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

import spikecore as sc

#: The pages with cards.
LISTS = ("gallery", "surrogates")
#: Calls of constructors that need more than their defaults.
CALLS = {
    "DHLIF": "sc.DHLIF(branches=4)",
    "Leaky": "sc.Leaky(beta=0.9)",
    "Recurrent": "sc.Recurrent(sc.LIF(), nn.Linear(10, 10))",
    "layers.NormNeuron": "sc.layers.NormNeuron(nn.BatchNorm1d(10), sc.LIF())",
    "layers.PSN": "sc.layers.PSN(steps=16)",
    "layers.SlidingPSN": "sc.layers.SlidingPSN(order=4)",
}


def kind(path: str) -> Any:
    """The class of a path below ``sc``."""
    return attrgetter(path)(sc)


def listed(page: str) -> List[str]:
    """The classes that the text of a page lists, by their path below ``sc``."""
    return [path for block in re.findall(r"(?m)^\.\. gallery::((?:.+\n)+)", page) for path in block.split()]


def _all(docs: Path) -> List[str]:
    return [path for page in LISTS for path in listed((docs / f"{page}.rst").read_text(encoding="utf-8"))]


def classes(docs: Path) -> Dict[Any, str]:
    """Every class with a page, and its path below ``sc``."""
    return {kind(path): path for path in _all(docs)}


def documented(value: Any) -> Any:
    """The docstring of a class: its lines without the lists of arguments, and what these say of each."""
    return docstrings.split(inspect.cleandoc(value.__doc__ or "").splitlines())


def summary(value: Any) -> str:
    """The first paragraph of a docstring, as a sentence."""
    first = " ".join(inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0].split())
    return first.rstrip(":.") + "."


def call(path: str) -> str:
    """A constructor in one line: with its first argument, if that has a number as default."""
    if path in CALLS:
        return CALLS[path]
    first = next(iter(inspect.signature(kind(path)).parameters.values()), None)
    shown = first is not None and first.kind is first.POSITIONAL_OR_KEYWORD and isinstance(first.default, (int, float))
    made = f"sc.{path}({first.name}={first.default!r})" if first is not None and shown else f"sc.{path}()"
    return f"sc.LIF(surrogate={made})" if issubclass(kind(path), sc.Surrogate) else made


def use(path: str) -> List[str]:
    """A program of a few lines, which runs here."""
    made = call(path)
    imports = ["import torch", *(["from torch import nn"] if "nn." in made else []), "import spikecore as sc"]
    branches = ", 4" if path == "DHLIF" else ""
    what = f"10 neurons{' of 4 branches' if branches else ''}"
    inputs = pictures.INPUTS.get(path, "x")
    drawn = [f"{name} = torch.rand(16, 4, 10{branches})" for name in inputs]
    lines = [*imports, "", f"# 16 steps, batch 4, {what}", *drawn]
    lines.append(f"{'potential' if path == 'LI' else 'spikes'} = {made}({', '.join(inputs)})")
    with sc.use_backend("torch"):
        exec("\n".join(lines), {})
    return ["", ".. code-block:: python", "", *(f"   {line}" for line in lines), ""]


def _raw(html: str) -> List[str]:
    return ["", ".. raw:: html", "", *(f"   {line}" for line in html.splitlines()), ""]


def table(head: List[str], rows: List[List[str]], style: str = "") -> List[str]:
    """A table in reStructuredText; nothing without rows."""
    if not rows:
        return []
    lines = ["", ".. list-table::", "   :header-rows: 1", *([f"   :class: {style}"] if style else []), ""]
    for row in [head, *rows]:
        lines += [f"   {'*' if k == 0 else ' '} - {cell}" for k, cell in enumerate(row)]
    return [*lines, ""]


def arguments(path: str) -> List[str]:
    """The table of the arguments of a class: what its docstring lists, and the default of each."""
    value, described = kind(path), documented(kind(path))[1]
    rows = []
    for name, each in inspect.signature(value).parameters.items():
        if name not in described:
            raise LookupError(f"write a line '{name}: what it is' into the docstring of {value.__name__}")
        default = "" if each.default is each.empty else f"``{_shown(each.default)}``"
        rows.append([f"``{name}``", default, described[name]])
    return table(["argument", "default", "meaning, unit, range"], rows, "arguments")


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value).replace("'", '"')


def page(path: str) -> str:
    """The page of a class."""
    value = kind(path)
    text, head = documented(value)[0], summary(value)
    first = text.index("")
    # an equation right behind the first sentence goes on as a block of its own
    rest = [*(["::", ""] if text[first - 1].endswith("::") else []), *text[first + 1 :]]
    lines = [value.__name__, "=" * len(value.__name__), "", f".. currentmodule:: {value.__module__}", "", head]
    lines += [*use(path), *_raw(figure(path))]
    if any(rest):
        heading = "Equations" if "::" in "\n".join(rest) else "Details"
        lines += [heading, "-" * len(heading), "", *rest, ""]
    if shown := formula(path):
        is_neuron = issubclass(value, sc.Neuron)
        what = "One step as it is compiled, with the defaults and nothing learnt:" if is_neuron else "The derivative:"
        lines += [what, "", *_raw(shown)]
    if rows := arguments(path):
        lines += ["Arguments", "---------", "", *rows]
    lines += ["Class", "-----", "", f".. autoclass:: spikecore.{path}", "   :members:", "   :show-inheritance:", ""]
    return "\n".join(lines)


@lru_cache(maxsize=None)
def answer(path: str) -> pictures.Answer:
    """Answer of the neuron of a path to a step of current."""
    with sc.use_backend("torch"):  # the reference, whatever is installed
        return pictures.answer(path)


def figure(path: str) -> str:
    """The picture of a page."""
    if issubclass(kind(path), sc.Surrogate):
        return f'<figure class="answer">{pictures.of_surrogate(kind(path)())}</figure>'
    shown = answer(path)
    caption = f"{shown.about}; x = {shown.current:g} from step {pictures.ON} to {pictures.OFF}."
    return f'<figure class="answer">{pictures.of_neuron(shown)}<figcaption>{caption}</figcaption></figure>'


def formula(path: str) -> str:
    """The equations as they are compiled, or nothing of what is no program by itself."""
    value = kind(path)
    if issubclass(value, sc.Surrogate):
        return formulas.of_surrogate(str(sc.IF(surrogate=value()).program))
    neuron = answer(path).module
    if path in sc.neurons.MODELS:  # what is learnt is limited to its range, which is no part of the equations
        neuron = sc.neurons.example(path, learn=(), **dict.fromkeys(value.sizes, 2))
    if not isinstance(neuron, sc.Neuron):
        return ""
    return formulas.of_neuron(str(formulas.named(neuron.program)), frozenset(neuron.program.states))


def card(path: str) -> List[str]:
    """The picture, the name and a sentence of a class, as a link to its page."""
    value = kind(path)
    if issubclass(value, sc.Surrogate):
        picture = pictures.small_surrogate(value())
    else:
        picture = pictures.small_neuron(answer(path))
    lines = [
        *_raw(picture),
        f":doc:`{value.__name__} </gallery/{value.__name__}>`",
        "",
        summary(value).partition(". ")[0].rstrip(".") + ".",
        "",
    ]
    return ["", ".. container:: card", "", *(f"   {line}" for line in lines), ""]


class Written(Directive):
    """Text that is written in the build."""

    def lines(self) -> List[str]:
        """The text, in reStructuredText."""
        raise NotImplementedError

    def run(self) -> List[nodes.Node]:
        """The text, parsed."""
        holder = nodes.section()
        holder.document = self.state.document
        text = StringList(self.lines(), source=self.state.document.current_source)
        self.state.nested_parse(text, self.content_offset, holder, match_titles=1)
        return holder.children


class Gallery(Written):
    """Cards of the classes of a family, and their pages in the navigation."""

    optional_arguments = 100

    def lines(self) -> List[str]:
        """A container of cards, and a list of pages."""
        cards = [f"   {line}" for path in self.arguments for line in card(path)]
        names = [kind(path).__name__ for path in self.arguments]
        entries = [f"   {name} </gallery/{name}>" for name in names]
        return [".. container:: cards", "", *cards, "", ".. toctree::", "   :hidden:", "", *entries, ""]


def pages(docs: Path) -> Iterator[Any]:
    """The name and the text of every page."""
    for path in _all(docs):
        yield kind(path).__name__, page(path)


def write(app: Any) -> None:
    """Write the pages; one that did not change keeps its date."""
    folder = Path(app.srcdir) / "gallery"
    folder.mkdir(exist_ok=True)
    wanted: Mapping[str, str] = dict(pages(Path(app.srcdir)))
    for old in folder.glob("*.rst"):
        if old.stem not in wanted:
            old.unlink()
    for name, text in wanted.items():
        file = folder / f"{name}.rst"
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _said_above(app: Any, what: str, name: str, obj: Any, options: Any, lines: List[str]) -> None:
    """A page of the gallery has the docstring of its class above the class itself."""
    if what == "class" and app.env.docname.startswith("gallery/"):
        lines.clear()


def _redraw(app: Any, env: Any, *_: Any) -> List[str]:
    """The cards are drawn in every build, since what they show are classes and no file of this folder."""
    return [
        name for name in (*LISTS, "operations") if name in env.all_docs and (Path(app.srcdir) / f"{name}.rst").exists()
    ]


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("gallery", Gallery)
    app.connect("builder-inited", write)
    app.connect("autodoc-process-docstring", _said_above)
    app.connect("env-get-outdated", _redraw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
