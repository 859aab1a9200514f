"""The program over several devices runs, with parts of a batch and with a constant input, and goes on from a stop."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors", reason="the training programs need the extra `train`")

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = "--data digits --width 4 --T 3 --tau 2 --batch-size 32 --limit 3 --split-size 8 --devices cpu,cpu".split()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Runs the program in this process; returns what it printed."""
    monkeypatch.setenv("SPIKECORE_BLOCK", "numba,triton")
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def started(*args: str) -> str:
        monkeypatch.setattr(sys, "argv", ["cifar10_pipeline.py", *TINY, "--out", str(tmp_path), *args])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*in training normalises each of 4 parts")
            runpy.run_path(str(EXAMPLES / "cifar10_pipeline.py"), run_name="__main__")
        return capsys.readouterr().out

    return started


@pytest.mark.parametrize("mode", [[], ["--constant"], ["--every", "2"], ["--constant", "--every", "3"]], ids=" ".join)
def test_it_trains(run, tmp_path, mode):
    """In parts and in steps, with and without layers that are computed again, an epoch runs and is kept."""
    assert "of 96 images of scikit-learn's digits never trained on" in run(*mode, "--epochs", "1")
    kept = torch.load(str(tmp_path / "checkpoint.pt"), weights_only=True)
    assert kept["epoch"] == 1
    # the stages of SpikingFlow's program: convolution, neurons, convolution, neurons, all others
    assert {name.partition(".")[0] for name in kept["step"]["net"]} == {"0", "2", "4"}


def test_it_goes_on(run, tmp_path):
    """A run goes on from its checkpoint, and refuses one of another split by name."""
    run("--constant", "--epochs", "1")
    with pytest.raises(SystemExit, match="epochs"):
        run("--constant", "--epochs", "2", "--resume")
    with pytest.raises(SystemExit, match="split-size"):
        run("--constant", "--epochs", "1", "--split-size", "16", "--resume")
    assert "test accuracy" in run("--constant", "--epochs", "1", "--resume")


def test_a_device_that_is_not_there(run, capsys):
    """The message of the pipeline is that of the program."""
    with pytest.raises(SystemExit):
        run("--devices", "cpu,cuda:99", "--epochs", "1")
    assert "asks for 'cuda:99', which is not there; there" in capsys.readouterr().err
