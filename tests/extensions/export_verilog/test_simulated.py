"""Networks in Verilog have the bits of PyTorch: layers of every kind, delays, feedback, neurons alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from c_programs import SPIKES, lif, on_grid
from integers import Integers, fixed_model
from spikecore.neurons import MODELS, example
from spikecore_chips.quant import Format, analyse, fixed
from spikecore_nir import SumPool2d
from verilog_programs import changed, differing

TimeBatched = sc.layers.TimeBatched
#: Numbers that are no spikes: 8 bits, 4 of them fractional.
GRADED = Format(4, -128, 127)
STEPS, SAMPLES = 9, 2


def drawn(shape: Tuple[int, ...], graded: bool) -> Tensor:
    """Random numbers ``[T, B, ...]``, of which a third or more is 0."""
    generator = torch.Generator().manual_seed(0)
    fires = (torch.rand((STEPS, SAMPLES, *shape), generator=generator) < 0.4).float()
    numbers = torch.randint(-128, 128, fires.shape, generator=generator) / 16
    return fires * numbers if graded else fires


def per_row() -> nn.Module:
    layer = on_grid(nn.Linear(6, 5))
    with torch.no_grad():
        layer.weight.mul_(2.0 ** torch.tensor([[2.0], [0.0], [-3.0], [1.0], [0.0]]))
    return layer


def per_channel() -> nn.Module:
    layer = on_grid(nn.Conv2d(4, 8, 3, groups=2))
    with torch.no_grad():
        layer.weight.mul_(2.0 ** torch.arange(-4.0, 4.0).view(8, 1, 1, 1))
    return TimeBatched(layer)


def delayed(per: str, inputs: int = 6, outputs: int = 5) -> sc.Delay:
    generator = torch.Generator().manual_seed(1)
    return sc.Delay(nn.Linear(inputs, outputs), 4, per=per, learn=(), generator=generator)


class Residual(nn.Module):
    """Sums of spikes and of what a branch makes of them, which two layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(TimeBatched(nn.Conv2d(4, 4, 3, padding=1)), lif())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def convolutional() -> nn.Module:
    thresholds = torch.tensor([0.125, 0.25, 0.375, 0.5])
    return nn.Sequential(
        TimeBatched(nn.Conv2d(2, 4, 3, padding=1, stride=2, bias=False)),
        lif(threshold=thresholds),
        Residual(),
        TimeBatched(nn.AvgPool2d(2), nn.Conv2d(4, 4, 3, padding=1, groups=2)),
        lif(),
        TimeBatched(nn.Flatten(), nn.Linear(16, 3)),
        fixed(sc.LI(tau=4.0), word=16, frac=8),
    )


def recurrent() -> nn.Module:
    return nn.Sequential(
        delayed("connection", 12, 16),
        sc.Recurrent(lif(), delayed("input", 16, 16)),
        delayed("input", 16, 8),
        sc.Recurrent(lif(), nn.Linear(8, 8)),
        nn.Linear(8, 3),
        fixed(sc.LI(tau=4.0), word=16, frac=8),
    )


def numbers_of_neurons() -> nn.Module:
    """Parameters and initial states that differ from neuron to neuron, and tables."""
    exponential = fixed(sc.EIF(threshold=0.5), word=12, tables={"exp": (-4.0, 2.0, 12)})
    leaks = torch.linspace(1.3, 7.0, 16)
    return nn.Sequential(
        nn.Linear(12, 16),
        exponential,
        nn.Linear(16, 16),
        fixed(sc.LIF(tau=leaks, v_reset=torch.linspace(-0.2, 0.3, 16), threshold=0.25), word=16, frac=10),
        nn.Linear(16, 3),
    )


NETWORKS: Dict[str, Tuple[Callable[[], nn.Module], Tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "linear of one number": (lambda: nn.Linear(1, 1), (1,)),
    "linear of each row": (lambda: nn.Linear(6, 5), (3, 6)),
    "rows of other grids": (per_row, (6,)),
    "channels of other grids": (per_channel, (4, 6, 6)),
    "conv1d": (lambda: TimeBatched(nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2)), (2, 11)),
    "conv2d": (lambda: TimeBatched(nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2)), (4, 7, 5)),
    "conv2d that leaves pixels out": (lambda: TimeBatched(nn.Conv2d(1, 3, 1, stride=3)), (1, 7, 7)),
    "depthwise": (lambda: TimeBatched(nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)), (3, 4, 4)),
    "maximum": (lambda: TimeBatched(nn.MaxPool2d(3, stride=2, padding=1)), (2, 6, 7)),
    "mean": (lambda: TimeBatched(nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Linear(24, 3)), (2, 6, 4)),
    "mean of all": (lambda: TimeBatched(nn.AdaptiveAvgPool2d(1)), (3, 4, 4)),
    "sum": (lambda: TimeBatched(SumPool2d(3, 2)), (2, 7, 7)),
    "delay of connections": (lambda: delayed("connection"), (6,)),
    "delay of inputs": (lambda: delayed("input"), (6,)),
    "convolutional": (convolutional, (2, 8, 8)),
    "recurrent": (recurrent, (12,)),
    "numbers of neurons": (numbers_of_neurons, (12,)),
}


@pytest.mark.matrix(turn=0)
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("graded", [False, True], ids=["spikes", "graded"])
@pytest.mark.parametrize("name", [*NETWORKS])
def test_as_torch(name: str, graded: bool, lanes: int, tmp_path: Path) -> None:
    """Two samples, the second of which begins where the first one left the memories."""
    make, shape = NETWORKS[name]
    net, x = on_grid(make()), drawn(shape, graded)
    sc.export_verilog(net, x, tmp_path, lanes=lanes, inputs=GRADED if graded else SPIKES)
    wrong, count = differing(tmp_path)
    assert (wrong, count % (STEPS * SAMPLES)) == (0, 0)


def test_the_test_of_programs_in_c(tmp_path: Path) -> None:
    """Verilator, with the recorded steps as sc.export_c writes them; one wrong number of these is noticed."""
    net, x = on_grid(recurrent()), drawn((12,), False)
    sc.export_verilog(net, x, tmp_path / "verilog", name="core", lanes=4, inputs=SPIKES)
    sc.export_c(net, x, tmp_path / "c", name="core", inputs=SPIKES)
    for file in ("recorded.c", "recorded.h", "host.c"):
        assert (tmp_path / "verilog/test" / file).read_text() == (tmp_path / "c/test" / file).read_text()
    assert differing(tmp_path / "verilog", "test")[0] == 0
    changed(tmp_path / "verilog/test/recorded.c", lambda text: re.sub(r"(\d+),\n};", wrong_by_one, text))
    assert differing(tmp_path / "verilog", "test")[0] == 1


def wrong_by_one(found: Any) -> str:
    """The last number of a table, one more or less: of inputs 0 and 1 the other one."""
    return f"{int(found[1]) ^ 1},\n}};"


NEURONS = [name for name in MODELS if len(example(name).inputs) == 1 and not example(name).vectors]


@pytest.mark.matrix(turn=3)
@pytest.mark.parametrize("nanoseconds", [None, 4.0], ids=["no registers", "4 ns"])
@pytest.mark.parametrize("name", NEURONS)
def test_every_neuron(name: str, nanoseconds: Any, tmp_path: Path) -> None:
    """The spikes are those of Python's integers, for numbers that reach the ends of the word."""
    neuron = fixed_model(name)
    steps, count, frac = 60, 3, 8
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-1024, 1024, (steps, 1, count), generator=generator) / 2.0**frac
    inputs = Format(frac, -2048, 2047)
    net = nn.Sequential(neuron).eval()
    program = sc.export_verilog(net, x, tmp_path, nanoseconds=nanoseconds, inputs=inputs)
    assert nanoseconds is not None or set(program.latency.values()) == {0}
    params = {name: float(torch.as_tensor(value).detach()) for name, value in neuron.named_values().items()}
    formats = analyse(neuron.program, {neuron.program.inputs[0]: inputs})
    (made, *_), _ = Integers(neuron.program, params).run([x[:, 0].numpy()], formats)
    with torch.no_grad():
        assert torch.equal(net(x)[:, 0].double(), torch.from_numpy(made))
    assert differing(tmp_path) == (0, steps * count)
