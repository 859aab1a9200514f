"""Balanced resonate-and-fire neurons on electrocardiograms: a published network, its weights and its training.

    python examples/ecg.py --weights FILE [--data FOLDER]           # accuracy with given weights
    python examples/ecg.py [--epochs 400] [--seed S] [--resume]     # train from scratch
    python examples/ecg.py --time                                   # time, compared with a loop in PyTorch

Higuchi, Kairat, Bohte and Otte, "Balanced Resonate-and-Fire Neurons", ICML 2024: 4 inputs, 36 resonators with feedback,
and 6 integrators. At each of 1,300 steps the highest integrator is the predicted part of the heartbeat. The data, which
``common/heartbeats.py`` describes, and the authors' weights are files of https://github.com/AdaptiveAILab/brf-neurons
(MIT): ``QTDB_train.mat`` and ``QTDB_test.mat`` in ``experiments/ecg/data``, ``09-25_23-50-01_Adam(0.1),NLL,...pt`` in
``experiments/ecg/models``. ``--data made-up`` needs no files.

Training follows the authors: Adam with a learning rate of 0.1 that falls linearly to 0 in 400 epochs; batches of 16;
cross entropy of all steps; a tenth of the training sequences chooses the epoch. In addition the norm of the gradient is
limited to ``CLIP``. The output folder gets ``results.json`` and ``sequence.png``. A training also writes
``learning-curve.png``, ``best.npz`` (the weights with the authors' names, for ``--weights``) and ``checkpoint.pt`` for
``--resume``.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict

import torch
from torch import Tensor, nn

import spikecore as sc
from common import heartbeats, pictures, resonators
from common import results as kept
from common.files import DataError, Stopped, tell_of_earlier
from common.heartbeats import CHANNELS, CLASSES, MADE_UP, Heartbeats, Part
from common.options import EPOCHS, OUT, SEED, Defaults, any_seed, at_least, out_folder, settings, which_backend

HIDDEN, BATCH, LR = 36, 16, 0.1
DT = 0.01  # of a step, in the unit of 1 / omega
#: The most that the norm of a gradient may be, which is about 0.1 at most steps. A training without a limit fell from
#: 82 to 60 % of the validation steps in its epoch 24, and to 34 % in epoch 144, and stayed below 74 % from there.
CLIP = 0.5
#: Of each epoch; accuracies are parts of the steps.
CURVES = ("training loss", "training accuracy", "validation loss", "validation accuracy")
#: What a checkpoint holds.
PARTS = ("step", "order", "done")
#: What is listed at the end.
KEPT = (".json", ".png", ".npz", ".pt")


@dataclass(frozen=True)
class TwoGaussians(sc.Surrogate):
    """``0.5 (1.15 N(u; 0, 0.5) - 0.3 N(u; 0, 3))`` with the normal density N: below 0 far from the threshold."""

    def derivative(self, u: Any) -> Any:
        """In the language."""

        def normal(sigma: float) -> Any:
            return sc.ops.exp(-(u * u) / (2 * sigma * sigma)) / (sigma * math.sqrt(2 * math.pi))

        return 0.5 * (1.15 * normal(0.5) - 0.3 * normal(3.0))


class BRF(sc.Neuron):
    """A balanced resonate-and-fire neuron: a damped oscillation ``u + iv`` of frequency ``|omega|``.

    A spike raises the threshold and the damping by ``q``, which decays. ``p``, the largest growth at which steps of DT
    do not diverge, keeps every neuron stable, whatever is learnt::

        p = (-1 + sqrt(1 - (DT |omega|)^2)) / DT         b[t] = p - |b| - q[t-1]
        u[t] = u[t-1] + DT (b[t] u[t-1] - |omega| v[t-1] + x[t])
        v[t] = v[t-1] + DT (|omega| u[t-1] + b[t] v[t-1])
        z[t] = [u[t] > 1 + q[t-1]]                       q[t] = 0.9 q[t-1] + z[t]
    """

    states = {"u": 0.0, "v": 0.0, "q": 0.0}
    params = {"omega": 10.0, "b": 1.0}
    # the root is of 0 at 1 / DT
    bounds = {"omega": (-0.99 / DT, 0.99 / DT)}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """In the order of operations of the authors' code, so that its bits are reached in float64."""
        omega = sc.ops.abs(p.omega)
        b = (-1.0 + sc.ops.sqrt(1.0 - (DT * omega) * (DT * omega))) / DT - sc.ops.abs(p.b) - s.q
        u = s.u + b * s.u * DT - omega * s.v * DT + x * DT
        v = s.v + omega * s.u * DT + b * s.v * DT
        z = self.spike(u - 1.0 - s.q, strict=True)
        return z, {"u": u, "v": v, "q": 0.9 * s.q + z}


class Integrator(sc.Neuron):
    """A read-out that does not fire: ``y[t] = a y[t-1] + (1 - a) x[t]`` with ``a = exp(-1 / |tau|)``."""

    states = {"y": 0.0}
    params = {"tau": 20.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """In the language."""
        a = sc.ops.exp(-1.0 / sc.ops.abs(p.tau))
        y = a * s.y + (1.0 - a) * x
        return y, {"y": y}


def network() -> nn.Sequential:
    """Spikes ``[T, B, 4]`` to one value for each class, ``[T, B, 6]``. Everything is learnt; no layer has a bias."""
    front = nn.Linear(CHANNELS, HIDDEN, bias=False)
    back = nn.Linear(HIDDEN, HIDDEN, bias=False)
    out = nn.Linear(HIDDEN, len(CLASSES), bias=False)
    # Xavier's bound of one matrix for inputs and feedback, as the authors have it
    bound = math.sqrt(6 / (CHANNELS + HIDDEN + HIDDEN))
    nn.init.uniform_(front.weight, -bound, bound)
    nn.init.uniform_(back.weight, -bound, bound)
    nn.init.xavier_uniform_(out.weight)
    omega, b = torch.empty(HIDDEN).uniform_(3.0, 5.0), torch.empty(HIDDEN).uniform_(0.1, 1.0)
    cell = BRF(omega=omega, b=b, learn=("omega", "b"), surrogate=TwoGaussians())
    tau = torch.empty(len(CLASSES)).normal_(20.0, 1.0)
    layers = {
        "front": front,
        "hidden": sc.Recurrent(cell, back),
        "out": out,
        "leak": Integrator(tau=tau, learn=("tau",)),
    }
    return nn.Sequential(OrderedDict(layers))


def per_step(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of a time step, over all steps and sequences."""
    return nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def train(net: nn.Sequential, sets: Heartbeats, options: argparse.Namespace) -> Dict[str, Any]:
    """Train, keep the weights with the least validation loss, and put them into the network; returns what happened."""
    order = torch.Generator().manual_seed(options.seed)
    # a tenth chooses the epoch; the test sequences choose nothing
    held, kept = torch.randperm(sets.training.number, generator=order).tensor_split([sets.training.number // 10])
    training, validation = (sets.training.of(rows).to(options.device) for rows in (kept, held))
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    step = sc.training_model(net, per_step, optimizer, options=sc.TrainingOptions(clip_norm=CLIP))
    predict = sc.inference_model(net)
    given = settings(options, net)
    done: Dict[str, Any] = {"epoch": 0, "seconds": 0.0, "curves": {name: [] for name in CURVES}, "best": {}}
    if options.resume:
        try:
            saved = sc.load_checkpoint(checkpoint(options), given, PARTS)
        except (FileNotFoundError, ValueError) as error:
            sys.exit(f"--resume: {error}")
        step.load_state_dict(saved["step"])
        order.set_state(saved["order"])
        done = saved["done"]
    else:
        tell_of_earlier(checkpoint(options))
    curves, before, start = done["curves"], done["seconds"], time.perf_counter()
    for epoch in range(done["epoch"] + 1, options.epochs + 1):
        for group in optimizer.param_groups:
            group["lr"] = LR * (1 - (epoch - 1) / options.epochs)
        seen = []
        for rows in torch.randperm(training.number, generator=order).split(BATCH):
            batch = training.of(rows.to(options.device))
            try:
                outputs, loss = step(batch.spikes, batch.labels)
            except FloatingPointError as error:
                sys.exit(f"training diverged in epoch {epoch}, give another --seed: {error}")
            # whole sequences count alike, in a last batch that is not full, too
            seen.append(torch.stack((loss, right(outputs, batch.labels))) * len(rows))
        outputs = predict(validation.spikes)
        values = [*(torch.stack(seen).sum(0) / training.number).tolist()]
        values += [per_step(outputs, validation.labels).item(), right(outputs, validation.labels).item()]
        for name, value in zip(CURVES, values):
            curves[name].append(value)
        if values[2] <= min(curves["validation loss"]):
            done["best"] = {"epoch": epoch, "weights": resonators.named(net)}
        done.update(epoch=epoch, seconds=before + time.perf_counter() - start)
        state = {"step": step.state_dict(), "order": order.get_state(), "done": done}
        sc.save_checkpoint(checkpoint(options), given, **state)
        told = ", ".join(f"{name} {value:.4f}" for name, value in zip(CURVES, values))
        print(f"epoch {epoch}/{options.epochs}: {told}, {done['seconds']:.0f} s", flush=True)
    resonators.put(net, done["best"]["weights"])
    return done


def checkpoint(options: argparse.Namespace) -> Path:
    """Where the last finished epoch is kept."""
    return options.out / "checkpoint.pt"


def right(outputs: Tensor, labels: Tensor) -> Tensor:
    """The part of the steps whose class has the highest output."""
    return (outputs.argmax(-1) == labels).float().mean()


def evaluate(net: nn.Sequential, test: Part, device: str) -> Dict[str, Any]:
    """Accuracy on the test sequences, as published and over the steps that have a class; how often a neuron fires."""
    test = test.to(device)
    outputs = sc.inference_model(net)(test.spikes)
    with torch.no_grad():
        fired = sc.inference_model(net[:2])(test.spikes)
    hits = outputs.argmax(-1) == test.labels
    return {
        "test accuracy": hits.double().mean().item(),
        "test accuracy of steps with a class": hits[test.labelled].double().mean().item(),
        "spikes of a neuron at a step": fired.double().mean().item(),
    }


def arguments() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(
        description="Train a recurrent network on electrocardiograms, or run it with published weights.",
        formatter_class=Defaults,
    )
    files = f"folder with {' and '.join(heartbeats.FILES)}, or '{MADE_UP}'"
    parser.add_argument("--data", default="data/qtdb", help=files)
    parser.add_argument("--weights", type=Path, help="do not train: the authors' .pt file, or best.npz of a run")
    parser.add_argument("--time", action="store_true", help="do not train: time a step beside a loop in PyTorch")
    parser.add_argument("--backend", default=None, help="name of a backend; see `spikecore backends`")
    parser.add_argument("--device", default="cpu", help="torch device, for example cuda")
    parser.add_argument("--epochs", type=at_least(1), default=400, help=EPOCHS)
    parser.add_argument("--seed", type=any_seed, default=0, help=SEED)
    parser.add_argument("--out", type=out_folder, default=Path("runs/ecg"), help=OUT)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    kept.add_option(parser)
    return parser


def main() -> None:
    """Run the example."""
    parser = arguments()
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends it as Ctrl-C does
    for name, value in (("--weights", options.weights), ("--time", options.time)):
        if options.resume and value:
            parser.error(f"--resume goes on with a training, and {name} trains nothing; leave out one of them")
    torch.manual_seed(options.seed)
    net = network()
    try:
        sets = heartbeats.load(options.data)
        if options.weights is not None:
            resonators.load(net, options.weights)
        net = net.to(options.device)
    except DataError as error:
        parser.error(str(error))
    except (RuntimeError, AssertionError) as error:  # torch raises either for a device that is not there
        parser.error(f"--device {options.device}: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        sc.set_backend(net, options.backend)
        result = kept.Run(net, sets.about, options)
        results = run(net, sets, options)
    except (sc.backend.BackendError, sc.backend.Unsupported) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        if not checkpoint(options).exists():
            raise Stopped("\nstopped: no epoch was finished") from None
        raise Stopped(f"\nstopped: the last finished epoch is in {checkpoint(options)}; go on with --resume") from None
    results.update(data=sets.about, backend=which_backend(net), steps=net.hidden.extra_repr())
    results.update(torch=torch.__version__, threads=torch.get_num_threads())
    if "validation accuracy" in results:
        result.curve = [results["test accuracy"]]
        result.keep(network=f"{CHANNELS}-{HIDDEN}-{len(CLASSES)}, resonators with feedback")
    (options.out / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for name, value in results.items():
        print(f"{name:40}  {f'{value:.5g}' if isinstance(value, float) else value}")
    print(f"{'written':40}  {', '.join(sorted(str(path) for path in options.out.iterdir() if path.suffix in KEPT))}")


def run(net: nn.Sequential, sets: Heartbeats, options: argparse.Namespace) -> Dict[str, Any]:
    """What was asked for; its results."""
    if options.time:
        x = sets.training.spikes[:, :BATCH].to(options.device)
        least = resonators.timed(net, x)
        names = {f"{name}, forward and backward, ms": 1000 * seconds for name, seconds in least.items()}
        return {"T, B": f"{x.shape[0]}, {x.shape[1]}", **names, "loop / network": least["loop"] / least["network"]}
    if options.weights is None:
        done = train(net, sets, options)
        chosen = done["best"]["epoch"]
        results: Dict[str, Any] = {
            "epochs": options.epochs,
            "seed": options.seed,
            "seconds of training": done["seconds"],
        }
        results["epoch"] = chosen
        results["validation accuracy"] = done["curves"]["validation accuracy"][chosen - 1]
        resonators.save(options.out / "best.npz", done["best"]["weights"])
        pictures.draw_curves(done["curves"], options.out / "learning-curve.png", f"Resonators on {sets.about}")
    else:
        results = {"weights": str(options.weights)}
    one = sets.test.of([0])
    with torch.no_grad():
        hidden = net[:2](one.spikes.to(options.device))
        found = net(one.spikes.to(options.device)).argmax(-1)
    labels = torch.where(one.labelled, one.labels, -1)
    drawn = (values[:, 0].cpu() for values in (one.spikes, hidden, labels, found))
    pictures.draw_heartbeats(*drawn, CLASSES, options.out / "sequence.png")
    return {**results, **evaluate(net, sets.test, options.device)}


if __name__ == "__main__":
    main()
