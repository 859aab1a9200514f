"""Train a small convolutional spiking network on scikit-learn's handwritten digits (1,797 real images of 8x8 pixels).

    python examples/digits.py [--backend NAME] [--epochs N] [--seed S] [--out FOLDER] [--resume] ... ...

The network names no backend: ``--backend`` or ``SPIKECORE_BACKEND`` chooses one, otherwise it is chosen automatically.
The output folder gets TensorBoard logs, ``learning-curve.png``, ``spike-raster.png`` and, after every epoch,
``checkpoint.pt``. ``--resume`` continues a run that was stopped, by Ctrl-C or otherwise. It ends with the weights of an
uninterrupted run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import spikecore as sc
from common import data, pictures, results
from common.files import Stopped, tell_of_earlier
from common.options import EPOCHS, OUT, SEED, Defaults, any_seed, at_least, out_folder, which_backend
from common.pictures import plt

STEPS = 8  # time steps per image
CLASSES = 10
#: What a checkpoint holds.
PARTS = ("step", "schedule", "order", "random", "curves", "epoch")


def network() -> nn.Sequential:
    """Images ``[B, 1, 8, 8]`` to output spikes ``[T, B, 10]``. The image drives the first layer at every time step."""
    return nn.Sequential(
        # without time: the image is the same at every step
        nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24)),
        sc.LIF(tau=2.0, repeat=STEPS),
        sc.layers.TimeBatched(nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48)),
        sc.LIF(tau=2.0),
        sc.layers.TimeBatched(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48 * 4 * 4, CLASSES)),
        sc.LIF(tau=2.0),
    )


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """The batch moved by up to one pixel each way: a digit stays the same digit."""
    down, right = torch.randint(-1, 2, (2,), generator=generator).tolist()
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    return padded[:, :, 1 + down : 9 + down, 1 + right : 9 + right]


def train(net: nn.Sequential, options: argparse.Namespace) -> Dict[str, List[float]]:
    """Train and test once per epoch; returns the curves."""
    training, test = data.digits()[1:3]
    order = torch.Generator().manual_seed(options.seed)
    loader = sc.DataLoader(training, batch_size=64, shuffle=True, drop_last=True, generator=order)
    images, labels = test.tensors
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    step = sc.training_model(net, sc.losses.ce_count, optimizer)
    predict = sc.inference_model(net)

    curves: Dict[str, List[float]] = {"loss": [], "training accuracy": [], "test accuracy": []}
    settings = {"epochs": options.epochs, "seed": options.seed, "device": options.device}
    begun = 0
    if options.resume:
        try:
            saved = sc.load_checkpoint(checkpoint(options), settings, PARTS)
        except (FileNotFoundError, ValueError) as error:
            sys.exit(f"--resume: {error}")
        step.load_state_dict(saved["step"])
        schedule.load_state_dict(saved["schedule"])
        order.set_state(saved["order"])  # which images come next, and how they are shifted
        torch.set_rng_state(saved["random"])
        curves, begun = saved["curves"], saved["epoch"]
    else:
        tell_of_earlier(checkpoint(options))

    bar = tqdm(range(begun + 1, options.epochs + 1), "training", options.epochs, unit="epoch", initial=begun)
    # purged: epochs that were logged, and are now done again
    with SummaryWriter(str(options.out), purge_step=begun + 1) as log:
        for epoch in bar:
            seen = [train_on(step, shifted(batch, order), targets) for batch, targets in loader]
            schedule.step()
            loss, right = (torch.stack(values).mean().item() for values in zip(*seen))
            score = sc.metrics.accuracy(predict(images), labels).item()
            for name, value in zip(curves, (loss, right, score)):
                curves[name].append(value)
                log.add_scalar(name, value, epoch)
            log.flush()  # before the checkpoint: what it counts as done is not written again
            bar.set_postfix(loss=f"{loss:.3f}", test=f"{score:.1%}")
            state: Dict[str, Any] = {"step": step.state_dict(), "schedule": schedule.state_dict()}
            state.update(order=order.get_state(), random=torch.get_rng_state())
            best = max(curves["test accuracy"])
            sc.save_checkpoint(checkpoint(options), settings, **state, curves=curves, epoch=epoch, best=best)
    return curves


def checkpoint(options: argparse.Namespace) -> Path:
    """Where the last finished epoch is kept."""
    return options.out / "checkpoint.pt"


def train_on(step: object, images: Tensor, targets: Tensor) -> Tuple[Tensor, Tensor]:
    """One training step; its loss and accuracy."""
    spikes, loss = step(images, targets)
    return loss, sc.metrics.accuracy(spikes, targets)


def look_inside(net: nn.Sequential, path: Path, epoch: int) -> sc.inspect.Seen:
    """Rates on all test images, to TensorBoard as well, and a picture of one: the spikes of 64 of the neurons that fire
    in each hidden layer, and of the ten outputs.
    """
    images, labels = data.digits().test.tensors
    net.eval()
    with torch.no_grad(), sc.monitor(net, spikes=True) as seen:
        net(images.to(next(net.parameters()).device))
    with SummaryWriter(str(path.parent)) as log:
        seen.log(log, epoch)
    layers = [layer.spikes[:, 0].flatten(1).cpu() for layer in seen.layers]
    figure, axes = plt.subplots(
        1, 4, figsize=(11, 3.6), gridspec_kw={"width_ratios": (1, 2, 2, 2)}, constrained_layout=True
    )
    axes[0].imshow(images[0, 0], cmap="gray_r")
    axes[0].set(title=f"input, a {labels[0]}", xticks=[], yticks=[])
    for axis, spikes, title in zip(axes[1:], layers, ("first layer", "second layer", "output")):
        total = spikes.shape[1]
        firing = spikes.sum(0).nonzero().flatten() if total > CLASSES else torch.arange(total)
        shown = spikes[:, firing[:: max(1, len(firing) // 64)][:64]]
        part = f", {len(firing)} of {total} fire" if total > CLASSES else ""
        sc.plot.raster(shown, ax=axis, color="tab:blue", label="neuron" if part else "digit")
        axis.set(title=title + part, xticks=range(STEPS))
        if not part:
            axis.set_yticks(range(CLASSES))
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return seen


def arguments() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(
        description="Train a spiking network on handwritten digits.", formatter_class=Defaults
    )
    parser.add_argument("--backend", default=None, help="name of a backend; see `spikecore backends`")
    parser.add_argument("--device", default="cpu", help="torch device, for example cuda")
    parser.add_argument("--epochs", type=at_least(1), default=30, help=EPOCHS)
    parser.add_argument("--seed", type=any_seed, default=0, help=SEED)
    parser.add_argument("--out", type=out_folder, default=Path("runs/demo"), help=OUT)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    results.add_option(parser)
    results.add_weights_option(parser)
    return parser


def main() -> None:
    """Run the example."""
    parser = arguments()
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends it as Ctrl-C does
    start = time.perf_counter()
    torch.manual_seed(options.seed)
    try:
        net = network().to(options.device)
    except (RuntimeError, AssertionError) as error:  # torch raises either for a device that is not there
        parser.error(f"--device {options.device}: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        sc.set_backend(net, options.backend)
        result = results.Run(net, "digits", options)
        curves = train(net, options)
    except (
        sc.backend.BackendError
    ) as error:  # by --backend or SPIKECORE_BACKEND; an automatic choice finds one that works
        parser.error(str(error))
    except KeyboardInterrupt:
        if not checkpoint(options).exists():
            raise Stopped("\nstopped: no epoch was finished") from None
        raise Stopped(f"\nstopped: the last finished epoch is in {checkpoint(options)}; go on with --resume") from None
    result.curve = curves["test accuracy"]
    result.keep()
    title = "Handwritten digits, convolutional spiking network"
    pictures.draw_curves(curves, options.out / "learning-curve.png", title)
    seen = look_inside(net, options.out / "spike-raster.png", options.epochs)

    print(f"test accuracy  {curves['test accuracy'][-1]:.2%} of 360 images never trained on")
    print(f"backend        {which_backend(net)}")
    rates = ", ".join(f"{rate:.3f}" for rate in seen.rates.values())
    print(f"spikes         {rates} of a neuron in a step, layer by layer")
    print(f"time           {time.perf_counter() - start:.0f} s{' since it was resumed' * options.resume}")
    print(f"pictures       {options.out / 'learning-curve.png'}, {options.out / 'spike-raster.png'}")
    print(f"checkpoint     {checkpoint(options)}")
    print(f"TensorBoard    tensorboard --logdir {options.out}")
    if options.weights is not None:
        results.save_weights(options.weights, result, data.digits().test.tensors, "CC BY 4.0")


if __name__ == "__main__":
    main()
