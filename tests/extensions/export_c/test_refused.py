"""Networks that cannot be exported are refused by name, with the way out, before anything is written."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Callable, Optional, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import refusals
import spikecore as sc
from c_programs import SPIKES, lif, on_grid, spikes
from spikecore.layers import TimeBatched
from spikecore_chips.quant import Format, fixed


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Multiplies(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


class EqualNames(nn.Module):
    """The feedback of ``rec`` and a layer have one name in C."""

    def __init__(self) -> None:
        super().__init__()
        self.rec, self.rec_back = sc.Recurrent(lif(), nn.Linear(6, 6)), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.rec_back(self.rec(x))


class Dale(nn.Linear):
    """A layer whose weights are not negative."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.abs(), self.bias)


class Tripled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Calls(nn.Module):
    """A forward of a layer and two neurons."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.a, self.b = nn.Linear(6, 6), fixed(sc.LIF(), word=16, frac=8), fixed(sc.LI(), word=16, frac=4)
        self.called = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.called(self, x)


class OfTensors(nn.Module):
    """A forward that calls a layer for tensors alone, which a trace has none of."""

    def __init__(self, asks: Callable[[Any], bool]) -> None:
        super().__init__()
        self.layer, self.asks = nn.Linear(6, 6), asks

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.asks(x) else x + x


class OwnRun(sc.LIF):
    def run(self, x: Any, *args: Any, **options: Any) -> Any:
        return super().run(3 * x, *args, **options)


class TwoInputs(sc.Neuron):
    inputs, states = ("x", "threshold"), {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = 0.5 * s.v + x.x
        z = self.spike(v - x.threshold)
        return z, {"v": v * (1.0 - z)}


class Broadcasts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.fire = nn.Linear(6, 6), nn.Linear(6, 1), TwoInputs()

    def forward(self, x: Tensor) -> Tensor:
        return self.fire(self.first(x), self.gate(x))


def normalised(layer: nn.Module) -> nn.Module:
    """A layer whose weight a hook computes."""
    with pytest.warns(FutureWarning, match="deprecated"):
        return nn.utils.weight_norm(layer)


def hooked(path: str = "1", net: Optional[nn.Module] = None) -> nn.Module:
    net = nn.Sequential(TimeBatched(nn.Linear(6, 6)), nn.Linear(6, 6), lif()) if net is None else net
    net.get_submodule(path).register_forward_hook(lambda module, args, output: 2 * output)
    return net


def replaced(path: str) -> nn.Module:
    net = nn.Sequential(TimeBatched(nn.Linear(6, 6)), nn.Linear(6, 6), lif())
    net.get_submodule(path).forward = lambda x: x
    return net


def prepared(net: nn.Module) -> nn.Module:
    return sc.quant.prepare(net, spikes(4, 6))


def wide() -> nn.Module:
    layer = nn.Linear(6, 4)
    with torch.no_grad():
        layer.weight.fill_(2.0**15 + 1).mul_(2.0**-8)
    return layer


def long_sums() -> nn.Module:
    layer = nn.Linear(6, 4, bias=False)
    with torch.no_grad():
        layer.weight.fill_(0.998046875)  # 511 / 512
    return layer


NOT_FINITE = torch.ones(2, 1, 6)
NOT_FINITE[1, 0, 3] = float("nan")


def exported(net: Any, example: Any = None, shape: Tuple[int, ...] = (6,), **options: Any) -> None:
    """An export, which leaves nothing where it is refused."""
    with tempfile.TemporaryDirectory() as place:
        try:
            x = spikes(4, *shape) if example is None else example
            sc.export_c(net, x, Path(place) / "folder", **{"inputs": SPIKES, **options})
        finally:
            assert not (Path(place) / "folder").exists()


test_refused = refusals.table(__file__, globals(), on_grid, Format)
