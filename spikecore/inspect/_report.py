"""What ``sc.explain`` returns, rows of layers and advice, and reports as tables in text and HTML."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import Dict, List, Optional, Sequence, Tuple

_WIDTH = 110
_HEADINGS = ("layer", "kind", "output", "dtype", "layout in -> out", "backend", "words", "floor", "saved", "spikes")
#: Columns of words; the others are numbers.
_WORDS = 6


@dataclass(frozen=True)
class Layer:
    """A row: one layer of the network. Sizes and layouts are those of its first call.

    ``name``: the path in the network, "" for the network itself. ``kind``: its class. ``calls``: how often it ran.
    ``shape``, ``dtype``: of the output. ``layout_in``, ``layout_out``: where the numbers of its first input and of its
    output lie ("contiguous", "channels-last", "batch before time", "one step repeated, ...", or strides).
    ``backend``, ``reason``: what computed a neuron, and why that; "" for any other layer.
    ``copied``: bytes that it laid out anew, forward and backward. ``words``, ``floor``: numbers that its neurons moved
    through memory per time step and neuron, forward and backward, and the least possible; None for any other layer.
    ``steps``: time steps that the layer had at once; 0 where that is not known. ``repeated``: true where all of them
    held the same, so that all but one were computed for nothing. ``products``: multiplications of its weights in linear
    layers and convolutions, forward.
    ``saved``: bytes that it keeps for backward; a tensor that several layers keep counts at the first one.
    ``saved_spikes``: how many of these are spikes, of a layer that is no neuron. ``rate``: the fraction of outputs that
    are spikes; None for a layer that gives other numbers than 0 and 1.
    ``notes``: what else there is to say, in words.
    """

    name: str
    kind: str
    calls: int
    shape: Tuple[int, ...]
    dtype: str
    layout_in: str
    layout_out: str
    backend: str = ""
    reason: str = ""
    copied: int = 0
    words: Optional[float] = None
    floor: Optional[float] = None
    steps: int = 0
    repeated: bool = False
    products: int = 0
    saved: int = 0
    saved_spikes: int = 0
    rate: Optional[float] = None
    notes: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """What :func:`spikecore.explain` found. ``str()`` gives a table with the advice below; notebooks show the same.

    ``layers``: a :class:`Layer` for each layer, in the order of the first call. ``advice``: sentences, the most
    valuable first. ``device``: where the network ran. ``training``: whether it went backward, too.
    """

    layers: Tuple[Layer, ...]
    advice: Tuple[str, ...]
    device: str
    training: bool

    @property
    def saved(self) -> int:
        """Bytes that all layers keep for backward."""
        return sum(layer.saved for layer in self.layers)

    def __str__(self) -> str:
        rows = list(map(_cells, self.layers))
        shown = [i for i, heading in enumerate(_HEADINGS) if i == 0 or any(row[i] for row in rows)]
        head, *lines = table(
            [_HEADINGS[i] for i in shown],
            [[row[i] for i in shown] for row in rows],
            left=sum(i < _WORDS for i in shown),
        )
        text = [head]
        for line, layer in zip(lines, self.layers):
            text += [line, *[f"    {remark}" for remark in _remarks(layer)]]
        text += ["", *_legend(self)]
        if self.advice:
            text += ["", "Advice, the most valuable first:"]
        for number, sentence in enumerate(self.advice, 1):
            start = f"{number}. "
            text += textwrap.wrap(sentence, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
        return "\n".join(text)

    def _repr_html_(self) -> str:
        notes = [_remarks(layer) for layer in self.layers]
        advice = "".join(f"<li>{escape(text)}</li>" for text in self.advice)
        found = html_table(_HEADINGS, list(map(_cells, self.layers)), notes) + html_lines(_legend(self))
        return found + (f"<ol>{advice}</ol>" if advice else "")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> List[str]:
    """Lines of a table; the first ``left`` columns are words, all others numbers."""
    widths = [max(map(len, column)) for column in zip(headings, *rows)]
    lines = []
    for row in (headings, *rows):
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[Sequence[str]] = ()) -> str:
    """The same for a notebook; ``notes``: lines below each row."""
    body: List[str] = []
    for i, row in enumerate(rows):
        body.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
        wide = f'<tr><td></td><td colspan="{len(headings) - 1}">'
        body += [f"{wide}{escape(note)}</td></tr>" for note in (notes[i] if notes else ())]
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def html_lines(lines: Sequence[str]) -> str:
    """Lines below a table for a notebook."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def size(count: int) -> str:
    """Bytes in words."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _cells(layer: Layer) -> Tuple[str, ...]:
    calls = f" ({layer.calls} calls)" if layer.calls > 1 else ""
    same = layer.layout_in == layer.layout_out
    return (
        layer.name or "(net)",
        layer.kind + calls,
        "x".join(map(str, layer.shape)),
        layer.dtype,
        layer.layout_in if same else f"{layer.layout_in} -> {layer.layout_out}",
        layer.backend,
        "" if layer.words is None else f"{layer.words:.2f}",
        "" if layer.floor is None else f"{layer.floor:.2f}",
        size(layer.saved) if layer.saved else "",
        "" if layer.rate is None else f"{100 * layer.rate:.1f} %",
    )


def _remarks(layer: Layer) -> List[str]:
    """What stands under the row of a layer."""
    found = [f"copied {size(layer.copied)}"] if layer.copied else []
    if layer.repeated:
        found.append(f"computed {layer.steps} times for nothing: all time steps hold the same")
    return [*found, *layer.notes]


def _legend(found: Explanation) -> List[str]:
    chosen: Dict[str, None] = {}
    for layer in found.layers:
        if layer.backend:
            chosen[f"backend {layer.backend}: {layer.reason}"] = None
    lines = list(chosen)
    passes = "forward and backward" if found.training else "forward"
    if any(layer.floor is not None for layer in found.layers):
        lines.append(f"words: numbers moved per time step and neuron, {passes}; floor: the least possible")
    if found.training:
        lines.append(f"saved: kept for backward, {size(found.saved)} in all; parameters and the input do not count")
    return lines
