"""Memory and time of a training step: eight networks in four forms, beside the same networks with ReLU.

    python memory.py vgg "ReLU, eager" "low" > rows.jsonl
    python memory.py table h200-memory.json          # the table of memory.md

On a GPU with spikecore-cupy. Each row is a line of JSON. ``kept`` is what torch's allocator has more between forward
and backward than before the step, ``peak`` the most that it has in forward and backward, both in MiB without weights
and states of the optimiser; ``ms`` is the median of seven turns of five steps. With ``--wait`` forms are set up, and
timed once a line comes on the standard input: several processes compile at a time, and are timed one after the other.
``--time`` leaves out the memory, for which compiled forms are compiled a second time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench.models import cifar10, resnet19, sew_resnet18, vgg

Activation = Callable[[], nn.Module]
MIB = 2**20


class Network(NamedTuple):
    """A network, and a batch of it: its number of steps and samples, the shape of a sample, and what it tells apart."""

    about: str
    make: Callable[[Any, Activation], nn.Module]
    steps: int
    batch: int
    sample: Tuple[int, ...]
    classes: int
    #: Targets of this shape: one for each pixel, or one.
    target: Tuple[int, ...] = ()
    #: True if the input has time.
    timed: bool = False


def gestures(steps: int, neuron: Activation) -> nn.Module:
    """Five 3x3 convolutions of 128 channels, each halved by maximum pooling, on events of 128x128 pixels."""
    layers: List[nn.Module] = []
    for channels in (2, 128, 128, 128, 128):
        convolution = nn.Conv2d(channels, 128, 3, padding=1, bias=False)
        layers += [sc.layers.TimeBatched(convolution, nn.BatchNorm2d(128)), neuron()]
        layers.append(sc.layers.TimeBatched(nn.MaxPool2d(2)))
    return nn.Sequential(*layers, sc.layers.TimeBatched(nn.Flatten(), nn.Linear(128 * 16, 11)))


def unet(steps: int, neuron: Activation) -> nn.Module:
    """Spiking U-Net of four levels."""
    return sc.models.spiking_unet(4, 64, steps=steps, classes=4, neuron=neuron)


def spikformer(steps: int, neuron: Activation) -> nn.Module:
    """Spikformer-4-384."""
    return sc.models.spikformer(4, 384, heads=12, steps=steps, neuron=neuron, attention_neuron=neuron)


def ms_resnet18(steps: int, neuron: Activation) -> nn.Module:
    """MS-ResNet-18, whose blocks hand potentials on."""
    return sc.models.ms_resnet(18, steps=steps, small=True, classes=10, neuron=neuron)


_CIFAR = ((3, 32, 32), 10)
NETWORKS: Dict[str, Network] = {
    "resnet19": Network("ResNet-19 with tdBN, 32x32, T = 4, B = 64", resnet19, 4, 64, *_CIFAR),
    "sew18": Network("SEW-ResNet-18, 224x224, T = 4, B = 32", sew_resnet18, 4, 32, (3, 224, 224), 1000),
    "vgg": Network("VGG, eight convolutions, 32x32, T = 4, B = 128", vgg, 4, 128, *_CIFAR),
    "gestures": Network(
        "DVS, five convolutions, 128x128, T = 16, B = 16", gestures, 16, 16, (2, 128, 128), 11, (), True
    ),
    "unet": Network("U-Net, 128x128, T = 4, B = 8", unet, 4, 8, (3, 128, 128), 4, (128, 128)),
    "spikformer": Network("Spikformer-4-384, 32x32, T = 4, B = 64", spikformer, 4, 64, *_CIFAR),
    "cifar10": Network("six convolutions of 256 channels, 32x32, T = 8, B = 32", cifar10, 8, 32, *_CIFAR),
    "ms-resnet18": Network("MS-ResNet-18, 32x32, T = 4, B = 64", ms_resnet18, 4, 64, *_CIFAR),
}
_FAST = {"compile": True, "graph": True}
#: Whether neurons are LIF, and options of the step.
FORMS: Dict[str, Tuple[bool, Dict[str, Any]]] = {
    "ReLU, eager": (False, {}),
    "ReLU, captured": (False, {"graph": True}),
    "ReLU, compiled": (False, _FAST),
    "fused": (True, {"graph": True}),
    "fused, compiled": (True, _FAST),
    "low": (True, {"graph": True, "memory": "low"}),
    "low, compiled": (True, {**_FAST, "memory": "low"}),
}


def batch(network: Network) -> Tuple[Tensor, Tensor]:
    """Images that are channels-last, or events, and targets."""
    generator = torch.Generator().manual_seed(0)
    shape = (network.steps, network.batch, *network.sample) if network.timed else (network.batch, *network.sample)
    x = torch.rand(shape, generator=generator)
    x = (x < 0.1).float() if network.timed else x
    images = x.flatten(0, -4).cuda().contiguous(memory_format=torch.channels_last)
    targets = torch.randint(network.classes, (network.batch, *network.target), generator=generator)
    return (images.unflatten(0, shape[:-3]) if network.timed else images), targets.cuda()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of the mean over time."""
    return F.cross_entropy(outputs.float().mean(0), targets)


class Entered:
    """A form of a network that was set up."""

    def __init__(self, name: str, form: str) -> None:
        network, (fires, options) = NETWORKS[name], FORMS[form]
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        neuron: Activation = partial(sc.LIF, 2.0, detach_reset=True) if fires else nn.ReLU
        net = network.make(None if network.timed else network.steps, neuron).cuda()
        self.x, self.y = batch(network)
        if form == "ReLU, eager":
            self.x = self.x.contiguous()
        else:
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stub lacks it alone
        if fires:
            sc.fuse(net)
        compiled = bool(options.get("compile"))
        self.optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=None if compiled else True)
        form_of = sc.CudaOptions(autocast=torch.bfloat16, **options)
        self.step: Any = sc.training_model(net, loss, self.optimizer, options=form_of)
        # the same form by hand, step by step
        eager = {name: value for name, value in options.items() if name != "graph"}
        self.run: Any = net
        if "memory" in eager:
            self.run = sc.checkpoint(net, "spikes", preserve_rng_state=False)
            if compiled:
                self.run.compile(fullgraph=True, dynamic=False)
        elif compiled:
            self.run = torch.compile(net, fullgraph=True, dynamic=False)
        self.row: Dict[str, Any] = {"network": name, "form": form}
        if "--time" not in sys.argv:
            self.row.update([self.memory() for _ in range(3)][-1])
        for _ in range(6):
            self.step(self.x, self.y)

    def memory(self) -> Dict[str, float]:
        """Memory of a step, in MiB."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(self.run(self.x), self.y)
        kept = torch.cuda.memory_allocated() - before
        value.backward()
        peak = torch.cuda.max_memory_allocated() - before
        self.optimizer.zero_grad(set_to_none=True)
        return {"kept": kept / MIB, "peak": peak / MIB}

    def timed(self) -> Dict[str, Any]:
        """The row, with the time of a step."""
        turns = []
        for _ in range(8):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(5):
                self.step(self.x, self.y)
            torch.cuda.synchronize()
            turns.append((time.perf_counter() - begin) / 5)
        return {**self.row, "ms": 1000 * statistics.median(turns[1:])}


def table(path: Path) -> str:
    """The table of a file: forms beside ReLU, eager, in memory, and beside its fastest form in time."""
    rows = {(row["network"], row["form"]): row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}
    lines = ["| network | form | kept, MiB | of ReLU's | peak, MiB | of ReLU's | ms | of ReLU's fastest here |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name, network in NETWORKS.items():
        mine = {form: row for (other, form), row in rows.items() if other == name and "ms" in row}
        if "ReLU, eager" not in mine:
            continue
        fastest = {
            kind: min((row for form, row in mine.items() if form.startswith(kind)), key=lambda row: row["ms"])
            for kind in ("ReLU", "fused", "low")
            if any(form.startswith(kind) for form in mine)
        }
        eager, best = mine["ReLU, eager"], fastest["ReLU"]
        for row in (eager, *fastest.values()):
            cells = ["", "", "", ""]
            if "kept" in row:
                cells = [f"{row['kept']:,.0f}", f"{row['kept'] / eager['kept']:.3f}"]
                cells += [f"{row['peak']:,.0f}", f"{row['peak'] / eager['peak']:.2f}"]
            cells += [f"{row['ms']:.2f}", f"{row['ms'] / best['ms']:.2f}"]
            about = network.about if row is eager else ""
            lines.append(f"| {about} | {row['form']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Rows of the forms of a network, or the table of a file."""
    name, *forms = [word for word in sys.argv[1:] if word not in ("--wait", "--time")]
    if name == "table":
        print(table(Path(forms[0])))
        return
    entered = []
    for form in forms or FORMS:
        entered.append(Entered(name, form))
        print(json.dumps(entered[-1].row), flush=True)
    if "--wait" in sys.argv:
        print("ready", flush=True)
        sys.stdin.readline()
    for each in entered:
        print(json.dumps(each.timed()), flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
