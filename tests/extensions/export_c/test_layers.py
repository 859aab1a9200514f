"""Each layer in C gives what torch gives: integers exactly, floats up to the order of sums."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import spikecore as sc
from c_programs import CHECKED, SPIKES, differing, lif, on_grid, spikes
from spikecore.neurons import example
from spikecore_chips.quant import Format, fixed
from spikecore_nir import SumPool2d

#: Numbers of a layer that are no spikes: 8 bits, 4 of them fractional.
GRADED = Format(4, -128, 127)
TimeBatched = sc.layers.TimeBatched


def graded(*shape: int) -> Tensor:
    """Random numbers of :data:`GRADED`, ``[T, 1, ...]``."""
    drawn = torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(0)).float()
    return (drawn / 16).unsqueeze(1)


def per_row() -> nn.Module:
    layer = nn.Linear(6, 4)
    on_grid(layer)
    with torch.no_grad():
        layer.weight.mul_(2.0 ** torch.tensor([[2.0], [0.0], [-3.0], [1.0]]))
    return layer


class Sums(nn.Module):
    """Sums of numbers with different fractional bits, written in the ways that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = on_grid(nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.add(x, self.layer(x))
        y += x
        return y.add(x)


class Doubled(nn.Module):
    """Adds to the input in its memory."""

    def forward(self, x: Tensor) -> Tensor:
        x += x
        return x.flatten(1)


class Images(nn.Module):
    """Channels of a convolution: as they are, as other channels, in rows, as one list, and beside the input."""

    def __init__(self, cell: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.cells = nn.ModuleList([cell(), cell()])
        self.first, self.grouped = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.line, self.rows = nn.Conv1d(4, 4, 3, padding=1), nn.Linear(4, 4)
        self.late = sc.Delay(nn.Linear(96, 3), 2, learn=(), generator=torch.Generator().manual_seed(0))
        self.pooled = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(-3), nn.Linear(24, 3))
        self.mean = nn.Sequential(nn.AvgPool2d((2, 4)), nn.Flatten(-3), nn.Linear(12, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.cells[0](self.first(x))
        others = self.grouped(y.reshape(-1, 8, 3, 4)).reshape(-1, 4, 6, 4)
        y = self.cells[1](x + others + self.line(y.flatten(2)).view(-1, 4, 6, 4) + self.rows(y))
        return self.late(y.flatten(1)) + self.pooled(y) + self.mean(y)


def delayed(per: str) -> nn.Module:
    return sc.Delay(nn.Linear(6, 4), 3, per=per, learn=(), generator=torch.Generator().manual_seed(0))


def pruned(layer: nn.Module) -> nn.Module:
    """A convolution with a weight of fewer channels and taps than its attributes say."""
    layer.weight, layer.bias = nn.Parameter(torch.randn(6, 2, 3, 3)), nn.Parameter(torch.randn(6))
    return layer


LAYERS: Dict[str, Tuple[Callable[[], nn.Module], Tuple[int, ...]]] = {
    "pruned by hand": (lambda: TimeBatched(pruned(nn.Conv2d(4, 8, 5, groups=2))), (4, 6, 6)),
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), (6,)),
    "conv1d": (lambda: TimeBatched(nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2)), (2, 11)),
    "conv2d": (lambda: TimeBatched(nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2)), (4, 7, 5)),
    "conv2d depthwise": (lambda: TimeBatched(nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)), (3, 4, 4)),
    "maximum": (lambda: TimeBatched(nn.MaxPool2d(3, stride=2, padding=1)), (2, 6, 7)),
    "mean": (lambda: TimeBatched(nn.AvgPool2d(2, padding=1)), (2, 6, 4)),
    "mean of all": (lambda: TimeBatched(nn.AdaptiveAvgPool2d(1)), (3, 4, 4)),
    "sum": (lambda: TimeBatched(SumPool2d(3, 2)), (2, 7, 7)),
    "delay of connections": (lambda: delayed("connection"), (6,)),
    "delay of inputs": (lambda: delayed("input"), (6,)),
    "sums": (Sums, (6,)),
    "a sum in the memory of the input": (Doubled, (6,)),
}


@pytest.mark.matrix(turn=0)
@pytest.mark.parametrize("numbers", ["spikes", "graded"])
@pytest.mark.parametrize("dtype", ["fixed", "float32"])
@pytest.mark.parametrize("name", [*LAYERS])
def test_as_torch(name: str, dtype: str, numbers: str, tmp_path: Path) -> None:
    make, shape = LAYERS[name]
    net, is_fixed = on_grid(make()), dtype == "fixed"
    x = spikes(12, *shape) if numbers == "spikes" else graded(12, *shape)
    inputs = SPIKES if numbers == "spikes" else GRADED if is_fixed else None
    program = sc.export_c(net, x, tmp_path, dtype=dtype, inputs=inputs)
    assert (program.outputs is None) == (not is_fixed and not (name == "maximum" and numbers == "spikes"))
    # sums of these few numbers are exact in float32, too
    assert differing(tmp_path, "test", CHECKED)[0] == 0


@pytest.mark.parametrize("bits", [4, 8, 12])
def test_weights_take_as_many_bits_as_they_need(bits: int, tmp_path: Path) -> None:
    """Four bits are packed in pairs, eight are a byte, more are two."""
    net = on_grid(nn.Linear(33, 7, bias=False), bits)
    program = sc.export_c(net, graded(9, 33), tmp_path, inputs=GRADED)
    assert program.flash == {4: 116, 8: 231, 12: 462}[bits]
    assert differing(tmp_path, "test", CHECKED)[0] == 0


def test_rows_with_grids_of_their_own(tmp_path: Path) -> None:
    """Each output has a power of two; sums are brought to one."""
    sc.export_c(per_row().eval(), graded(9, 6), tmp_path, inputs=GRADED)
    assert differing(tmp_path, "test", CHECKED)[0] == 0


def test_batch_normalisation_is_folded(tmp_path: Path) -> None:
    """Behind a convolution, a linear layer, and within a NormNeuron."""
    torch.manual_seed(0)
    net = nn.Sequential(
        TimeBatched(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)),
        sc.LIF(),
        TimeBatched(nn.Conv2d(3, 3, 3)),
        sc.layers.NormNeuron(nn.BatchNorm2d(3), sc.LIF()),
        TimeBatched(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4)),
        sc.LI(),
    )
    x = 2 * torch.rand(20, 3, 1, 6, 6)
    for _ in range(3):
        net(x)
    sc.export_c(net.eval(), x, tmp_path, dtype="float32")
    assert "step_batchnorm" not in (tmp_path / "network.c").read_text()
    assert differing(tmp_path)[0] == 0


@pytest.mark.parametrize("name", ["LIF", "EIF", "CLIF", "Izhikevich", "ALIF"])
def test_neurons_in_float32(name: str, tmp_path: Path) -> None:
    """The step of a neuron as its program says, with functions of math.h where it has some."""
    torch.manual_seed(0)
    net = nn.Sequential(example(name)).eval()
    sc.export_c(net, 3 * torch.rand(100, 1, 16), tmp_path, dtype="float32")
    wrong, count = differing(tmp_path)
    # an exponential may differ in its last bit, and a spike with it
    assert wrong <= (0 if name in ("LIF", "ALIF", "Izhikevich") else count // 100)


def test_a_vector_has_a_field_for_each_value(tmp_path: Path) -> None:
    """Beside a state that has the name of such a field."""

    class Cell(sc.SpikingSSM):
        states = {**sc.SpikingSSM.states, "s_0": 0.0}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            z, after = super().dynamics(x - s.s_0, s, p)
            return z, {**after, "s_0": 0.5 * z}

    net = nn.Sequential(Cell(n=3, c=torch.rand(16, 3))).eval()
    sc.export_c(net, 9 * torch.rand(100, 1, 16), tmp_path, dtype="float32")
    assert "float cell_0_s_2[16];" in (tmp_path / "network.h").read_text()
    wrong, count = differing(tmp_path)
    assert wrong <= count // 100  # as above


def test_values_of_neurons_and_channels(tmp_path: Path) -> None:
    """A parameter that is one number for each channel is a table of channels; one for each neuron, of neurons."""
    net = nn.Sequential(sc.LIF(threshold=torch.tensor([0.5, 1.0])), sc.LIF(tau=1.5 + torch.rand(2, 3, 4))).eval()
    sc.export_c(net, torch.rand(30, 1, 2, 3, 4), tmp_path, dtype="float32")
    text = (tmp_path / "network.c").read_text()
    assert "lif_0_threshold_values[i / 12]" in text
    assert "lif_1_tau_values[i]" in text
    assert differing(tmp_path)[0] == 0


@pytest.mark.parametrize("dtype", ["fixed", "float32"])
def test_channels_side_by_side_as_others_read_them(dtype: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    is_fixed = dtype == "fixed"
    net = on_grid(Images(lif if is_fixed else lambda: sc.LIF(threshold=0.25)))
    sc.export_c(net, graded(30, 4, 6, 4), tmp_path, dtype=dtype, inputs=GRADED if is_fixed else None)
    assert differing(tmp_path, "test", CHECKED)[0] == 0


class Rested(sc.Neuron):
    """A state whose value at rest is a parameter."""

    states = {"v": "rest"}
    params = {"rest": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = 0.75 * s.v + x
        return self.spike(v - 1.0), {"v": v}


VALUES = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
BEHIND: Dict[str, Callable[[], nn.Module]] = {
    "a threshold of channels": lambda: sc.LIF(threshold=VALUES[:, 0, 0]),
    "a time constant of neurons": lambda: sc.LIF(tau=1.5 + VALUES, threshold=0.3),
    "channels at rest": lambda: Rested(rest=VALUES[:, 0, 0]),
    "neurons at rest": lambda: Rested(rest=VALUES),
    "neurons of a list": lambda: nn.Sequential(nn.Flatten(-3), sc.LIF(tau=1.5 + VALUES.flatten(), threshold=0.3)),
}


@pytest.mark.parametrize("name", [*BEHIND])
def test_neurons_behind_channels_side_by_side(name: str, tmp_path: Path) -> None:
    """Parameters and states at rest, of channels and of neurons; the outputs are spikes in the order of their shape."""
    torch.manual_seed(0)
    net = nn.Sequential(TimeBatched(nn.Conv2d(2, 3, 3, padding=1)), BEHIND[name]()).eval()
    sc.export_c(net, torch.rand(20, 2, 2, 4, 5), tmp_path, dtype="float32")
    assert ("_threshold_values[c]" in (tmp_path / "network.c").read_text()) == ("threshold" in name)
    wrong, count = differing(tmp_path)
    assert (wrong, count) == (0, 20 * 2 * 60)


@pytest.mark.skipif(shutil.which("cc") is None, reason="a loaded program needs a C compiler, cc")
def test_floats_are_added_in_the_order_of_the_weights(tmp_path: Path) -> None:
    """Of a convolution and of the linear layer behind it, whatever the order in memory is: bit for bit."""
    torch.manual_seed(0)
    conv, linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 4 * 5, 6)
    program = sc.export_c(
        nn.Sequential(conv, nn.Flatten(-3), linear).eval(), torch.zeros(1, 1, 3, 4, 5), tmp_path, dtype="float32"
    )
    x = torch.randn(3, 4, 5)
    with torch.no_grad():
        wide = conv.bias.view(4, 1, 1).expand(4, 6, 7).clone()
        for c, row, column in product(*map(range, x.shape)):
            for h, w in product(range(3), range(3)):
                wide[:, row + 2 - h, column + 2 - w] += conv.weight[:, c, h, w] * x[c, row, column]
        expected = linear.bias.clone()
        for k, value in enumerate(wide[:, 1:-1, 1:-1].flatten()):
            expected += linear.weight[:, k] * value
    assert torch.equal(program.load()(x), expected)


class TwoFormats(nn.Module):
    """Neurons of two formats that read the input, and a sum that reads it as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = fixed(sc.LIF(), word=16, frac=8), fixed(sc.LI(), word=16, frac=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x) + x


def test_each_reader_rounds_an_exact_input_itself(tmp_path: Path) -> None:
    """An input of 4 fractional bits: LIF reads all of them, LI has one."""
    x = graded(20, 6)
    assert not torch.equal(x * 2, (x * 2).round())
    sc.export_c(TwoFormats().eval(), x, tmp_path, inputs=GRADED)
    assert differing(tmp_path, "test", CHECKED)[0] == 0


class Views(nn.Module):
    """Changes of shape that ask for sizes, and a layer of the user's that changes nothing of nn.Linear."""

    class Plain(nn.Linear):
        """A name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = weight_norm(self.Plain(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.view(x.shape[0], 2, -1).reshape(x.size(0), -1)) + x.unflatten(-1, (3, 2)).flatten(-2)


def test_computed_weights_and_sizes(tmp_path: Path) -> None:
    """The program has the weight that a parametrisation computes."""
    torch.manual_seed(0)
    net = Views().eval()
    net.layer.parametrizations.weight.original0.data.mul_(3.0)
    sc.export_c(net, graded(9, 6), tmp_path, dtype="float32")
    assert differing(tmp_path)[0] == 0


class Compared(sc.Neuron):
    """A comparison between names: its operands have more bits than what is chosen."""

    states = {"u": 0.0, "w": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return sc.ops.where(x == 1.0, s.u, s.w), {"u": self.spike(x - 9.0), "w": self.spike(x + 9.0)}


class Cancelled(sc.Neuron):
    """Factors of what is always 0."""

    states = {"v": 0.0}
    params = {"b": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = s.v * p.b + (x - x) * p.b
        return self.spike(x + v - 1.0), {"v": v}


@pytest.mark.parametrize("neuron", [Compared(), Cancelled(b=torch.tensor([0.5, 0.25, 0.125, 0.5]))], ids=repr)
def test_neurons_whose_lines_are_short(neuron: sc.Neuron, tmp_path: Path) -> None:
    """1 and 5 are 64 and 320 with six fractional bits, whose last bytes are equal, and no table is left over."""
    x = torch.tensor([1.0, 5.0, 0.0, 5.0]).view(4, 1, 1).expand(4, 1, 4)
    sc.export_c(nn.Sequential(fixed(neuron, word=12, frac=6)).eval(), x, tmp_path, inputs=GRADED)
    assert differing(tmp_path, "test", CHECKED)[0] == 0
