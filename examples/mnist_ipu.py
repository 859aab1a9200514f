"""snnTorch's IPU tutorial: two layers of leaky neurons on handwritten digits, trained with the loss inside the model.

    python examples/mnist_ipu.py [--data FOLDER] [--epochs N] [--batch-size B] [--seed S] [--out FOLDER] [--resume]

``SPIKECORE_BACKEND`` chooses the backend: ``torch``, ``cupy`` (with ``--device cuda``), or ``ipu`` for a Graphcore IPU.
With ``SPIKECORE_IPU_EMULATOR=1``, ``ipu`` uses the emulator of PopTorch. Nothing else changes. With ``--data`` the data
set is MNIST (28x28 pixels, read from that folder, without a download); otherwise it is scikit-learn's digits (8x8).
Every epoch writes ``checkpoint.pt`` to the output folder. ``--resume`` continues a run that was stopped, by Ctrl-C or
otherwise.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any, List, Tuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

import spikecore as sc
from common import data
from common.data import left_out
from common.files import DataError, Stopped, tell_of_earlier
from common.options import EPOCHS, OUT, SEED, Defaults, any_seed, at_least, out_folder, which_backend

#: For the error where there is no MNIST: this program has no ``--folder`` and downloads nothing.
WAY_OUT = "Give the folder of these files with --data, or leave out --data for scikit-learn's digits"
num_steps = 25
beta = 0.9


class Model(nn.Module):
    """Images ``[B, ...]`` to the spikes and membrane potentials of ten output neurons, ``[T, B, 10]`` each."""

    def __init__(self, num_inputs: int, num_hidden: int = 1000, num_outputs: int = 10) -> None:
        super().__init__()
        self.fc1 = nn.Linear(num_inputs, num_hidden)
        self.lif1 = sc.Leaky(beta=beta)
        self.fc2 = nn.Linear(num_hidden, num_outputs)
        self.lif2 = sc.Leaky(beta=beta)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """All time steps at once: the image drives the first layer at each of them."""
        cur1 = self.fc1(x.flatten(1))
        spk1 = self.lif1(cur1.expand(num_steps, *cur1.shape))
        cur2 = self.fc2(spk1)
        spk2, _, trace = self.lif2.run(cur2, record=("v",))
        return spk2, trace["v"]


def loss_fn(outputs: Tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """Cross entropy of the output neurons' membrane potentials, summed over time, as the tutorial has it."""
    _, mem2 = outputs
    return sc.losses.ce_count(mem2, labels)


def train(step: Any, loader: Any, options: argparse.Namespace) -> List[float]:
    """Train, with a checkpoint after every epoch; returns the mean losses."""
    kept = options.out / "checkpoint.pt"
    settings = {"data": str(options.data), "epochs": options.epochs, "batch size": options.batch_size}
    settings.update(seed=options.seed, device=options.device)
    losses: List[float] = []
    if options.resume:
        try:
            saved = sc.load_checkpoint(kept, settings, ("step", "random", "losses"))
        except (FileNotFoundError, ValueError) as error:
            sys.exit(f"--resume: {error}")
        step.load_state_dict(saved["step"])
        torch.set_rng_state(saved["random"])  # the order of the batches to come
        losses = saved["losses"]
    else:
        tell_of_earlier(kept)
    options.out.mkdir(parents=True, exist_ok=True)
    bar = tqdm(range(len(losses), options.epochs), desc="epochs", initial=len(losses), total=options.epochs)
    try:
        for _ in bar:
            seen = [step(images, labels)[1] for images, labels in loader]
            losses.append(torch.stack(seen).mean().item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
            sc.save_checkpoint(kept, settings, step=step.state_dict(), random=torch.get_rng_state(), losses=losses)
    except KeyboardInterrupt:
        left = (
            f"the last finished epoch is in {kept}; go on with --resume" if kept.exists() else "no epoch was finished"
        )
        raise Stopped(f"\nstopped: {left}") from None
    return losses


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description="snnTorch's IPU tutorial, on any backend.", formatter_class=Defaults)
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="folder with the files of MNIST; without it, scikit-learn's digits"
    )
    parser.add_argument("--device", default="cpu", help="torch device; cpu for backend ipu")
    parser.add_argument("--epochs", type=at_least(1), default=10, help=EPOCHS)
    parser.add_argument("--batch-size", type=at_least(1), default=120, help="images of a step")
    parser.add_argument("--seed", type=any_seed, default=0, help=SEED)
    parser.add_argument("--out", type=out_folder, default=Path("runs/mnist_ipu"), help=OUT)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends it as Ctrl-C does
    try:
        run(options)
    except (DataError, sc.backend.BackendError) as error:
        parser.error(str(error))


def run(options: argparse.Namespace) -> None:
    """Train, test, and say how it went."""
    torch.manual_seed(options.seed)
    sets = data.digits() if options.data is None else data.mnist(options.data, way_out=WAY_OUT)
    net = Model(math.prod(sets.shape)).to(options.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.9, 0.999))
    train_loader = sc.DataLoader(sets.training, batch_size=options.batch_size, shuffle=True, drop_last=True)
    test_loader = sc.DataLoader(sets.test, batch_size=options.batch_size, drop_last=True)
    step = sc.training_model(net, loss_fn, optimizer)
    predict = sc.inference_model(net)

    start = time.perf_counter()
    train(step, train_loader, options)
    scores = [sc.metrics.accuracy(predict(images)[0], labels) for images, labels in test_loader]
    accuracy = torch.stack(scores).mean().item()
    tested = len(test_loader) * options.batch_size
    print(f"test accuracy  {accuracy:.2%} of {tested} images of {sets.about}{left_out(sets, tested)}")
    print(f"backend        {which_backend(net, why=False)}")
    print(f"time           {time.perf_counter() - start:.0f} s{' since it was resumed' * options.resume}")
    print(f"checkpoint     {options.out / 'checkpoint.pt'}")


if __name__ == "__main__":
    main()
