"""Data sets by name, as images in [0, 1] and class numbers.

Nothing is downloaded without ``--download``. If files are missing, a :class:`common.files.DataError` names the files,
their folder, and the data set that is always available.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Callable, Dict, NamedTuple, Tuple

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from common import readers


class DataSet(NamedTuple):
    """Images and labels to train on, and others to test with."""

    #: What it is, for people.
    about: str
    training: Dataset
    test: Dataset
    #: Of one sample, ``[C, H, W]``, or ``[T, C, H, W]`` for events as frames.
    shape: Tuple[int, ...]
    classes: int


def load(options: argparse.Namespace) -> DataSet:
    """The set that ``--data`` names."""
    return digits() if options.data == "digits" else SETS[options.data](options.folder, options.download)


def digits() -> DataSet:
    """scikit-learn's handwritten digits: 1,797 real images of 8x8 pixels, every digit equally often in both parts."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
    parts: Tuple[Tensor, ...] = train_test_split(
        images, torch.tensor(labels), test_size=360, random_state=0, stratify=labels
    )
    training, test = TensorDataset(parts[0], parts[2]), TensorDataset(parts[1], parts[3])
    return DataSet("scikit-learn's digits", training, test, (1, 8, 8), 10)


def left_out(sets: DataSet, tested: int) -> str:
    """How many images to test with were not used, for the result; "" for none."""
    left = len(sets.test) - tested
    return f", without {left} in a batch that is not full, or past --limit" if left else ""


def mnist(folder: Path, download: bool = False, way_out: str = "") -> DataSet:
    """Handwritten digits of 28x28 pixels: 60,000 to train on, 10,000 to test with. ``way_out`` is the end of the error
    where they are not there, for a program with options of its own.
    """
    return _images("MNIST", *readers.mnist(folder, download, way_out))


def cifar10(folder: Path, download: bool = False) -> DataSet:
    """Colour photographs of 32x32 pixels in ten classes: 50,000 to train on, 10,000 to test with."""
    return _images("CIFAR-10", *readers.cifar10(folder, download))


def _images(about: str, training: readers.Part, test: readers.Part) -> DataSet:
    return DataSet(about, TensorDataset(*training), TensorDataset(*test), tuple(training.images.shape[1:]), 10)


#: Sets that are read from a folder, and downloaded to it on demand.
SETS: Dict[str, Callable[[Path, bool], DataSet]] = {"mnist": mnist, "cifar10": cifar10}
