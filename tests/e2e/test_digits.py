"""The main job: the digits example runs, learns, repeats itself, and shows what it did."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Tuple, Union

import pytest
import torch

import warm
from programs import EXAMPLES, points

pytestmark = pytest.mark.slow
#: Automatic choice of built-ins, whatever is installed beside them.
BUILT_IN = {**os.environ, "SPIKECORE_BLOCK": "numba,triton"}


def started(*arguments: Union[str, Path], **environ: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own."""
    return warm.run(*arguments, env={**BUILT_IN, **environ}, imported=warm.PROGRAMS)


def start(out: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return started(EXAMPLES / "digits.py", "--epochs", "2", "--out", out, *args, **environ)


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


def test_two_epochs_learn_something_and_are_shown(first):
    """More than the tenth that guessing gets is right. The last lines name the backend and who chose it. Pictures
    and a TensorBoard log, with epochs counted from one, lie in the output folder.
    """
    text, out = first
    assert accuracy(text) > 40
    assert "backend        torch on cpu (auto: the built-in for cpu tensors)" in text
    for name in ("learning-curve.png", "spike-raster.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert name in text
    looked = {f"{what}/{layer}": [2] for what in ("rate", "silent", "saturated") for layer in (1, 3, 5)}
    curves = {name: [1, 2] for name in ("loss", "test accuracy", "training accuracy")}
    assert points(out) == {**curves, **looked}


def test_a_backend_that_cannot_be_had_is_a_sentence(tmp_path):
    """It ends the program with exit code 2 and the reason, without a traceback."""
    done = start(tmp_path, SPIKECORE_BACKEND="cupy")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "digits.py: error: backend 'cupy' (from " in done.stderr


#: Runs an example on a fifth of the images to train on until it has saved so many checkpoints, and sends it a signal
#: then; never if that is 0. How a run goes on does not depend on how many images there are.
STOPPING = """
import os, runpy, signal, sys
import torch
import spikecore as sc
save, left, number = sc.save_checkpoint, int(sys.argv[1]), int(sys.argv[2])
def saved(*args, **kwargs):
    global left
    save(*args, **kwargs)
    left -= 1
    if not left:
        signal.raise_signal(number)  # in this thread; from another, Ctrl-C may end in a callback that swallows it
sc.save_checkpoint = saved
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C
sys.argv = sys.argv[3:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as Python does for a program
from common import data
whole = data.digits()
part = torch.utils.data.TensorDataset(*(values[:288] for values in whole.training.tensors))
data.digits = lambda: whole._replace(training=part)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def stopped(number: int, example: str, *args: Union[str, Path]) -> subprocess.CompletedProcess[str]:
    """An example on fewer images that got a signal after its first epoch."""
    return started("-c", STOPPING, "1", str(int(number)), EXAMPLES / example, *args)


def in_one_go(example: str, *args: Union[str, Path]) -> str:
    """The output of an example on fewer images, which got no signal."""
    done = started("-c", STOPPING, "0", "0", EXAMPLES / example, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Tuple[str, Path]:
    """Two epochs on fewer images."""
    out = tmp_path_factory.mktemp("short")
    return in_one_go("digits.py", "--epochs", "2", "--out", out), out


def same_weights(a: Path, b: Path) -> bool:
    """True if two checkpoints hold the same weights and moments, to the bit."""
    one, other = (torch.load(str(path / "checkpoint.pt"), weights_only=True)["step"] for path in (a, b))
    pairs = [(value, other["net"][name]) for name, value in one["net"].items()]
    for key, moments in one["optimizer"]["state"].items():
        pairs += [(value, other["optimizer"]["state"][key][name]) for name, value in moments.items()]
    return all(torch.equal(x, y) for x, y in pairs)


def test_the_same_seed_gives_the_same_result(short, tmp_path):
    """A second run with the backend named is the first run again, to the bit."""
    text = in_one_go("digits.py", "--epochs", "2", "--out", tmp_path, "--backend", "torch")
    assert accuracy(text) == accuracy(short[0])
    assert same_weights(tmp_path, short[1])
    assert "torch on cpu (asked for by set_backend())" in text


def test_a_stopped_run_goes_on_to_the_same_weights(short, tmp_path):
    """Ctrl-C after the first epoch, then --resume: weights and moments of the run in one go."""
    args = ("digits.py", "--epochs", "2", "--out", tmp_path)
    ended = stopped(signal.SIGINT, *args)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert f"last finished epoch is in {tmp_path / 'checkpoint.pt'}; go on with --resume" in ended.stderr
    assert not same_weights(tmp_path, short[1])
    text = in_one_go(*args, "--resume")
    assert same_weights(tmp_path, short[1])
    assert accuracy(text) == accuracy(short[0])
    assert points(tmp_path)["loss"] == [1, 2]  # no epoch is missing, none is there twice
