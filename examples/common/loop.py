"""The training loop of the programs: progress, TensorBoard, checkpoints, and resuming.

Rules of this module:

- A run that was stopped or killed and then continued with ``--resume`` ends with the weights of an uninterrupted run.
  They are bit-identical if the device computes deterministically. A checkpoint is written after every epoch. After
  Ctrl-C or SIGTERM it is written after the current step.
- All random numbers depend only on the seed, the epoch and the generator states in the checkpoint. The order of the
  images and their augmentation have their own generators. Everything else (encoder, dropout) uses torch's.
- Nothing is read from the device within an epoch.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import spikecore as sc
from common import data, pictures, saving
from common import options as common_options
from common.files import DataError, Stopped, tell_of_earlier

CURVES = ("loss", "training accuracy", "test accuracy")
#: What a checkpoint holds.
PARTS = ("step", "epoch", "batch", "curves", "random", "draws", "seen", "tested")
#: Changes a batch of training images; draws from the generator alone.
Augment = Callable[[Tensor, torch.Generator], Tensor]


class Training:
    """Everything that changes while a network is trained, and a checkpoint of it."""

    def __init__(
        self, net: nn.Module, sets: data.DataSet, options: argparse.Namespace, loss: Any, augment: Optional[Augment]
    ) -> None:
        self.net, self.options, self.augment = net, options, augment
        self.device = torch.device(options.device)
        self.order = torch.Generator()  # which images come next
        self.draws = torch.Generator().manual_seed(options.seed)  # how they are changed
        reading: Dict[str, Any] = {"batch_size": options.batch_size, "num_workers": options.workers}
        if options.workers:
            reading["worker_init_fn"] = saving.leave_signals
        self.loader = sc.DataLoader(sets.training, shuffle=True, drop_last=True, generator=self.order, **reading)
        self.tests = sc.DataLoader(sets.test, **reading)
        self.optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
        how = common_options.how(options)
        try:
            self.step = sc.training_model(net, loss, self.optimizer, options=how)
        except TypeError as error:
            if how is None:
                raise
            raise ValueError(
                f"--precision and --graph are not for this backend, which has options of its own: {error}"
            ) from error
        refuse_compile(net, options.compile)
        self.predict = sc.inference_model(net, options=how)
        self.settings = common_options.settings(options, net)
        self.batches = min(len(self.loader), options.limit or len(self.loader))
        self.epoch, self.batch = 0, 0  # finished ones, and finished ones of the epoch at hand
        self.seen: List[Tensor] = []  # loss and accuracy of each batch of the epoch at hand
        self.tested = 0  # test images of an epoch
        self.curves: Dict[str, List[float]] = {name: [] for name in CURVES}
        self.random = saving.random_state(self.device)

    @property
    def checkpoint(self) -> Path:
        """Where the run is kept."""
        return self.options.out / "checkpoint.pt"

    @property
    def best(self) -> Path:
        """Where the best weights are kept."""
        return self.options.out / "best.safetensors"

    def save(self) -> None:
        """Write the checkpoint, and the weights if they are the best so far."""
        state: Dict[str, Any] = {"step": self.step.state_dict()}
        scores = self.curves["test accuracy"]
        if not self.batch and scores[-1] > max(scores[:-1], default=-1.0):
            about = {**self.settings, "epoch": self.epoch, "test accuracy": scores[-1]}
            saving.save_weights(self.best, state["step"]["net"], about)
        state.update(epoch=self.epoch, batch=self.batch, curves=self.curves, random=self.random)
        seen = torch.stack(self.seen).cpu() if self.seen else None
        state.update(draws=self.draws.get_state(), seen=seen, tested=self.tested)
        sc.save_checkpoint(self.checkpoint, self.settings, **state)

    def load(self) -> None:
        """Go on from the checkpoint. Raises FileNotFoundError without one, ValueError for one of other settings."""
        saved = sc.load_checkpoint(self.checkpoint, self.settings, PARTS)
        self.step.load_state_dict(saved["step"])
        self.epoch, self.batch, self.curves = saved["epoch"], saved["batch"], saved["curves"]
        self.seen = [] if saved["seen"] is None else list(saved["seen"].to(self.device))
        self.random, self.tested = saved["random"], saved["tested"]
        self.draws.set_state(saved["draws"])

    def run(self, stop: saving.Stop, log: SummaryWriter) -> bool:
        """Train and test to the end, once per epoch; False if it was asked to stop, with the checkpoint written."""
        total, done = self.options.epochs * self.batches, self.epoch * self.batches + self.batch
        saving.set_random_state(self.random, self.device)
        with tqdm(total=total, initial=done, desc="training", unit="batch") as bar:
            while self.epoch < self.options.epochs:
                self._train(stop, bar)
                self.random = saving.random_state(self.device)
                score = None if stop.asked else self._test(stop)
                if score is None:
                    self.save()
                    return False
                values = [*torch.stack(self.seen).mean(0).tolist(), score]
                for name, value in zip(CURVES, values):
                    self.curves[name].append(value)
                    log.add_scalar(name, value, self.epoch + 1)
                log.flush()  # before the checkpoint: what it counts as done is not written again
                bar.set_postfix(loss=f"{values[0]:.3f}", test=f"{score:.1%}")
                self.epoch, self.batch, self.seen = self.epoch + 1, 0, []
                self.random = saving.random_state(self.device)
                self.save()
        return True

    def _train(self, stop: saving.Stop, bar: Any) -> None:
        """The batches of one epoch that are not yet done, with a learning rate that follows a cosine down to 0."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.lr * (1 + math.cos(math.pi * self.epoch / self.options.epochs)) / 2
        # a stream for each epoch: how much of one is used depends on the number of workers
        self.order.manual_seed((self.options.seed * 2**20 + self.epoch) % 2**63)
        batches = iter(self.loader)
        for _ in range(self.batch):
            next(batches)
        if self.batch:  # what was skipped may have drawn
            saving.set_random_state(self.random, self.device)
        for images, labels in itertools.islice(batches, self.batches - self.batch):
            outputs, loss = self.step(self._prepared(images, training=True), labels)
            # a pipeline's outputs are where it ends
            self.seen.append(torch.stack((loss.float().mean(), accuracy(outputs, labels))).to(self.device))
            self.batch += 1
            bar.update()
            if stop.asked:
                return

    def _test(self, stop: saving.Stop) -> Optional[float]:
        """The accuracy on the test images; None if it was asked to stop."""
        right, self.tested = [], 0
        for images, labels in itertools.islice(self.tests, self.options.limit):
            outputs = self.predict(self._prepared(images))
            right.append(accuracy(outputs, labels) * len(labels))
            self.tested += len(labels)
            if stop.asked:
                return None
        return torch.stack(right).sum().item() / self.tested

    def _prepared(self, images: Tensor, training: bool = False) -> Tensor:
        if training and self.augment is not None:
            images = self.augment(images, self.draws)
        if self.options.layout == "channels-last" and images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        return images


def refuse_compile(net: nn.Module, asked: bool) -> None:
    """Raise ValueError where the backend runs a compiled network as if it were not."""
    for device, used in common_options.bound(net).items():
        if asked and not used.backend.capabilities_on(device).torch_compile:
            raise ValueError(f"--compile does nothing with backend {used.backend.name} and this torch; leave it out")


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The fraction of samples whose class has the highest mean over time: of spikes, or of a linear read-out."""
    return sc.metrics.accuracy(outputs, labels, by="mean_membrane")


def rate_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the mean over time, as SpikingFlow's tutorials have it.

    For spikes that is the firing rate, 1 at most: with ten classes the loss is never below ``log(1 + 9 / e) = 1.46``.
    """
    return nn.functional.cross_entropy(outputs.float().mean(0), labels)


def main(
    parser: argparse.ArgumentParser,
    network: Callable[[argparse.Namespace, data.DataSet], nn.Module],
    loss: Any,
    augment: Optional[Callable[[argparse.Namespace], Optional[Augment]]] = None,
    load: Callable[[argparse.Namespace], data.DataSet] = data.load,
) -> None:
    """Run a program: ``network(options, sets)`` trained with ``loss`` on the sets of ``load(options)``, whose training
    images ``augment(options)`` changes.
    """
    options = parser.parse_args()
    common_options.check(parser, options)
    try:
        sets = load(options)
    except DataError as error:
        parser.error(str(error))
    if len(sets.training) < options.batch_size:
        parser.error(f"--batch-size {options.batch_size} is more than the {len(sets.training)} samples to train on")
    torch.manual_seed(options.seed)
    try:
        net = network(options, sets)
        if not isinstance(net, sc.parallel.Pipeline):  # whose stages have devices of their own
            net = net.to(options.device)
        if options.layout == "channels-last":
            net = net.to(memory_format=torch.channels_last)
        sc.set_backend(net, options.backend)
        if options.compile:
            net.compile()
        training = Training(net, sets, options, loss, augment(options) if augment else None)
    except (sc.backend.BackendError, sc.backend.Unsupported, TypeError, ValueError) as error:  # of an option's value
        parser.error(str(error))
    try:
        run(training, sets)
    except (DataError, sc.backend.BackendError, sc.backend.Unsupported) as error:
        parser.error(str(error))


def run(training: Training, sets: data.DataSet) -> None:
    """Train, and say how it went."""
    options, start = training.options, time.perf_counter()
    if options.resume:
        try:
            training.load()
        except (FileNotFoundError, ValueError) as error:
            sys.exit(f"--resume: {error}")
    else:
        tell_of_earlier(training.checkpoint)
    options.out.mkdir(parents=True, exist_ok=True)
    # purged: epochs that were logged, and are now done again
    with saving.Stop() as stop, SummaryWriter(str(options.out), purge_step=training.epoch + 1) as log:
        try:
            ended = training.run(stop, log)
        except KeyboardInterrupt:
            left = (
                f"the last checkpoint is {training.checkpoint}" if training.checkpoint.exists() else "nothing is kept"
            )
            raise Stopped(f"\nstopped at once: {left}") from None
    curves, picture = training.curves, options.out / "learning-curve.png"
    if training.epoch:
        pictures.draw_curves(curves, picture, f"{sets.about}, T = {options.T}")
    if not ended:
        done = f"{training.epoch} epochs and {training.batch} batches"
        raise Stopped(f"\nstopped: {done} are in {training.checkpoint}; go on with --resume")
    scores = curves["test accuracy"]
    left = data.left_out(sets, training.tested)
    print(f"test accuracy  {scores[-1]:.2%} of {training.tested} images of {sets.about} never trained on{left}")
    when = f"after epoch {scores.index(max(scores)) + 1}, the most on these images"
    print(f"best           {max(scores):.2%} {when}, weights in {training.best}")
    print(f"backend        {common_options.which_backend(training.net)}")
    print(f"time           {time.perf_counter() - start:.0f} s{' since it was resumed' * options.resume}")
    print(f"pictures       {picture}")
    print(f"checkpoint     {training.checkpoint}")
    print(f"TensorBoard    tensorboard --logdir {options.out}")
