"""What cannot be exported is refused by name, with the way out, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    "the type of a value": (
        lambda: OfTensors(lambda x: isinstance(x, Tensor)),
        {"dtype": "float32"},
        "forward of OfTensors computes something else when it runs than when it is followed; write it without branches",
    ),
    "an attribute that a tensor has not": (
        lambda: OfTensors(lambda x: not hasattr(x, "mask")),
        {"dtype": "float32"},
        "forward of OfTensors computes something else when it runs",
    ),
    "a mode of torch": (
        lambda: OfTensors(lambda x: torch.is_grad_enabled()),
        {"dtype": "float32"},
        "forward of OfTensors computes something else when it runs",
    ),
    "a state that forward resets": (
        lambda: Calls(lambda net, x: [sc.reset(net), net.b(x)][1]),
        {},
        "forward of Calls computes something else when it runs .* call sc.reset outside of it",
    ),
    "bits of floats": (
        lambda: Calls(lambda net, x: net.layer(x).view(torch.int32)),
        {"dtype": "float32"},
        "forward calls view, for which there is no C",
    ),
    "a value without such an attribute": (
        lambda: Calls(lambda net, x: net.layer(x).mask + x),
        {"dtype": "float32"},
        "the call of getattr .* does not take .*: 'Tensor' object has no attribute 'mask'",
    ),
    "a neuron's run of its own": (
        lambda: sc.Recurrent(OwnRun(), nn.Linear(6, 6)),
        {"dtype": "float32"},
        "Recurrent: its neuron, OwnRun, has a run of its own; write that in dynamics",
    ),
    "a weight that a hook computes": (
        lambda: normalised(nn.Linear(6, 6)),
        {"dtype": "float32"},
        "Linear has hooks or a forward of its own",
    ),
    "a hook": (hooked, {}, "Linear at '1' has hooks or a forward of its own, which C would not have; remove them"),
    "a hook of the network": (lambda: hooked(""), {}, "Sequential has hooks or a forward of its own"),
    "a hook of TimeBatched": (lambda: hooked("0"), {}, "TimeBatched at '0' has hooks or a forward of its own"),
    "a forward of its own": (lambda: replaced("0"), {}, "TimeBatched at '0' has hooks or a forward of its own"),
    "a hook of the feedback": (
        lambda: hooked("0.linear", nn.Sequential(sc.Recurrent(sc.LIF(), nn.Linear(6, 6)))),
        {"dtype": "float32"},
        "Recurrent at '0' has hooks or a forward of its own",
    ),
    "a hook behind prepare": (
        lambda: hooked("0", prepared(nn.Sequential(nn.Linear(6, 4), sc.LIF()))),
        {},
        "Linear at '0' has hooks or a forward of its own",
    ),
    "a subclass": (
        lambda: on_grid(nn.Sequential(Dale(6, 4), lif())),
        {},
        r"Dale at '0': there is no C for Dale \(a forward of its own\); there is for Linear",
    ),
    "a subclass of floats": (
        lambda: TimeBatched(Tripled(1, 2, 3)),
        {"dtype": "float32", "shape": (1, 4, 4)},
        r"Tripled at 'module': there is no C for Tripled \(a forward of its own\)",
    ),
    "floats of a prepared network": (
        lambda: prepared(nn.Sequential(nn.Linear(6, 4), sc.LIF())),
        {"dtype": "float32"},
        "Linear at '0' rounds to fixed point, and C of dtype='float32' does not; give dtype='fixed'",
    ),
    "an input in two formats": (
        lambda: Calls(lambda net, x: net.a(x) + net.b(x)),
        {"inputs": None},
        r"LIF at 'a' reads the input of the network as .* / 2\^8 \(15 bits\), LI at 'b' as .* / 2\^4 .*; say which",
    ),
    "an input that a sum reads too": (
        lambda: Calls(lambda net, x: net.a(x) + x),
        {"inputs": None, "example": torch.full((4, 1, 6), 1 / 3)},
        r"the example, which LIF at 'a' rounds to .* and the call of add \(add\) reads as it is, is no multiple",
    ),
    "a parameter": (
        lambda: Calls(lambda net, x: net.a(x) + net.layer.bias),
        {},
        "forward reads the attribute 'layer.bias', for which there is no C",
    ),
    "a dimension of time": (
        lambda: Calls(lambda net, x: net.layer(x.flatten(2)) + x),
        {},
        r"the call of flatten \(flatten\) does not take \[1, 6\]: Dimension out of range",
    ),
    "samples that are mixed": (
        lambda: Calls(lambda net, x: net.a(x.reshape(-1, 3)).reshape(-1, 6)),
        {},
        r"the call of reshape \(reshape\) makes \[2, 3\] of \[1, 6\], a batch of one step, and C is written for",
    ),
    "one sample of a batch": (
        lambda: Calls(lambda net, x: net.a(x)[-1]),
        {"example": torch.ones(4, 6, 6)},
        "forward calls getitem, for which there is no C",
    ),
    "channels without a batch": (
        lambda: nn.Conv2d(2, 2, 3, padding=1),
        {"dtype": "float32", "example": torch.ones(4, 2, 5, 5)},
        r"Conv2d: its input has samples of shape \[5, 5\]; give \[C, H, W\]",
    ),
    "two inputs": (
        lambda: nn.Bilinear(6, 6, 2),
        {"dtype": "float32"},
        "Bilinear has 2 inputs; C is written for one",
    ),
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
        lambda: TimeBatched(nn.AvgPool2d(3)),
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


NOT_FINITE = torch.ones(2, 1, 6)
NOT_FINITE[1, 0, 3] = float("nan")


@pytest.mark.parametrize("name", [*REFUSED])
def test_refused(name: str, tmp_path: Path) -> None:
    make, options, words = REFUSED[name]
    net = make() if name == "training" else make().eval()
    options = {"inputs": SPIKES, **options}
    shape = options.pop("shape", (6,))
    x = options.pop("example", spikes(4, *shape))
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
        (
            nn.Linear(6, 4).eval(),
            torch.ones(2, 1, 6),
            {"name": "Recorded"},
            "name=.Recorded. is that of the program.s test",
        ),
        (nn.Linear(6, 4).eval(), torch.ones(2, 1, 6), {"dtype": "int8"}, "dtype='int8' must be 'fixed' or 'float32'"),
        (nn.Linear(6, 4).eval(), torch.ones(2, 0, 6), {}, "must be inputs over time"),
        (
            nn.Linear(6, 4).eval(),
            torch.ones(2, 1, 6).half(),
            {},
            "example has dtype torch.float16; C computes in float32",
        ),
        (
            nn.Linear(6, 4).eval(),
            torch.ones(2, 1, 6).long(),
            {},
            "example has dtype torch.int64; C computes in float32",
        ),
        (nn.Linear(6, 4).eval(), torch.ones(2, 1, 6).double(), {}, r"Linear does not take \[1, 6\]: .* the same dtype"),
        (
            nn.Linear(6, 4).eval(),
            NOT_FINITE,
            {"dtype": "float32"},
            r"example is nan at \[1, 0, 3\]; give finite numbers",
        ),
        (on_grid(nn.Linear(6, 4)), 3 * torch.ones(2, 1, 6), {}, r"an example's input has numbers beyond \[0, 1\]"),
        (on_grid(nn.Linear(6, 4)), 0.5 * torch.ones(2, 1, 6), {}, "an example's input is no multiple of 2"),
    ],
)
def test_wrong_arguments(net: Any, example: Any, options: Dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        sc.export_c(net, example, tmp_path / "folder", **{"inputs": SPIKES, **options})
    assert not (tmp_path / "folder").exists()
