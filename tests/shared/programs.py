"""The programs of `examples/`, run in the process of the tests.

A program that ends well must have read every option that its command line gives: an option that is ignored is a fault.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Set

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


#: Functions that look at options without using them.
LOOKING = ("check", "settings", "parse_args")


class Read(argparse.Namespace):
    """Options, and the names of those that a program has read."""

    read: Set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        code = sys._getframe(1).f_code
        if code.co_filename.startswith(str(EXAMPLES)) and code.co_name not in LOOKING:
            Read.read.add(name)
        return super().__getattribute__(name)


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a program by its name and arguments; returns what it printed."""
    pytest.importorskip("safetensors", reason="the training programs need the extra `train`")
    monkeypatch.setenv("SPIKECORE_BLOCK", "numba,triton")
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(program: str, *args: str) -> str:
        monkeypatch.setattr(sys, "argv", [program, *args])
        monkeypatch.setattr(argparse, "Namespace", Read)
        monkeypatch.setattr(Read, "read", set())
        with warnings.catch_warnings():
            # torch 2.0's TensorBoard asks distutils for a version
            warnings.filterwarnings("ignore", "distutils Version classes", DeprecationWarning)
            runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        given = {arg[2:].replace("-", "_") for arg in args if arg.startswith("--")}
        assert given <= Read.read, f"{program} does not use {given - Read.read}"
        return capsys.readouterr().out

    return run


def points(folder: Path) -> Dict[str, List[int]]:
    """The steps of each scalar in the TensorBoard log of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [point.step for point in events.Scalars(name)] for name in events.Tags()["scalars"]}
