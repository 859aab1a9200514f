"""An explanation as text and as HTML."""

from __future__ import annotations

import textwrap
from html import escape
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

if TYPE_CHECKING:
    from spikecore._explain._layers import Copy, Explanation, Layer

_HEADINGS = ("layer", "kind", "output", "dtype", "layout in -> out", "backend", "words", "floor", "saved", "spikes")
_RIGHT = frozenset(("words", "floor", "saved", "spikes"))
_WIDTH = 110


def as_text(found: Explanation) -> str:
    """A table, why each backend was chosen, and the advice."""
    rows = [_cells(layer) for layer in found.layers]
    table = [_HEADINGS, *rows]
    shown = [i for i, heading in enumerate(_HEADINGS) if any(row[i] for row in rows) or heading == "layer"]
    widths = {i: max(len(row[i]) for row in table) for i in shown}
    lines = [_line(_HEADINGS, shown, widths)]
    for row, layer in zip(rows, found.layers):
        lines.append(_line(row, shown, widths))
        lines += [f"    {text}" for text in _remarks(layer)]
    lines += ["", *_legend(found)]
    if found.advice:
        lines += ["", "Advice, the most valuable first:"]
        for number, text in enumerate(found.advice, 1):
            start = f"{number}. "
            lines += textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
    return "\n".join(lines)


def as_html(found: Explanation) -> str:
    """The same for a notebook."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in _HEADINGS)
    body: List[str] = []
    for layer in found.layers:
        body.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(layer)) + "</tr>")
        wide = f'<tr><td></td><td colspan="{len(_HEADINGS) - 1}">'
        body += [f"{wide}{escape(text)}</td></tr>" for text in _remarks(layer)]
    legend = "".join(f"<p>{escape(text)}</p>" for text in _legend(found))
    advice = "".join(f"<li>{escape(text)}</li>" for text in found.advice)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return table + legend + (f"<ol>{advice}</ol>" if advice else "")


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


def _line(row: Sequence[str], shown: Sequence[int], widths: Dict[int, int]) -> str:
    cells = [row[i].rjust(widths[i]) if _HEADINGS[i] in _RIGHT else row[i].ljust(widths[i]) for i in shown]
    return "  ".join(cells).rstrip()


def _remarks(layer: Layer) -> List[str]:
    """What stands under the row of a layer."""
    found = [_copy(one) for one in layer.copies]
    if layer.repeated:
        found.append(f"computed {layer.steps} times for nothing: all time steps hold the same")
    return [*found, *layer.notes]


def _copy(one: Copy) -> str:
    times = f"{one.count} copies" if one.count > 1 else "a copy"
    return f"{times} in {one.when}, {size(one.bytes)}: {one.reason}"


def _legend(found: Explanation) -> List[str]:
    lines: List[str] = []
    chosen: Dict[str, str] = {}
    for layer in found.layers:
        if layer.backend:
            chosen.setdefault(f"{layer.backend}: {layer.reason}", layer.backend)
    lines += [f"backend {text}" for text in chosen]
    passes = "forward and backward" if found.training else "forward"
    if any(layer.floor is not None for layer in found.layers):
        lines.append(f"words: numbers moved per time step and neuron, {passes}; floor: the least possible")
    if found.training:
        lines.append(f"saved: kept for backward, {size(found.saved)} in all; parameters and the input do not count")
    return lines
