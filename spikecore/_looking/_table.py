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
    return "\n".join([*table(_HEADINGS, list(map(_cells, seen.layers)), left=2), "", _LEGEND, *_not_finite(seen)])


def as_html(seen: Seen) -> str:
    """A table of layers."""
    told = "".join(f"<p>{escape(text)}</p>" for text in (_LEGEND, *_not_finite(seen)))
    return f"{html_table(_HEADINGS, list(map(_cells, seen.layers)))}{told}"


def _not_finite(seen: Seen) -> List[str]:
    """Lines about layers whose numbers are not finite, and what to do."""
    found = [(layer, layer.not_finite) for layer in seen.layers]
    lines = [f"{layer.name or '(net)'} ({layer.kind}): {text}" for layer, text in found if text]
    if lines:
        lines.append(
            "A neuron whose potential is NaN never fires again, so that the rates of such a layer, and of what is "
            "behind it, say nothing; sc.explain(net, x) names the layer where it began"
        )
    return lines


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
    if layer.not_finite:
        told = (told[0], "not finite", "not finite")
    return (layer.name or "(net)", layer.kind, str(len(calls)), neurons, *told)


def _part(count: int, layer: Layer) -> str:
    return f"{count:,} ({100 * count / max(1, layer.neurons):.1f} %)" if count else "0"
