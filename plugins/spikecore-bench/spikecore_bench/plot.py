"""A report as a picture: what of the roofline is reached, and bars of the rest. Needs matplotlib."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Tuple

from spikecore_bench.report import MEASURED, Fact, Report, Row
from spikecore_bench.settings import FIELD

HOW_TO_GET = "a plot needs matplotlib: pip install 'spikecore[train]'"


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files. Raises ModuleNotFoundError that says how to get it."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(HOW_TO_GET) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot as module

    return module


def check_suffix(path: Path) -> None:
    """Raise ValueError for a path whose suffix is no format of a picture, and what :func:`pyplot` raises."""
    known = pyplot().figure().canvas.get_supported_filetypes()
    pyplot().close()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise ValueError(f"{path}: {path.suffix!r} is no format of a picture; there are: {', '.join(sorted(known))}")


def plot(report: Report, path: Path) -> None:
    """Write the picture; the suffix of the path says in which format."""
    figure = figure_of(report)
    figure.savefig(path, dpi=130)
    pyplot().close(figure)


def figure_of(report: Report) -> Any:
    """The picture, as matplotlib has it."""
    panels: List[Tuple[str, str, List[Row]]] = []
    neurons: Dict[str, List[Row]] = {}
    for row in report.of("neurons"):
        neurons.setdefault(f"{row.case['neuron']} {row.case['dtype']}", []).append(row)
    panels += [("fractions", title, _measured(rows)) for title, rows in neurons.items()]
    for suite in ("small", "networks", *FIELD):
        panels += [(suite, _title(case), _measured(rows)) for case, rows in report.cases(suite)]
    panels = [panel for panel in panels if panel[2]]
    module = pyplot()
    across = min(3, max(1, len(panels)))
    down = max(1, -(-len(panels) // across))
    height = max([3.4, *(0.2 * len(rows) for _, _, rows in panels)])
    figure, axes = module.subplots(down, across, figsize=(5.2 * across, height * down), squeeze=False)
    colours: Dict[str, Any] = {}
    for ax, panel in zip(axes.flat, panels):
        _DRAW[panel[0]](ax, panel[1], panel[2], colours)
    for ax in list(axes.flat)[len(panels) :]:
        ax.set_visible(False)
    machine = report.machine
    title = f"spikecore {machine['spikecore']} on {machine['device_name']}, torch {machine['torch']}"
    figure.suptitle(title, fontsize="large" if across > 1 else "small")
    # colours mean the same in all panels, so one legend serves them all, below, where it covers no point
    lines = {label: line for ax in axes.flat for line, label in zip(*ax.get_legend_handles_labels())}
    columns = 2 * across
    below = 0.25 * -(-len(lines) // columns) / figure.get_figheight()
    if lines:
        figure.legend(lines.values(), lines.keys(), loc="lower center", ncol=columns, fontsize=8, frameon=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a panel too small for its labels is drawn all the same
        figure.tight_layout(rect=(0.0, below, 1.0, 1.0))
    return figure


def _measured(rows: List[Row]) -> List[Row]:
    return [row for row in rows if row.status in MEASURED]


def _title(case: Mapping[str, Fact]) -> str:
    if "network" in case:
        return f"{case['network']}: {case['dtype']}, T={case['steps']}, B={case['batch']}"
    return f"{case['neuron']} {case['dtype']}, T={case['steps']}, N={case['neurons']}"


def _colour(name: str, colours: Dict[str, Any]) -> Any:
    """One of twenty, the ten strong ones first."""
    k = len(colours)
    return colours.setdefault(name, pyplot().colormaps["tab20"](2 * (k % 10) + k // 10 % 2))


def _fractions(ax: Any, title: str, rows: List[Row], colours: Dict[str, Any]) -> None:
    lines: Dict[str, List[Tuple[Any, float]]] = {}
    for row in rows:
        if "training_fraction" in row.figures and row.implementation != "copy":
            lines.setdefault(row.implementation, []).append((row.case["steps"], row.figures["training_fraction"]))
    for name, points in lines.items():
        ax.plot(*zip(*points), marker="o", label=name, color=_colour(name, colours))
    steps: List[Any] = sorted({row.case["steps"] for row in rows if row.case["steps"] is not None})
    ax.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
    ax.set_xscale("log", base=2)
    ax.set_xticks(steps, [str(one) for one in steps])
    ax.set_ylim(0.0, 1.05 * max([1.0, *(fraction for points in lines.values() for _, fraction in points)]))
    ax.set(title=title, xlabel="time steps", ylabel="forward + backward,\nfraction of a copy")


def _small(ax: Any, title: str, rows: List[Row], colours: Dict[str, Any]) -> None:
    rows = rows[::-1]
    names = [row.implementation for row in rows]
    # points, since a bar has no beginning on a logarithmic axis
    _points(ax, names, [row.figures["training_ms"] for row in rows], [_colour(name, colours) for name in names])
    ax.margins(x=0.25, y=0.15)
    ax.set(title=title, xlabel="forward + backward, ms per call")


def _networks(ax: Any, title: str, rows: List[Row], colours: Dict[str, Any]) -> None:
    rows = rows[::-1]
    names, values = [row.implementation for row in rows], [row.figures["step_ms"] for row in rows]
    bars = ax.barh(names, values, color=[_colour(name, colours) for name in names])
    ax.bar_label(bars, [f"{value:.3g}" for value in values], padding=2, fontsize=7)
    ax.margins(x=0.15)
    ax.tick_params(axis="y", labelsize=7)
    ax.set(title=title, xlabel="training step, ms")


def _bounded(kind: str, label: str, ax: Any, title: str, rows: List[Row], colours: Dict[str, Any]) -> None:
    """Times as points, and a line at the bound of the arithmetic. Forms of an implementation have its colour."""
    bound = rows[0].figures[f"{kind}_bound_ms"]
    rows = sorted(rows, key=lambda row: -row.figures[f"{kind}_ms"])
    names = [row.implementation + (" *" if row.status == "differs" else "") for row in rows]
    values = [row.figures[f"{kind}_ms"] for row in rows]
    # at least twice the bound, so that hundredths do not look like much; behind the last point there is its number
    ax.set_xlim(0.85 * bound, max(2.0 * bound, *values) * (max(values) / bound) ** 0.25)
    _points(ax, names, values, [_colour(row.implementation.partition(", ")[0], colours) for row in rows])
    ax.axvline(bound, color="black", linewidth=0.9, linestyle="--", label="bound of the arithmetic")
    if any(row.status == "differs" for row in rows):
        ax.plot([], [], " ", label="* another equation, or other numbers")
    ax.set(xlabel=f"{label}, ms")
    ax.set_title(title, fontsize=10)


def _points(ax: Any, names: List[str], values: List[float], colours: List[Any]) -> None:
    """Times as points with their numbers on a logarithmic axis."""
    ax.scatter(values, names, color=colours)
    for name, value in zip(names, values):
        written = f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:,.0f}"
        ax.annotate(written, (value, name), textcoords="offset points", xytext=(7, -3), fontsize=7)
    _logarithmic(ax)
    ax.grid(axis="x", linewidth=0.3)
    ax.tick_params(axis="y", labelsize=7)


_DRAW: Dict[str, Callable[[Any, str, List[Row], Dict[str, Any]], None]] = {
    "fractions": _fractions,
    "small": _small,
    "networks": _networks,
    FIELD[0]: partial(_bounded, "training", "forward + backward"),
    FIELD[1]: partial(_bounded, "step", "training step"),
}


def _logarithmic(ax: Any) -> None:
    """A logarithmic axis with some labels, which do not overlap: one in a decade where there are more than two."""
    from matplotlib import ticker

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,), numticks=8))
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())
