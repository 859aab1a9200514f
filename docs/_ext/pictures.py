"""Pictures of the gallery: what a neuron answers to a step of current, and the derivative of a surrogate.

Each is SVG text that stands in the page itself: lines and letters have the colour of the page's text, so that one
picture serves light and dark pages.
"""

from __future__ import annotations

import io
import re
from contextlib import suppress
from typing import Any, Dict, List, Tuple

import torch

#: Blue, orange and green that are legible on white and on black.
COLOURS = ("#3d85c6", "#e08214", "#4d9221", "#c51b8a")
STEPS, ON, OFF = 100, 10, 80
#: Inputs that are tried, the smallest first, until a neuron fires at least :data:`ENOUGH` times.
CURRENTS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 40.0)
ENOUGH = 4


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

    held = io.StringIO()
    figure.savefig(held, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = re.sub(r"<metadata>.*?</metadata>", "", held.getvalue()[held.getvalue().index("<svg") :], flags=re.DOTALL)
    # matplotlib writes black where the page's own colour is meant, and leaves text without a colour
    text = re.sub(r"(fill|stroke): #000000", r"\1: currentColor", text)
    text = re.sub(r"font: (\S+) [^;]*;", r"font: \1 sans-serif; fill: currentColor;", text)
    return re.sub(r'<svg ([^>]*?)width="[^"]*"', f'<svg role="img" aria-label="{label}" \\1', text, count=1).replace(
        re.search(r' height="[^"]*"', text).group(),
        "",
        1,  # type: ignore[union-attr]
    )


def response(neuron: Any) -> Tuple[float, Dict[str, torch.Tensor]]:
    """A current that the neuron fires at, and what it does with it: outputs and states, ``[T]`` each."""
    for current in CURRENTS:
        x = torch.zeros(STEPS, 1)
        x[ON:OFF] = current
        # what a neuron draws itself is the last of its inputs
        given = len(neuron.inputs) - len(getattr(neuron, "drawn", ()))
        inputs = [x if k == 0 else torch.zeros_like(x) for k in range(given)]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            out, _, trace = neuron.run(*inputs, record=tuple(neuron.states))
        first = out[0] if isinstance(out, tuple) else out
        spiking = bool(((first == 0) | (first.abs() == 1)).all())
        if not spiking or int((first[ON:OFF] != 0).sum()) >= ENOUGH:
            break
    else:
        raise ValueError(f"{type(neuron).__name__} does not fire at any of the inputs {CURRENTS}: add a larger one")
    seen = {"input": x[:, 0]}
    seen.update({name: value.reshape(STEPS) for name, value in trace.items()})
    if spiking:
        seen["spikes"] = first[:, 0]
    return current, seen


def of_neuron(neuron: Any) -> Tuple[str, float]:
    """The states of a neuron during a step of current, its spikes as lines above; and the current."""
    current, seen = response(neuron)
    spikes = seen.pop("spikes", None)
    names = list(seen)
    figure, axes = _figure(len(names), [0.45, *[0.95 for _ in names[1:]]])
    fires = "v" if "v" in names else names[1]
    for name, axis in zip(names, axes):
        if name == "input":
            axis.step(range(STEPS), seen[name], where="post", color=COLOURS[1], linewidth=1.2)
            axis.set_ylabel("x")
            continue
        axis.plot(range(STEPS), seen[name], color=COLOURS[0], linewidth=1.2)
        axis.set_ylabel(name)
        if name == fires and spikes is not None:
            top = axis.get_ylim()[1]
            fired = spikes.nonzero()[:, 0].tolist()
            axis.vlines(fired, top, top + 0.25 * (top - axis.get_ylim()[0]), color=COLOURS[2], linewidth=1.2)
            if "threshold" in neuron.params:
                axis.axhline(float(neuron.threshold), color="#888888", linewidth=0.8, linestyle=":")
    axes[-1].set_xlabel("time step")
    axes[-1].set_xlim(0, STEPS)
    kind = type(neuron).__name__
    return _svg(figure, f"What {kind} does with an input of {current:g} from step {ON} to {OFF}"), current


def of_surrogate(surrogate: Any) -> str:
    """The derivative of a surrogate around the threshold, and its primitive where it has one."""
    u = torch.linspace(-2.0, 2.0, 401, dtype=torch.float64)
    figure, (axis,) = _figure(1, [1.5])
    slope = torch.as_tensor(surrogate.derivative(u), dtype=torch.float64).expand_as(u)
    axis.plot(u, slope, color=COLOURS[0], linewidth=1.4, label="derivative")
    with suppress(NotImplementedError):  # some have none in closed form
        axis.plot(u, surrogate.primitive(u), color=COLOURS[1], linewidth=1.0, linestyle="--", label="primitive")
    axis.set_xlabel("u: potential minus threshold")
    axis.set_ylim(min(0.0, axis.get_ylim()[0]), None)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return _svg(figure, f"Derivative of {surrogate!r}")
