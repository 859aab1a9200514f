"""Several processes of a run, started by torchrun: the process group, the training loop, the checkpoint.

Rules of this module:

- Every process draws the same batches in the same order. The engine selects the part of its process.
- Only process 0 prints and writes. Its checkpoint has whole tensors under the network's own names. So any number of
  processes can resume from it, also a single process without torchrun, and also with another engine.
- Ctrl-C or SIGTERM in any process ends the run in all processes, after the same step and with a checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch
from torch import Tensor, distributed, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import spikecore as sc
from common import data, saving
from common.files import tell_of_earlier
from common.options import EPOCHS, SEED, Defaults, at_least, which_backend

#: Options that change no number, but for rounding.
FREE = ("out", "resume", "device", "schedule", "chunks")
#: What a checkpoint holds.
PARTS = ("net", "optimizer", "epoch", "batch", "losses", "order")


class Here(NamedTuple):
    """This process among all of them."""

    rank: int
    world: int
    device: torch.device

    def part(self, values: Tensor) -> Tensor:
        """The samples of a batch ``[B, ...]`` that this process computes."""
        return values.chunk(self.world)[self.rank].to(self.device)


class Engine:
    """A network that is trained by all processes together. All of them call each method, with the same arguments."""

    def train(self, images: Tensor, labels: Tensor) -> Tensor:
        """One training step; this process's share of the loss."""
        raise NotImplementedError

    def right(self, images: Tensor, labels: Tensor) -> Tensor:
        """How many of the images this process found the right class of."""
        raise NotImplementedError

    def state(self) -> Dict[str, Any]:
        """Weights and optimiser as :func:`named` gives them; whole in process 0."""
        raise NotImplementedError

    def load(self, state: Dict[str, Any]) -> None:
        """Go on from a whole state."""
        raise NotImplementedError


def parser(about: Optional[str], out: str) -> argparse.ArgumentParser:
    """The options that these programs have in common."""
    made = argparse.ArgumentParser(description=(about or "").partition("\n")[0], formatter_class=Defaults)
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    made.add_argument("--device", choices=("cuda", "cpu"), default=usual, help="cuda with NCCL, or cpu with gloo")
    made.add_argument("--backend", default=None, help="name of a backend; see `spikecore backends`")
    made.add_argument("--T", type=at_least(1), default=8, help="time steps")
    made.add_argument("--hidden", type=at_least(1), default=128, help="neurons of each of the three hidden layers")
    made.add_argument("--epochs", type=at_least(1), default=10, help=EPOCHS)
    made.add_argument("--batch-size", type=at_least(1), default=60, help="images of all processes together")
    made.add_argument("--lr", type=float, default=2e-3, help="learning rate")
    made.add_argument("--limit", type=at_least(1), help="at most so many batches of an epoch, for a quick try")
    made.add_argument("--seed", type=int, default=0, help=SEED)
    made.add_argument("--out", type=Path, default=Path(out), help="folder of everything that a run writes")
    made.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    return made


def network(options: argparse.Namespace, sets: data.DataSet) -> nn.Sequential:
    """Images ``[B, 1, 8, 8]`` to potentials ``[T, B, 10]``, in four blocks. Time begins within the first one, so that
    dimension 0 of the input is the batch. Time constants are learnt, one for each neuron.
    """

    def block(features: int) -> List[nn.Module]:
        tau = torch.full((options.hidden,), 2.0)
        # a low threshold: at 1.0 the third layer would not fire before an epoch of training
        return [nn.Linear(features, options.hidden), sc.LIF(tau, threshold=0.3, learn=("tau",))]

    torch.manual_seed(options.seed)
    pixels = sets.shape[0] * sets.shape[1] * sets.shape[2]
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), sc.encode.Constant(options.T), *block(pixels)),
        nn.Sequential(*block(options.hidden)),
        nn.Sequential(*block(options.hidden)),
        nn.Sequential(nn.Linear(options.hidden, sets.classes), sc.LI(tau=2.0)),
    )


def named(net: nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, Any]:
    """Weights and the state of the optimiser by the names of parameters, as torch.distributed.checkpoint has them. All
    on the CPU: another process has another GPU.
    """
    parameters = dict(net.named_parameters())
    entries = {name: on_cpu(optimizer.state[p]) for name, p in parameters.items() if p in optimizer.state}
    groups = [{**optimizer.state_dict()["param_groups"][0], "params": [*parameters]}]
    return {"net": on_cpu(net.state_dict()), "optimizer": {"state": entries, "param_groups": groups}}


def on_cpu(values: Dict[str, Any]) -> Dict[str, Any]:
    """The values, with tensors on the CPU."""
    return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in values.items()}


def load_named(net: nn.Module, optimizer: torch.optim.Optimizer, state: Dict[str, Any]) -> None:
    """Go on from what :func:`named` gave; ``state`` may be that of a larger network. Raises ValueError for weights that
    are missing.
    """
    lacking = [name for name in net.state_dict() if name not in state["net"]]
    if lacking:
        raise ValueError(
            f"the checkpoint has no {', '.join(lacking)}, but {', '.join(state['net'])}: another version of the "
            "program wrote it; go on with that version, or begin without --resume"
        )
    net.load_state_dict({name: state["net"][name] for name in net.state_dict()})
    held, names = state["optimizer"], [name for name, _ in net.named_parameters()]
    entries = {place: held["state"][name] for place, name in enumerate(names) if name in held["state"]}
    groups = [{**held["param_groups"][0], "params": [*range(len(names))]}]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


@contextmanager
def group(made: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[Here]:
    """The process group that torchrun asks for, or one of this process alone."""
    rank, world, local = (int(os.environ.get(name, default)) for name, default in ENVIRONMENT)
    if options.batch_size % world:
        made.error(f"--batch-size {options.batch_size} must be a multiple of the number of processes, {world}")
    device = torch.device(options.device)
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            made.error(f"process {rank} needs a GPU of its own, and there are {torch.cuda.device_count()} here")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    single: Dict[str, Any] = {"store": distributed.HashStore(), "rank": 0, "world_size": 1}
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", **({} if "RANK" in os.environ else single)
    )
    try:
        yield Here(rank, world, device)
    finally:
        distributed.destroy_process_group()


#: What torchrun sets: the number of this process, of all, and of this one on its machine.
ENVIRONMENT = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))


class Stop(saving.Stop):
    """Ctrl-C and SIGTERM as a question that all processes answer alike. On Ctrl-C a process gets the terminal's signal
    and torchrun's, so a second one changes nothing; torchrun kills what does not end in 30 seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._group = distributed.new_group(backend="gloo")  # a flag on the host: nothing waits for a GPU

    def _signal(self, *_: object) -> None:
        self.asked = True

    def anywhere(self) -> bool:
        """Whether any process was asked."""
        flag = torch.tensor(float(self.asked))
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=self._group)
        return bool(flag)


def of_all(values: List[Tensor], device: torch.device) -> Tensor:
    """Each of the values, at least one, summed over all processes."""
    summed = torch.stack(values).to(device)
    distributed.all_reduce(summed)
    return summed


class Run:
    """The training loop around an engine."""

    def __init__(self, engine: Engine, here: Here, sets: data.DataSet, options: argparse.Namespace) -> None:
        self.engine, self.here, self.options = engine, here, options
        self.order = torch.Generator().manual_seed(options.seed)
        size = {"batch_size": options.batch_size, "drop_last": True}
        self.loader = torch.utils.data.DataLoader(sets.training, shuffle=True, generator=self.order, **size)
        self.tests = torch.utils.data.DataLoader(sets.test, **size)
        self.batches = min(len(self.loader), options.limit or len(self.loader))
        self.epoch, self.batch = 0, 0  # finished ones, and finished ones of the epoch at hand
        self.losses: List[Tensor] = []  # this process's share of the loss of each batch of the epoch at hand
        self.begun = self.order.get_state()
        self.settings = {name: value for name, value in vars(options).items() if name not in FREE}

    @property
    def checkpoint(self) -> Path:
        """Where the run is kept."""
        return self.options.out / "checkpoint.pt"

    def save(self) -> None:
        """Write the checkpoint, in process 0; a state is gathered from all."""
        state = self.engine.state()
        losses = of_all(self.losses, self.here.device).cpu() if self.losses else None
        state.update(epoch=self.epoch, batch=self.batch, losses=losses, order=self.begun)
        if self.here.rank == 0:
            sc.save_checkpoint(self.checkpoint, self.settings, **state)
        distributed.barrier()

    def load(self) -> None:
        """Go on from the checkpoint. Raises FileNotFoundError without one, ValueError for one of other settings."""
        saved = sc.load_checkpoint(self.checkpoint, self.settings, PARTS)
        self.engine.load(saved)
        self.epoch, self.batch, self.begun = saved["epoch"], saved["batch"], saved["order"]
        if saved["losses"] is not None:  # sums over all processes: process 0 has them as its share, the others zeros
            losses = saved["losses"].to(self.here.device)
            self.losses = list(losses if self.here.rank == 0 else torch.zeros_like(losses))

    def train(self, stop: Stop, log: Optional[SummaryWriter]) -> Optional[float]:
        """Train to the end; the accuracy on the test images, or None if it was asked to stop."""
        done, score = self.epoch * self.batches + self.batch, None
        quiet = self.here.rank != 0
        with tqdm(total=self.options.epochs * self.batches, initial=done, unit="batch", disable=quiet) as bar:
            while self.epoch < self.options.epochs:
                self.order.set_state(self.begun)
                for images, labels in itertools.islice(self.loader, self.batch, self.batches):
                    self.losses.append(self.engine.train(images, labels))
                    self.batch += 1
                    bar.update()
                    if stop.anywhere():
                        self.save()
                        return None
                loss, score = of_all(self.losses, self.here.device).mean().item(), self._test()
                self.epoch, self.batch, self.losses = self.epoch + 1, 0, []
                self.begun = self.order.get_state()
                bar.set_postfix(loss=f"{loss:.3f}", test=f"{score:.1%}")
                if log is not None:
                    log.add_scalar("loss", loss, self.epoch)
                    log.add_scalar("test accuracy", score, self.epoch)
                self.save()
        return self._test() if score is None else score  # of a run that had ended

    def _test(self) -> float:
        right = [self.engine.right(images, labels) for images, labels in self.tests]
        return of_all(right, self.here.device).sum().item() / (len(right) * self.options.batch_size)


def main(made: argparse.ArgumentParser, engine: Callable[[nn.Sequential, Here, argparse.Namespace], Engine]) -> None:
    """Run a program: ``engine(net, here, options)`` around the network, in each process."""
    options, start = made.parse_args(), time.perf_counter()
    sets = data.digits()
    if options.batch_size > len(sets.test):
        made.error(f"--batch-size {options.batch_size} is more than the {len(sets.test)} images to test with")
    with group(made, options) as here:
        try:
            net = network(options, sets).to(here.device)
            sc.set_backend(net, options.backend)
            run = Run(engine(net, here, options), here, sets, options)
        except (sc.backend.BackendError, ValueError) as error:  # of an option's value
            made.error(str(error))
        if options.resume:
            try:
                run.load()
            except (FileNotFoundError, ValueError) as error:
                sys.exit(f"--resume: {error}")
        elif here.rank == 0:
            tell_of_earlier(run.checkpoint)
        options.out.mkdir(parents=True, exist_ok=True)
        log = SummaryWriter(str(options.out), purge_step=run.epoch + 1) if here.rank == 0 else None
        with Stop() as stop:
            score = run.train(stop, log)
        if log is not None:
            log.close()
        if here.rank == 0:
            if score is None:
                done = f"{run.epoch} epochs and {run.batch} batches"
                print(f"\nstopped: {done} are in {run.checkpoint}; go on with --resume", file=sys.stderr)
            else:
                tested = len(run.tests) * options.batch_size
                print(f"test accuracy  {score:.2%} of {tested} images of {sets.about} never trained on")
                print(f"backend        {which_backend(net)}")
                print(f"processes      {here.world} on {here.device.type}")
                print(f"time           {time.perf_counter() - start:.0f} s{' since it was resumed' * options.resume}")
                print(f"checkpoint     {run.checkpoint}")
                print(f"TensorBoard    tensorboard --logdir {options.out}")
    if score is None:
        sys.exit(1)
