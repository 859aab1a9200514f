"""The program over several devices runs, with parts of a batch and with a constant input, and goes on from a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from programs import runner

pytest.importorskip("safetensors", reason="the training programs need the extra `train`")

TINY = "--data digits --width 4 --T 3 --tau 2 --batch-size 32 --limit 3 --devices cpu,cpu".split()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Runs the program in this process; returns what it printed."""
    program = runner(monkeypatch, capsys)

    def started(*args: str) -> str:
        split = [] if "--constant" in args else ["--split-size", "8"]
        return program("cifar10_pipeline.py", *TINY, *split, "--out", str(tmp_path), *args)

    return started


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*in training normalises each of 4 parts")]


@pytest.mark.parametrize("mode", [[], ["--constant", "--every", "3"]], ids=" ".join)
def test_it_trains(run, tmp_path, mode):
    """In parts and in steps, with and without layers that are computed again, an epoch runs and is kept."""
    assert "of 96 images of scikit-learn's digits never trained on" in run(*mode, "--epochs", "1")
    kept = torch.load(str(tmp_path / "checkpoint.pt"), weights_only=True)
    assert kept["epoch"] == 1
    # the stages of SpikingFlow's program: convolution, neurons, convolution, neurons, all others
    assert {name.partition(".")[0] for name in kept["step"]["net"]} == {"0", "2", "4"}


def test_it_goes_on(run, tmp_path):
    """A run goes on from its checkpoint, and refuses one of other options by name."""
    run("--constant", "--epochs", "1")
    with pytest.raises(SystemExit, match="epochs"):
        run("--constant", "--epochs", "2", "--resume")
    with pytest.raises(SystemExit, match="every"):
        run("--constant", "--epochs", "1", "--every", "3", "--resume")
    assert "test accuracy" in run("--constant", "--epochs", "1", "--resume")
