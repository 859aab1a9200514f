"""Size and instructions of networks in C on an emulated Cortex-M4, and the time of a step on this CPU.

    python docs/benchmarks/microcontroller.py --out docs/benchmarks/cpu-microcontroller.json

Needs gcc-arm-none-eabi, qemu-system-arm and a C compiler; onnxruntime is compared where it is installed.
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
from typing import Any, Callable, Dict, List

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import ecg
import microcontroller
import spikecore as sc

STEPS, TURNS = 50, 15
SPIKES = sc.quant.Format(0, 0, 1)


def dense() -> nn.Module:
    """As for spoken digits: 700 channels, 128 hidden neurons with feedback, 20 classes."""
    return nn.Sequential(nn.Linear(700, 128), sc.Recurrent(sc.LIF(), nn.Linear(128, 128)), nn.Linear(128, 20), sc.LI())


def convolutional() -> nn.Module:
    """The digits of examples/microcontroller.py, with spikes for pixels."""
    return microcontroller.network()


NETWORKS: Dict[str, Any] = {"dense": (dense, (700,)), "digits": (convolutional, (1, 8, 8)), "ecg": (ecg.network, (4,))}


def prepared(name: str, silent: float) -> Any:
    """A network in integers, and spikes of which so many are silent."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    net, dtype = make(), torch.float64 if name == "ecg" else torch.float32
    x = (torch.rand(STEPS, 1, *shape) >= silent).to(dtype)
    for part in net.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(part.weight, 0.0, 2.0 / part.weight[0].numel() ** 0.5)
    return sc.quant.prepare(net.to(dtype).eval(), x, dtype=dtype).eval(), x


def on_chip(name: str, silent: float, folder: Path) -> Dict[str, Any]:
    """Bytes and instructions."""
    net, x = prepared(name, silent)
    program = sc.export_c(net, x, folder, name=name, inputs=SPIKES)
    said = [
        subprocess.run(["make", "-s", "-B", "-C", str(folder), target], capture_output=True, text=True, check=True)
        for target in ("test-cortex-m4", "size")
    ]
    wrong, instructions = re.findall(r"(\d+) of \d+ outputs differ, (\d+) instructions", said[0].stderr)[0]
    flash = int(said[1].stdout.splitlines()[1].split()[0])
    row = {"network": name, "silent": silent, "flash": flash, "tables": program.flash, "memory": program.memory}
    return {**row, "instructions": int(instructions), "differ": int(wrong)}


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


def on_cpu(silent: float, folder: Path) -> List[Dict[str, Any]]:
    """Microseconds of a step of the dense network, the smallest of several interleaved turns."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = (torch.rand(STEPS, 1, 700) >= silent).float()
    net, fixed = dense().eval(), prepared("dense", silent)[0]
    ways = {
        "C, integers": of_c("dense", "fixed", fixed, x, folder),
        "C, float32": of_c("dense", "float32", net, x, folder),
        "ONNX Runtime": of_onnx(net, x, folder),
        "numba": of_torch(net, x, "numba"),
    }
    times: Dict[str, List[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, run in ways.items():
            begun = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - begun) / STEPS * 1e6)
    return [
        {"way": name, "silent": silent, "us": min(turns), "median_us": statistics.median(turns)}
        for name, turns in times.items()
    ]


def main() -> None:
    """Measure, and write it."""
    parser = argparse.ArgumentParser(description="Networks in C.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    document: Dict[str, Any] = {"torch": torch.__version__, "chip": [], "cpu": []}
    with tempfile.TemporaryDirectory() as scratch:
        for name in NETWORKS:
            for silent in (0.5, 0.9):
                document["chip"].append(on_chip(name, silent, Path(scratch) / f"{name}{silent}"))
                print(document["chip"][-1], flush=True)
        for silent in (0.5, 0.9):
            folder = Path(scratch) / f"cpu{silent}"
            folder.mkdir()
            document["cpu"] += on_cpu(silent, folder)
            print(*document["cpu"][-4:], sep="\n", flush=True)
    if options.out:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
