"""Every neuron and surrogate with its docstring, equation, picture and parameters, written from the classes.

Directives ``neuron-gallery`` and ``surrogate-gallery``. What there is, is ``__all__`` of the modules, so that none can
be forgotten; one that cannot be shown fails the build with its name.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, Dict, Iterator, List

import docstrings
import formulas
import pictures
import units
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.util.logging import getLogger

import spikecore as sc

#: Bases and containers: no neuron by themselves, so without a picture.
NO_NEURONS = {"Membrane", "Recurrent", "Stochastic"}


def _documentation(value: Any) -> List[str]:
    return docstrings.with_lists(inspect.cleandoc(value.__doc__ or "").splitlines())


def _raw(html: str) -> List[str]:
    return ["", ".. raw:: html", "", *(f"   {line}" for line in html.splitlines()), ""]


def table(head: List[str], rows: List[List[str]]) -> List[str]:
    """A table in reStructuredText; nothing without rows."""
    if not rows:
        return []
    lines = ["", ".. list-table::", "   :header-rows: 1", ""]
    for row in [head, *rows]:
        lines += [f"   {'*' if k == 0 else ' '} - {cell}" for k, cell in enumerate(row)]
    return [*lines, ""]


def _range(bounds: Dict[str, Any], name: str) -> str:
    if bounds.get(name) is None:
        return ""
    return f"; {bounds[name]}"


def neuron_section(kind: Any) -> List[str]:
    """The section of one neuron."""
    name = kind.__name__
    lines = [name, "-" * len(name), "", f".. currentmodule:: {kind.__module__}", "", *_documentation(kind), ""]
    home = next(module for module in (sc, sc.stochastic, sc.neurons) if name in module.__all__).__name__
    source = f"Arguments and source: :class:`{home}.{name}`."
    if name in NO_NEURONS:
        return [*lines, source, ""]
    neuron = sc.neurons.example(kind.__name__) if kind.__name__ in sc.neurons.MODELS else kind()
    picture, current = pictures.of_neuron(neuron)
    lines += _raw(formulas.of_neuron(str(neuron.program), frozenset(neuron.states)))
    lines += _raw(f'<figure class="answer">{picture}<figcaption>{_caption(neuron, current)}</figcaption></figure>')
    rows = []
    for param in kind.params:
        about = f"{units.of_parameter(kind, param)}{_range(neuron.bounds, param)}"
        rows.append([f"``{param}``", f"{kind.params[param]:g}", about])
    lines += table(["parameter", "default", "is; unit; range"], rows)
    return [*lines, source, ""]


def _caption(neuron: Any, current: float) -> str:
    return f"{type(neuron).__name__} with its defaults; x = {current:g} from step {pictures.ON} to {pictures.OFF}."


def surrogate_section(kind: Any) -> List[str]:
    """The section of one surrogate."""
    name, surrogate = kind.__name__, kind()
    lines = [name, "-" * len(name), "", *_documentation(kind), ""]
    lines += _raw(formulas.of_surrogate(str(sc.IF(surrogate=surrogate).program)))
    lines += _raw(f'<figure class="answer">{pictures.of_surrogate(surrogate)}</figure>')
    rows = []
    for field in fields(surrogate):
        allowed = "; above 0" if field.name in kind.positive else ""
        rows.append(
            [f"``{field.name}``", f"{getattr(surrogate, field.name):g}", f"{units.of_field(kind, field.name)}{allowed}"]
        )
    lines += table(["field", "default", "is; unit; range"], rows)
    return [*lines, f"Arguments and source: :class:`spikecore.surrogate.{name}`.", ""]


def neurons() -> Iterator[Any]:
    """Every neuron of :mod:`spikecore.neurons` and :mod:`spikecore.stochastic`, by name."""
    others = (sc.neurons.Membrane, sc.Recurrent, sc.stochastic.EscapeNoise, sc.stochastic.Stochastic)
    yield from sorted({*sc.neurons.MODELS.values(), *others}, key=lambda kind: str(kind.__name__).lower())


def surrogates() -> Iterator[Any]:
    """Every surrogate but the base class."""
    for name in sc.surrogate.__all__:
        value = getattr(sc.surrogate, name)
        if (
            isinstance(value, type)
            and issubclass(value, sc.surrogate.Surrogate)
            and value is not sc.surrogate.Surrogate
        ):
            yield value


class Sections(Directive):
    """Sections, one for each class."""

    def sections(self) -> Iterator[List[str]]:
        """The text of each section, in lines."""
        raise NotImplementedError

    def run(self) -> List[nodes.Node]:
        """The sections, parsed."""
        began, holder = time.perf_counter(), nodes.section()
        holder.document = self.state.document
        with sc.use_backend("torch"):  # the reference, whatever is installed
            sections = list(self.sections())
        for lines in sections:
            text = StringList(lines, source=self.state.document.current_source)
            self.state.nested_parse(text, self.content_offset, holder, match_titles=1)
        getLogger(__name__).info("%s drawn in %.1f s", self.name, time.perf_counter() - began)
        return holder.children


class NeuronGallery(Sections):
    """Every neuron."""

    def sections(self) -> Iterator[List[str]]:
        """A section for each."""
        return map(neuron_section, neurons())


class SurrogateGallery(Sections):
    """Every surrogate."""

    def sections(self) -> Iterator[List[str]]:
        """A section for each."""
        return map(surrogate_section, surrogates())


def _redraw(app: Any, env: Any, *_: Any) -> List[str]:
    """The gallery is drawn in every build, since what it shows are classes and no file of this folder."""
    return [
        name
        for name in ("gallery", "surrogates", "operations")
        if name in env.all_docs and (Path(app.srcdir) / f"{name}.rst").exists()
    ]


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("neuron-gallery", NeuronGallery)
    app.add_directive("surrogate-gallery", SurrogateGallery)
    app.connect("env-get-outdated", _redraw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
