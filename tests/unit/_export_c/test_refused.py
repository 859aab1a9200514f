"""What cannot be exported is refused by name, with the way out, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from c_programs import SPIKES, lif, on_grid, spikes
from spikecore.quant import Format


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


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 4), lif())
    net[0].register_forward_hook(lambda *_: None)
    return net


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


REFUSED: Dict[str, Tuple[Callable[[], nn.Module], Dict[str, Any], str]] = {
    "an unknown layer": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.GELU(), lif()),
        {"dtype": "float32"},
        r"GELU at '1': there is no C for GELU; there is for Linear, Conv1d, .*, and sums of these",
    ),
    "a function": (Multiplies, {"dtype": "float32"}, "forward calls sigmoid, for which there is no C"),
    "a branch": (
        Branches,
        {"dtype": "float32"},
        "forward of Branches cannot be followed: .*\nIts forward must call modules, add and flatten",
    ),
    "two equal names": (EqualNames, {"dtype": "float32"}, "two parts of the program are named 'rec_back'; give a mod"),
    "a layer at two places": (
        Twice,
        {"dtype": "float32"},
        "Linear at 'layer' is called 2 times; make a layer for each",
    ),
    "a hook": (hooked, {}, "Linear at '0' has hooks or a forward of its own, which C would not have; remove them"),
    "training": (
        lambda: nn.Sequential(nn.Linear(6, 4), lif()).train(),
        {},
        r"in training mode, and is exported as it infers; call net.eval\(\) first",
    ),
    "weights on no grid": (
        lambda: nn.Sequential(nn.Linear(6, 4), lif()).eval(),
        {},
        r"the weight of Linear at '0' is on no grid of 16 bits or fewer; train it with sc.quant.prepare\(net\)",
    ),
    "weights of 17 bits": (wide, {}, "the weight of .* is on no grid of 16 bits or fewer"),
    "floats": (
        lambda: on_grid(nn.Sequential(nn.Linear(6, 4), lif())),
        {"inputs": None},
        r"Linear at '0' reads floats; sc.quant.prepare\(net, x\) rounds what layers read, or say what the input is, ",
    ),
    "a neuron of floats": (
        lambda: on_grid(nn.Sequential(nn.Linear(6, 4), sc.LIF())),
        {},
        "LIF at '1', 4 neurons is not fixed point: LIF: ",
    ),
    "sums beyond float32": (
        long_sums,
        {"inputs": Format(0, -(1 << 15), 1 << 15)},
        "Linear: its sums need 27 bits, and float32 holds 24, so that PyTorch rounds them; give weights or",
    ),
    "the mean of nine": (
        lambda: sc.layers.TimeBatched(nn.AvgPool2d(3)),
        {"shape": (1, 3, 3)},
        "AvgPool2d at 'module': the mean of 9 integers is none on a grid; take a window of 2, 4, 8, ...",
    ),
    "a layer of spikecore": (
        lambda: nn.Sequential(nn.Linear(6, 4), sc.LIF(), sc.layers.Voting(2)),
        {"dtype": "float32"},
        "Voting at '2': there is no C for Voting; there is for Linear",
    ),
    "random numbers": (
        lambda: nn.Sequential(nn.Linear(6, 4), sc.stochastic.EscapeNoise()),
        {"dtype": "float32"},
        "there is no C for EscapeNoise",
    ),
    "a batch norm alone": (
        lambda: nn.Sequential(sc.LIF(), nn.BatchNorm1d(6)),
        {"dtype": "float32"},
        "BatchNorm1d at '1' reads LIF at '0', and is folded into one of Linear, Conv1d, Conv2d; put it right behind",
    ),
}


@pytest.mark.parametrize("name", [*REFUSED])
def test_refused(name: str, tmp_path: Path) -> None:
    make, options, words = REFUSED[name]
    net = make() if name == "training" else make().eval()
    options = {"inputs": SPIKES, **options}
    x = spikes(4, *options.pop("shape", (6,)))
    with pytest.raises(ValueError, match=words):
        sc.export_c(net, x, tmp_path / "folder", **options)
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("net", "example", "options", "words"),
    [
        (3, torch.ones(2, 1, 6), {}, "net=3 is an int; give the network itself"),
        (nn.Linear(6, 4).eval(), [1.0], {}, r"example=\[1.0\] must be inputs over time, a tensor \[T, B, ...\]"),
        (nn.Linear(6, 4).eval(), torch.ones(6), {}, "must be inputs over time"),
        (nn.Linear(6, 4).eval(), torch.ones(2, 1, 6), {"name": "2nd"}, "name='2nd' must be a name that C can have"),
        (nn.Linear(6, 4).eval(), torch.ones(2, 1, 6), {"name": "double"}, "name='double' must be a name that C can"),
        (nn.Linear(6, 4).eval(), torch.ones(2, 1, 6), {"name": "stdint"}, "name='stdint' is that of a header"),
        (nn.Linear(6, 4).eval(), torch.ones(2, 1, 6), {"dtype": "int8"}, "dtype='int8' must be 'fixed' or 'float32'"),
        (on_grid(nn.Linear(6, 4)), 0.5 * torch.ones(2, 1, 6), {}, "an example's input is no multiple of 2"),
    ],
)
def test_wrong_arguments(net: Any, example: Any, options: Dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        sc.export_c(net, example, tmp_path / "folder", **{"inputs": SPIKES, **options})
    assert not (tmp_path / "folder").exists()
