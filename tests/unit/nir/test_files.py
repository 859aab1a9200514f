"""Files of strangers, disks that are full: what a file of NIR can do to a machine, and a machine to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict

import numpy as np
import pytest
import torch
from torch import nn

import spikecore as sc

nir = pytest.importorskip("nir", reason="the package nir, which needs Python 3.10, is not installed")
h5py = pytest.importorskip("h5py", reason="nir needs h5py, so this is never skipped")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), sc.LIF(tau=torch.tensor([2.0, 3.0, 4.0])))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of :func:`network`."""
    sc.nir.save(network(), tmp_path / "net.nir", dt=1e-3)
    return tmp_path / "net.nir"


def _weight(root: Any) -> Any:
    """The group of the linear layer, without its weight."""
    group = root["node/nodes/0"]
    del group["weight"]
    return group


def _external(root: Any, secret: Path) -> None:
    _weight(root).create_dataset("weight", (3, 4), "f4", external=[(str(secret), 0, 48)])


def _virtual(root: Any, secret: Path) -> None:
    with h5py.File(secret, "w") as other:
        other["weight"] = np.ones((3, 4), "f4")
    layout = h5py.VirtualLayout((3, 4), "f4")
    layout[:] = h5py.VirtualSource(str(secret), "weight", (3, 4))
    _weight(root).create_virtual_dataset("weight", layout)


def _external_link(root: Any, secret: Path) -> None:
    with h5py.File(secret, "w") as other:
        other["weight"] = np.ones((3, 4), "f4")
    _weight(root)["weight"] = h5py.ExternalLink(str(secret), "weight")


def _soft_link(root: Any, secret: Path) -> None:
    _weight(root)["weight"] = h5py.SoftLink("/node/nodes/0/bias")


def _circle(root: Any, secret: Path) -> None:
    root["node/nodes/0/again"] = root["node/nodes"]


def _twice(root: Any, secret: Path) -> None:
    for copy in range(3):
        root[f"node/nodes/0/weight{copy}"] = root["node/nodes/0/weight"]


def _deep(root: Any, secret: Path) -> None:
    group = root["node/nodes/0"]
    for _ in range(2000):
        group = group.create_group("a")


def _huge(root: Any, secret: Path) -> None:
    _weight(root).create_dataset("weight", (2**40, 4), "f4", chunks=(1024, 4), compression="gzip")


def _huge_plain(root: Any, secret: Path) -> None:
    _weight(root).create_dataset("weight", (2**20, 2**20), "f8")


def _bomb(root: Any, secret: Path) -> None:
    array = _weight(root).create_dataset("weight", (2**36, 4), "f4", chunks=(2**16, 4), compression="gzip")
    array[:4] = 1.0


def _half_of_zeros(root: Any, secret: Path) -> None:
    array = _weight(root).create_dataset("weight", (2**11, 2**10), "f4", chunks=(2**10, 2**10), compression="gzip")
    array[: 2**10] = 0.0


HOSTILE: Dict[str, Any] = {
    "external storage": (_external, "the numbers of '/node/nodes/0/weight' are in another file"),
    "virtual": (_virtual, "the numbers of '/node/nodes/0/weight' are in another file"),
    "external link": (_external_link, "'/node/nodes/0/weight' is a link, maybe to another file"),
    "soft link": (_soft_link, "'/node/nodes/0/weight' is a link"),
    "circle": (_circle, "is in the file under another name, too"),
    "one array many times": (_twice, "is in the file under another name, too"),
    "deep": (_deep, "is within more than 64 groups"),
    "huge": (_huge, r"is said to have the shape \(1099511627776, 4\), for which the file has 0 bytes"),
    "huge, not compressed": (_huge_plain, r"is said to have the shape \(1048576, 1048576\)"),
    "twice what gzip makes of a byte": (_half_of_zeros, r"is said to have the shape \(2048, 1024\)"),
    "huge, with a part of it": (_bomb, r"is said to have the shape \(68719476736, 4\)"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_file_of_nir_needs(file: Path, tmp_path: Path, kind: str) -> None:
    """Is refused before an array is made: other files of the machine are not read, and its memory is not taken."""
    change, text = HOSTILE[kind]
    secret = tmp_path / "secret"
    secret.write_bytes(np.arange(12, dtype="f4").tobytes())
    with h5py.File(file, "r+") as root:
        change(root, secret)
    with pytest.raises(ValueError, match=text):
        sc.nir.load(file)


def test_zeros_are_no_attack(tmp_path: Path) -> None:
    """gzip makes a thousandth of them."""
    net = nn.Sequential(nn.Linear(2**10, 2**10), sc.LIF())
    sc.nir.save(net, tmp_path / "net.nir", dt=1e-3)
    with h5py.File(tmp_path / "net.nir", "r+") as root:
        array = _weight(root).create_dataset("weight", (2**10, 2**10), "f4", chunks=(2**10, 2**10), compression="gzip")
        array[:] = 0.0
        assert array.nbytes > 1000 * array.id.get_storage_size()
    linear: Any = sc.nir.load(tmp_path / "net.nir").get_submodule("0")
    assert not linear.weight.any()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_files_of_something_else(tmp_path: Path, content: bytes) -> None:
    """A sentence with the file's name."""
    (tmp_path / "net.nir").write_bytes(content)
    with pytest.raises(ValueError, match=r"sc\.nir\.load: .*net\.nir is no file of NIR"):
        sc.nir.load(tmp_path / "net.nir")
    with pytest.raises(FileNotFoundError):
        sc.nir.load(tmp_path / "none.nir")


def _changed(file: Path, change: Callable[[Dict[str, Any]], None]) -> None:
    """Change what the file keeps of the LIF."""
    with h5py.File(file, "r+") as root:
        group = root["node/nodes/1/metadata/spikecore"]
        content = json.loads(group["content"][()])
        change(content)
        del group["content"]
        group["content"] = json.dumps(content)


@pytest.mark.parametrize(
    ("field", "name", "value", "text"),
    [
        ("settings", "backend", "ipu", "a file gives no setting 'backend'"),
        ("settings", "step", "single", "a file gives no setting 'step'"),
        ("settings", "bounds", None, "a file gives no setting 'bounds'"),
        ("numbers", "backend", "ipu", "a file gives no parameter 'backend'"),
        ("numbers", "step", "single", "a file gives no parameter 'step'"),
        ("surrogate", 0, "Surrogate.__subclasses__", "has no attribute"),
        ("surrogate", 0, "__path__", "is no surrogate"),
        ("shapes", "tau", [[3], "load", False], "'load' is no dtype"),
        ("learn", None, ["backend"], "learn"),
        ("class", None, "training_model", "was saved as a training_model, which this version"),
    ],
)
def test_metadata_sets_what_save_writes_and_nothing_else(
    file: Path, field: str, name: Any, value: Any, text: str
) -> None:
    """How a network is run is the caller's: the neuron is read from NIR's numbers, with a warning."""

    def change(content: Dict[str, Any]) -> None:
        if name is None:
            content[field] = value
        else:
            content[field][name] = value

    _changed(file, change)
    with pytest.warns(UserWarning, match=text):
        neuron: Any = sc.nir.load(file).get_submodule("1")
    assert type(neuron) is sc.nir.NIRLIF
    assert neuron.step == "multi"
    assert "backend=auto" in repr(neuron)


def test_a_full_disk_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file takes its place when it is whole, with its permissions."""
    file.chmod(0o640)
    before = file.read_bytes()

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            sc.nir.save(network(), file, dt=1e-3)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["net.nir"]
    sc.nir.save(nn.Sequential(nn.Linear(4, 3), sc.IF()), file, dt=1e-3)
    assert file.stat().st_mode & 0o777 == 0o640
    assert isinstance(sc.nir.load(file).get_submodule("1"), sc.IF)
    assert torch.is_tensor(sc.nir.load(file)(torch.ones(2, 1, 4)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
def test_what_is_no_file_stays(tmp_path: Path) -> None:
    """A named pipe and a folder are no file to replace; of a link it is the target that is replaced."""
    os.mkfifo(tmp_path / "pipe")
    for path, error in ((tmp_path / "pipe", OSError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match=r"takes the place of a file, and this is none: '.*'$"):
            sc.nir.save(network(), path, dt=1e-3)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "net.nir")
    sc.nir.save(network(), tmp_path / "link", dt=1e-3)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "net.nir").is_file()
