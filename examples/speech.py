"""Recognises speakers from spoken vowels of different lengths: a recurrent spiking network, compared with an LSTM.

    python examples/speech.py [--network both|alif|lstm] [--backend NAME] [--epochs N] [--seeds 0 1 2] [--out FOLDER]

Nine speakers, 270 utterances to train on and 370 to test with, 7 to 29 steps of 12 coefficients each; the package aeon
contains them (``pip install --no-deps aeon``; see ``common/vowels.py``). ``--data made-up`` needs no package.
Utterances are padded to the longest. A mask marks the real steps, and only these count for loss and accuracy. Both
networks are trained in the same way. The settings were chosen with a fifth of the training utterances as validation
data. The test utterances were not used to choose anything, and the result is that of the last epoch.

The output folder gets ``results.json``, ``learning-curve.png`` and, for the last spiking network, ``utterance.png`` and
``confusion.png``.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

import spikecore as sc
from common import results as kept
from common import vowels
from common.files import DataError, Stopped
from common.options import EPOCHS, OUT, Defaults, any_seed, at_least, out_folder, share, which_backend
from common.pictures import plt
from common.vowels import COEFFICIENTS, SPEAKERS, Part, Vowels

BATCH, LR = 27, 5e-3
CURVES = ("loss", "training accuracy", "test accuracy")
#: What results.json has of each training.
KEPT = ("seed", "seconds", "processor_seconds", "curves")


class TimeFirst(nn.Module):
    """``[B, T, ...] -> [T, B, ...]``: an IPU cuts a batch along its first dimension, neurons want time there."""

    def forward(self, x: Tensor) -> Tensor:
        """A view."""
        return x.transpose(0, 1)


class Lstm(nn.Module):
    """``nn.LSTM`` in the place of the spiking neurons: utterances ``[B, T, 12]`` to one value a speaker and step."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.hidden = nn.LSTM(COEFFICIENTS, options.hidden)
        self.dropout = nn.Dropout(options.dropout)
        self.out = nn.Linear(options.hidden, SPEAKERS)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, 9]``."""
        return self.out(self.dropout(self.hidden(x.transpose(0, 1))[0]))


def spiking(options: argparse.Namespace) -> nn.Sequential:
    """Utterances ``[B, T, 12]`` to potentials ``[T, B, 9]``: a recurrent layer of adaptive neurons and a read-out that
    integrates. Every neuron learns its time constants and how much a spike raises its threshold.
    """
    front = nn.Linear(COEFFICIENTS, options.hidden)
    back = nn.Linear(options.hidden, options.hidden, bias=False)
    # standardised coefficients then reach the threshold 1 within a few steps, and feedback neither ends nor floods that
    nn.init.normal_(front.weight, std=2 / math.sqrt(COEFFICIENTS))
    nn.init.orthogonal_(back.weight, gain=0.5)
    each = {"tau": 4.0, "rho": 0.95, "beta": 0.2}
    values = {name: torch.full((options.hidden,), value) for name, value in each.items()}
    return nn.Sequential(
        TimeFirst(),
        front,
        sc.Recurrent(sc.ALIF(**values, learn=tuple(values), detach_reset=True), back),
        nn.Dropout(options.dropout),
        nn.Linear(options.hidden, SPEAKERS),
        sc.LI(tau=4.0, learn=("tau",)),
    )


#: By the name for ``--network``: what it is called, and what makes it.
NETWORKS: Dict[str, Any] = {"alif": ("recurrent ALIF", spiking), "lstm": ("nn.LSTM", Lstm)}


class Run(NamedTuple):
    """A network that was trained from one seed."""

    net: nn.Module
    seed: int
    curves: Dict[str, List[float]]
    #: ``[B, 9]``, of each test utterance: the potentials, summed over its real steps.
    scores: Tensor
    #: On the clock, and of all threads together, which another program's work does not lengthen.
    seconds: float
    processor_seconds: float


def masked(outputs: Tensor, targets: Any) -> Tensor:
    """Cross entropy of the speaker at every real step."""
    speakers, mask = targets
    return sc.losses.ce_rate(outputs, speakers, mask=mask.T)


def accuracy(outputs: Tensor, part: Part) -> Tensor:
    """The fraction of utterances whose speaker has the highest potential, summed over real steps."""
    return sc.metrics.accuracy(outputs, part.speakers, by="mean_membrane", mask=part.mask.T)


def train(make: Callable[[argparse.Namespace], nn.Module], name: str, seed: int, sets: Vowels, options: Any) -> Run:
    """Train one network, and test it after every epoch."""
    torch.manual_seed(seed)
    order, start, begun = torch.Generator().manual_seed(seed), time.perf_counter(), time.process_time()
    net = make(options).to(options.device)
    # an LSTM is PyTorch's, whatever backend computes neurons
    backend = "torch" if isinstance(net, Lstm) else options.backend
    optimizer = torch.optim.Adam(net.parameters(), LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    step, predict = sc.training_model(net, masked, optimizer, backend=backend), sc.inference_model(net, backend=backend)
    curves: Dict[str, List[float]] = {each: [] for each in CURVES}
    with tqdm(range(options.epochs), f"{name}, seed {seed}", unit="epoch") as bar:
        for _ in bar:
            seen = []
            for rows in torch.randperm(len(sets.training.x), generator=order).split(BATCH):
                if len(rows) == BATCH:  # every step has the same weight, and an IPU one size
                    batch = sets.training.of(rows)
                    outputs, loss = step(batch.x, (batch.speakers, batch.mask))
                    seen.append(torch.stack((loss, accuracy(outputs, batch))))
            schedule.step()
            outputs = predict(sets.test.x)
            values = [*torch.stack(seen).mean(0).tolist(), accuracy(outputs, sets.test).item()]
            for curve, value in zip(curves.values(), values):
                curve.append(value)
            bar.set_postfix(loss=f"{values[0]:.3f}", test=f"{values[2]:.1%}")
    scores = outputs.cpu().masked_fill(~sets.test.mask.T.unsqueeze(-1), 0.0).sum(0)
    return Run(net, seed, curves, scores, time.perf_counter() - start, time.process_time() - begun)


def draw_curves(runs: Dict[str, List[Run]], path: Path, about: str) -> None:
    """Loss and test accuracy of each epoch, one line a seed."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), constrained_layout=True)
    for colour, (name, found) in zip(("tab:orange", "tab:blue"), runs.items()):
        for position, run in enumerate(found):
            epochs = range(1, len(run.curves["loss"]) + 1)
            drawn = {"color": colour, "linewidth": 1, "marker": "o" if len(epochs) == 1 else None}
            label = f"{NETWORKS[name][0]}, last {100 * last(found):.1f} %" if not position else None
            left.plot(epochs, run.curves["loss"], **drawn)
            right.plot(epochs, [100 * value for value in run.curves["test accuracy"]], label=label, **drawn)
    left.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    right.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(None, 100.5))
    right.legend(loc="lower right")
    for axis in (left, right):
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(about)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_confusion(run: Run, test: Part, path: Path) -> None:
    """Who was taken for whom."""
    counts = torch.zeros(SPEAKERS, SPEAKERS, dtype=torch.int64)
    predicted = run.scores.argmax(-1)
    counts.index_put_((test.speakers, predicted), torch.ones(len(predicted), dtype=torch.int64), accumulate=True)
    figure, axis = plt.subplots(figsize=(4.5, 4.2), constrained_layout=True)
    axis.imshow((counts / counts.sum(1, keepdim=True).clamp(min=1)).numpy(), cmap="Blues", vmin=0, vmax=1)
    for row, column in counts.nonzero().tolist():
        share = counts[row, column] / counts[row].sum()
        colour = "white" if share > 0.5 else "black"
        axis.text(column, row, int(counts[row, column]), ha="center", va="center", color=colour)
    axis.set(xlabel="taken for speaker", ylabel="speaker", title=f"{len(predicted)} test utterances")
    for ticks in (axis.set_xticks, axis.set_yticks):
        ticks(range(SPEAKERS), [str(speaker + 1) for speaker in range(SPEAKERS)])
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_utterance(run: Run, test: Part, path: Path) -> float:
    """One utterance: what goes in, the spikes of the hidden neurons, the potentials of the speakers; what lies behind
    its end is shaded. Returns how many spikes a hidden neuron fires in a step, over all test utterances.
    """
    row = int(test.mask.sum(1).argsort()[len(test.x) // 2])  # of middling length
    x, length = test.x.to(next(run.net.parameters()).device), int(test.mask[row].sum())
    run.net.eval()
    with torch.no_grad(), sc.monitor(run.net, spikes=True) as seen:
        x = run.net(x)
    hidden = next(layer for layer in seen.layers if layer.kind == "Recurrent").spikes.cpu()
    figure, axes = plt.subplots(3, 1, figsize=(7, 7), sharex=True, constrained_layout=True)
    steps = test.x.shape[1]
    axes[0].imshow(
        test.x[row].T.numpy(), aspect="auto", cmap="coolwarm", extent=(-0.5, steps - 0.5, COEFFICIENTS + 0.5, 0.5)
    )
    axes[0].set(ylabel="coefficient", title=f"speaker {int(test.speakers[row]) + 1}, {length} of {steps} steps")
    sc.plot.raster(hidden, sample=row, ax=axes[1], color="tab:blue", label="hidden neuron")
    axes[1].set(xlabel="")
    for speaker, potential in enumerate(x[:, row].cpu().T):
        right = speaker == int(test.speakers[row])
        label = "the right speaker" if right else None
        axes[2].plot(range(steps), potential.numpy(), color="tab:orange" if right else "0.75", label=label)
    axes[2].set(xlabel="time step", ylabel="potential", xlim=(-0.5, steps - 0.5))
    axes[2].legend(loc="best")
    for axis in axes:
        axis.axvspan(length - 0.5, steps - 0.5, color="0.5", alpha=0.3, linewidth=0)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return hidden[test.mask.T].mean().item()


def last(runs: List[Run]) -> float:
    """The mean over seeds of the test accuracy after the last epoch."""
    return sum(run.curves["test accuracy"][-1] for run in runs) / len(runs)


def arguments() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(
        description="Train a recurrent spiking network, and an LSTM, on spoken vowels.", formatter_class=Defaults
    )
    parser.add_argument("--data", choices=("vowels", "made-up"), default="vowels", help="made-up needs no files")
    parser.add_argument("--folder", type=Path, help="of the two files of Japanese Vowels; without it, aeon's")
    parser.add_argument("--network", choices=("both", *NETWORKS), default="both", help="what is trained")
    parser.add_argument("--hidden", type=at_least(1), default=64, help="neurons, or cells of the LSTM")
    parser.add_argument("--dropout", type=share, default=0.5, help="part of the hidden outputs left out in training")
    parser.add_argument("--backend", default=None, help="name of a backend; see `spikecore backends`")
    parser.add_argument("--device", default="cpu", help="torch device, for example cuda")
    parser.add_argument("--epochs", type=at_least(1), default=60, help=EPOCHS)
    parser.add_argument(
        "--seeds", type=any_seed, nargs="+", default=[0, 1, 2], help="each network is trained from each"
    )
    parser.add_argument("--out", type=out_folder, default=Path("runs/speech"), help=OUT)
    kept.add_option(parser)
    return parser


def report(name: str, runs: List[Run]) -> Dict[str, Any]:
    """Print how one kind of network did; returns it for ``results.json``."""
    about, parameters = NETWORKS[name][0], sum(p.numel() for p in runs[0].net.parameters())
    each = ", ".join(f"{run.curves['test accuracy'][-1]:.1%}" for run in runs)
    clock, processor = (sum(values) / len(runs) for values in zip(*((r.seconds, r.processor_seconds) for r in runs)))
    print(f"{about:<14} {last(runs):.2%} of the test utterances ({each}), {parameters} parameters")
    print(f"{'':<14} {clock:.1f} s each, {processor:.1f} s of a processor")
    return {
        "parameters": parameters,
        "test accuracy": last(runs),
        "runs": [{name: getattr(run, name) for name in KEPT} for run in runs],
    }


def main() -> None:
    """Run the example."""
    parser = arguments()
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends it as Ctrl-C does
    if options.data == "made-up" and options.folder is not None:
        parser.error("--folder changes nothing with --data made-up; leave out one of them")
    if options.network == "lstm" and options.backend is not None:
        parser.error("--backend changes nothing with --network lstm, which has no neurons; leave out one of them")
    try:
        sets = vowels.load(options.folder) if options.data == "vowels" else vowels.made_up()
        torch.empty(1, device=options.device)
    except (DataError, RuntimeError, AssertionError) as error:  # torch raises either for a device that is not there
        parser.error(str(error).splitlines()[0])
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = list(NETWORKS) if options.network == "both" else [options.network]
    try:
        runs = {
            name: [train(NETWORKS[name][1], NETWORKS[name][0], seed, sets, options) for seed in options.seeds]
            for name in chosen
        }
    except (sc.backend.BackendError, sc.backend.Unsupported, ValueError) as error:  # of an option's value
        parser.error(str(error))
    except KeyboardInterrupt:
        raise Stopped("\nstopped: nothing is kept; a training takes seconds") from None

    training, test = len(sets.training.x), len(sets.test.x)
    print(
        f"data           {sets.about}: {training} to train on, {test} to test with, {vowels.lengths(sets.test)} steps"
    )
    results: Dict[str, Any] = {"data": sets.about, "torch": torch.__version__, "threads": torch.get_num_threads()}
    results["options"] = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    results["networks"] = {name: report(name, found) for name, found in runs.items()}
    for name, trained in runs.items():
        for run in trained:
            result = kept.Run(run.net, sets.about, options, "torch" if name == "lstm" else "spikecore")
            result.curve = run.curves["test accuracy"]
            times = {"seconds": round(run.seconds, 1), "processor_seconds": round(run.processor_seconds, 1)}
            sizes = f"{COEFFICIENTS}-{options.hidden}-{SPEAKERS}, {NETWORKS[name][0]}"
            result.keep(network=sizes, seed=run.seed, **times)
    draw_curves(runs, options.out / "learning-curve.png", sets.about)
    written = ["results.json", "learning-curve.png"]
    for newest in runs.get("alif", [])[-1:]:
        rate = draw_utterance(newest, sets.test, options.out / "utterance.png")
        draw_confusion(newest, sets.test, options.out / "confusion.png")
        written += ["utterance.png", "confusion.png"]
        backend = which_backend(newest.net)
        results["networks"]["alif"].update({"backend": backend, "spikes a neuron and step": rate})
        print(f"spikes         {rate:.3f} of a hidden neuron in a step\nbackend        {backend}")
    (options.out / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"written        {', '.join(str(options.out / name) for name in written)}")


if __name__ == "__main__":
    main()
