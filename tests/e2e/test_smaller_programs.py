"""Programs of `examples/` with tasks of their own: online rules, a microcontroller, a network over several devices."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Callable

import pytest
import torch

from programs import points, runner

pytest.importorskip("safetensors", reason="the training programs need the extra `train`")
pytestmark = pytest.mark.slow
CURVES = {"loss", "training accuracy", "test accuracy"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    return runner(monkeypatch, capsys)


def accuracy(text: str) -> float:
    found = re.search(r"test accuracy  ([\d.]+)%", text)
    assert found, text
    return float(found[1])


def test_digits_by_ottt(run: Callable[..., str], tmp_path: Path) -> None:
    """Two epochs tell digits; a run that is resumed at its end changes nothing."""
    args = ("--task", "digits", "--epochs", "2", "--out", str(tmp_path))
    text = run("online.py", *args)
    assert accuracy(text) > 60
    assert "ottt, chunks of 1 of 8 steps, updates by sequence" in text
    assert points(tmp_path) == {name: [1, 2] for name in CURVES}
    assert (tmp_path / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    weights = torch.load(tmp_path / "checkpoint.pt", weights_only=False)["step"]["net"]
    assert accuracy(run("online.py", *args, "--resume")) == accuracy(text)
    again = torch.load(tmp_path / "checkpoint.pt", weights_only=False)["step"]["net"]
    assert all(torch.equal(again[name], value) for name, value in weights.items())


def test_a_memory_by_eprop(run: Callable[..., str], tmp_path: Path) -> None:
    """One epoch with random feedback, updated after each chunk: more than guessing a bit gives."""
    args = ("--feedback", "random", "--update", "chunk", "--chunk", "20", "--epochs", "1", "--out", str(tmp_path))
    text = run("online.py", *args)
    assert accuracy(text) > 53
    assert "eprop, chunks of 20 of 40 steps, updates by chunk" in text


def test_what_a_rule_refuses_is_a_sentence(
    run: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It ends the program with exit code 2, without a traceback."""
    with pytest.raises(SystemExit) as ended:
        run("online.py", "--rule", "bptt", "--feedback", "none", "--out", str(tmp_path))
    assert ended.value.code == 2
    assert "feedback='none': rule='bptt' follows the network's own paths" in capsys.readouterr().err


# -- examples/microcontroller.py, which trains digits in integers and runs them in C


@pytest.mark.skipif(not shutil.which("cc") or not shutil.which("make"), reason="needs make and a C compiler")
def test_the_spikes_of_the_chip_are_those_of_torch(run: Callable[..., str], tmp_path: Path) -> None:
    """An epoch is enough to be far above chance; all spikes of the program in C are equal."""
    text = run("microcontroller.py", "--epochs", "2", "--out", str(tmp_path))
    assert float(re.search(r"integers: ([\d.]+)%", text)[1]) > 40
    assert "128 steps, 0 of 1280 outputs differ" in text


# -- examples/fpga.py, which trains digits in integers and simulates them in Verilog


@pytest.mark.skipif(not shutil.which("iverilog") or not shutil.which("make"), reason="needs make and Icarus Verilog")
def test_the_outputs_of_the_core_are_those_of_torch(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An epoch is enough to be far above chance; without tools of synthesis the program ends with the simulation."""
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: found(name) if name in ("make", "iverilog") else None)
    text = run("fpga.py", "--epochs", "2", "--lanes", "8", "--out", str(tmp_path))
    assert float(re.search(r"integers: ([\d.]+)%", text)[1]) > 60
    assert "128 steps, 0 of 1280 outputs differ" in text


# -- examples/cifar10_pipeline.py: parts of a batch, and a constant input

TINY = "--data digits --width 4 --T 3 --tau 2 --batch-size 32 --limit 3 --devices cpu,cpu".split()
in_parts = pytest.mark.filterwarnings("ignore:.*in training normalises each of 4 parts")


@pytest.fixture
def pipeline(run: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """Runs the program; returns what it printed."""

    def started(*args: str) -> str:
        split = [] if "--constant" in args else ["--split-size", "8"]
        return run("cifar10_pipeline.py", *TINY, *split, "--out", str(tmp_path), *args)

    return started


@in_parts
@pytest.mark.parametrize("mode", [[], ["--constant", "--every", "3"]], ids=" ".join)
def test_a_pipeline_trains(pipeline, tmp_path, mode):
    """In parts and in steps, with and without layers that are computed again, an epoch runs and is kept."""
    assert "of 96 images of scikit-learn's digits never trained on" in pipeline(*mode, "--epochs", "1")
    kept = torch.load(str(tmp_path / "checkpoint.pt"), weights_only=True)
    assert kept["epoch"] == 1
    # the stages of SpikingFlow's program: convolution, neurons, convolution, neurons, all others
    assert {name.partition(".")[0] for name in kept["step"]["net"]} == {"0", "2", "4"}


@in_parts
def test_a_pipeline_goes_on(pipeline):
    """A run goes on from its checkpoint, and refuses one of other options by name."""
    pipeline("--constant", "--epochs", "1")
    with pytest.raises(SystemExit, match="epochs"):
        pipeline("--constant", "--epochs", "2", "--resume")
    with pytest.raises(SystemExit, match="every"):
        pipeline("--constant", "--epochs", "1", "--every", "3", "--resume")
    assert "test accuracy" in pipeline("--constant", "--epochs", "1", "--resume")
