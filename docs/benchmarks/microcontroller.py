"""Size and instructions of trained networks in C on an emulated Cortex-M4, and the time of a step on this CPU.

    python docs/benchmarks/microcontroller.py --data FOLDER --weights FILE --out FILE
    python docs/benchmarks/microcontroller.py --only cpu --out FILE

``--only`` measures one table, and leaves the other one in the file. Data and weights of the electrocardiograms are
those of ``examples/ecg.py``; without them the data are made up, and the network is trained for a few epochs. The chip
needs gcc-arm-none-eabi and qemu-system-arm; onnxruntime is compared where it is installed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import ecg
import microcontroller
import spikecore as sc
from common import data, heartbeats, resonators

STEPS, TURNS = 50, 31
SHARES = (0.5, 0.9)
SPIKES = sc.quant.Format(0, 0, 1)


class Trained(NamedTuple):
    """A network in floats and in integers, and inputs over time ``[T, B, ...]`` by what they are."""

    net: nn.Module
    fixed: nn.Module
    inputs: Dict[str, Tensor]


def silent(share: float, shape: Tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Random spikes, of which such a share is missing."""
    generator = torch.Generator().manual_seed(0)
    return (torch.rand((STEPS, 1, *shape), generator=generator) >= share).to(dtype)


def dense(share: float) -> Trained:
    """As for spoken digits: 700 channels, 128 hidden neurons with feedback, 20 classes.

    A class is a probability of a spike for each channel, twice 1 - share at most; samples are drawn from it.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(700, 128), sc.Recurrent(sc.LIF(), nn.Linear(128, 128)), nn.Linear(128, 20), sc.LI())
    classes = torch.rand(20, 700) * 2 * (1 - share)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    step = sc.training_model(net, lambda out, y: nn.functional.cross_entropy(out.mean(0), y), optimizer)
    for _ in range(100):
        labels = torch.randint(20, (64,))
        step((torch.rand(STEPS, 64, 700) < classes[labels]).float(), labels)
    labels = torch.arange(20)
    x = (torch.rand(STEPS, 20, 700) < classes).float()
    hits = sc.inference_model(net)(x).mean(0).argmax(-1) == labels
    print(f"dense, {share:.0%} silent: {hits.double().mean():.1%}", flush=True)
    return Trained(net.eval(), sc.quant.prepare(net.eval(), x).eval(), {f"{share:.0%} silent": x[:, :4]})


def digits() -> Trained:
    """The digits of examples/microcontroller.py."""
    torch.manual_seed(0)
    order = torch.Generator().manual_seed(0)
    training, test = (part.tensors for part in data.digits()[1:3])
    net = microcontroller.network()
    microcontroller.train(net, training, 8, 4e-3, order)
    fixed = sc.quant.prepare(net, microcontroller.over_time(training[0][:256]))
    microcontroller.train(fixed, training, 2, 4e-4, order)
    print(f"digits: {microcontroller.accuracy(fixed, test):.1%}", flush=True)
    drawn = {f"spikes, {share:.0%} silent": silent(share, (1, 8, 8)) for share in SHARES}
    return Trained(net, fixed, {"test images": microcontroller.over_time(test[0][:16]), **drawn})


def heartbeat(options: argparse.Namespace) -> Trained:
    """The electrocardiograms of examples/ecg.py, whose arithmetic needs float64."""
    torch.manual_seed(0)
    net = ecg.network()
    if options.weights is None:
        part = heartbeats.made_up(96, 0)
        optimizer = torch.optim.Adam(net.parameters(), 0.05)
        step = sc.training_model(net, ecg.per_step, optimizer, options=sc.TrainingOptions(clip_norm=ecg.CLIP))
        for _ in range(30):
            step(part.spikes, part.labels)
    else:
        resonators.load(net, options.weights)
    _, training, test = heartbeats.load(options.data)
    fixed = sc.quant.prepare(net.double().eval(), training.spikes[:, :64].double(), dtype=torch.float64).eval()
    hits = sc.inference_model(fixed)(test.spikes.double()).argmax(-1) == test.labels
    print(f"ecg: {hits.double().mean():.1%}", flush=True)
    drawn = {f"spikes, {share:.0%} silent": silent(share, (4,), torch.float64) for share in SHARES}
    return Trained(net, fixed, {"a test sequence": test.spikes[:, :1].double(), **drawn})


def networks(options: argparse.Namespace) -> Iterator[Tuple[str, Trained]]:
    """The networks of the chip's table, by name."""
    for share in SHARES:
        yield "dense", dense(share)
    yield "digits", digits()
    yield "ecg", heartbeat(options)


def on_chip(name: str, what: str, trained: Trained, folder: Path) -> Dict[str, Any]:
    """Bytes and instructions."""
    x = trained.inputs[what]
    program = sc.export_c(trained.fixed, x, folder, name=name)
    said = [
        subprocess.run(["make", "-s", "-B", "-C", str(folder), target], capture_output=True, text=True, check=True)
        for target in ("test-cortex-m4", "size")
    ]
    wrong, mean, most = re.findall(
        r"(\d+) of \d+ outputs differ, (\d+) instructions per step, (\d+) at most", said[0].stderr
    )[0]
    flash = int(said[1].stdout.splitlines()[1].split()[0])
    row = {"network": name, "inputs": what, "silent": float((x == 0).double().mean()), "fires": fires(trained.fixed, x)}
    row.update(flash=flash, tables=program.flash, memory=program.memory)
    return {**row, "instructions": int(mean), "most": int(most), "differ": int(wrong)}


def fires(net: nn.Module, x: Tensor) -> float:
    """How many of the hidden neurons fire in a step."""
    spikes: List[Tensor] = []
    handles = [
        part.register_forward_hook(lambda _, args, out: spikes.append(out.flatten()))
        for part in [*net.children()][:-1]
        if isinstance(part, (sc.Neuron, sc.Recurrent))
    ]
    with torch.no_grad():
        net(x)
    for handle in handles:
        handle.remove()
    return float(torch.cat(spikes).double().mean())


def of_c(name: str, dtype: str, net: nn.Module, x: Tensor, folder: Path) -> Callable[[], Any]:
    """All steps of the program in C on this CPU."""
    sc.export_c(net, x, folder, name=name, dtype=dtype, inputs=SPIKES if dtype == "fixed" else None)
    library = folder / "library.so"
    command = ["cc", "-std=c11", "-O2", "-ffp-contract=off", "-march=native", "-shared", "-fPIC"]
    subprocess.run([*command, f"{name}.c", "-o", str(library), "-lm"], cwd=folder, check=True)
    functions = ctypes.CDLL(str(library))
    step, reset = functions[f"{name}_step"], functions[f"{name}_reset"]
    state, out = ctypes.create_string_buffer(1 << 20), ctypes.create_string_buffer(1 << 12)
    rows = [row.to(torch.uint8 if dtype == "fixed" else torch.float32).contiguous() for row in x[:, 0]]
    addresses = [ctypes.c_void_p(row.data_ptr()) for row in rows]

    def run(rows: List[Tensor] = rows) -> None:  # which own the memory
        reset(state)
        for address in addresses:
            step(state, address, out)

    return run


def of_torch(net: nn.Module, x: Tensor, backend: str) -> Callable[[], Any]:
    """All steps of the network in single steps."""
    single = sc.set_step(net, "single")
    sc.set_backend(single, backend)

    def run() -> None:
        sc.reset(single)
        with torch.no_grad():
            for x_t in x:
                single(x_t)

    return run


class Step(nn.Module):
    """One step with the states as inputs and outputs, for ONNX."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.front, self.cell, self.out, self.leak = net[0], net[1], net[2], net[3]

    def forward(self, x: Tensor, v: Tensor, last: Tensor, y: Tensor) -> Any:
        """Outputs, and the next states."""
        current = (self.front(x) + self.cell.linear(last)).unsqueeze(0)
        spikes, state = self.cell.neuron.run(current, state={"v": v})
        out, leak = self.leak.run(self.out(spikes), state={"v": y})
        return out.squeeze(0), state["v"], spikes.squeeze(0), leak["v"]


def of_onnx(net: Any, x: Tensor, folder: Path) -> Callable[[], Any]:
    """All steps in ONNX Runtime."""
    import onnxruntime

    start = (torch.zeros(1, 128), torch.zeros(1, 128), torch.zeros(1, 20))
    torch.onnx.export(Step(net), (x[0], *start), str(folder / "step.onnx"), dynamo=True, optimize=False, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "step.onnx"), options)
    names = [value.name for value in session.get_inputs()]
    rows = [row.numpy() for row in x]

    def run() -> None:
        state = [value.numpy() for value in start]
        for row in rows:
            _, *state = session.run(None, dict(zip(names, [row, *state])))

    return run


def on_cpu(folder: Path) -> List[Dict[str, Any]]:
    """Microseconds of a step of the dense network, the smallest of turns in which all ways run one after the other."""
    torch.set_num_threads(1)
    ways: Dict[Tuple[str, float], Callable[[], Any]] = {}
    for share in SHARES:
        trained = dense(share)
        (x,) = (x[:, :1] for x in trained.inputs.values())
        net, place = trained.net, folder / f"{share}"
        place.mkdir()
        ways["C, integers", share] = of_c("dense", "fixed", trained.fixed, x, place)
        ways["C, float32", share] = of_c("dense", "float32", net, x, place)
        ways["ONNX Runtime, float32", share] = of_onnx(net, x, place)
        ways["numba, float32", share] = of_torch(net, x, "numba")
    times: Dict[Tuple[str, float], List[float]] = {way: [] for way in ways}
    for _ in range(TURNS):
        for way, run in ways.items():
            begun = time.perf_counter()
            run()
            times[way].append((time.perf_counter() - begun) / STEPS * 1e6)
    return [
        {"way": way, "silent": share, "us": min(turns), "median_us": statistics.median(turns)}
        for (way, share), turns in times.items()
    ]


def main() -> None:
    """Measure, and write it."""
    parser = argparse.ArgumentParser(description="Networks in C.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=("chip", "cpu"))
    parser.add_argument("--data", default=heartbeats.MADE_UP, help="as of examples/ecg.py")
    parser.add_argument("--weights", type=Path, help="as of examples/ecg.py")
    options = parser.parse_args()
    before = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    document: Dict[str, Any] = {"chip": [], "cpu": [], **before, "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        if options.only != "cpu":
            document["chip"] = []
            for name, trained in networks(options):
                for what in trained.inputs:
                    document["chip"].append(
                        on_chip(name, what, trained, Path(scratch) / f"{name} {what}".replace(" ", "-"))
                    )
                    print(document["chip"][-1], flush=True)
        if options.only != "chip":
            document["cpu"] = on_cpu(Path(scratch))
            print(*document["cpu"], sep="\n", flush=True)
    if options.out:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
