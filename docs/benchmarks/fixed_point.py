"""Accuracy of networks in fixed point beside floats.

    python docs/benchmarks/fixed_point.py --network digits --out docs/benchmarks/cpu-fixed-point-digits.json
    python docs/benchmarks/fixed_point.py --network ecg --data FOLDER --weights FILE --more 4 --lr 0.004 --out FILE

A network is trained in floats, made fixed by ``sc.quant.prepare``, and trained for some epochs more; the float network
is trained for as many epochs more, too. ``--weights`` takes published weights in the place of the first training. Data
and weights of the electrocardiograms are those of ``examples/ecg.py``; without ``--data`` they are made up.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import digits
import ecg
import spikecore as sc
from common import data, heartbeats, resonators

#: What is compared with floats: bits of weights and of states.
FORMS = {
    "int8 weights, 16-bit states": (8, 16),
    "int4 weights, 16-bit states": (4, 16),
    "int4 weights, 8-bit states": (4, 8),
}
#: Steps of a made-up electrocardiogram, as many as the published ones have.
STEPS = 1300


class Task:
    """A network, its batches of an epoch, its loss, and its accuracy on the test set."""

    lr, dtype = 2e-3, torch.float32

    def __init__(self, seed: int, options: argparse.Namespace) -> None:
        torch.manual_seed(seed)
        self.order = torch.Generator().manual_seed(seed)


class Digits(Task):
    """examples/digits.py: 1,797 handwritten digits, a convolutional network, 8 steps."""

    def __init__(self, seed: int, options: argparse.Namespace) -> None:
        super().__init__(seed, options)
        self.net = digits.network()
        self.training, self.test = data.digits()[1:3]
        self.loss = sc.losses.ce_count

    def batches(self) -> Any:
        """Shuffled, and shifted by up to one pixel."""
        for rows in torch.randperm(len(self.training), generator=self.order).split(64):
            images, labels = (values[rows] for values in self.training.tensors)
            yield digits.shifted(images, self.order), labels

    def accuracy(self, net: nn.Module) -> float:
        """On the test set."""
        images, labels = self.test.tensors
        return float(sc.metrics.accuracy(sc.inference_model(net)(images), labels))


class Heartbeats(Task):
    """examples/ecg.py: 4 inputs, 36 resonators with feedback, 6 integrators, 1,300 steps."""

    lr, dtype = 0.05, torch.float64

    def __init__(self, seed: int, options: argparse.Namespace) -> None:
        super().__init__(seed, options)
        self.net = ecg.network()
        if options.weights is not None:
            resonators.load(self.net, options.weights)
        if options.data == heartbeats.MADE_UP:
            self.training, self.test = heartbeats.made_up(192, 1, STEPS), heartbeats.made_up(64, 2, STEPS)
        else:
            _, self.training, self.test = heartbeats.load(options.data)
        self.loss = ecg.per_step

    def batches(self) -> Any:
        """Shuffled."""
        for rows in torch.randperm(self.training.number, generator=self.order).split(ecg.BATCH):
            part = self.training.of(rows)
            yield part.spikes, part.labels

    def accuracy(self, net: nn.Module) -> float:
        """Of all steps of the test sequences."""
        outputs = sc.inference_model(net)(self.test.spikes.to(next(net.parameters()).dtype))
        return float((outputs.argmax(-1) == self.test.labels).double().mean())


TASKS = {"digits": Digits, "ecg": Heartbeats}


def train(task: Any, net: nn.Module, epochs: int, lr: float) -> None:
    """Adam, with a learning rate that falls linearly to 0."""
    dtype = next(net.parameters()).dtype
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    step = sc.training_model(net, task.loss, optimizer, options=sc.TrainingOptions(clip_norm=ecg.CLIP))
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - epoch / epochs)
        for x, y in task.batches():
            step(x.to(dtype), y)


def compared(seed: int, options: argparse.Namespace) -> Dict[str, Any]:
    """Accuracies of one seed."""
    name = options.network
    task = TASKS[name](seed, options)
    begun = time.perf_counter()
    if options.weights is None:
        train(task, task.net, options.epochs, task.lr)
    row: Dict[str, Any] = {"network": name, "seed": seed, "float, as trained": task.accuracy(task.net)}
    x = next(iter(task.batches()))[0]
    forms: List[Tuple[str, nn.Module]] = [("float", copy.deepcopy(task.net))]
    for form, (weights, word) in FORMS.items():
        prepared = sc.quant.prepare(task.net, x, weights, word=word, dtype=task.dtype)
        row[f"{form}, at once"] = task.accuracy(prepared)
        forms.append((form, prepared))
    state = task.order.get_state()
    for form, net in forms:
        task.order.set_state(state)
        train(task, net, options.more, options.lr or task.lr / 4)
        row[form] = task.accuracy(net)
        print(name, seed, form, f"{row[form]:.4f}", f"{time.perf_counter() - begun:.0f} s", flush=True)
    return row


def main() -> None:
    """Run what is asked for, and write it."""
    parser = argparse.ArgumentParser(description="Fixed point beside floats.")
    parser.add_argument("--network", choices=[*TASKS], default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=20, help="of the training in floats")
    parser.add_argument("--more", type=int, default=5, help="epochs of each form after it")
    parser.add_argument("--lr", type=float, help="where these begin; a quarter of that of the training if left out")
    parser.add_argument("--data", default=heartbeats.MADE_UP, help="the folder of the electrocardiograms")
    parser.add_argument("--weights", type=Path, help="of the electrocardiograms' network, in the place of a training")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: List[Dict[str, Any]] = []
    for seed in options.seeds:
        rows.append(compared(seed, options))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(_document(options, rows), indent=2) + "\n", encoding="utf-8")


def _document(options: argparse.Namespace, rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    settings = {"epochs": options.epochs if options.weights is None else 0, "more": options.more, "lr": options.lr}
    if options.network == "ecg":
        settings["data"] = options.data if options.data == heartbeats.MADE_UP else "the QT database"
    return {**settings, "torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}


if __name__ == "__main__":
    main()
