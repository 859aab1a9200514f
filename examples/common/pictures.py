"""Pictures of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Dict, List, Sequence

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from torch import Tensor

import spikecore as sc


def draw_curves(curves: Dict[str, List[float]], path: Path, title: str) -> None:
    """Losses and accuracies over epochs, by the ends of their names; "loss" alone is that of training. The axis of
    accuracies begins below the lowest one, at a multiple of 10 %.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), constrained_layout=True)
    losses = {name: values for name, values in curves.items() if name.endswith("loss")}
    epochs = range(1, len(next(iter(losses.values()))) + 1)
    # a line through one point is not seen
    marker = "o" if len(epochs) == 1 else None
    for name, values in losses.items():
        left.plot(epochs, values, label=name, marker=marker)
    left.set(xlabel="epoch", ylabel="training loss" if len(losses) == 1 else "loss", ylim=(0, None))
    if len(losses) > 1:
        left.legend(loc="best")
    percent = {name: [100 * value for value in curves[name]] for name in curves if name.endswith("accuracy")}
    for name, values in percent.items():
        right.plot(epochs, values, label=f"{name}, last {values[-1]:.1f}%", marker=marker)
    lowest = max(0, 10 * math.floor((min(map(min, percent.values())) - 1) / 10))
    # a margin on both sides: a line at 0 or 100 % would lie on the frame
    right.set(xlabel="epoch", ylabel="accuracy (%)", ylim=(lowest - 0.5, 100.5))
    right.legend(loc="best")
    for axis in (left, right):
        if len(epochs) == 1:
            axis.set_xticks(epochs)
        else:
            axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_heartbeats(
    inputs: Tensor, hidden: Tensor, labels: Tensor, found: Tensor, classes: Sequence[str], path: Path
) -> None:
    """One sequence: spikes ``[T, 4]`` and ``[T, 36]``, and the class of each step, true and found, ``[T]``.

    A true class below 0 is none, and is white.
    """
    figure, (above, middle, below) = plt.subplots(
        3, 1, figsize=(11, 6.5), sharex=True, gridspec_kw={"height_ratios": (1.2, 4, 1.2)}, constrained_layout=True
    )
    for axis, spikes, name in ((above, inputs, "input channel"), (middle, hidden, "hidden neuron")):
        sc.plot.raster(spikes, ax=axis, label=name)
        axis.set(xlabel="", ylim=(spikes.shape[1] - 0.5, -0.5))
    above.set_yticks(range(inputs.shape[1]))
    colors = mpl.colormaps["Dark2"].colors
    for row, values in enumerate((labels, found)):
        begins = [0, *((values[1:] != values[:-1]).nonzero().flatten() + 1).tolist(), len(values)]
        for begin, end in zip(begins, begins[1:]):
            if values[begin] >= 0:
                below.barh(row, end - begin, left=begin, height=0.9, color=colors[int(values[begin])], linewidth=0)
    below.set(yticks=(0, 1), yticklabels=("true", "found"), ylim=(1.5, -0.5), xlim=(0, len(found)), xlabel="time step")
    patches = [mpl.patches.Patch(color=colors[place], label=name) for place, name in enumerate(classes)]
    above.legend(handles=patches, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=len(classes), frameon=False)
    known = labels >= 0
    middle.set_title(f"{hidden.mean().item():.1%} of the hidden neurons fire at a step", fontsize="medium")
    below.set_title(f"{(labels == found)[known].double().mean().item():.1%} of the steps right", fontsize="medium")
    figure.savefig(path, dpi=130)
    plt.close(figure)
