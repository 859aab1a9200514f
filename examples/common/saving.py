"""The files that a run writes, and how a signal ends it.

- ``checkpoint.pt``: everything that is needed to resume (``sc.save_checkpoint``).
- ``best.safetensors``: the weights with the best accuracy on the test images. The file cannot run code. Its metadata
  has the settings, the epoch and the accuracy.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Dict, Mapping

import torch
from safetensors.torch import save
from torch import Tensor


def save_weights(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Weights in a file that is replaced as a whole; ``about`` becomes its metadata, as texts."""
    beside = path.with_name(f".{path.name}.tmp")
    # contiguous: the format has no strides, and refuses channels-last weights
    tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    metadata = {"format": "pt", **{name: str(value) for name, value in about.items()}}
    # not save_file: its file is one that nobody else may read
    beside.write_bytes(save(tensors, metadata=metadata))
    os.replace(str(beside), str(path))


def random_state(device: torch.device) -> Dict[str, Tensor]:
    """Torch's own streams: the CPU's, and that of a CUDA device."""
    kept = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        kept["cuda"] = torch.cuda.get_rng_state(device)
    return kept


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on with these streams."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


class Stop:
    """Ctrl-C and SIGTERM as a question to be asked between two steps: ``with Stop() as stop: ... if stop.asked``.

    An exception in the middle of a step could leave half of the weights updated. A second signal ends at once, with
    KeyboardInterrupt. A signal that was ignored when the process began, as shells have it for background jobs, stays
    so.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signal(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        # not print: the signal may have come while the progress bar writes there
        os.write(2, b"\nstopping after this step; once more ends at once\n")


def leave_signals(_: int) -> None:
    """For a process that reads data: Ctrl-C, which a terminal sends to all, is the parent's, and SIGTERM ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
