"""The main job: the digits example runs, learns, repeats itself, and shows what it did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def start(out: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--epochs", "2", "--out", str(out), *args]
    # automatic choice of built-ins, whatever is installed beside them
    env = {**os.environ, "SPIKECORE_BLOCK": "numba,triton", **environ}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def run(out: Path, *args: str) -> str:
    done = start(out, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracy(text: str) -> float:
    return float(re.search(r"test accuracy\s+([\d.]+)%", text).group(1))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("demo")
    return run(out), out


def test_two_epochs_learn_something(first):
    """After two epochs far more digits are right than the tenth that guessing gets."""
    assert accuracy(first[0]) > 40


def test_it_says_which_backend_ran_and_why(first):
    """The last lines name the backend and who chose it."""
    assert "backend        torch on cpu (auto: the built-in for cpu tensors)" in first[0]


def test_pictures_and_logs_are_written(first):
    """The learning curve, the raster and a TensorBoard log lie in the output folder."""
    text, out = first
    for name in ("learning-curve.png", "spike-raster.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert name in text
    assert list(out.glob("events.out.tfevents.*"))


def test_the_same_seed_gives_the_same_result(first, tmp_path):
    """A second run with the backend named is the first run again."""
    text = run(tmp_path, "--backend", "torch")
    assert accuracy(text) == accuracy(first[0])
    assert "torch on cpu (asked for by set_backend())" in text


@pytest.mark.parametrize("how", [{"SPIKECORE_BACKEND": "cupy"}, {}])
def test_a_backend_that_cannot_be_had_is_a_sentence(tmp_path, how):
    """Named by the variable or the option, it ends the program with exit code 2 and the reason, without a traceback."""
    done = start(tmp_path, *([] if how else ["--backend", "cupy"]), **how)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "digits.py: error: backend 'cupy' (from " in done.stderr
