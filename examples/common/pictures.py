"""Pictures of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Dict, List

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt


def draw_curves(curves: Dict[str, List[float]], path: Path, title: str) -> None:
    """Loss and accuracies over epochs. The axis of accuracies begins below the lowest one, at a multiple of 10 %."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), constrained_layout=True)
    epochs = range(1, len(curves["loss"]) + 1)
    # a line through one point is not seen
    marker = "o" if len(epochs) == 1 else None
    left.plot(epochs, curves["loss"], marker=marker)
    left.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    percent = {name: [100 * value for value in curves[name]] for name in ("training accuracy", "test accuracy")}
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
