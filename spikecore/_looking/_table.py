"""What was seen as text and as HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, List, Tuple

if TYPE_CHECKING:
    from spikecore._looking._seen import Layer, Seen

_HEADINGS = ("layer", "kind", "calls", "neurons", "rate", "silent", "saturated")
_LEGEND = (
    "rate: spikes per time step and neuron; silent: neurons that never fired; saturated: neurons that fired at every "
    "step of every sample"
)


def table(headings: Tuple[str, ...], rows: List[Tuple[str, ...]], left: int) -> List[str]:
    """Lines of a table; the first ``left`` columns are words, all others numbers."""
    widths = [max(map(len, column)) for column in zip(headings, *rows)]
    lines = []
    for row in (headings, *rows):
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def html_table(headings: Tuple[str, ...], rows: List[Tuple[str, ...]]) -> str:
    """The same for a notebook."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def as_text(seen: Seen) -> str:
    """A table of layers."""
    return "\n".join([*table(_HEADINGS, list(map(_cells, seen.layers)), left=2), "", _LEGEND])


def as_html(seen: Seen) -> str:
    """A table of layers."""
    return f"{html_table(_HEADINGS, list(map(_cells, seen.layers)))}<p>{escape(_LEGEND)}</p>"


def _cells(layer: Layer) -> Tuple[str, ...]:
    calls = layer.calls
    if not calls:
        return (layer.name or "(net)", layer.kind, "0", "", "", "", "")
    shapes = {call.outputs // max(1, call.steps * call.batch) for call in calls}
    neurons = f"{layer.neurons:,}" if len(shapes) == 1 else "varies"
    rate = layer.rate
    told = ("", "", "")
    if rate is not None:
        told = (
            f"{rate:.4f}",
            *(("", "") if len(shapes) > 1 else (_part(layer.silent, layer), _part(layer.saturated, layer))),
        )
    return (layer.name or "(net)", layer.kind, str(len(calls)), neurons, *told)


def _part(count: int, layer: Layer) -> str:
    return f"{count:,} ({100 * count / max(1, layer.neurons):.1f} %)" if count else "0"
