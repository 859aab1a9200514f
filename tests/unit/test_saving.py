"""Checkpoint files are whole or not there, and belong to their settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

import spikecore as sc

SETTINGS = {"epochs": 4, "rate": 1e-3, "data": "digits"}


def test_what_is_written_is_read(tmp_path):
    """Every part comes back by name, with every bit; nothing else is left in the folder."""
    weights = {"w": torch.randn(3, dtype=torch.float64), "half": torch.randn(2).half()}
    sc.save_checkpoint(
        tmp_path / "run.pt", SETTINGS, net=weights, epoch=3, curves=[0.5, 0.25], random=torch.get_rng_state()
    )
    found = sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)
    assert sorted(found) == ["curves", "epoch", "net", "random"]
    assert all(torch.equal(found["net"][name], value) for name, value in weights.items())
    assert (found["epoch"], found["curves"]) == (3, [0.5, 0.25])
    assert torch.equal(found["random"], torch.get_rng_state())
    assert os.listdir(str(tmp_path)) == ["run.pt"]


def test_other_settings(tmp_path):
    """Each setting that differs, is missing or is new is named with both values."""
    sc.save_checkpoint(tmp_path / "run.pt", {**SETTINGS, "old": 1}, epoch=1)
    text = r"with epochs=4 \(now 5\), old=1 \(now 'nothing'\), new='nothing' \(now 2\); give the same, or begin"
    with pytest.raises(ValueError, match=text):
        sc.load_checkpoint(tmp_path / "run.pt", {**SETTINGS, "epochs": 5, "new": 2})


def test_no_file(tmp_path):
    """A missing file is named."""
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*run.pt; begin without resuming"):
        sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut off"])
def test_no_checkpoint(tmp_path, content):
    """A file of something else says so."""
    (tmp_path / "run.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"run.pt is no checkpoint of sc.save_checkpoint"):
        sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)


def test_a_file_of_something_else_of_torch(tmp_path):
    """So does one that torch wrote for another purpose."""
    torch.save({"weight": torch.zeros(2)}, str(tmp_path / "run.pt"))
    with pytest.raises(ValueError, match=r"run.pt is no checkpoint of sc.save_checkpoint"):
        sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)


def test_an_exception_leaves_the_old_file(tmp_path):
    """What cannot be written leaves the checkpoint before it, and nothing half done."""
    sc.save_checkpoint(tmp_path / "run.pt", SETTINGS, epoch=1)
    with pytest.raises(Exception, match="pickle"):
        sc.save_checkpoint(tmp_path / "run.pt", SETTINGS, epoch=lambda: 2)
    assert sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)["epoch"] == 1
    assert os.listdir(str(tmp_path)) == ["run.pt"]


@pytest.mark.parametrize("moment", ["torch.save", "os.fsync", "os.replace"])
def test_a_kill_leaves_a_whole_file(tmp_path, moment):
    """Killed just before the data is written, before it is on the disk, and before the file is replaced."""
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, SETTINGS, epoch=1)
    module, name = moment.split(".")
    code = (
        f"import os, signal, torch, spikecore as sc\n"
        f"{module}.{name} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"sc.save_checkpoint({str(path)!r}, {SETTINGS!r}, epoch=2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sc.load_checkpoint(path, SETTINGS)["epoch"] == 1


def test_an_interrupt_behind_the_replacement_is_an_interrupt(tmp_path, monkeypatch):
    """Ctrl-C is not hidden by an error about the temporary file, which is gone by then; the new file is whole."""
    replace = os.replace

    def interrupted(*names):
        replace(*names)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sc.save_checkpoint(tmp_path / "run.pt", SETTINGS, epoch=3)
    assert sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)["epoch"] == 3
