"""Calls of people on a device, each as a function of its name that gives tensors: neurons, losses, encoders, the rest.

python uses.py FOLDER: computes all of it on the CPU and on the device "single", and prints what differs or raises, as
JSON. Everything is float32 from the same numbers, so the results are equal to the bit.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List

import torch
from torch import Tensor, nn

import spikecore as sc

Use = Callable[[str], List[Tensor]]
NEURONS = sorted(sc.neurons.MODELS)
LOSSES = [name for name in sc.losses.__all__ if not name.startswith("rate_")]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Numbers from -1 to 3, the same on every device."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 4.0 - 1.0


def neuron(name: str, device: str, **chosen: Any) -> Any:
    """On the device, with everything that can be learnt learnt."""
    return sc.neurons.example(name, **chosen, backend="torch").to(device)


def run(name: str, device: str) -> List[Tensor]:
    """Forward over twelve steps, three more from where they ended, and backward through all; potentials as well."""
    made, x = neuron(name, device), drawn(15, 3, 4).to(device).requires_grad_()  # of DHLIF: 3 neurons of 4 branches
    count = 2 if name == "CobaLIF" else 1
    first, state, trace = made.run(*[x[:12]] * count, record=tuple(made.states))
    second, state = made.run(*[x[12:]] * count, state=state)
    (first.sum() + second.sum()).backward()
    return [first, second, x.grad, *trace.values(), *state.values()]


def loss(name: str, device: str) -> List[Tensor]:
    """With and without a mask."""
    outputs, targets = (drawn(7, 5, 6) > 1.0).float().to(device).requires_grad_(), torch.arange(5).to(device)
    mask = sc.functional.mask_of(torch.tensor([7, 3, 1, 5, 7]), 7).to(device)
    rates = {"correct_rate": 0.29, "incorrect_rate": 0.1} if name == "mse_count" else {}
    found = [getattr(sc.losses, name)(outputs, targets, mask=given, **rates) for given in (None, mask)]
    torch.stack(found).sum().backward()
    return [*found, outputs.grad]


def regularised(name: str, device: str) -> List[Tensor]:
    """Rates of a layer."""
    spikes = (drawn(7, 5, 6) > 1.0).float().to(device)
    chosen = {"target": 0.3} if name == "rate_regularizer" else {}
    return [getattr(sc.losses, name)(spikes, **chosen)]


def encoded(encoder: Any, device: str) -> List[Tensor]:
    """Values of a unit interval, or a signal over time."""
    torch.manual_seed(1)
    return [encoder((drawn(6, 5) / 4.0 + 0.25).to(device))]


def noise(device: str) -> List[Tensor]:
    """Numbers by counter are the same on every device."""
    torch.manual_seed(1)
    return [sc.stochastic.EscapeNoise(backend="torch").to(device)(drawn(12, 3, 4).to(device))]


def layers(device: str) -> List[Tensor]:
    """A network of delays, feedback, normalisation and pooling, forward and backward."""
    torch.manual_seed(1)
    net = nn.Sequential(
        sc.Delay(nn.Linear(8, 6), 4),
        sc.layers.NormNeuron(nn.BatchNorm1d(6), sc.LIF(backend="torch")),
        sc.Recurrent(sc.ALIF(backend="torch"), nn.Linear(6, 6)),
        sc.layers.SequenceDropout(0.5),
    ).to(device)
    x = drawn(9, 5, 8).to(device).requires_grad_()
    out = net(x)
    out.sum().backward()
    return [out, x.grad, *[value.grad for value in net.parameters() if value.grad is not None], *net.buffers()]


def trained(device: str) -> List[Tensor]:
    """Two steps of a training model."""
    torch.manual_seed(1)
    net: Any = nn.Sequential(nn.Linear(8, 4), sc.LIF(tau=2.5, learn=("tau",), backend="torch")).to(device)
    step = sc.training_model(net, sc.losses.ce_count, torch.optim.Adam(net.parameters(), 1e-2))
    for _ in range(2):
        out, found = step(drawn(9, 4, 8).to(device), torch.arange(4).to(device))
    return [out, found, *net.parameters(), sc.metrics.accuracy(out, torch.arange(4).to(device))]


def monitored(device: str) -> List[Tensor]:
    """Rates that a monitor saw, and operations that were counted."""
    torch.manual_seed(1)
    net = nn.Sequential(
        sc.layers.TimeBatched(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        sc.LIF(backend="torch"),
        nn.Linear(8, 4),
        sc.LIF(backend="torch"),
    ).to(device)
    x = (drawn(4, 2, 1, 8, 8) > 1.0).float().to(device)
    with torch.no_grad(), sc.monitor(net, record=("v",)) as seen:
        net(x)
    counted = sc.energy(net, x)
    return [seen["1"].rates, torch.tensor([float(counted.acs), float(counted.macs)])]


def loaded(device: str) -> List[Tensor]:
    """A file whose numbers are on the device, in a neuron whose parameter is a plain number."""
    made = sc.LIF(tau=2.0, backend="torch")
    made.load_state_dict({"tau": torch.tensor(2.7).to(device)}, strict=False)
    return [torch.tensor(made.tau)]


def root(device: str) -> List[Tensor]:
    """Square roots of numbers of every size."""
    bits = torch.randint(0, 0x7F800001, (1 << 16,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    return [sc.ops.sqrt(bits.view(torch.float32).to(device))]


#: Those whose Python asks for a number, so that tensors without values will not do.
READING: Dict[str, Use] = {"trained": trained, "monitored": monitored, "loaded": loaded}
PLAIN: Dict[str, Use] = {
    **{f"neuron {name}": partial(run, name) for name in NEURONS},
    **{f"loss {name}": partial(loss, name) for name in LOSSES},
    **{name: partial(regularised, name) for name in ("rate_sparsity", "rate_regularizer")},
    **{f"encoder {one}": partial(encoded, one) for one in (
        sc.encode.Poisson(6), sc.encode.Latency(6), sc.encode.Latency(6, linear=True, normalize=True),
        sc.encode.Constant(6), sc.encode.Delta(off_spikes=True),
    )},
    "noise": noise,
    "layers": layers,
    "root": root,
}  # fmt: skip


def main() -> None:
    """Where the device is not the CPU, by name of the use."""
    from tests.shared.single import register

    register(Path(sys.argv[1]))
    wrong = {}
    for name, use in {**PLAIN, **READING}.items():
        wanted = use("cpu")
        try:
            found = [value.cpu() for value in use("single")]
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
            continue
        if len(found) != len(wanted) or not all(torch.equal(*pair) for pair in zip(found, wanted)):
            wrong[name] = "other numbers than on the CPU"
    print(json.dumps({"uses": len(PLAIN) + len(READING), "wrong": wrong}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    main()
