"""Recordings of event cameras as frames ``[T, 2, H, W]``: how often each pixel became darker, and brighter, in each
T-th part of a recording.

tonic reads them from its usual places: ``NMNIST`` and ``DVSGesture`` in the folder of ``--folder``. tonic itself
downloads what it does not find, and needs the archive even if its content is there. Here the files are enough, and
nothing is downloaded without ``--download``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, NamedTuple, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from common.data import DataSet, digits
from common.files import DataError, missing


class Recordings(NamedTuple):
    """What tonic calls a data set, and what its files look like."""

    about: str
    tonic: str
    #: Folders of the training and the test part, and the files in them.
    folders: Tuple[str, str]
    files: str
    classes: int


RECORDINGS: Dict[str, Recordings] = {
    "nmnist": Recordings("N-MNIST", "NMNIST", ("Train", "Test"), "*/*.bin", 10),
    "dvsgesture": Recordings("DVS Gesture", "DVSGesture", ("ibmGestureTrain", "ibmGestureTest"), "*/*.npy", 11),
}


def load(name: str, steps: int, folder: Path, download: bool = False) -> DataSet:
    """The set of that name with ``steps`` frames for each recording."""
    if name == "digits":
        return moving_digits(steps)
    kind = RECORDINGS[name]
    training, test = (Frames(kind, train, steps, folder, download) for train in (True, False))
    return DataSet(kind.about, training, test, training.shape, kind.classes)


class Frames(Dataset):
    """One part of a data set; each recording is read and cut into frames when it is asked for."""

    def __init__(self, kind: Recordings, train: bool, steps: int, folder: Path, download: bool) -> None:
        try:
            import tonic
        except ImportError as error:
            raise DataError(
                f"{kind.about} is read by tonic, which is not installed ({error}): pip install '.[events]', or take "
                "--data digits"
            ) from error
        theirs = getattr(tonic.datasets, kind.tonic)
        place = folder / kind.tonic / kind.folders[0 if train else 1]

        def get(reader: Any) -> None:
            if not download:
                raise missing(kind.about, [kind.files], [place])
            try:
                theirs.download(reader)
            except Exception as error:  # of the network, the disk, the archive or tonic's own check
                raise missing(kind.about, [kind.files], [place], f"{type(error).__name__}: {error}") from error

        own = {"download": get, "_check_exists": lambda reader: any(place.glob(kind.files))}
        self.events = type(kind.tonic, (theirs,), own)(save_to=str(folder), train=train)
        # tonic takes files in the order of the disk
        self.order = sorted(range(len(self.events)), key=lambda place: self.events.data[place])
        self.cut = tonic.transforms.ToFrame(sensor_size=self.events.sensor_size, n_time_bins=steps)
        width, height, polarities = self.events.sensor_size
        self.shape = (steps, polarities, height, width)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Tuple[Tensor, int]:
        place = self.order[index]
        try:
            events, label = self.events[place]
            return torch.from_numpy(self.cut(events)).float(), label
        except Exception as error:  # what NumPy raises for a file that is cut short depends on where
            path = self.events.data[place]
            raise DataError(
                f"{path} cannot be read as events: {type(error).__name__}: {error}; get it again"
            ) from error


def moving_digits(steps: int) -> DataSet:
    """scikit-learn's digits as a camera would see them that moves along a triangle, as the one of N-MNIST did: a pixel
    has an event where it became darker (first channel) or brighter (second) from one step to the next.
    """
    still = digits()
    around = [2 * math.pi * step / steps for step in range(steps + 1)]

    def seen(images: Tensor) -> Tensor:
        frames = []
        for angle in around:
            # a corner of the triangle is at each third; its middle is the middle of the image
            third = 2 * math.pi / 3
            radius = 0.25 * math.cos(third / 2) / math.cos(angle % third - third / 2)
            moved = torch.tensor([[1.0, 0.0, radius * math.cos(angle)], [0.0, 1.0, radius * math.sin(angle)]])
            grid = F.affine_grid(moved.expand(len(images), 2, 3), list(images.shape), align_corners=False)
            frames.append(F.grid_sample(images, grid, align_corners=False))
        change = torch.stack(frames, 1).diff(dim=1)
        return torch.cat((change < -0.05, change > 0.05), 2).float()

    parts = [TensorDataset(seen(part.tensors[0]), part.tensors[1]) for part in (still.training, still.test)]
    return DataSet(f"{still.about}, moving", parts[0], parts[1], (steps, 2, *still.shape[1:]), still.classes)
