"""Costs of a training step of a small network on a CPU: the table of the tutorial.

    python docs/benchmarks/costs.py

Networks of 64 inputs, one hidden layer and 10 outputs; each row differs in one thing from the first. Times are
processor time on one thread, the least of many runs: other programs on the machine do not count.
"""

from __future__ import annotations

import functools
import time
from typing import Any, Callable, Dict

import torch
from torch import nn

import spikecore as sc

#: Name of a row -> what differs from the first.
ROWS: Dict[str, Dict[str, Any]] = {
    "T = 25, batch 32, width 128, `sc.LIF`": {},
    "T = 100": {"steps": 100},
    "batch 128": {"batch": 128},
    "width 512": {"width": 512},
    "`sc.LIF(learn=('tau',))`": {"neuron": functools.partial(sc.LIF, learn=("tau",))},
    "`sc.Leaky(0.9)`": {"neuron": functools.partial(sc.Leaky, 0.9)},
    "`sc.ALIF()`": {"neuron": sc.ALIF},
    "`sc.Recurrent(sc.LIF(), nn.Linear(128, 128))`": {
        "neuron": lambda: sc.Recurrent(sc.LIF(), nn.Linear(128, 128)),
    },
    "`backend='torch'`": {"neuron": functools.partial(sc.LIF, backend="torch")},
}


def milliseconds(steps: int = 25, batch: int = 32, width: int = 128, neuron: Callable[[], nn.Module] = sc.LIF) -> float:
    """Time of a training step."""
    torch.manual_seed(0)
    out = sc.LI(backend=neuron.keywords["backend"]) if "backend" in getattr(neuron, "keywords", {}) else sc.LI()
    net = nn.Sequential(nn.Linear(64, width), neuron(), nn.Linear(width, 10), out)
    x, y = torch.rand(steps, batch, 64), torch.randint(0, 10, (batch,))
    step = sc.training_model(net, sc.losses.ce_max_membrane, torch.optim.Adam(net.parameters(), 1e-3))
    times = []
    for _ in range(400):  # the first compiles
        begin = time.process_time()
        step(x, y)
        times.append(time.process_time() - begin)
    return 1e3 * min(times)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}\n\n| network | training step |\n|---|---|")
    for name, values in ROWS.items():
        print(f"| {name} | {milliseconds(**values):.1f} ms |")


if __name__ == "__main__":
    main()
