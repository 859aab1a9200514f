"""snnTorch's IPU tutorial: two layers of leaky neurons on handwritten digits, trained with the loss inside the model.

    python examples/mnist_ipu.py [--data FOLDER [--images N]] [--epochs N] [--batch-size B] [--seed S] [--resume] ...

``SPIKECORE_BACKEND`` chooses where: ``torch`` or ``cupy`` (with ``--device cuda``), or ``ipu``, a Graphcore IPU, with
``SPIKECORE_IPU_EMULATOR=1`` the emulator of its PopTorch. Nothing else changes. With ``--data`` the data is MNIST
(28x28 pixels, from that folder, nothing is downloaded), otherwise scikit-learn's digits (8x8). ``--images`` trains on
the first N images alone: the emulator takes about a second for a batch of the tutorial's size.
After every epoch ``checkpoint.pt`` in the output folder is replaced; a run that was stopped, by Ctrl-C or otherwise,
goes on from there with ``--resume``.
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
from torch.utils.data import Subset
from tqdm import tqdm

import spikecore as sc
from common import data, results
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
    settings.update(images=options.images, seed=options.seed, device=options.device)
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
    parser.add_argument("--images", type=at_least(1), metavar="N", help="train on the first N images; all without it")
    parser.add_argument("--device", default="cpu", help="torch device; cpu for backend ipu")
    parser.add_argument("--epochs", type=at_least(1), default=10, help=EPOCHS)
    parser.add_argument("--batch-size", type=at_least(1), default=120, help="images of a step")
    parser.add_argument("--seed", type=any_seed, default=0, help=SEED)
    parser.add_argument("--out", type=out_folder, default=Path("runs/mnist_ipu"), help=OUT)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    results.add_option(parser)
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
    images = min(len(sets.training), options.images or len(sets.training))
    train_loader = sc.DataLoader(
        Subset(sets.training, range(images)), batch_size=options.batch_size, shuffle=True, drop_last=True
    )
    test_loader = sc.DataLoader(sets.test, batch_size=options.batch_size, drop_last=True)
    step = sc.training_model(net, loss_fn, optimizer)
    predict = sc.inference_model(net)

    start, result = time.perf_counter(), results.Run(net, "MNIST" if options.data else "digits", options)
    train(step, train_loader, options)
    scores = [sc.metrics.accuracy(predict(images)[0], labels) for images, labels in test_loader]
    accuracy = torch.stack(scores).mean().item()
    tested = len(test_loader) * options.batch_size
    print(f"test accuracy  {accuracy:.2%} of {tested} images of {sets.about}{left_out(sets, tested)}")
    print(f"backend        {which_backend(net, why=False)}")
    print(f"time           {time.perf_counter() - start:.0f} s{' since it was resumed' * options.resume}")
    print(f"checkpoint     {options.out / 'checkpoint.pt'}")
    result.curve = [accuracy]
    result.keep()


if __name__ == "__main__":
    main()
