"""Results of trainings in JSON files, from which ``docs/results/page.py`` makes a page; and small weights to ship.

A file is a list of runs. A run takes the place of one with the same command and seed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from common.options import which_backend

#: Options that name places of this machine, and the seed, which a command of the page has not.
LEFT_OUT = ("--seed", "--seeds", "--results", "--weights", "--out")
#: Variables that choose what computes.
CHOOSING = ("SPIKECORE_BACKEND", "SPIKECORE_IPU_EMULATOR")
#: What a file of weights says of its training.
SHIPPED = ("data", "network", "parameters", "epochs", "seed", "date", "command")


def add_option(parser: argparse.ArgumentParser) -> None:
    """``--results``."""
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="JSON file to which the result is added, unless resumed"
    )


def add_weights_option(parser: argparse.ArgumentParser) -> None:
    """``--weights``, for :func:`save_weights`."""
    parser.add_argument("--weights", type=Path, metavar="FILE", help=".npz file for the trained weights, float16")


def accuracy(predict: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, batch: int = 1000) -> float:
    """The share of images whose class has the highest output in the mean over time."""
    pairs = zip(images.split(batch), labels.split(batch))
    right = [sc.metrics.accuracy(predict(some), of, by="mean_membrane") * len(of) for some, of in pairs]
    return torch.stack(right).sum().item() / len(labels)


class Run:
    """A training: begins now, is told the accuracy after each epoch, and knows the result at the end."""

    def __init__(self, net: nn.Module, data: str, options: argparse.Namespace, library: str = "spikecore") -> None:
        self.net, self.data, self.options, self.library = net, data, options, library
        self.curve: List[float] = []
        self.clock, self.processor = time.perf_counter(), time.process_time()

    def epoch(self, score: float) -> None:
        """An epoch is over, and the network has this test accuracy."""
        self.curve.append(score)
        passed = time.perf_counter() - self.clock
        print(f"epoch {len(self.curve):3}  test accuracy {score:7.2%}  {passed:5.0f} s", flush=True)

    def finish(self) -> None:
        """Print the result, and keep it."""
        facts = self.facts()
        print(f"test accuracy  {facts['accuracy']:.2%} after the last epoch")
        print(f"time           {facts['seconds']:.0f} s, {facts['processor_seconds']:.0f} s of a processor")
        print(f"backend        {facts['backend']}, {facts['machine']}, threads: {facts['threads']}")
        self.keep()

    def keep(self, **more: Any) -> None:
        """Add the result to the file of ``--results``; ``more`` is known better by the program."""
        if self.options.results is not None and not getattr(self.options, "resume", False):  # whose time is of a part
            add(self.options.results, {**self.facts(), **more})

    def facts(self) -> Dict[str, Any]:
        """What a page says of the run."""
        device = torch.device(getattr(self.options, "device", "cpu"))
        own = self.library == "spikecore"
        backend = which_backend(self.net, why=False) if own else self.library
        if backend == "ipu on ipu" and os.environ.get("SPIKECORE_IPU_EMULATOR"):
            backend = "ipu, emulated"
        return {
            "data": self.data,
            "library": f"{self.library} {sc.__version__ if own else metadata.version(self.library)}",
            "network": shape(self.net),
            "parameters": sum(parameter.numel() for parameter in self.net.parameters()),
            "seed": getattr(self.options, "seed", None),
            "epochs": self.options.epochs,
            "accuracy": self.curve[-1],
            "curve": self.curve,
            "seconds": round(time.perf_counter() - self.clock, 1),
            "processor_seconds": round(time.process_time() - self.processor, 1),
            "backend": backend,
            "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "command": command(),
        }


def shape(net: nn.Module) -> str:
    """The sizes of its layers, inputs first: ``784-512-10``, and ``16C3-32C3-10`` for convolutions of 3x3 pixels."""
    names: List[str] = []
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            names.append(f"{layer.out_channels}C{layer.kernel_size[0]}")
        elif isinstance(layer, nn.Linear):
            names += [f"{layer.out_features}"] if names else [f"{layer.in_features}", f"{layer.out_features}"]
    return "-".join(names)


def command() -> str:
    """The command line without the seed and the places of this machine, which are the reader's own."""
    words = [f"{name}={os.environ[name]}" for name in CHOOSING if os.environ.get(name)]
    words.append(f"python examples/{Path(sys.argv[0]).name}")
    option = ""
    for word in sys.argv[1:]:
        option = word.partition("=")[0] if word.startswith("--") else option
        if option not in LEFT_OUT:
            words.append("FOLDER" if option == "--data" and Path(word).is_dir() else shlex.quote(word))
    return " ".join(words)


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def add(path: Path, facts: Dict[str, Any]) -> None:
    """Put a run into a file, in the place of one with the same command, machine and seed."""
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    same = ("command", "machine", "network", "backend", "seed")
    runs = [run for run in runs if any(run[name] != facts[name] for name in same)] + [facts]
    runs.sort(key=lambda run: [run[name] for name in same])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


def save_weights(path: Path, run: Run, tests: Sequence[Tensor], licence: str) -> None:
    """Weights in float16, and what is known of them, for ``sc.models.load``; the accuracy is that of these weights."""
    arrays = {name: value.detach().cpu() for name, value in run.net.state_dict().items()}
    arrays = {name: value.half() if value.is_floating_point() else value for name, value in arrays.items()}
    tests = [part.to(next(run.net.parameters()).device) for part in tests]
    run.net.load_state_dict(arrays)
    run.net.eval()
    with torch.no_grad():
        score = accuracy(run.net, *tests)
    facts = {name: value for name, value in run.facts().items() if name in SHIPPED}
    about = json.dumps({**facts, "accuracy": score, "images": len(tests[1]), "licence": licence})
    np.savez_compressed(str(path), about=np.array(about), **{name: value.numpy() for name, value in arrays.items()})
