"""Pictures of the gallery: what a neuron answers to a step of current, and the derivative of a surrogate.

Each is SVG text that stands in the page itself: lines and letters have the colour of the page's text, so that one
picture serves light and dark pages.
"""

from __future__ import annotations

import io
import re
from contextlib import suppress
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

import spikecore as sc

#: Blue, orange, green and grey that are legible on white and on black.
COLOURS = ("#3d85c6", "#e08214", "#4d9221", "#888888")
STEPS, ON, OFF = 100, 10, 80
#: Inputs that are tried, the smallest first, until a neuron fires at least :data:`ENOUGH` times.
CURRENTS = (0.25, 0.5, 0.75, 1.0, 1.05, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 40.0)
ENOUGH = 4


class Answer(NamedTuple):
    """Answer of a neuron to a step of current."""

    module: Any
    #: What it is, in words.
    about: str
    current: float
    #: The input and the states, ``[STEPS]`` each.
    traces: Dict[str, torch.Tensor]
    #: The output where it is spikes.
    spikes: Optional[torch.Tensor]


def _with_weight(module: Any, weight: nn.Parameter, value: float) -> Any:
    nn.init.constant_(weight, value)
    return module


def _recurrent() -> Any:
    linear = nn.Linear(1, 1, bias=False)
    return _with_weight(sc.Recurrent(sc.LIF(), linear), linear.weight, -0.5)


def _normalised() -> Any:
    norm = nn.BatchNorm1d(1)
    return _with_weight(sc.layers.NormNeuron(norm, sc.LIF()), norm.weight, 2.0)


#: What is drawn of a class that is no neuron by itself, or has an argument without a default; and what it is, in words.
DRAWN: Dict[str, Tuple[Callable[[], Any], str]] = {
    "stochastic.EscapeNoise": (sc.stochastic.EscapeNoise, "EscapeNoise with its defaults"),
    "Recurrent": (_recurrent, "LIF whose spikes come back with the weight -0.5"),
    "layers.NormNeuron": (_normalised, "LIF behind a normalisation of weight 2 in training"),
    "layers.PSN": (lambda: sc.layers.PSN(STEPS), "PSN with random weights, as it begins"),
    "DHLIF": (lambda: sc.DHLIF(branches=2, w_branch=[0.0, 4.0]), "DHLIF of a fast branch and a slow one"),
    "SpikingSSM": (lambda: sc.SpikingSSM(n=3), "SpikingSSM of 3 states"),
    "layers.SlidingPSN": (lambda: sc.layers.SlidingPSN(8), "SlidingPSN(8) with the weights that it begins with"),
}

#: Inputs of what has several; the first gets the current, the others are 0.
INPUTS: Dict[str, Sequence[str]] = {"CobaLIF": ("e", "i")}


def answer(path: str) -> Answer:
    """A current that the class of this path below ``sc`` fires at, and what it does with it."""
    make, about = DRAWN.get(path) or (lambda: sc.neurons.example(path), f"{path} with its defaults")
    for current in CURRENTS:
        x = torch.zeros(STEPS, 1, 1)
        x[ON:OFF] = current
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            module = make()
            output, traces = _run(module, x)
        spiking = bool(((output == 0) | (output.abs() == 1)).all())
        if not spiking or int((output[ON:OFF] != 0).sum()) >= ENOUGH:
            traces = {"x": x, **traces}
            flat = {name: value.reshape(STEPS) for name, value in traces.items()}
            return Answer(module, about, current, flat, output.reshape(STEPS) if spiking else None)
    raise ValueError(f"{path} does not fire at any of the inputs {CURRENTS}: add a larger one")


def _run(module: Any, x: torch.Tensor) -> Tuple[torch.Tensor, Dict[str, torch.Tensor]]:
    """The output of a neuron, and its states; of one that sums over time what it compares with the threshold."""
    if isinstance(getattr(module, "fire", None), nn.Module):
        traces: Dict[str, torch.Tensor] = {}
        module.fire.register_forward_pre_hook(lambda _, inputs: traces.update(h=inputs[0]))
        return module(x), traces
    neuron = getattr(module, "neuron", module)
    if isinstance(type(neuron).inputs, dict):  # a vector
        x = x.unsqueeze(-1).expand(*x.shape, len(neuron.inputs))
    others = [torch.zeros_like(x)] * (len(INPUTS.get(type(neuron).__name__, "x")) - 1)
    output, _, traces = module.run(x, *others, record=tuple(neuron.states))
    apart = {name: value.unbind(-1) for name, value in traces.items() if name in neuron.vectors}
    each = {f"{name}[{k}]": part for name, parts in apart.items() for k, part in enumerate(parts)}
    return output, {**{name: value for name, value in traces.items() if name not in apart}, **each}


def fires(shown: Answer) -> str:
    """The name of what fires: the potential, or else the first state."""
    return next((name for name in ("v", "h") if name in shown.traces), [*shown.traces][1])


def _figure(rows: int, heights: List[float]) -> Tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update(
        {
            "svg.fonttype": "none", "svg.hashsalt": "spikecore", "font.size": 9, "font.family": "sans-serif",
            "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "path.simplify": True,
        }
    )  # fmt: skip
    size = (4.6, 0.5 + sum(heights))
    figure, axes = plt.subplots(
        rows, 1, sharex=True, figsize=size, height_ratios=heights, squeeze=False, constrained_layout=True
    )
    return figure, axes[:, 0]


def _svg(figure: Any, label: str) -> str:
    from matplotlib import pyplot as plt

    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = re.sub(r"<metadata>.*?</metadata>", "", file.getvalue()[file.getvalue().index("<svg") :], flags=re.DOTALL)
    # matplotlib writes black where the page's own colour is meant, and leaves text without a colour
    text = re.sub(r"(fill|stroke): #000000", r"\1: currentColor", text)
    text = re.sub(r"font: (\S+) [^;]*;", r"font: \1 sans-serif; fill: currentColor;", text)
    head = re.sub(r' (width|height)="[^"]*"', "", text[: text.index(">")], flags=re.DOTALL)
    return head.replace("<svg", f'<svg role="img" aria-label="{label}"', 1) + text[text.index(">") :]


def of_neuron(shown: Answer) -> str:
    """The states of a neuron during a step of current, its spikes as lines above."""
    names = list(shown.traces)
    figure, axes = _figure(len(names), [0.45, *[0.95 for _ in names[1:]]])
    firing = fires(shown)
    for name, axis in zip(names, axes):
        axis.set_ylabel(name)
        if name == "x":
            axis.step(range(STEPS), shown.traces[name], where="post", color=COLOURS[1], linewidth=1.2)
            continue
        axis.plot(range(STEPS), shown.traces[name], color=COLOURS[0], linewidth=1.2)
        if name == firing and shown.spikes is not None:
            top = axis.get_ylim()[1]
            fired = shown.spikes.nonzero()[:, 0].tolist()
            axis.vlines(fired, top, top + 0.25 * (top - axis.get_ylim()[0]), color=COLOURS[2], linewidth=1.2)
            neuron = getattr(shown.module, "neuron", shown.module)
            if "threshold" in getattr(neuron, "params", ()):
                axis.axhline(float(neuron.threshold), color=COLOURS[3], linewidth=0.8, linestyle=":")
    axes[-1].set_xlabel("time step")
    axes[-1].set_xlim(0, STEPS)
    return _svg(figure, f"{shown.about}: its answer to an input of {shown.current:g} from step {ON} to {OFF}")


def of_surrogate(surrogate: Any) -> str:
    """The derivative of a surrogate around the threshold, and its primitive where it has one."""
    u, slope = _slope(surrogate)
    figure, (axis,) = _figure(1, [1.5])
    axis.plot(u, slope, color=COLOURS[0], linewidth=1.4, label="derivative")
    with suppress(NotImplementedError):  # some have none in closed form
        axis.plot(u, surrogate.primitive(u), color=COLOURS[1], linewidth=1.0, linestyle="--", label="primitive")
    axis.set_xlabel("u: potential minus threshold")
    axis.set_ylim(min(0.0, axis.get_ylim()[0]), None)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return _svg(figure, f"Derivative of {surrogate!r}")


def _slope(surrogate: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    u = torch.linspace(-2.0, 2.0, 401, dtype=torch.float64)
    return u, torch.as_tensor(surrogate.derivative(u), dtype=torch.float64).expand_as(u)


#: Size of a picture on a card, and the space above that spikes have.
WIDTH, HEIGHT, ABOVE = 160, 70, 16


def _points(values: Sequence[float], low: float, high: float, top: float) -> str:
    """Values from ``low`` to ``high`` as the points of a line between ``top`` and the bottom of a card."""
    scale = (HEIGHT - 2 - top) / (high - low if high > low else 1.0)
    step = WIDTH / (len(values) - 1)
    return " ".join(f"{k * step:.1f},{HEIGHT - 1 - (value - low) * scale:.1f}" for k, value in enumerate(values))


def _small(inside: str) -> str:
    return f'<svg class="small" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{inside}</svg>'


def _line(points: str) -> str:
    return f'<polyline points="{points}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.5"/>'


def small_neuron(shown: Answer) -> str:
    """Potential of a neuron that fires, with the spikes above."""
    values = shown.traces[fires(shown)].tolist()
    fired = [] if shown.spikes is None else shown.spikes.nonzero()[:, 0].tolist()
    places = [f"M{k * WIDTH / (STEPS - 1):.1f} 1V{ABOVE - 5}" for k in fired]
    spikes = f'<path d="{"".join(places)}" stroke="{COLOURS[2]}" stroke-width="1.5"/>' if places else ""
    return _small(spikes + _line(_points(values, min(values), max(values), ABOVE)))


def small_surrogate(surrogate: Any) -> str:
    """The derivative, with the threshold as a line."""
    values = _slope(surrogate)[1][::4].tolist()
    middle = f'<path d="M{WIDTH / 2} 1V{HEIGHT}" stroke="{COLOURS[3]}" stroke-dasharray="2 3"/>'
    return _small(middle + _line(_points(values, min(0.0, *values), max(values), 1)))
