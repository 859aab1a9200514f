"""Checkpoint files are whole or not there, and belong to their settings."""

from __future__ import annotations

import collections
import errno
import io
import os
import pathlib
import signal
import stat

import numpy as np
import pytest
import torch

import spikecore as sc
import warm
from spikecore._base import files

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


def test_a_name_as_long_as_may_be(tmp_path):
    """A file whose name the file system just takes can be a checkpoint."""
    longest = os.pathconf(str(tmp_path), "PC_NAME_MAX") if hasattr(os, "pathconf") else 200
    path = tmp_path / ("a" * (longest - 3) + ".pt")
    sc.save_checkpoint(path, SETTINGS, epoch=1)
    assert sc.load_checkpoint(path, SETTINGS)["epoch"] == 1


def test_no_file(tmp_path):
    """A missing file is named."""
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*run.pt; begin without one"):
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


def test_settings_that_hold_a_tensor(tmp_path):
    """No setting of ``save_checkpoint`` does: a file of torch's own that happens to have the name."""
    torch.save({"settings": {"lr": torch.ones(3)}}, str(tmp_path / "run.pt"))
    with pytest.raises(
        ValueError, match=r"run.pt is no checkpoint of sc.save_checkpoint \(TypeError: settings\['lr'\]"
    ):
        sc.load_checkpoint(tmp_path / "run.pt", {"lr": 1e-3})


class Attack:
    """Makes a file, where a pickle runs code."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_runs_no_code(tmp_path, zipped):
    """In today's format, and in torch's older one, which is not even looked into."""
    torch.save(
        {"settings": SETTINGS, "epoch": Attack(tmp_path / "ran")},
        str(tmp_path / "run.pt"),
        _use_new_zipfile_serialization=zipped,
    )
    with pytest.raises(ValueError, match="UnpicklingError" if zipped else "it is no zip file"):
        sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)
    assert os.listdir(str(tmp_path)) == ["run.pt"]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are those of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_private_file_is_never_public(tmp_path, monkeypatch, mode):
    """The file that takes its place has no more permissions while it is written."""
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, SETTINGS, epoch=1)
    path.chmod(mode)
    modes, sync = set(), os.fsync

    def look(handle):
        modes.add(os.fstat(handle).st_mode & 0o777)
        sync(handle)

    monkeypatch.setattr(os, "fsync", look)
    sc.save_checkpoint(path, SETTINGS, epoch=2)
    assert modes == {0o600}
    assert path.stat().st_mode & 0o777 == mode
    assert sc.load_checkpoint(path, SETTINGS)["epoch"] == 2


def test_an_exception_leaves_the_old_file(tmp_path):
    """What cannot be written leaves the checkpoint before it, and nothing half done."""
    sc.save_checkpoint(tmp_path / "run.pt", SETTINGS, epoch=1)
    with pytest.raises(
        TypeError, match=r"epoch=<function .* is a builtins.function, which sc.load_checkpoint could not"
    ):
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
    done = warm.run("-c", code)
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


class Text(str):
    """A text with a type of its own."""


#: Values that a file can hold and that cannot be read back, and what is said of them.
UNREADABLE = [
    (np.float64(0.5), r"is a numpy\.float64, "),
    (np.zeros(2), r"is a numpy\.ndarray, .*; give .*, of numpy value\.item\(\) or torch\.from_numpy\(value\)"),
    (pathlib.Path("data"), r"is a pathlib\.[\w.]+, .*; give .*: str\(value\)"),
    (Text("a"), r"is a .*\.Text, "),
    (collections.defaultdict(list), r"is a collections\.defaultdict, .*; give numbers, texts and tensors"),
    (torch.zeros(2, device="meta"), r"is a torch\.Tensor, "),
    (torch.nn.Linear(1, 1), r"is a torch\.nn\.modules\.linear\.Linear, "),
]


@pytest.mark.parametrize(("value", "text"), UNREADABLE, ids=lambda value: type(value).__name__)
def test_what_cannot_be_read_back_is_refused_when_it_is_written(tmp_path, value, text):
    """As a part, within one, and as a setting: with the key, and the old file stays."""
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, SETTINGS, epoch=1)
    for given, key in (
        ({"best": value}, "best="),
        ({"curves": [1, (2, value)]}, r"curves\[1\]\[1\]="),
        ({"step": {"net": {"w": value}}}, r"step\['net'\]\['w'\]="),
    ):
        with pytest.raises(TypeError, match=f"^{key}.*{text}"):
            sc.save_checkpoint(path, SETTINGS, **given)
    if not torch.is_tensor(value):
        with pytest.raises(TypeError, match=rf"^settings\['rate'\]=.*{text}"):
            sc.save_checkpoint(path, {**SETTINGS, "rate": value}, epoch=2)
        with pytest.raises(TypeError, match=rf"^settings\['rate'\]=.*{text}"):
            sc.load_checkpoint(path, {**SETTINGS, "rate": value})
    assert sc.load_checkpoint(path, SETTINGS)["epoch"] == 1
    assert os.listdir(str(tmp_path)) == ["run.pt"]


def test_keys_that_cannot_be_read_back(tmp_path):
    """Keys of dicts are values like others."""
    with pytest.raises(TypeError, match=r"^a key of curves=.* is a numpy\.int64, .*value\.item\(\)"):
        sc.save_checkpoint(tmp_path / "run.pt", SETTINGS, curves={np.int64(3): 0.5})


def test_settings_that_never_compare_equal(tmp_path):
    """Tensors are no settings, since no run could go on from them."""
    with pytest.raises(TypeError, match=r"^settings\['rates'\]\[0\]=.* is a tensor, .*; give value\.tolist\(\)"):
        sc.save_checkpoint(tmp_path / "run.pt", {"rates": [torch.ones(2)]}, epoch=1)
    with pytest.raises(TypeError, match=r"^settings=3 is an int; give a dict"):
        sc.save_checkpoint(tmp_path / "run.pt", 3, epoch=1)
    assert os.listdir(str(tmp_path)) == []


def test_what_else_is_read_back(tmp_path):
    """None, NaN among the parts, sizes and types of torch, and buffers by layers."""
    parts = {"none": None, "worst": float("nan"), "shape": torch.Size([2]), "dtype": torch.half}
    net = torch.nn.BatchNorm1d(3).state_dict()
    sc.save_checkpoint(tmp_path / "run.pt", {"dtype": torch.half}, net=net, **parts)
    found = sc.load_checkpoint(tmp_path / "run.pt", {"dtype": torch.half})
    assert (found["none"], found["shape"], found["dtype"]) == (None, torch.Size([2]), torch.half)
    assert found["worst"] != found["worst"]
    assert list(found["net"]) == list(net)


def test_a_link_stays_a_link(tmp_path):
    """What it leads to is replaced, also where that does not exist yet."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "last.pt").symlink_to(tmp_path / "runs" / "3.pt")
    for epoch in (1, 2):
        sc.save_checkpoint(tmp_path / "last.pt", SETTINGS, epoch=epoch)
        assert (tmp_path / "last.pt").is_symlink()
        assert sc.load_checkpoint(tmp_path / "runs" / "3.pt", SETTINGS)["epoch"] == epoch
    assert os.listdir(str(tmp_path / "runs")) == ["3.pt"]


@pytest.mark.skipif(os.name == "nt", reason="permissions are those of POSIX")
def test_permissions(tmp_path):
    """A new file has those of any new file, and one that is replaced keeps its own."""
    (tmp_path / "plain").write_text("")
    usual = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, SETTINGS, epoch=1)
    assert stat.S_IMODE(path.stat().st_mode) == usual
    path.chmod(0o640)
    sc.save_checkpoint(path, SETTINGS, epoch=2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_no_such_place(tmp_path):
    """A missing folder, or a folder in the place of the file, is named, and no file that nobody asked for."""
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*/none for the checkpoint: '.*/none/run\.pt'$"):
        sc.save_checkpoint(tmp_path / "none" / "run.pt", SETTINGS, epoch=1)
    with pytest.raises(IsADirectoryError, match=r"takes the place of a file, and this is none: '.*'$") as caught:
        sc.save_checkpoint(tmp_path, SETTINGS, epoch=1)
    assert caught.value.filename == str(tmp_path)


def test_a_folder_that_takes_no_file(tmp_path, monkeypatch):
    """The error names the checkpoint, and says that a file is written beside it."""

    def refusing(name, *_):
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(PermissionError, match=r"Permission denied \(to write a new file beside it\): '.*/run\.pt'$"):
        sc.save_checkpoint(tmp_path / "run.pt", SETTINGS, epoch=1)


def test_settings_of_something_else(tmp_path):
    """A file of torch whose settings are no dict is no checkpoint."""
    torch.save({"settings": 3}, str(tmp_path / "run.pt"))
    with pytest.raises(ValueError, match=r"run.pt is no checkpoint of sc.save_checkpoint"):
        sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)


class Ending(io.FileIO):
    """A file that raises once something has been written to it."""

    error: BaseException

    def write(self, data):
        if self.tell():
            raise self.error
        return super().write(data)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")], ids=["ctrl-c", "full"])
def test_what_ends_the_writing_leaves_the_old_file(error, tmp_path, monkeypatch):
    """torch raises RuntimeError then, when it closes an archive that is cut short, with the error as its context."""
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, {}, epoch=1)
    monkeypatch.setattr(Ending, "error", error, raising=False)
    monkeypatch.setattr(files, "open", Ending, raising=False)
    with pytest.raises((type(error), RuntimeError)):
        sc.save_checkpoint(path, {}, epoch=2, weights=torch.rand(1000))
    assert [one.name for one in tmp_path.iterdir()] == ["run.pt"]
    assert sc.load_checkpoint(path, {}) == {"epoch": 1}


def test_an_interrupt_when_the_file_is_there(tmp_path, monkeypatch):
    """Leaves no file beside the checkpoint."""

    def opened(name, mode):
        with open(name, mode):
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "open", opened, raising=False)
    with pytest.raises(KeyboardInterrupt):
        sc.save_checkpoint(tmp_path / "run.pt", {}, epoch=1)
    assert not [*tmp_path.iterdir()]


def test_a_part_that_is_missing(tmp_path):
    """Parts that the caller asks for and the file lacks are an error that names all of them, and what there is."""
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, {}, epoch=1, step={})
    assert sc.load_checkpoint(path, {}, ("epoch",)) == {"epoch": 1, "step": {}}
    with pytest.raises(
        ValueError, match=r"run.pt has no 'losses' and no 'order', but 'epoch', 'step': another version"
    ):
        sc.load_checkpoint(path, {}, ("losses", "epoch", "order"))
    with pytest.raises(TypeError, match="parts='epoch' is one text; give a list of names"):
        sc.load_checkpoint(path, {}, "epoch")
