"""The common options of the training programs, and what they create.

Rules of this module:

- An option has the same meaning in every program. Each program has its own defaults.
- If two options contradict each other, an error names both before anything is loaded.
- ``settings`` must be the same when a run is resumed. They contain all options that change the numbers, and no others.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import torch
from torch import nn

import spikecore as sc

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: Options that change no number: where files are, and how many processes read them.
FREE = ("out", "resume", "folder", "download", "workers")
DIGITS = "these come with scikit-learn"
EPOCHS = "passes over the training data"
SEED = "of every random number"
OUT = "folder of everything that a run writes"


class Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """``--help`` with the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        # an option that is off, or not given, needs no words
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


class Ignored(NamedTuple):
    """An option that would change nothing beside another one of this value."""

    option: str
    beside: str
    value: Any
    why: str


class Parser(argparse.ArgumentParser):
    """Refuses options that would be ignored, naming both: :attr:`ignored` says which."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignored: List[Ignored] = []

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options, after those that were given have been compared with what they go together with."""
        found = super().parse_args(args, namespace)
        left_out = object()  # argparse fills in a default only where there is no value yet
        seen = super().parse_args(args, argparse.Namespace(**dict.fromkeys(vars(found), left_out)))
        for one in self.ignored:
            if vars(seen)[_name(one.option)] is not left_out and vars(found)[_name(one.beside)] == one.value:
                beside = one.beside if one.value is True else f"{one.beside} {one.value}"
                self.error(f"{one.option} changes nothing with {beside}: {one.why}; leave out one of them")
        return found


class Refused(argparse.Action):
    """An option of the other programs that this one has not; ``why`` says what to give in its place."""

    def __init__(self, option_strings: Sequence[str], dest: str, why: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs="?", help=argparse.SUPPRESS, **kwargs)
        self.why = why

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None) -> None:
        """End the program with this sentence."""
        given = f"{option} {values}" if isinstance(values, str) else str(option)
        parser.error(f"{given}: {self.why}")


def _name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def parser(
    about: Optional[str], *, data: Sequence[str], out: str, devices: Optional[str] = None, **defaults: Any
) -> Parser:
    """The common options. ``data`` are the sets that the program knows, its own first; ``defaults`` are by name.

    A program over several devices has ``--devices``, by default ``devices``, in the place of ``--device``.
    """
    given = {"encoder": "constant", "T": 8, "tau": 2.0, "epochs": 30, "batch_size": 64, "lr": 1e-3, **defaults}
    made = Parser(description=(about or "").partition("\n")[0], formatter_class=Defaults)
    made.ignored += [Ignored(one, "--data", "digits", DIGITS) for one in ("--folder", "--download")]
    files = made.add_argument_group("data")
    files.add_argument("--data", choices=data, default=data[0], help="the data set; digits comes with scikit-learn")
    files.add_argument("--folder", type=Path, default=Path("data"), help="where data sets are kept")
    files.add_argument("--download", action="store_true", help="download the data set where it is not there")
    files.add_argument("--workers", type=at_least(0), default=0, help="processes that read the data")
    model = made.add_argument_group("model")
    if given["encoder"] is not None:  # events are spikes already
        about_encoder = "how an image becomes an input for each time step"
        model.add_argument("--encoder", choices=("constant", "poisson"), default=given["encoder"], help=about_encoder)
    model.add_argument("--T", type=at_least(1), default=given["T"], help="time steps")
    model.add_argument("--tau", type=float, default=given["tau"], help="time constant of the neurons, 1 or above")
    where = made.add_argument_group("where and how")
    where.add_argument("--backend", default=None, help="name of a backend; see `spikecore backends`")
    if devices is None:
        where.add_argument("--device", default="cpu", help="torch device, for example cuda; cpu for backend ipu")
    else:
        where.add_argument("--devices", default=devices, help="devices of the stages, with commas; may repeat")
        # not left out: argparse would take it for the beginning of --devices
        where.add_argument("--device", action=Refused, why="give --devices, one for each stage or for several stages")
    where.add_argument("--precision", choices=PRECISIONS, default="float32", help="16 bits are through autocast")
    where.add_argument("--layout", choices=("contiguous", "channels-last"), default="contiguous", help="of images")
    if devices is None:
        where.add_argument("--graph", action="store_true", help="replay whole steps as CUDA graphs")
    else:
        where.add_argument("--graph", action=Refused, default=False, why="a CUDA graph is of one device; leave it out")
    where.add_argument("--compile", action="store_true", help="torch.compile")
    training = made.add_argument_group("training")
    training.add_argument("--epochs", type=at_least(1), default=given["epochs"], help=EPOCHS)
    training.add_argument("--batch-size", type=at_least(1), default=given["batch_size"], help="samples of a step")
    training.add_argument("--lr", type=float, default=given["lr"], help="learning rate at the start; a cosine ends it")
    training.add_argument("--limit", type=at_least(1), help="at most so many batches of an epoch, for a quick try")
    training.add_argument("--seed", type=any_seed, default=0, help=SEED)
    training.add_argument("--out", type=out_folder, default=Path(out), help=OUT)
    training.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    return made


def at_least(least: int) -> Callable[[str], int]:
    """A type for argparse: whole numbers from ``least`` on."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} must be {least} or more")
        return value

    number.__name__ = "whole number"
    return number


def any_seed(text: str) -> int:
    """A type for argparse: the whole numbers that torch takes for a seed."""
    value = int(text)
    if not -(2**63) <= value < 2**64:
        raise argparse.ArgumentTypeError(f"{value} must be from -2**63 to 2**64 - 1")
    return value


any_seed.__name__ = "whole number"


def share(text: str) -> float:
    """A type for argparse: numbers from 0 to 1."""
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} must be from 0 to 1")
    return value


share.__name__ = "number"


def out_folder(text: str) -> Path:
    """A type for argparse: a folder that is there, or can be made."""
    path = Path(text)
    there = next((one for one in (path, *path.parents) if one.exists()), None)
    if there is not None and not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is a file; give a folder")
    return path


def check(made: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End the program with a sentence where options do not go together, or the device is not there."""
    if hasattr(options, "devices"):
        options.device = options.devices.split(",")[
            0
        ]  # where batches go; sc.parallel.Pipeline checks that all are there
        kind = options.device.partition(":")[0]
    else:
        try:
            kind = torch.empty(1, device=options.device).device.type
        except (RuntimeError, AssertionError) as error:  # torch raises either for a device that is not there
            made.error(f"--device {options.device}: {str(error).splitlines()[0]}")
    if options.graph and kind != "cuda":
        made.error(f"--graph captures CUDA graphs, and --device is {options.device}; give --device cuda")
    if options.graph and options.precision == "float16":
        made.error(
            "--graph and --precision float16 exclude each other (a gradient scaler asks the GPU at each step); "
            "give --precision bfloat16"
        )
    if options.precision == "float16" and kind != "cuda" and not hasattr(torch.amp, "GradScaler"):
        made.error("--precision float16 needs torch 2.3 or newer without a GPU; give --precision bfloat16")
    if options.compile and not hasattr(nn.Module, "compile"):
        made.error(f"--compile needs torch 2.3 or newer, and this is {torch.__version__}")


def settings(options: argparse.Namespace, net: nn.Module) -> Dict[str, Any]:
    """What must be the same when a run goes on, by the names of the options; the backend is the one that computes."""
    kept = {name.replace("_", "-"): value for name, value in vars(options).items() if name not in FREE}
    kept["backend"] = ", ".join(sorted({used.backend.name for used in bound(net).values()}))
    return {name: str(value) if isinstance(value, Path) else value for name, value in kept.items()}


def bound(net: nn.Module) -> Dict[str, Any]:
    """What runs the first neuron of a network, by device; ``sc.training_model`` has chosen it."""
    return next(dict(module.bound) for module in net.modules() if isinstance(module, sc.Neuron))


def which_backend(net: nn.Module, why: bool = True) -> str:
    """What ran, and why."""
    # the last device of each: an IPU's networks are run on the CPU first, to find out shapes
    last = {used.backend.name: (device, used.reason) for device, used in bound(net).items()}
    parts = [(f"{name} on {device}", reason) for name, (device, reason) in last.items()]
    return "; ".join(f"{ran} ({reason})" if why else ran for ran, reason in parts)


def how(options: argparse.Namespace) -> Optional[sc.CudaOptions]:
    """The options of ``sc.training_model``; None where nothing is asked for, which every backend takes."""
    autocast = PRECISIONS[options.precision]
    if autocast is None and not options.graph:
        return None
    scaler = None
    if autocast is torch.float16:
        kind = torch.device(options.device).type
        scaler = torch.amp.GradScaler(kind) if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()
    return sc.CudaOptions(graph=options.graph, autocast=autocast, scaler=scaler)


def encoded(options: argparse.Namespace, make: Callable[[Optional[int]], nn.Sequential]) -> nn.Sequential:
    """The network for the input asked for: the first neuron of ``make(steps)`` repeats an image, or ``Poisson`` makes
    spikes in front of ``make(None)``, whose input has time. ``Poisson`` draws from torch's own stream, which a
    checkpoint holds: CUDA graphs, ``torch.compile`` and IPUs take no other generator.
    """
    if options.encoder == "constant":
        return make(options.T)
    return nn.Sequential(sc.encode.Poisson(options.T), *make(None))
