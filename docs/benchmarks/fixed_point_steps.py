"""The time of forward and backward in fixed point beside floats, both in one process, turn by turn.

python docs/benchmarks/fixed_point_steps.py --backend numba --out docs/benchmarks/cpu-fixed-point-steps.json
python docs/benchmarks/fixed_point_steps.py --backend cupy --device cuda --out FILE
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import torch
from torch import nn

import spikecore as sc

NEURONS: Dict[str, Callable[[], sc.Neuron]] = {"LIF": sc.LIF, "ALIF": sc.ALIF, "Synaptic": sc.Synaptic}
#: Steps, batch and neurons of a layer.
SHAPES = {"cpu": ((8, 32, 1024), (32, 64, 1024)), "cuda": ((8, 128, 4096), (32, 256, 4096))}


def dense(width: int) -> nn.Sequential:
    """Three linear layers."""
    torch.manual_seed(0)
    hidden = nn.Linear(784, width), sc.LIF(threshold=0.2), nn.Linear(width, width), sc.LIF(threshold=0.2)
    return nn.Sequential(*hidden, nn.Linear(width, 10), sc.LI())


def convolutional() -> nn.Sequential:
    """Two convolutions and a linear layer."""
    torch.manual_seed(0)
    batched = sc.layers.TimeBatched
    return nn.Sequential(
        batched(nn.Conv2d(2, 32, 3, padding=1), nn.BatchNorm2d(32)),
        sc.LIF(threshold=0.2),
        batched(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.MaxPool2d(2)),
        sc.LIF(threshold=0.2),
        batched(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64 * 64, 10)),
        sc.LI(),
    )


def compared(calls: Dict[str, Callable[[], Any]], device: str, turns: int = 30) -> Dict[str, float]:
    """The median milliseconds of each call."""
    times: Dict[str, List[float]] = {name: [] for name in calls}
    for turn in range(turns + 5):
        for name, call in calls.items():
            _finish(device)
            begun = time.perf_counter()
            call()
            _finish(device)
            if turn >= 5:
                times[name].append(1000 * (time.perf_counter() - begun))
    medians = {f"{name}, ms": statistics.median(values) for name, values in times.items()}
    return {**medians, "fixed / float": medians["fixed, ms"] / medians["float, ms"]}


def _finish(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def of_neuron(name: str, shape: Any, backend: str, device: str) -> Dict[str, Any]:
    """One neuron, forward and backward."""
    x = torch.randn(shape, device=device, requires_grad=True)
    weight = torch.randn(shape, device=device)

    def call(neuron: sc.Neuron) -> Callable[[], Any]:
        neuron.backend = backend
        return lambda: torch.autograd.grad(neuron(x), x, weight)

    calls = {"float": call(NEURONS[name]()), "fixed": call(sc.quant.fixed(NEURONS[name]()))}
    return {"what": name, "shape": list(shape), **compared(calls, device)}


def of_network(name: str, net: nn.Module, x: torch.Tensor, backend: str, device: str) -> Dict[str, Any]:
    """A training step of a network, 8-bit weights and 16-bit states."""
    net(x[:, :8])
    fixed = sc.quant.prepare(net, x[:, :8])
    x, labels = x.to(device), torch.randint(0, 10, (x.shape[1],), device=device)

    def call(net: nn.Module) -> Callable[[], Any]:
        sc.set_backend(net.to(device), backend)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
        step = sc.training_model(net, lambda out, y: nn.functional.cross_entropy(out.mean(0), y), optimizer)
        return lambda: step(x, labels)

    return {"what": name, "shape": list(x.shape), **compared({"float": call(net), "fixed": call(fixed)}, device)}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="The time of fixed point beside floats.")
    parser.add_argument("--backend", default="numba")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    backend, device = options.backend, options.device
    rows: List[Dict[str, Any]] = []

    def add(row: Dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        about = {"backend": backend, "on": where, "torch": torch.__version__, "threads": torch.get_num_threads()}
        if options.out:
            options.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n", encoding="utf-8")

    for shape in SHAPES[device]:
        for name in NEURONS:
            add(of_neuron(name, shape, backend, device))
    batch, width = (32, 512) if device == "cpu" else (256, 2048)
    add(of_network("dense", dense(width), torch.rand(8, batch, 784), backend, device))
    add(of_network("convolutional", convolutional(), torch.rand(4, batch // 2, 2, 32, 32), backend, device))


if __name__ == "__main__":
    main()
