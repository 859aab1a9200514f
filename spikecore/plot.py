"""Pictures of spikes, potentials, firing rates and surrogate derivatives, by matplotlib.

Each function draws into ``ax``, a new one of a column's width without it, and returns it: title, limits and the file it
is saved to are the caller's. matplotlib is imported when a function is called. Tensors may lie on any device and have
graphs; what is drawn is a copy. ``[T, N]`` is one sequence; of ``[T, B, ...]`` the sample ``sample`` is drawn, its
dimensions as one. Time steps count from 0, as in ``spikes[t]``; with ``dt``, the length of a step in milliseconds, the
axis is in milliseconds.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.lang.render import on_one_line
from spikecore.surrogate import Surrogate

__all__ = ["raster", "rates", "surrogates", "traces"]
__dir__ = __all__.copy

#: Inches of a picture that fits one column of a paper.
_WIDTH, _HEIGHT = 3.5, 2.4
#: Neurons, and steps for each point of width, that are drawn one by one; of more, a pixel is the mean of several.
_ROWS, _STEPS_OF_POINT = 400, 6
#: Rows and columns of a picture of means.
_COARSE_ROWS, _COARSE_COLUMNS = 200, 400


def raster(
    spikes: Tensor,
    *,
    ax: Any = None,
    sample: int = 0,
    dt: Optional[float] = None,
    color: str = "black",
    label: str = "neuron",
) -> Any:
    """Raster of spikes: a tick for each spike, time steps on the horizontal axis, neurons on the vertical one.

    ``spikes``: ``[T, N]``, or ``[T, B, ...]`` of which ``sample`` is drawn. Whatever is not 0 is a spike; one below 0
    (of ternary neurons) is red. Of more than 400 neurons, or 6 steps for each point of width (1/72 inch), means over
    neighbouring neurons and steps are drawn in grey, spikes per time step and neuron, with a scale beside them: 10,000
    neurons stay quick and readable. ``label`` names the vertical axis.

    Raises TypeError for something that is no tensor, ValueError for fewer than two dimensions, IndexError for a sample
    that is not there, and ImportError without matplotlib.
    """
    x, unit = _sequence("spikes", spikes, sample), _step(dt)
    ax = _axes(ax)
    steps, neurons = x.shape
    points = float(72 * ax.figure.get_size_inches()[0] * ax.get_position().width)
    if neurons > _ROWS or steps > _STEPS_OF_POINT * points:
        _draw_means(ax, x, unit)
    else:
        width = min(3.0, max(0.5, 0.5 * points / max(1, steps)))
        for which, colour in ((x > 0, color), (x < 0, "tab:red")):
            times, places = (index.numpy() for index in which.nonzero(as_tuple=True))
            ax.vlines(unit * times, places - 0.42, places + 0.42, colors=colour, linewidths=width)
    ax.set(ylabel=label, xlim=(-0.5 * unit, (max(1, steps) - 0.5) * unit), ylim=(-0.5, max(1, neurons) - 0.5))
    _name_time(ax, dt)
    return ax


def traces(
    values: Tensor,
    *,
    ax: Any = None,
    sample: int = 0,
    neurons: Union[int, Sequence[int]] = 4,
    spikes: Optional[Tensor] = None,
    threshold: Optional[float] = None,
    dt: Optional[float] = None,
    label: str = "membrane potential",
) -> Any:
    """States of a few neurons over time, such as the potentials ``seen["1"].v`` of :func:`spikecore.monitor`.

    ``values``: ``[T, N]``, or ``[T, B, ...]`` of which ``sample`` is drawn. ``neurons``: how many, the first ones, or
    the indices of those to draw. ``spikes``, of the shape of ``values``: a dot above the curves wherever a neuron
    fires, since a potential that is reset does not show it. ``threshold``: a dashed line. ``label`` names the vertical
    axis; potentials are in the units of the neuron's threshold.

    Raises TypeError for something that is no tensor, ValueError for fewer than two dimensions or spikes of another
    shape, IndexError for a sample or neuron that is not there, and ImportError without matplotlib.
    """
    x, unit = _sequence("values", values, sample), _step(dt)
    if spikes is not None and spikes.shape != values.shape:
        raise ValueError(f"spikes has shape {list(spikes.shape)}, values has {list(values.shape)}; give equal shapes")
    chosen = list(range(min(neurons, x.shape[1]))) if isinstance(neurons, int) else list(neurons)
    fired = None if spikes is None else _sequence("spikes", spikes, sample)
    ax = _axes(ax)
    times = unit * torch.arange(x.shape[0], dtype=torch.float64, device="cpu")
    least, top = (float(end) for end in x[:, chosen].aminmax()) if x.shape[0] and chosen else (0.0, 1.0)
    top = top if threshold is None else max(top, threshold)
    height = (top - min(least, top)) or 1.0
    for row, neuron in enumerate(chosen):
        (line,) = ax.plot(times.numpy(), x[:, neuron].numpy(), linewidth=1, label=f"neuron {neuron}")
        if fired is not None:
            at = fired[:, neuron].nonzero()[:, 0]
            level = top + (0.06 + 0.05 * row) * height
            ax.plot(times[at].numpy(), [level] * len(at), ".", markersize=4, color=line.get_color())
    if threshold is not None:
        ax.axhline(threshold, linestyle="--", linewidth=0.8, color="0.4", label="threshold")
    ax.set(ylabel=label)
    ax.margins(x=0.01)
    _name_time(ax, dt)
    if 0 < len(chosen) <= 8:
        _legend(ax, "lower center", (0.5, 1.0), columns=3)
    return ax


def rates(seen: Any, *, ax: Any = None) -> Any:
    """Plot of firing rates: of a record of :func:`spikecore.monitor`, one row for each layer; of one layer, a
    histogram.

    ``seen``: what the monitor gave. A bar is the mean rate of a layer, in spikes per time step and neuron; a line goes
    from the 5th to the 95th percentile of its neurons; the share of neurons that never fired stands beside it. A
    mapping of names to rates of neurons does as well. Of a tensor with the rate of each neuron, such as
    ``seen["1"].rates``, how many neurons have which rate is drawn.

    Raises TypeError for anything else, and ImportError without matplotlib.
    """
    if isinstance(seen, Tensor):
        return _draw_histogram(_plain(seen).flatten(), _axes(ax))
    named = {name: seen[name].rates for name in seen.rates} if hasattr(seen, "layers") else seen
    if not isinstance(named, Mapping) or not all(isinstance(value, Tensor) for value in named.values()):
        raise TypeError(f"rates takes what sc.monitor gave, or tensors of rates, got {type(seen).__name__}")
    ax = _axes(ax, _WIDTH, max(_HEIGHT, 0.7 + 0.28 * len(named)))
    for row, value in enumerate(named.values()):
        each = _plain(value).flatten().double()
        if not each.numel():
            continue
        low, high = (float(torch.quantile(_thinned(each), q)) for q in (0.05, 0.95))
        ax.barh(row, float(each.mean()), height=0.6, color="tab:blue", alpha=0.6)
        ax.hlines(row, low, high, colors="black", linewidths=1.2)
        silent = float((each == 0).double().mean())
        text = f"{100 * silent:.0f} % silent" if silent else "none silent"
        ax.annotate(text, (max(high, float(each.mean())), row), (4, 0), textcoords="offset points", va="center", size=7)
    ax.set(xlabel="spikes per time step", ylabel="layer", ylim=(max(1, len(named)) - 0.5, -0.5))
    ax.set_yticks(range(len(named)), list(map(_literal, named)))
    ax.set_xlim(0, 1.25 * ax.get_xlim()[1])  # space for the labels
    return ax


def surrogates(*which: Surrogate, ax: Any = None, span: Tuple[float, float] = (-2.0, 2.0), points: int = 801) -> Any:
    """Surrogate derivatives over the potential minus the threshold, a curve for each of ``which``.

    ::

        sc.plot.surrogates(sc.surrogate.ATan(), sc.surrogate.Triangular())

    ``span``: the range of ``u`` that is drawn, at ``points`` values. Raises ImportError without matplotlib.
    """
    many = len(which) > 4
    ax = _axes(ax, *((_WIDTH + 2.2, max(_HEIGHT, 0.16 * len(which) + 0.6)) if many else (_WIDTH, _HEIGHT + 0.5)))
    u = torch.linspace(float(span[0]), float(span[1]), points, dtype=torch.float64, device="cpu")
    styles = ("-", "--", ":", "-.")
    for place, surrogate in enumerate(which):
        height = torch.as_tensor(surrogate.derivative(u), dtype=torch.float64, device="cpu").detach().expand_as(u)
        label = type(surrogate).__name__ if repr(surrogate).startswith("<") else repr(surrogate)
        ax.plot(u.numpy(), height.numpy(), styles[place // 10 % len(styles)], linewidth=1.2, label=_literal(label))
    ax.set(xlabel="potential minus threshold, u", ylabel="surrogate derivative", xlim=span)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    _legend(ax, "center left" if many else "lower center", (1.0, 0.5) if many else (0.5, 1.0))
    return ax


def _draw_means(ax: Any, x: Tensor, unit: float) -> None:
    steps, neurons = x.shape
    rows, columns = math.ceil(neurons / _COARSE_ROWS), math.ceil(steps / _COARSE_COLUMNS)
    padded = torch.zeros(columns * math.ceil(steps / columns), rows * math.ceil(neurons / rows), dtype=torch.float32)
    real = torch.zeros_like(padded)
    padded[:steps, :neurons], real[:steps, :neurons] = (x != 0).float(), 1.0
    shape = (padded.shape[0] // columns, columns, padded.shape[1] // rows, rows)
    means = padded.reshape(shape).sum((1, 3)) / real.reshape(shape).sum((1, 3))
    extent = (-0.5 * unit, (padded.shape[0] - 0.5) * unit, -0.5, padded.shape[1] - 0.5)
    # a few bursts must not make all others invisible
    most = float(torch.quantile(_thinned(means.flatten().double()), 0.995)) or 1.0
    grey = {"cmap": "Greys", "vmin": 0, "vmax": most, "interpolation": "nearest"}
    image = ax.imshow(means.T.numpy(), aspect="auto", origin="lower", extent=extent, **grey)
    ax.figure.colorbar(image, ax=ax, label="spikes per step and neuron")


def _draw_histogram(each: Tensor, ax: Any) -> Any:
    high = max(float(each.max()), 1e-3) if each.numel() else 1.0
    ax.hist(each.numpy(), bins=40, range=(0.0, high), color="tab:blue", alpha=0.8)
    if each.numel():
        ax.axvline(float(each.mean()), color="black", linewidth=1, label=f"mean {float(each.mean()):.3g}")
        ax.legend(fontsize="x-small", frameon=False)
    ax.set(xlabel="spikes per time step", ylabel="neurons")
    return ax


def _axes(ax: Any, width: float = _WIDTH, height: float = _HEIGHT) -> Any:
    """The axes to draw into: those given, or new ones."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("sc.plot draws by matplotlib, which is not installed: pip install matplotlib") from error
    return plt.subplots(figsize=(width, height), constrained_layout=True)[1]


def _literal(name: str) -> str:
    """A name as matplotlib shows it as it is: between two ``$`` it would be read as mathematics."""
    return on_one_line(name).replace("$", r"\$")


def _legend(ax: Any, corner: str, place: Tuple[float, float], columns: int = 1) -> None:
    """A legend beside the curves, which it would hide."""
    ax.legend(fontsize="x-small", frameon=False, ncol=columns, loc=corner, bbox_to_anchor=place)


def _sequence(argument: str, value: Any, sample: int) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{argument} must be a tensor [T, N] or [T, B, ...], got {type(value).__name__}")
    if value.ndim < 2:
        raise ValueError(f"{argument} must be [T, N] or [T, B, ...], got shape {list(value.shape)}")
    return _plain(value[:, sample].flatten(1) if value.ndim > 2 else value)


def _plain(value: Tensor) -> Tensor:
    value = value.detach().cpu()
    return value.float() if value.dtype in (torch.bool, torch.float16, torch.bfloat16) else value


def _thinned(values: Tensor) -> Tensor:
    """At most a million of the values: torch.quantile takes no more than sixteen."""
    return values[:: max(1, -(-values.numel() // 1_000_000))]


def _step(dt: Optional[float]) -> float:
    if dt is not None and not dt > 0:
        raise ValueError(f"dt={dt!r} must be the length of a time step in milliseconds, above 0")
    return 1.0 if dt is None else float(dt)


def _name_time(ax: Any, dt: Optional[float]) -> None:
    ax.set_xlabel("time step" if dt is None else "time (ms)")
    if dt is None:
        ax.xaxis.get_major_locator().set_params(integer=True)
