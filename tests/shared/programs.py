"""The programs of `examples/`, run in the process of the tests."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path
from typing import Callable, Dict, List

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a program by its name and arguments; returns what it printed."""
    pytest.importorskip("safetensors", reason="the training programs need the extra `train`")
    monkeypatch.setenv("SPIKECORE_BLOCK", "numba,triton")
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(program: str, *args: str) -> str:
        monkeypatch.setattr(sys, "argv", [program, *args])
        with warnings.catch_warnings():
            # torch 2.0's TensorBoard asks distutils for a version
            warnings.filterwarnings("ignore", "distutils Version classes", DeprecationWarning)
            runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        return capsys.readouterr().out

    return run


def points(folder: Path) -> Dict[str, List[int]]:
    """The steps of each scalar in the TensorBoard log of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [point.step for point in events.Scalars(name)] for name in events.Tags()["scalars"]}
