"""The training programs run, keep what they should, and go on after any end to the weights of a run in one go."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any, Callable, List

import pytest
import torch

import warm
from programs import EXAMPLES, points, runner

pytest.importorskip("safetensors", reason="the training programs need the extra `train`")
pytestmark = pytest.mark.slow

#: Automatic choice of built-ins, whatever is installed beside them; a progress bar that reports every step.
ENVIRONMENT = {**os.environ, "SPIKECORE_BLOCK": "numba,triton", "TQDM_MININTERVAL": "0"}
TINY = ["--data", "digits", "--T", "4", "--batch-size", "32"]
#: Two epochs of ten batches.
SHORT = [*TINY, "--width", "4", "--encoder", "poisson", "--epochs", "2", "--limit", "10"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    return runner(monkeypatch, capsys)


def process(*args: str) -> Any:
    """A program in a process of its own."""
    return warm.start(EXAMPLES / args[0], *args[1:], env=ENVIRONMENT)


def ended_at(step: int, number: int, *args: str) -> subprocess.CompletedProcess[str]:
    """A program that got a signal when its progress bar had reported so many steps."""
    one = process(*args)
    seen = ""
    while not any(int(done) >= step for done in re.findall(r" (\d+)/\d+ \[", seen)):
        read = one.stderr.read(1)
        assert read, f"it ended before step {step}:\n{seen}"
        seen += read
    one.send_signal(number)
    out, rest = one.communicate(timeout=300)
    return subprocess.CompletedProcess(one.args, one.returncode, out, seen + rest)


def differences(a: Path, b: Path) -> List[str]:
    """Entries of two checkpoints that are not equal to the bit: weights, moments, curves, random streams."""

    def leaves(name: str, one: object, other: object) -> List[str]:
        if isinstance(one, dict):
            assert one.keys() == other.keys()
            return [found for key in one for found in leaves(f"{name}.{key}", one[key], other[key])]
        same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        return [] if same else [name]

    one, other = (torch.load(str(path / "checkpoint.pt"), weights_only=True) for path in (a, b))
    return leaves("", one, other)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one go."""
    out = tmp_path_factory.mktemp("whole")
    one = process("cifar10.py", *SHORT, "--out", str(out))
    _, errors = one.communicate(timeout=300)
    assert one.returncode == 0, errors
    return out


def test_a_run_killed_at_two_moments_goes_on_to_the_same_weights(whole, tmp_path, run):
    """SIGKILL in each epoch, each time --resume: the checkpoint is that of the run in one go, to the bit."""
    moments = (4, 17)
    args = ["cifar10.py", *SHORT, "--out", str(tmp_path)]
    for moment in moments:
        resume = ["--resume"] if (tmp_path / "checkpoint.pt").exists() else []
        ended = ended_at(moment, signal.SIGKILL, *args, *resume)
        assert ended.returncode == -signal.SIGKILL, (moments, ended.stderr)
    resume = ["--resume"] if (tmp_path / "checkpoint.pt").exists() else []
    run(*args, *resume)
    assert differences(tmp_path, whole) == [], moments


def test_a_stopped_run_keeps_the_steps_it_has_done(whole, tmp_path, run):
    """`kill` within an epoch: a checkpoint with its batches, and --resume goes on to the same weights."""
    args, moment = ["cifar10.py", *SHORT, "--out", str(tmp_path)], 13
    ended = ended_at(moment, signal.SIGTERM, *args)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    said = re.search(r"stopped: (\d+) epochs and (\d+) batches are in (\S+); go on with --resume", ended.stderr)
    assert int(said.group(1)) * 10 + int(said.group(2)) >= moment
    assert said.group(3) == str(tmp_path / "checkpoint.pt")
    run(*args, "--resume", "--workers", "1")  # who reads the data changes nothing
    assert differences(tmp_path, whole) == []
    assert points(tmp_path) == {name: [1, 2] for name in ("loss", "test accuracy", "training accuracy")}
    assert (tmp_path / "learning-curve.png").read_bytes().startswith(b"\x89PNG")


def test_other_options_are_refused_by_name(whole, run):
    """--resume with options that change the numbers names each of them, before anything is trained."""
    args = ["cifar10.py", *SHORT, "--out", str(whole), "--resume"]
    with pytest.raises(SystemExit, match="lr=0.001 \\(now 0.5\\), seed=0 \\(now 7\\); give the same"):
        run(*args, "--lr", "0.5", "--seed", "7")


@pytest.mark.parametrize(
    "args",
    [
        ["cifar10.py", "--width", "4", "--augment", "--encoder", "poisson"],
        ["cifar10.py", "--width", "4", "--precision", "bfloat16", "--layout", "channels-last"],
        ["sew_resnet.py", "--layout", "channels-last", "--T", "1"],
    ],
    ids=" ".join,
)
def test_each_program_trains(tmp_path, run, args):
    """A few steps on digits, with options that change how: a result, and what is kept."""
    text = run(
        *args[:1], *TINY, "--batch-size", "8", "--epochs", "1", "--limit", "2", *args[1:], "--out", str(tmp_path)
    )
    assert "of 16 images of scikit-learn's digits never trained on" in text
    for name in ("checkpoint.pt", "best.safetensors", "learning-curve.png"):
        assert (tmp_path / name).exists()


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a method of the training loop send this process SIGTERM at its n-th call."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from common import loop

    def at(method: str, call: int) -> None:
        original, left = getattr(loop.Training, method), [call]

        def counted(*args: object, **kwargs: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            return original(*args, **kwargs)

        monkeypatch.setattr(loop.Training, method, counted)

    return at


def test_a_run_that_is_stopped_while_it_tests(whole, tmp_path, run, signalled):
    """The batches of the epoch are done then: it goes on with the test, to the same weights, curves and streams."""
    args = ["cifar10.py", *SHORT, "--out", str(tmp_path)]
    signalled("_test", 2)
    with pytest.raises(SystemExit, match="stopped: 1 epochs and 10 batches are in "):
        run(*args)
    run(*args, "--resume")
    assert differences(tmp_path, whole) == []


def test_the_same_program_on_an_ipu(tmp_path, run, signalled, monkeypatch):
    """SPIKECORE_BACKEND alone makes a program train on the emulated IPU; stopped, it goes on to the same weights."""
    monkeypatch.setenv("SPIKECORE_BACKEND", "ipu")
    args = [*TINY, "--batch-size", "40", "--width", "4", "--epochs", "2", "--limit", "2"]
    text = run("cifar10.py", *args, "--out", str(tmp_path / "whole"))
    assert "ipu on ipu (asked for by SPIKECORE_BACKEND)" in text
    signalled("_prepared", 5)  # two batches to train and two to test with, then this one
    with pytest.raises(SystemExit, match="stopped: 1 epochs and 1 batches are in "):
        run("cifar10.py", *args, "--out", str(tmp_path / "cut"))
    run("cifar10.py", *args, "--out", str(tmp_path / "cut"), "--resume")
    assert differences(tmp_path / "cut", tmp_path / "whole") == []


PAGE = (
    (EXAMPLES.parent / "docs/programs.md").read_text(encoding="utf-8").partition("## A published recurrent network")[0]
)
COMMANDS = [line.split("#")[0].split()[1:] for line in PAGE.splitlines() if line.startswith("python ")]
#: It needs no data; tests/e2e/test_online_program.py runs it.
COMMANDS = [command for command in COMMANDS if command[0] != "examples/online.py"]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_commands_of_the_page(tmp_path, capsys, run, command):
    """On digits they train, cut to two batches; the others, without the GPU and the download, miss the data alone."""
    program, args = command[0].partition("/")[2], command[1:]
    if "digits" in args:
        assert "test accuracy  " in run(program, *args, "--epochs", "1", "--limit", "2", "--out", str(tmp_path))
        return
    here = [arg for arg in args if arg not in ("--download", "--graph", "--device", "cuda")]
    with pytest.raises(SystemExit) as ended:
        run(program, *here, "--data" if program == "mnist.py" else "--folder", str(tmp_path))
    assert ended.value.code == 2
    assert re.search("is not there: looked for|tonic, which is not installed", capsys.readouterr().err)
