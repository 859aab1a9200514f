"""The data sets of the training programs, read from small files in the formats of their authors."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest
import torch

from programs import EXAMPLES

PARTS = (("train", 12), ("t10k", 5))


@pytest.fixture(autouse=True)
def common(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the programs is where Python looks first, as when one runs."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def load(name: str, folder: Path, download: bool = False) -> Any:
    from common import data

    return data.load(argparse.Namespace(data=name, folder=folder, download=download))


def refused(name: str, folder: Path, download: bool = False) -> str:
    """The sentence of a set that cannot be had."""
    from common.files import DataError

    with pytest.raises(DataError) as caught:
        load(name, folder, download)
    return str(caught.value)


def idx(array: np.ndarray) -> bytes:
    """A file as on the page of MNIST: magic number, sizes as big-endian integers of 32 bits, bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_content() -> Dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    content = {}
    for part, number in PARTS:
        content[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (number, 28, 28), dtype=np.uint8)
        content[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, number, dtype=np.uint8)
    return content


def write_mnist(folder: Path, zipped: bool) -> Dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    content = mnist_content()
    for name, array in content.items():
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    return content


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("place", ["MNIST/raw", "."])
def test_mnist_in_both_forms_and_places(tmp_path, zipped, place):
    """IDX files, gzipped or not, where torchvision keeps them or in the folder itself: every pixel and label."""
    content = write_mnist(tmp_path / place, zipped)
    sets = load("mnist", tmp_path)
    assert (sets.about, sets.shape, sets.classes) == ("MNIST", (1, 28, 28), 10)
    for (part, number), read in zip(PARTS, (sets.training, sets.test)):
        images, labels = read.tensors
        assert images.dtype == torch.float32
        pixels = content[f"{part}-images-idx3-ubyte"]
        assert torch.equal((images * 255).round().to(torch.uint8), torch.from_numpy(pixels).view(number, 1, 28, 28))
        assert labels.tolist() == content[f"{part}-labels-idx1-ubyte"].tolist()


@pytest.fixture
def published(tmp_path, monkeypatch):
    """MNIST and CIFAR-10 as their servers give them, from this disk, with MD5s that fit."""
    from common import readers

    server = tmp_path / "server"
    write_mnist(server, zipped=True)
    write_cifar10(server)
    monkeypatch.setattr(readers, "MNIST_URL", f"{server.as_uri()}/")
    monkeypatch.setattr(readers, "CIFAR10_URL", f"{server.as_uri()}/")
    sums = {name: hashlib.md5((server / f"{name}.gz").read_bytes()).hexdigest() for name in readers.MNIST_FILES}
    monkeypatch.setattr(readers, "MNIST_FILES", sums)
    archive = "cifar-10-python.tar.gz"
    monkeypatch.setattr(readers, "CIFAR10_ARCHIVE", (archive, hashlib.md5((server / archive).read_bytes()).hexdigest()))
    return server


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_download_is_kept(published, tmp_path, name):
    """With --download only; it comes to where torchvision looks, and is found there from then on."""
    assert "is not there" in refused(name, tmp_path / "data")
    first = load(name, tmp_path / "data", download=True)
    for path in published.iterdir():
        path.unlink()
    again = load(name, tmp_path / "data")
    assert torch.equal(first.test.tensors[0], again.test.tensors[0])


def python2_pickle(pixels: np.ndarray, labels: list) -> bytes:
    """A batch as Python 2 wrote it with protocol 2: texts of bytes, NumPy under its old name. Written by hand."""

    def text(content: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(content)) + content

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    )
    shape = number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
    array += b"(" + number(1) + shape + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def cifar10_content() -> Dict[str, Any]:
    rng = np.random.default_rng(1)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return {name: (rng.integers(0, 256, (4, 3072), dtype=np.uint8), rng.integers(0, 10, 4).tolist()) for name in names}


def write_cifar10(folder: Path) -> Dict[str, Any]:
    """The archive as its authors pack it."""
    content = cifar10_content()
    with tarfile.open(str(folder / "cifar-10-python.tar.gz"), "w:gz") as tar:
        for name, (pixels, labels) in content.items():
            packed = python2_pickle(pixels, labels)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(packed)
            tar.addfile(member, io.BytesIO(packed))
    return content


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_cifar10_in_every_form(tmp_path, form):
    """The archive, and its folder as torchvision unpacks it: every pixel and label."""
    content = write_cifar10(tmp_path)
    if form == "folder":
        with tarfile.open(str(tmp_path / "cifar-10-python.tar.gz")) as tar:
            for member in tar.getmembers():
                path = tmp_path / member.name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(tar.extractfile(member).read())
        (tmp_path / "cifar-10-python.tar.gz").unlink()
    sets = load("cifar10", tmp_path)
    assert (sets.about, sets.shape, sets.classes) == ("CIFAR-10", (3, 32, 32), 10)
    batches = list(content.values())
    for read, wanted in ((sets.training, batches[:5]), (sets.test, batches[5:])):
        pixels = torch.from_numpy(np.concatenate([batch[0] for batch in wanted])).view(-1, 3, 32, 32)
        assert torch.equal((read.tensors[0] * 255).round().to(torch.uint8), pixels)
        assert read.tensors[1].tolist() == [label for batch in wanted for label in batch[1]]


def test_a_pickle_that_would_run_code(tmp_path):
    """A file under the name of a batch makes arrays and nothing else."""

    class Harm:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "harmed",))

    write_cifar10(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in cifar10_content():
        (folder / name).write_bytes(pickle.dumps({"data": Harm(), "labels": []}))
    assert "which is no array" in refused("cifar10", tmp_path)
    assert not (tmp_path / "harmed").exists()
