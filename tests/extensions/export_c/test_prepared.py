"""Networks of ``sc.quant.prepare`` in C: roundings in front of and behind layers, and inputs that the caller rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from c_programs import CHECKED, differing

TimeBatched = sc.layers.TimeBatched


class Gated(sc.Neuron):
    """Integrates where its gate is open; gives spikes and potentials."""

    inputs = ("x", "gate")
    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = 0.5 * s.v + sc.ops.where(x.gate > 0.0, x.x, 0.0)
        z = self.spike(v - 1.0)
        return (z, v), {"v": sc.ops.select(z, 0.0, v)}


def with_large_bias() -> nn.Module:
    """A layer whose bias has more than 16 bits on the grid of its sums."""
    layer = nn.Linear(6, 4)
    layer.weight.data.mul_(0.05)
    layer.bias.data.copy_(torch.tensor([0.9001, -0.3001, 0.7003, 0.1]))
    return nn.Sequential(layer, sc.LIF(threshold=0.25), nn.Linear(4, 3), sc.LI())


class Gate(nn.Module):
    """A neuron with two inputs and two outputs, of which the second is read."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.gate, self.cell = nn.Linear(6, 5), nn.Linear(6, 5), Gated()

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(self.front(x), self.gate(x))[1]


class Unpacked(Gate):
    """Unpacks both outputs, and reads one."""

    def forward(self, x: Tensor) -> Tensor:
        _, v = self.cell(self.front(x), self.gate(x))
        return v


class InPlace(nn.Module):
    """Adds to what a layer wrote, in its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.last = sc.LIF(threshold=0.5), nn.Linear(6, 6), nn.Linear(6, 6), sc.LIF()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.a(x)
        y += self.b(x)
        y += x
        return self.last(y)


class OfInput(nn.Module):
    """A layer and a neuron that read the input of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.lif, self.li = nn.Linear(6, 6), sc.LIF(), sc.LI()

    def forward(self, x: Tensor) -> Tensor:
        return self.lif(self.layer(x)) + self.li(x)


class PreActivation(nn.Module):
    """A layer that a neuron and a sum read, and one whose numbers two layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.lif, self.out = *(nn.Linear(6, 6) for _ in range(3)), sc.LIF(), sc.LI()

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h = h + self.b(self.lif(h))
        return self.out(self.c(h) + h)


def biased() -> nn.Module:
    """Biases of more than 16 bits on the grid of the sums."""
    net = nn.Sequential(nn.Linear(6, 8), sc.LIF(), nn.Linear(8, 3), sc.LI())
    nn.init.constant_(net[0].bias, 2.3456)
    nn.init.constant_(net[2].bias, -10.1234)
    return net


def parametrised() -> nn.Module:
    """Weights that are computed from others, in a layer, in a delay and in a feedback."""
    norm = torch.nn.utils.parametrizations.weight_norm
    return nn.Sequential(
        norm(nn.Linear(6, 6)),
        sc.LIF(threshold=0.25),
        sc.Delay(norm(nn.Linear(6, 6)), 2, learn=()),
        sc.Recurrent(sc.LIF(threshold=0.25), norm(nn.Linear(6, 6, bias=False))),
        nn.Linear(6, 3),
        sc.LI(),
    )


def analogue(*shape: int) -> Tensor:
    """Numbers on no grid, ``[T, B, ...]``."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


NETWORKS: Dict[str, Tuple[Callable[[], nn.Module], Tuple[int, ...]]] = {
    "analogue inputs": (lambda: nn.Sequential(nn.Linear(6, 8), sc.LIF(), nn.Linear(8, 3), sc.LI()), (6,)),
    "a bias of many bits": (with_large_bias, (6,)),
    "read-outs between layers": (
        lambda: nn.Sequential(nn.Linear(6, 8), sc.LI(), nn.Linear(8, 5), nn.Linear(5, 3)),
        (6,),
    ),
    "images and pooling": (
        lambda: nn.Sequential(
            TimeBatched(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.AvgPool2d(2)),
            sc.LIF(threshold=0.25),
            TimeBatched(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)),
            sc.LIF(threshold=0.25),
            TimeBatched(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(4, 3)),
            sc.LIF(threshold=0.25),
        ),
        (1, 8, 8),
    ),
    "a neuron first": (lambda: nn.Sequential(sc.LIF(threshold=0.5), nn.Linear(6, 3), sc.LI()), (6,)),
    "feedback and delays": (
        lambda: nn.Sequential(
            sc.Delay(nn.Linear(6, 8), 3, learn=()),
            sc.Recurrent(sc.ALIF(), sc.Delay(nn.Linear(8, 8), 4, per="input", learn=())),
            nn.Linear(8, 3),
        ),
        (6,),
    ),
    "two inputs, the second output": (Gate, (6,)),
    "two outputs, unpacked": (Unpacked, (6,)),
    "large biases": (biased, (6,)),
    "a sum in place": (InPlace, (6,)),
    "an input with two readers": (OfInput, (6,)),
    "values with two readers": (PreActivation, (6,)),
    "a mean of the input": (
        lambda: nn.Sequential(TimeBatched(nn.AvgPool2d(2), nn.Conv2d(1, 3, 3)), sc.LIF(threshold=0.1)),
        (1, 8, 8),
    ),
    "a maximum of the input": (
        lambda: nn.Sequential(TimeBatched(nn.MaxPool2d(2), nn.Flatten()), nn.Linear(16, 3), sc.LIF(threshold=0.1)),
        (1, 8, 8),
    ),
    "feedback first": (
        lambda: nn.Sequential(sc.Recurrent(sc.LIF(threshold=0.5), nn.Linear(6, 6)), nn.Linear(6, 3), sc.LI()),
        (6,),
    ),
    "layers over tokens": (
        lambda: nn.Sequential(
            nn.Linear(6, 5), sc.LIF(threshold=0.1), nn.Linear(5, 4), nn.Flatten(-2), nn.Linear(12, 3), sc.LI()
        ),
        (3, 6),
    ),
    "parametrised weights": (parametrised, (6,)),
}


@pytest.mark.matrix(turn=1)
@pytest.mark.parametrize("bits", [(8, 16), (4, 8)])
@pytest.mark.parametrize("name", [*NETWORKS])
def test_the_bits_of_torch(name: str, bits: Tuple[int, int], tmp_path: Path) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    net, x = make(), 2.0 * analogue(25, 3, *shape)
    for _ in range(2):
        net(x)  # running statistics
    prepared = sc.quant.prepare(net.eval(), x, bits[0], word=bits[1]).eval()
    with torch.no_grad():
        assert len(prepared(x).unique()) > 1
    program = sc.export_c(prepared, x, tmp_path)
    assert program.inputs is not None
    wrong, count = differing(tmp_path, "test", CHECKED)
    assert (wrong, count % (25 * 3)) == (0, 0)
    text = (tmp_path / "network.c").read_text()
    assert "float" not in text
    assert ("nibble(" in text) == (bits[0] == 4)


@pytest.mark.parametrize("rounding", ["nearest", "floor"])
def test_channels_of_very_different_size(rounding: str, tmp_path: Path) -> None:
    """Their sums, on the grid of the smallest, need 64 bits, and are rounded in front of the neurons."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(300, 8), sc.LIF(threshold=0.25)), 2.0 * analogue(25, 3, 300)
    net[0].weight.data *= torch.logspace(-6, 1, 8).unsqueeze(1)
    net[0].bias.data *= torch.logspace(-6, 1, 8)
    prepared = sc.quant.prepare(net, x, rounding=rounding).eval()
    assert prepared(x).any()
    sc.export_c(prepared, x, tmp_path)
    assert differing(tmp_path, "test", CHECKED)[0] == 0
    text = (tmp_path / "network.c").read_text()
    assert "int64_t *restrict out" in text
    assert ("rounded64(in[i]" in text) == (rounding == "nearest")
