"""Files of strangers: what a file of NIR cannot do to a machine, and how much it may hold."""

from __future__ import annotations

import json
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


def _external_link(root: Any, secret: Path) -> None:
    with h5py.File(secret, "w") as other:
        other["weight"] = np.ones((3, 4), "f4")
    _weight(root)["weight"] = h5py.ExternalLink(str(secret), "weight")


def _huge(root: Any, secret: Path) -> None:
    _weight(root).create_dataset("weight", (2**40, 4), "f4", chunks=(1024, 4), compression="gzip")


HOSTILE: Dict[str, Any] = {
    "external storage": (_external, "the numbers of '/node/nodes/0/weight' are in another file"),
    "external link": (_external_link, "'/node/nodes/0/weight' is a link, maybe to another file"),
    "huge": (_huge, r"weight' of shape \(1099511627776, 4\) take more than max_bytes=1073741824; if you trust"),
    "without a field": (lambda root, secret: _weight(root), "node '0': TypeError: .*weight"),
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


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\x89HDF\r\n\x1a\n" + bytes(100)])
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
        ("numbers", "backend", "ipu", "a file gives no parameter 'backend'"),
        ("surrogate", 0, "__path__", "is no surrogate"),
        ("class", None, "training_model", "was saved as a training_model, which this version"),
    ],
)
def test_metadata_sets_what_save_writes_and_nothing_else(
    file: Path, field: str, name: Any, value: Any, text: str
) -> None:
    """The caller says how a network is run: the neuron is read from NIR's numbers, with a warning."""

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


def test_the_limit_is_an_argument(file: Path) -> None:
    """Of all arrays together, long texts among them, and of what a delay keeps."""
    with h5py.File(file, "r+") as root:
        root["node/metadata/long"] = np.array([["a" * 2**16] * 2] * 20, dtype=h5py.string_dtype())
    assert sc.nir.load(file).get_submodule("1").tau.tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(
        ValueError, match=r"net.nir is no file of NIR: the arrays up to '/node/metadata/long' of shape \(20, 2\)"
    ):
        sc.nir.load(file, max_bytes=2**20)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"max_bytes={wrong} must be a whole number above 0"):
            sc.nir.load(file, max_bytes=wrong)  # type: ignore[arg-type]
    long = nir.NIRGraph.from_list(nir.Delay(delay=np.array([1e9, 0.0])), type_check=False)
    with pytest.raises(
        ValueError, match=r"node 'delay', a Delay, has a delay of 1e\+12 steps, which keep more than max"
    ):
        sc.nir.load(long, dt=1e-3)
