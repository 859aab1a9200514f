"""Readers of MNIST's IDX files and CIFAR-10's pickles, as the authors publish them and torchvision stores them.

They do not use torchvision. Its usual package contains a CUDA library, cannot be imported with a CPU build of torch
("operator torchvision::nms does not exist"), and works with only one release of torch.

A file must be consistent: header, size, numbers of images and labels, and classes must agree. A pickle could run code
when it is read; these readers only let it create arrays.
"""

from __future__ import annotations

import codecs
import gzip
import math
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import IO, Any, List, NamedTuple, Tuple

import numpy as np
import torch
from torch import Tensor

from common.files import DataError, download, find, missing

MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
#: Files of MNIST, with the MD5 of each one's ``.gz``.
MNIST_FILES = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/"
CIFAR10_ARCHIVE = ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a")
CIFAR10_FOLDER = "cifar-10-batches-py"
CIFAR10_TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR10_TEST = ("test_batch",)


class Part(NamedTuple):
    """Images ``[N, C, H, W]`` in [0, 1] and class numbers ``[N]``."""

    images: Tensor
    labels: Tensor


def mnist(folder: Path, get: bool = False, way_out: str = "") -> Tuple[Part, Part]:
    """Training and test part of MNIST, from ``folder/MNIST/raw`` or ``folder``."""
    places = [folder / "MNIST" / "raw", folder]
    found, cause = find(list(MNIST_FILES), places), ""
    if found is None and get:
        try:
            for name, md5 in MNIST_FILES.items():
                if find([name], places[:1]) is None:
                    download(f"{MNIST_URL}{name}.gz", places[0] / f"{name}.gz", md5)
        except OSError as error:
            cause = str(error)
        found = find(list(MNIST_FILES), places)
    if found is None:
        raise missing("MNIST", [f"{name}(.gz)" for name in MNIST_FILES], places, cause, way_out)
    parts = []
    for part in ("train", "t10k"):
        images, labels = (found[f"{part}-{what}-ubyte"] for what in ("images-idx3", "labels-idx1"))
        pixels = read_idx(images, 3)
        parts.append(_part(f"{images} and {labels.name}", pixels[:, None], read_idx(labels, 1)))
    return parts[0], parts[1]


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The bytes of an IDX file with so many dimensions, gzipped or not."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:  # what gzip raises for a file that is cut short or none of its own
        raise DataError(f"{path} cannot be read: {error}; get it again") from error
    # two zeros, the type (8 is unsigned bytes), the number of dimensions, and the size of each
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        begins = f"begins with {content[:4].hex()}, not with 000008{dimensions:02x}"
        raise DataError(f"{path} is no IDX file of {dimensions}-dimensional unsigned bytes: it {begins}")
    shape = tuple(np.frombuffer(content, ">u4", dimensions, 4).tolist())
    if len(content) - header != math.prod(shape):
        size = " x ".join(map(str, shape))
        raise DataError(f"{path} says that it has {size} bytes, and has {len(content) - header}; get it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def cifar10(folder: Path, get: bool = False) -> Tuple[Part, Part]:
    """Training and test part of CIFAR-10, from the folder ``cifar-10-batches-py`` or the archive with it."""
    archive, cause = folder / CIFAR10_ARCHIVE[0], ""
    names = [*CIFAR10_TRAINING, *CIFAR10_TEST]
    batches = find(names, [folder / CIFAR10_FOLDER])
    if batches is None and not archive.is_file() and get:
        try:
            download(CIFAR10_URL + CIFAR10_ARCHIVE[0], archive, CIFAR10_ARCHIVE[1])
        except OSError as error:
            cause = str(error)
    if batches is not None:
        read = {name: _batch(str(path), open(str(path), "rb")) for name, path in batches.items()}  # noqa: SIM115
    elif archive.is_file():
        read = _archived(archive, names)
    else:
        places = [folder / CIFAR10_FOLDER, archive]
        raise missing("CIFAR-10", names, places, cause)
    parts = []
    for part in (CIFAR10_TRAINING, CIFAR10_TEST):
        pixels, labels = (np.concatenate([read[name][place] for name in part]) for place in (0, 1))
        parts.append(_part(str(folder / CIFAR10_FOLDER), pixels.reshape(-1, 3, 32, 32), labels))
    return parts[0], parts[1]


def _archived(archive: Path, names: List[str]) -> Any:
    try:
        with tarfile.open(str(archive)) as tar:
            members = {name: tar.extractfile(f"{CIFAR10_FOLDER}/{name}") for name in names}
            return {name: _batch(f"{name} of {archive}", file) for name, file in members.items() if file is not None}
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read: {error}; get it again") from error


def _batch(where: str, file: IO[bytes]) -> Tuple[np.ndarray, np.ndarray]:
    """Pixels ``[N, 3072]`` and labels of one of CIFAR's files."""
    try:
        with file:
            # latin1: Python 2 wrote the files, and kept bytes in texts
            content = _Arrays(file, encoding="latin1").load()
        pixels, labels = np.asarray(content["data"]), np.asarray(content["labels"])
    except Exception as error:  # a pickle that is cut short or something else raises anything
        raise DataError(f"{where} is no batch of CIFAR-10 ({type(error).__name__}: {error}); get it again") from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3072):
        found = f"{pixels.dtype} {list(pixels.shape)}"
        raise DataError(f"{where} must have uint8 [N, 3072] for N labels; it has {found} for {len(labels)}")
    return pixels, labels


class _Arrays(pickle.Unpickler):
    """Reads what arrays and plain values are made with."""

    known = {
        # under its names of before and after NumPy 2
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        """One of those, or an error."""
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"it wants {module}.{name}, which is no array")
        return self.known[module, name]


def _part(where: str, pixels: np.ndarray, labels: np.ndarray) -> Part:
    if len(pixels) != len(labels):
        raise DataError(f"{where}: {len(pixels)} images and {len(labels)} labels do not belong together")
    if len(labels) == 0 or labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{where}: labels must be 0 to 9, and are {sorted(set(labels.tolist()))}")
    images = torch.from_numpy(pixels.astype(np.float32) / 255)
    return Part(images, torch.from_numpy(labels.astype(np.int64)))
