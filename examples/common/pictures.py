"""Pictures of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt


def draw_curves(curves: Dict[str, List[float]], path: Path, title: str, lowest: float = 0.0) -> None:
    """Loss and accuracies over epochs; ``lowest`` is the accuracy, in percent, where the axis begins."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), constrained_layout=True)
    epochs = range(1, len(curves["loss"]) + 1)
    # a line through one point is not seen
    marker = "o" if len(epochs) == 1 else None
    left.plot(epochs, curves["loss"], marker=marker)
    left.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    for name in ("training accuracy", "test accuracy"):
        label = f"{name}, last {curves[name][-1]:.1%}"
        right.plot(epochs, [100 * value for value in curves[name]], label=label, marker=marker)
    right.set(xlabel="epoch", ylabel="accuracy (%)", ylim=(lowest, 100.5))
    right.legend(loc="lower right")
    for axis in (left, right):
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    plt.close(figure)
