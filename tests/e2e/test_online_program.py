"""examples/online.py: both tasks learn by their rules, are shown, and go on from a checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable

import pytest
import torch

from programs import points, runner

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
