"""Train with learning rules that move along with time: a memory by e-prop, digits by OTTT, or either by any rule.

    python examples/online.py [--task store-recall|digits] [--rule NAME] [--chunk N] [--epochs N] [--seed S] ... ...

``store-recall``: a recurrent layer of adaptive neurons keeps one bit until it is asked for it (Bellec et al., 2018).
``digits``: two layers of spiking neurons classify scikit-learn's handwritten digits, 8x8 pixels, shown at every step.

The rule sees one chunk of steps at a time, and memory does not grow with the length of a sequence. ``--rule bptt``
without ``--chunk`` is backpropagation through all steps, for comparison. The output folder gets TensorBoard logs,
``learning-curve.png`` and, after every epoch, ``checkpoint.pt``, from which ``--resume`` continues.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import spikecore as sc
from common import data, pictures, results
from common.files import Stopped, tell_of_earlier
from common.options import EPOCHS, OUT, SEED, Defaults, any_seed, at_least, out_folder, which_backend

RULES = ("d_rtrl", "eprop", "pp_prop", "ottt", "sltt", "bptt")
#: What a checkpoint holds.
PARTS = ("step", "order", "random", "curves", "epoch")
#: Steps of a digit.
STEPS = 8
#: Store and recall: phases of a sequence, steps of a phase, input neurons of a group, and the target of other phases.
PHASES, PHASE, GROUP, NOTHING = 8, 5, 5, -1

#: Inputs ``[T, B, N]`` and targets.
Batch = Tuple[Tensor, Tensor]


class Task(NamedTuple):
    """What is learnt."""

    data: str
    network_is: str
    rule: str
    chunk: int
    epochs: int
    lr: float
    steps: int
    #: Whether targets are ``[T, B]``.
    time_targets: bool
    #: ``network(recurrent gradients?)``.
    network: Callable[[bool], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    #: The batches of an epoch, and those to test with.
    batches: Callable[[torch.Generator], Iterator[Batch]]
    tests: Callable[[], List[Batch]]
    accuracy: Callable[[Tensor, Tensor], Tensor]


# -- store and recall


def recurrent(exact: bool) -> nn.Sequential:
    """A recurrent layer of adaptive neurons, whose thresholds keep for dozens of steps who has fired, and a read-out.

    ``exact``: feedback carries gradients, as only backpropagation through time can use them.
    """
    inputs, hidden = nn.Linear(4 * GROUP, 64), nn.Linear(64, 64, bias=False)
    nn.init.normal_(inputs.weight, std=1.5 / math.sqrt(GROUP))
    nn.init.normal_(hidden.weight, std=0.5 / math.sqrt(64))
    # half of the neurons adapt, in 40 steps
    neuron = sc.ALIF(tau=4.0, rho=math.exp(-1 / 40), beta=torch.tensor([0.0, 0.3]).repeat(32), decay_input=False)
    return nn.Sequential(inputs, sc.Recurrent(neuron, hidden, detach=not exact), nn.Linear(64, 2), sc.LI(tau=4.0))


def sequences(count: int, generator: torch.Generator) -> Batch:
    """Spikes ``[T, B, 4 GROUP]`` of the groups "bit 0", "bit 1", "store", "recall"; at recall the bit, ``[T, B]``.

    There is a bit in every phase but that of the recall; the one to keep is that of the phase with "store".
    """
    rows = torch.arange(count)
    bits = torch.randint(0, 2, (PHASES, count), generator=generator)
    store = torch.randint(0, PHASES - 2, (count,), generator=generator)
    recall = store + 2 + (torch.rand(count, generator=generator) * (PHASES - 2 - store)).long()
    active = torch.zeros(PHASES, count, 4)
    active.scatter_(2, bits.unsqueeze(-1), 1.0)
    active[recall, rows] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    active[store, rows, 2] = 1.0
    targets = torch.full((PHASES, count), NOTHING)
    targets[recall, rows] = bits[store, rows]
    rates = active.repeat_interleave(GROUP, 2).repeat_interleave(PHASE, 0)
    spikes = (torch.rand(rates.shape, generator=generator) < 0.5 * rates).float()
    return spikes, targets.repeat_interleave(PHASE, 0)


def recall_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of the bit at the steps of the recall; 0 of a chunk without one."""
    total = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=NOTHING, reduction="sum")
    return total / (targets.shape[1] * PHASE)


def recalled(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of sequences whose bit has the higher potential over the steps of the recall."""
    asked = (targets != NOTHING).unsqueeze(-1)
    return ((outputs * asked).sum(0).argmax(-1) == targets.amax(0)).float().mean()


# -- digits


def layers(exact: bool) -> nn.Sequential:
    """Pixels ``[T, B, 64]`` to potentials ``[T, B, 10]``."""
    return nn.Sequential(nn.Linear(64, 128), sc.LIF(tau=2.0), nn.Linear(128, 10), sc.LI(tau=2.0))


def images(part: Any, rows: Tensor) -> Batch:
    """The same image at every step, and its digit."""
    pixels, labels = part.tensors
    return 2.0 * pixels[rows].flatten(1).expand(STEPS, -1, -1), labels[rows]


def digit_batches(generator: torch.Generator) -> Iterator[Batch]:
    """All digits to train on, in a random order."""
    part: Any = data.digits().training
    for rows in torch.randperm(len(part), generator=generator).split(64):
        yield images(part, rows)


def digit_tests() -> List[Batch]:
    """The 360 digits to test with."""
    part: Any = data.digits().test
    return [images(part, torch.arange(len(part)))]


def digit_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy at each step, a sum over the steps of the chunk."""
    return sc.losses.ce_rate(outputs, targets) * (len(outputs) / STEPS)


def digits_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of digits with the highest mean potential."""
    return sc.metrics.accuracy(outputs, targets, by="mean_membrane")


TASKS = {
    "store-recall": Task(
        data="store and recall",
        network_is="20-64-2, recurrent ALIF",
        rule="eprop",
        chunk=PHASE,
        epochs=10,
        lr=5e-3,
        steps=PHASES * PHASE,
        time_targets=True,
        network=recurrent,
        loss=recall_loss,
        batches=lambda generator: (sequences(64, generator) for _ in range(50)),
        tests=lambda: [sequences(1000, torch.Generator().manual_seed(12345))],
        accuracy=recalled,
    ),
    "digits": Task(
        data="digits",
        network_is="64-128-10",
        rule="ottt",
        chunk=1,
        epochs=20,
        lr=2e-3,
        steps=STEPS,
        time_targets=False,
        network=layers,
        loss=digit_loss,
        batches=digit_batches,
        tests=digit_tests,
        accuracy=digits_right,
    ),
}


# -- training


def options_of(task: Task, options: argparse.Namespace) -> sc.OnlineOptions:
    """The rule, its chunk, and when weights move."""
    rule = options.rule or task.rule
    chunk = options.chunk or (task.steps if rule == "bptt" else task.chunk)
    return sc.OnlineOptions(
        rule=rule, chunk=chunk, update=options.update, feedback=options.feedback, time_targets=task.time_targets
    )


def train(net: nn.Module, task: Task, how: sc.OnlineOptions, options: argparse.Namespace) -> Dict[str, List[float]]:
    """Train and test once per epoch; returns the curves."""
    optimizer = torch.optim.Adam(net.parameters(), task.lr)
    step, predict = sc.training_model(net, task.loss, optimizer, options=how), sc.inference_model(net)
    order, tests = torch.Generator().manual_seed(options.seed), task.tests()
    curves: Dict[str, List[float]] = {"loss": [], "training accuracy": [], "test accuracy": []}
    settings = {"task": options.task, "rule": how.rule, "chunk": how.chunk, "update": how.update}
    settings.update(feedback=how.feedback, epochs=options.epochs, seed=options.seed, device=options.device)
    begun = 0
    if options.resume:
        try:
            saved = sc.load_checkpoint(checkpoint(options), settings, PARTS)
        except (FileNotFoundError, ValueError) as error:
            sys.exit(f"--resume: {error}")
        step.load_state_dict(saved["step"])
        order.set_state(saved["order"])
        torch.set_rng_state(saved["random"])
        curves, begun = saved["curves"], saved["epoch"]
    else:
        tell_of_earlier(checkpoint(options))
    bar = tqdm(range(begun + 1, options.epochs + 1), f"{how.rule}", options.epochs, unit="epoch", initial=begun)
    with SummaryWriter(str(options.out), purge_step=begun + 1) as log:
        for epoch in bar:
            batches = [train_on(step, task, batch, options.device) for batch in task.batches(order)]
            scores = [task.accuracy(predict(x.to(options.device)).cpu(), y) for x, y in tests]
            loss, right = (torch.stack(values).mean().item() for values in zip(*batches))
            for name, value in zip(curves, (loss, right, torch.stack(scores).mean().item())):
                curves[name].append(value)
                log.add_scalar(name, value, epoch)
            log.flush()  # before the checkpoint: what it counts as done is not written again
            bar.set_postfix(loss=f"{loss:.3f}", test=f"{curves['test accuracy'][-1]:.1%}")
            state = {"step": step.state_dict(), "order": order.get_state(), "random": torch.get_rng_state()}
            sc.save_checkpoint(checkpoint(options), settings, **state, curves=curves, epoch=epoch)
    return curves


def train_on(step: Any, task: Task, batch: Batch, device: str) -> Tuple[Tensor, Tensor]:
    """One sequence of training; its loss and accuracy."""
    x, y = (part.to(device) for part in batch)
    outputs, loss = step(x, y)
    return loss, task.accuracy(outputs, y)


def checkpoint(options: argparse.Namespace) -> Path:
    """Where the last finished epoch is kept."""
    return options.out / "checkpoint.pt"


def arguments() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], formatter_class=Defaults)
    parser.add_argument("--task", choices=tuple(TASKS), default="store-recall", help="what is learnt")
    parser.add_argument("--rule", choices=RULES, help="the learning rule; the task's own if left out")
    parser.add_argument("--chunk", type=at_least(1), help="steps of a chunk; the task's own if left out")
    parser.add_argument("--update", choices=("sequence", "chunk"), default="sequence", help="when weights move")
    parser.add_argument("--feedback", choices=("exact", "random", "none"), default="exact", help="how errors go down")
    parser.add_argument("--backend", default=None, help="name of a backend; see `spikecore backends`")
    parser.add_argument("--device", default="cpu", help="torch device, for example cuda")
    parser.add_argument("--epochs", type=at_least(1), help=EPOCHS)
    parser.add_argument("--seed", type=any_seed, default=0, help=SEED)
    parser.add_argument("--out", type=out_folder, default=Path("runs/online"), help=OUT)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    results.add_option(parser)
    return parser


def main() -> None:
    """Run the example."""
    parser = arguments()
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends it as Ctrl-C does
    start, task = time.perf_counter(), TASKS[options.task]
    options.epochs = options.epochs or task.epochs
    torch.manual_seed(options.seed)
    try:
        how = options_of(task, options)
        net = task.network(how.rule == "bptt").to(options.device)
        sc.set_backend(net, options.backend)
        options.out.mkdir(parents=True, exist_ok=True)
        result = results.Run(net, task.data, options)
        curves = train(net, task, how, options)
    except (sc.backend.BackendError, sc.backend.Unsupported, ValueError, RuntimeError, AssertionError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        if not checkpoint(options).exists():
            raise Stopped("\nstopped: no epoch was finished") from None
        raise Stopped(f"\nstopped: the last finished epoch is in {checkpoint(options)}; go on with --resume") from None
    result.curve = curves["test accuracy"]
    result.keep(network=task.network_is)
    title = f"{task.data}, {task.network_is}: {how.rule} in chunks of {how.chunk}"
    pictures.draw_curves(curves, options.out / "learning-curve.png", title)
    print(f"test accuracy  {curves['test accuracy'][-1]:.2%}")
    print(f"rule           {how.rule}, chunks of {how.chunk} of {task.steps} steps, updates by {how.update}")
    print(f"backend        {which_backend(net)}")
    print(f"time           {time.perf_counter() - start:.0f} s{' since it was resumed' * options.resume}")
    print(f"pictures       {options.out / 'learning-curve.png'}")
    print(f"checkpoint     {checkpoint(options)}")
    print(f"TensorBoard    tensorboard --logdir {options.out}")


if __name__ == "__main__":
    main()
