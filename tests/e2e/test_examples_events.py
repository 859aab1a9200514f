"""Event data: recordings in the formats of N-MNIST and DVS Gesture become frames, and moving digits events."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pytest
import torch

from programs import EXAMPLES, runner

#: Of one recording: x, y, t in microseconds, polarity.
Events = List[Tuple[int, int, int, int]]


@pytest.fixture(autouse=True)
def common(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the programs is where Python looks first, as when one runs."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.fixture
def tonic() -> Any:
    return pytest.importorskip("tonic", reason="tonic is not installed: the extra `events` needs Python 3.10")


def recording(seed: int, size: int, step: int = 1) -> Events:
    """Fifty events of increasing time, each time a multiple of ``step``."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 8000 // step, 50)) * step
    x, y, p = rng.integers(0, size, 50), rng.integers(0, size, 50), rng.integers(0, 2, 50)
    return list(zip(x.tolist(), y.tolist(), times.tolist(), p.tolist()))


def frames(events: Events, steps: int, size: int) -> torch.Tensor:
    """Counted one by one, in windows of equal whole length; what comes after the last window is left out."""
    first, last = events[0][2], events[-1][2]
    window = (last - first) // steps
    counted = torch.zeros(steps, 2, size, size)
    for x, y, t, p in events:
        if (t - first) // window < steps:
            counted[(t - first) // window, p, y, x] += 1
    return counted


def nmnist_bytes(events: Events) -> bytes:
    """Forty bits an event: x, y, polarity (1 bit), time (23 bits); the most significant bits first."""
    return b"".join((x << 32 | y << 24 | p << 23 | t).to_bytes(5, "big") for x, y, t, p in events)


def write_nmnist(folder: Path) -> List[Tuple[Events, int]]:
    """Two test recordings, of a 3 and a 7, and one to train on."""
    kept = []
    for place, (part, label) in enumerate((("Test", 3), ("Test", 7), ("Train", 0))):
        path = folder / "NMNIST" / part / str(label) / f"0000{place}.bin"
        path.parent.mkdir(parents=True)
        kept.append((recording(place, 34), label))
        path.write_bytes(nmnist_bytes(kept[-1][0]))
    return kept[:2]


def test_nmnist(tonic, tmp_path):
    """Files of five bytes an event: every event is counted in its frame, and the label is the folder's."""
    from common import events

    wanted = write_nmnist(tmp_path)
    sets = events.load("nmnist", 5, tmp_path)
    assert (sets.about, sets.shape, sets.classes) == ("N-MNIST", (5, 2, 34, 34), 10)
    assert [len(sets.training), len(sets.test)] == [1, 2]
    for (read, label), (written, right) in zip((sets.test[0], sets.test[1]), wanted):
        assert label == right
        assert read.dtype == torch.float32
        assert torch.equal(read, frames(written, 5, 34))


def test_dvs_gesture(tonic, tmp_path):
    """Arrays as tonic keeps them: x, y, polarity and milliseconds for each gesture, in the folder of its user."""
    from common import events

    for place, part in enumerate(("Train", "Test")):
        for user, label in (("user02_led", 10), ("user01_lab", 4)):
            folder = tmp_path / "DVSGesture" / f"ibmGesture{part}" / user
            folder.mkdir(parents=True)
            written = recording(label + place, 128, step=1000)
            array = np.array([(x, y, p, t // 1000) for x, y, t, p in written], dtype=np.float64)
            np.save(folder / f"{label}.npy", array)
    sets = events.load("dvsgesture", 3, tmp_path)
    assert (sets.shape, sets.classes) == ((3, 2, 128, 128), 11)
    assert [label for _, label in (sets.test[0], sets.test[1])] == [4, 10], "in the order of names, whatever the disk's"
    assert torch.equal(sets.test[1][0], frames(recording(11, 128, step=1000), 3, 128))


def test_moving_digits_are_events():
    """Zeros and ones, at each step some; what is nowhere drawn has none, and the labels are those of the digits."""
    from common import data, events

    sets = events.moving_digits(6)
    shown, labels = sets.training.tensors
    assert (sets.shape, tuple(shown.shape[1:])) == ((6, 2, 8, 8), (6, 2, 8, 8))
    assert shown.unique().tolist() == [0.0, 1.0]
    assert not (shown[:, :, 0] * shown[:, :, 1]).any(), "a pixel becomes darker or brighter"
    assert shown.sum((0, 2, 3, 4)).min() > 0
    assert torch.equal(labels, data.digits().training.tensors[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "nmnist"])
def test_the_program(name, tmp_path, monkeypatch, capsys, request):
    """It trains on either, end to end."""
    if name == "nmnist":
        request.getfixturevalue("tonic")
        write_nmnist(tmp_path)
    args = ["--data", name, "--out", str(tmp_path / "out"), "--epochs", "1", "--limit", "2"]
    args += [] if name == "digits" else ["--folder", str(tmp_path)]
    args += ["--T", "4", "--width", "4", "--batch-size", "1"]
    assert "test accuracy  " in runner(monkeypatch, capsys)("events.py", *args)
    assert (tmp_path / "out" / "best.safetensors").exists()
