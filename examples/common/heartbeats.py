"""Electrocardiograms as spikes: the QT database with its authors' preprocessing, and made-up data.

A heartbeat is a P wave, the QRS complex and a T wave; each time step belongs to one of six parts of it. Each of the two
leads has two channels. One spikes when the voltage has risen by a step, the other when it has fallen.

The files of the QT database are ``QTDB_train.mat`` and ``QTDB_test.mat`` (MATLAB 5) in ``experiments/ecg/data`` of the
repository AdaptiveAILab/brf-neurons (MIT): ``x [N, 1301, 4]`` with spikes, ``y [N, 1301, 6]`` with a 1 for the class.
The last step is a mark and is left out. A twelfth of the steps to train on and a tenth of those to test with have no
class, most of them at the beginning; the published accuracy counts them as the first class, P.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, List, NamedTuple, Tuple

import numpy as np
import torch
from torch import Tensor

from common.files import DataError, find, missing

#: The parts of a heartbeat, by class number.
CLASSES = ("P", "PQ", "QR", "RS", "ST", "TP")
CHANNELS = 4
FILES = ("QTDB_train.mat", "QTDB_test.mat")
#: What ``--data`` calls the heartbeats that need no file.
MADE_UP = "made-up"
WAY_OUT = (
    "Get both from experiments/ecg/data of https://github.com/AdaptiveAILab/brf-neurons (MIT) and name their folder "
    f"with --data, or take --data {MADE_UP}"
)


class Part(NamedTuple):
    """Sequences ``N`` of ``T`` steps: spikes ``[T, N, 4]``, class numbers ``[T, N]``, and which steps have a class."""

    spikes: Tensor
    labels: Tensor
    labelled: Tensor

    @property
    def number(self) -> int:
        """How many sequences."""
        return self.labels.shape[1]

    def of(self, rows: Any) -> Part:
        """Some of the sequences."""
        return Part(*(values[:, rows] for values in self))

    def to(self, device: str) -> Part:
        """All of it on a device."""
        return Part(*(values.to(device) for values in self))


class Heartbeats(NamedTuple):
    """Sequences to train on, and others to test with."""

    about: str
    training: Part
    test: Part


def load(where: str) -> Heartbeats:
    """The set of ``--data``: made up, or from the files of a folder. Raises DataError."""
    if where == MADE_UP:
        return Heartbeats("made-up heartbeats", made_up(96, seed=0), made_up(32, seed=1))
    folder = Path(where)
    found = find(list(FILES), [folder])
    if found is None:
        raise missing("The QT database", FILES, [folder], way_out=WAY_OUT)
    training, test = (read(found[name]) for name in FILES)
    return Heartbeats("the QT database", training, test)


def read(path: Path) -> Part:
    """One file of the QT database."""
    from scipy.io import loadmat

    try:
        content = loadmat(str(path))
        x, y = content["x"], content["y"]
    except Exception as error:  # what SciPy raises for a file that is cut short depends on where
        raise DataError(f"{path} cannot be read ({type(error).__name__}: {error}); get it again") from error
    sizes = (CHANNELS, len(CLASSES))
    if x.ndim != 3 or x.shape[1] < 2 or x.shape[:2] != y.shape[:2] or (x.shape[-1], *y.shape[2:]) != sizes:
        shapes = f"x {list(x.shape)} and y {list(y.shape)}"
        raise DataError(f"{path} must have x [N, T + 1, 4] and y [N, T + 1, 6]; it has {shapes}")
    x, y = x[:, :-1].swapaxes(0, 1), y[:, :-1].swapaxes(0, 1)
    return _part(x, y.argmax(-1), y.any(-1))


def made_up(number: int, seed: int, steps: int = 300) -> Part:
    """Heartbeats of a drawn length, with drawn heights of their waves, beginning anywhere."""
    draws = np.random.default_rng(seed)
    x, y = np.zeros((steps, number, CHANNELS)), np.zeros((steps, number), dtype=np.int64)
    for place in range(number):
        beat, rate = draws.integers(0, 10**6), draws.uniform(0.8, 1.25)
        voltage, part = _beats(np.random.default_rng(beat), rate, 2 * steps)
        begins = draws.integers(0, steps // 2)
        y[:, place] = part[begins : begins + steps]
        for lead, gain in enumerate((1.0, -0.6)):
            moved = np.diff(np.floor(gain * voltage[begins : begins + steps + 1] / 0.08))
            x[:, place, 2 * lead], x[:, place, 2 * lead + 1] = moved > 0, moved < 0
    return _part(x, y, np.ones_like(y, dtype=bool))


#: Of each part of a made-up heartbeat: its steps, and the voltage where it ends and at its middle.
SHAPES = ((20, 0.0, 0.25), (11, 0.0, 0.0), (9, 1.0, 0.3), (9, -0.2, 0.5), (46, 0.0, 0.35), (50, 0.0, 0.0))


def _beats(draws: np.random.Generator, rate: float, least: int) -> Tuple[np.ndarray, np.ndarray]:
    """The voltage of one heart, and the class number, for at least so many steps."""
    voltage: List[float] = []
    parts: List[int] = []
    while len(parts) <= least:
        last = 0.0
        for part, (steps, end, middle) in enumerate(SHAPES):
            length = max(3, round(steps * rate * draws.uniform(0.85, 1.15)))
            bend = draws.uniform(0.8, 1.2) * (middle - (last + end) / 2)
            for step in range(1, length + 1):
                along = step / length
                voltage.append(last + (end - last) * along + bend * math.sin(math.pi * along))
                parts.append(part)
            last = end
    return np.array(voltage), np.array(parts)


def _part(spikes: np.ndarray, labels: np.ndarray, labelled: np.ndarray) -> Part:
    # copies: the axes of what was read are in another order
    kept = (spikes.astype(np.float32), labels.astype(np.int64), labelled.astype(bool))
    return Part(*(torch.from_numpy(np.ascontiguousarray(values)) for values in kept))
