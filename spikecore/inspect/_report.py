"""Result of ``sc.explain``, and the form of every report of this package: a table in text and in HTML."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from html import escape
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from spikecore.lang.render import on_one_line
from spikecore.words import listed

_WIDTH = 110
_HEADINGS = (
    "layer",
    "kind",
    "output",
    "dtype",
    "layout in -> out",
    "backend",
    "words",
    "floor",
    "saved",
    "spikes",
    "never",
    "always",
)


class Table(NamedTuple):
    """Table of a report: a line above, rows, remarks under each row, lines below them, and numbered sentences at the
    end.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: The first columns are words, the others numbers.
    left: int
    lines: Sequence[str]
    remarks: Sequence[Sequence[str]] = ()
    advice: Sequence[str] = ()
    title: str = ""

    def printable(self) -> Table:
        """The same, with what cannot be printed escaped: names of layers may be a user's or a file's."""

        def each(texts: Sequence[str]) -> Sequence[str]:
            return [*map(on_one_line, texts)]

        rows, remarks = ([*map(each, table)] for table in (self.rows, self.remarks))
        return Table(
            self.headings, rows, self.left, each(self.lines), remarks, each(self.advice), on_one_line(self.title)
        )

    def _parts(self) -> Iterator[Tuple[Sequence[str], Sequence[str]]]:
        """Headings and rows without empty columns, each with its remarks."""
        shown = [i for i in range(len(self.headings)) if i == 0 or any(row[i] for row in self.rows)]
        for row, remarks in zip((self.headings, *self.rows), ((), *(self.remarks or [()] * len(self.rows)))):
            yield [row[i] for i in shown], remarks

    def __str__(self) -> str:
        parts = list(self._parts())
        widths = [max(map(len, column)) for column in zip(*(row for row, _ in parts))]
        left = sum(heading in self.headings[: self.left] for heading in parts[0][0])
        text = [self.title, ""] if self.title else []
        for row, remarks in parts:
            cells = [
                cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
            ]
            text += ["  ".join(cells).rstrip(), *[f"    {remark}" for remark in remarks]]
        text += ["", *self.lines]
        if self.advice:
            text += ["", "Advice, the most valuable first:"]
        for number, sentence in enumerate(self.advice, 1):
            start = f"{number}. "
            text += textwrap.wrap(sentence, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
        return "\n".join(text)

    def html(self) -> str:
        """The same for a notebook."""
        (head, _), *parts = self._parts()
        body = [f"<thead><tr>{_tags('th', head)}</tr></thead>"]
        for row, remarks in parts:
            body.append(f"<tr>{_tags('td', row)}</tr>")
            wide = f'<tr><td></td><td colspan="{len(head) - 1}">'
            body += [f"{wide}{escape(remark)}</td></tr>" for remark in remarks]
        advice = f"<ol>{_tags('li', self.advice)}</ol>" if self.advice else ""
        title = f"<p>{escape(self.title)}</p>" if self.title else ""
        return f"{title}<table>{''.join(body)}</table>{_tags('p', self.lines)}{advice}"


def _tags(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


class Report:
    """``str()`` gives a table; notebooks show the same."""

    def _table(self) -> Table:
        raise NotImplementedError(f"{type(self).__name__} must define _table")

    def __str__(self) -> str:
        return str(self._table().printable())

    def _repr_html_(self) -> str:
        return self._table().printable().html()


def scaled(value: float, units: Sequence[Tuple[str, float]], rest: str, digits: int = 2) -> str:
    """A number in the first unit that it reaches; ``rest`` if it reaches none."""
    return next((f"{value / size:.{digits}f} {unit}" for unit, size in units if value >= size), rest)


def dimension_of_time(shape: Sequence[int], steps: int, samples: Optional[int] = None) -> Optional[int]:
    """Dimension of an input, 0 or 1, with the steps that neurons had, beside the samples if these are known; None
    if the network makes time.
    """
    if steps > 1 and tuple(shape[:1]) == (steps,) and samples in (None, *shape[1:2]):
        return 0
    return 1 if steps > 1 and len(shape) > 2 and shape[1] == steps and samples in (None, shape[0]) else None


def input_as_read(shape: Sequence[int], steps: int, time: Optional[int]) -> str:
    """Meaning of the dimensions of an input, as a network with so many steps took them."""
    start = f"input {'x'.join(map(str, shape))}, read as"
    if time is not None:
        samples = f", B={shape[1 - time]} samples" if len(shape) > 1 else ""
        return f"{start} {('[T, B, ...]', '[B, T, ...]')[time]}: T={steps} steps{samples}"
    source = f", for which the network makes T={steps} steps" if steps > 1 else ", without time"
    return f"{start} [B, ...]: B={shape[0]} samples{source}" if shape else ""


def size(count: int) -> str:
    """Bytes in words."""
    return scaled(count, (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)), f"{count} B", 1)


@dataclass(frozen=True)
class Layer:
    """A row: one layer of the network. Sizes and layouts are those of its first call.

    ``name``: the path in the network, "" for the network itself. ``kind``: its class. ``calls``: how often it ran.
    ``shape``, ``dtype``: of the output. ``layout_in``, ``layout_out``: where the numbers of its first input and of its
    output lie ("contiguous", "channels-last", "batch before time", "one step repeated, ...", or strides).
    ``backend``, ``reason``: what computed a neuron, and why that; "" for any other layer.
    ``words``, ``floor``: numbers that its neurons move through memory per time step and neuron, forward and backward,
    and the least possible; None for any other layer. Kernels move the least, the reference what each operation of a
    step reads and writes; of another backend the words are None.
    ``steps``: time steps that the layer had at once; 0 where that is not known. ``repeated``: true where all of them
    held the same, so that all but one were computed for nothing. ``products``: multiplications of its weights in linear
    layers and convolutions, forward.
    ``saved``: bytes that it keeps for backward; a tensor that several layers keep counts at the first one.
    ``saved_spikes``: how many of these are spikes, of a layer that is no neuron. ``rate``: the fraction of outputs that
    are spikes, of counts the fraction of the largest; None for a layer that gives other numbers. ``silent``,
    ``saturated``: the shares of its neurons that never fired, and that fired at every step of every sample.
    ``ranges``: of a layer that hardly ever fires, or nearly always, the least and the largest number of its input and
    of each state.
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
    words: Optional[float] = None
    floor: Optional[float] = None
    steps: int = 0
    repeated: bool = False
    products: int = 0
    saved: int = 0
    saved_spikes: int = 0
    rate: Optional[float] = None
    silent: Optional[float] = None
    saturated: Optional[float] = None
    ranges: Mapping[str, Tuple[float, float]] = field(default_factory=dict)
    notes: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation(Report):
    """Result of :func:`spikecore.explain`. ``str()`` gives a table with the advice below; notebooks show the same.

    ``layers``: a :class:`Layer` for each layer, in the order of the first call. ``advice``: sentences, the most
    valuable first. ``device``: where the network ran. ``training``: whether it went backward, too. ``read``: what the
    dimensions of the input were taken for.
    """

    layers: Tuple[Layer, ...]
    advice: Tuple[str, ...]
    device: str
    training: bool
    read: str = ""

    @property
    def saved(self) -> int:
        """Bytes that all layers keep for backward."""
        return sum(layer.saved for layer in self.layers)

    def _table(self) -> Table:
        advice, layers = self.advice, self.layers
        remarks = list(map(_remarks, layers))
        return Table(_HEADINGS, list(map(_cells, layers)), 6, self._legend(), remarks, advice, self.read)

    def _legend(self) -> List[str]:
        of: Dict[Tuple[str, str], List[str]] = {}
        for layer in self.layers:
            if layer.backend:
                of.setdefault((layer.backend, layer.reason), []).append(layer.name or "(net)")
        lines = []
        for (backend, reason), names in of.items():
            which = f" of {listed(names)}" if len(of) > 1 else ""
            lines.append(f"backend {backend}{which}: {reason}")
        if any(layer.floor is not None for layer in self.layers):
            passes = "forward and backward" if self.training else "forward"
            lines.append(f"words: numbers moved per time step and neuron, {passes}; floor: the least possible")
        if any(layer.silent is not None for layer in self.layers):
            lines.append("never, always: the neurons that fired at no step, and at every step, of this batch")
        if self.training:
            lines.append(f"saved: kept for backward, {size(self.saved)} in all; parameters and the input do not count")
        return lines


def _cells(layer: Layer) -> Tuple[str, ...]:
    calls = f" ({layer.calls} calls)" if layer.calls > 1 else ""
    same, shares = layer.layout_in == layer.layout_out, (layer.rate, layer.silent, layer.saturated)
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
        *(f"{100 * part:.1f} %" if part else "" if part is None else "0" for part in shares),
    )


def _remarks(layer: Layer) -> List[str]:
    repeated = f"computed {layer.steps} times for nothing: all time steps hold the same"
    width = max(map(len, layer.ranges), default=0)
    ranges = [f"{what:<{width}}  {low:.3g} to {high:.3g}" for what, (low, high) in layer.ranges.items()]
    return [*([repeated] if layer.repeated else []), *ranges, *layer.notes]
