"""Networks in fixed point: they compute what integers compute, and they train."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import refusals
import spikecore as sc
from integers import half_even


def rounded(values: Any, frac_from: Any, frac_to: int, bits: int) -> np.ndarray:
    """Integers moved to another number of fractional bits, ties to even, and saturated."""
    fracs = np.broadcast_to(frac_from, np.shape(values))
    moved = [half_even(int(n), int(f) - frac_to) for n, f in zip(np.ravel(values), fracs.ravel())]
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return np.clip(np.array(moved, dtype=np.int64).reshape(np.shape(values)), low, high)


def integers_of(layer: Any) -> Any:
    """The weight of a layer as integers, and the fractional bits of each output channel."""
    grid = layer.parametrizations.weight[0]
    return grid.integers(layer.weight), grid.fracs * (len(layer.weight) // len(grid.fracs))


def linear(layer: Any, x: np.ndarray, frac: int) -> Any:
    """Sums of a layer as integers, and the fractional bits of each channel; x has ``frac`` of them."""
    weight, fracs = integers_of(layer)
    sums = x.astype(np.int64) @ weight.numpy().T
    if layer.bias is not None:
        scale = 2.0 ** (np.array(fracs) + frac)
        sums = sums + np.rint(layer.bias.detach().double().numpy() * scale).astype(np.int64)
    return sums, np.array(fracs) + frac


def lif(neuron: Any, sums: np.ndarray, fracs: Any) -> np.ndarray:
    """LIF with tau 2 and a hard reset, in integers ``[T, B, N]``."""
    how = sc.quant.fixed_point_of(neuron)
    one, v, spikes = round(neuron.threshold * 2**how.frac), 0, []
    for at in rounded(sums, fracs, how.frac, how.word):
        charge = np.clip(at - v, -(1 << (how.word - 1)), (1 << (how.word - 1)) - 1)
        h = v + rounded(charge, 1, 0, 64)
        z = h >= one
        v = np.clip(np.where(z, 0, h), -(1 << (how.word - 1)), (1 << (how.word - 1)) - 1)
        spikes.append(z.astype(np.int64))
    return np.stack(spikes)


@pytest.mark.parametrize(("weights", "word"), [(8, 16), (4, 8)])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("scale", [1, 2000])  # of weights above 127, whose grid is coarser than 1
def test_a_dense_network_is_integer_arithmetic(weights: int, word: int, per_channel: bool, scale: int) -> None:
    torch.manual_seed(1)
    first, last = nn.Linear(20, 30), nn.Linear(30, 30, bias=False)
    net = nn.Sequential(first, sc.LIF(threshold=0.2 * scale), last, sc.LIF(threshold=0.1 * scale))
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(scale)
    x = torch.rand(40, 3, 20)
    fixed = sc.quant.prepare(net, x, weights, word=word, per_channel=per_channel)
    assert max(abs(integers_of(layer)[0].abs().max()) for layer in (fixed[0], fixed[2])) <= 2 ** (weights - 1)
    n = fixed[0].input_format.integers(fixed[0].input_format(x)).numpy()
    hidden = lif(fixed[1], *linear(fixed[0], n, max(fixed[0].input_format.fracs)))
    spikes = lif(fixed[3], *linear(fixed[2], hidden, 0))
    assert 0.02 < spikes.mean() < 0.9
    np.testing.assert_array_equal(fixed(x).detach().numpy(), spikes)
    assert not net[1].transforms


def test_recurrence_and_delays_are_integer_arithmetic() -> None:
    torch.manual_seed(2)
    delay = sc.Delay(nn.Linear(8, 12), 3, per="input", learn=(), delay=torch.tensor([0.0, 1, 2, 3, 0, 1, 2, 3]))
    net = nn.Sequential(delay, sc.Recurrent(sc.LIF(threshold=0.2), nn.Linear(12, 12)))
    x = (torch.rand(30, 2, 8) < 0.5).float()
    fixed = sc.quant.prepare(net, x)
    padded = np.concatenate([np.zeros((3, 2, 8), dtype=np.int64), x.numpy().astype(np.int64)])
    late = np.stack([padded[3 - d : 33 - d, :, j] for j, d in enumerate(delay.whole.tolist())], -1)
    (frac,) = fixed[0].output_format.fracs
    sums = rounded(*linear(fixed[0].linear, late, 0), frac, 16)
    cell, back = fixed[1].neuron, fixed[1].linear
    how, v, z, expected = (
        sc.quant.fixed_point_of(cell),
        np.zeros((2, 12), dtype=np.int64),
        np.zeros((2, 12), dtype=np.int64),
        [],
    )
    for at in sums:
        fed, of_fed = linear(back, z, 0)
        common = max(frac, of_fed.max())
        total = (at << (common - frac)) + (fed << (common - of_fed))
        h = v + rounded(np.clip(rounded(total, common, how.frac, 16) - v, -(1 << 15), (1 << 15) - 1), 1, 0, 64)
        z = (h >= round(0.2 * 2**how.frac)).astype(np.int64)
        v = np.clip(np.where(z, 0, h), -(1 << 15), (1 << 15) - 1)
        expected.append(z)
    assert 0.05 < np.mean(expected) < 0.9
    np.testing.assert_array_equal(fixed(x).detach().numpy(), np.stack(expected))


class Residual(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.other, self.first, self.last = nn.Conv2d(4, 4, 1), sc.LIF(threshold=0.2), sc.LIF(threshold=0.2)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        main = sc.layers.TimeBatched(nn.Sequential(self.conv, self.norm))(x)
        if not self.in_place:
            return self.last(main + sc.layers.TimeBatched(self.other)(x))
        main += sc.layers.TimeBatched(self.other)(x)
        return self.last(main)


@pytest.mark.parametrize("in_place", [False, True])
def test_norms_are_folded_and_what_is_added_is_on_a_grid(in_place: bool) -> None:
    torch.manual_seed(3)
    net, x = Residual(in_place), torch.rand(10, 4, 4, 6, 6) * 2
    net(x)
    net.eval()
    fixed = sc.quant.prepare(net, x, word=20, weights=8)
    assert isinstance(fixed.norm, nn.Identity)
    assert (fixed(x) == net(x)).double().mean() > 0.97
    spikes = fixed.first(x).flatten(0, 1)
    for conv in (fixed.conv, fixed.other):
        sums = conv(spikes)
        assert torch.equal(conv.output_format(sums), sums)
    exact = copy.deepcopy(fixed.conv).double()(spikes.double())
    assert torch.equal(fixed.conv(spikes).double(), exact)


def test_it_learns_and_stays_on_its_grid() -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(6, 16), sc.LIF(threshold=0.4), nn.Linear(16, 3), sc.LI())
    x, y = torch.rand(12, 24, 6), torch.randint(0, 3, (24,))
    fixed = sc.quant.prepare(net, x)
    optimizer = torch.optim.Adam(fixed.parameters(), 1e-2)
    step = sc.training_model(fixed, lambda out, y: nn.functional.cross_entropy(out.mean(0), y), optimizer)
    losses = [float(step(x, y)[1]) for _ in range(20)]
    assert losses[-1] < losses[0]
    for layer in (fixed[0], fixed[2]):
        assert integers_of(layer)[0].abs().max() <= 128
    again = sc.quant.prepare(net, x)
    again.load_state_dict(fixed.state_dict())
    assert torch.equal(again(x), fixed(x))


def grid_of(weight: Any, **options: Any) -> Any:
    """The grid of a layer with this weight, in four bits."""
    net = nn.Sequential(nn.Linear(2, len(weight), bias=False), sc.LI())
    net[0].weight.data = torch.tensor(weight)
    return sc.quant.prepare(net, torch.rand(3, 2, 2), weights=4, **options)[0].parametrizations.weight[0]


def test_a_weight_has_derivative_0_where_it_saturates() -> None:
    grid = grid_of([[-2.0, 1.75]], per_channel=False)
    w = torch.tensor([[0.3, 5.0, -3.0, 1.75]], requires_grad=True)
    assert grid(w).tolist() == [[0.25, 1.75, -2.0, 1.75]]
    assert torch.autograd.grad(grid(w).sum(), w)[0][0].tolist()[:3] == [1.0, 0.0, 0.0]


def test_weights_that_begin_at_0_learn() -> None:
    """Weights of 0 behind a normalisation whose weight begins at 0; of a row, and of a whole layer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), sc.LI(), nn.Linear(4, 3), sc.LI())
    net[0].weight.data[0] = 0.0
    nn.init.zeros_(net[2].weight)
    fixed = sc.quant.prepare(net, torch.randn(10, 4, 6))
    for layer, row in ((fixed[0], 0), (fixed[2], slice(None))):
        layer.parametrizations.weight.original.data[row] = 0.25
        assert bool((layer.weight[row] == 0.25).all())


def test_a_learnt_grid_has_the_derivative_of_its_equation() -> None:
    grid = grid_of([[-2.0, 1.75], [-16.0, 14.0]], ranges="learnt")
    x = torch.tensor([[0.3, 5.0, -3.0, 0.6], [9.3, 20.0, -99.0, 1.0]])
    y = grid(x)
    assert y.tolist() == [[0.25, 1.75, -2.0, 0.5], [10.0, 14.0, -16.0, 0.0]]
    cotangent = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    inside = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    expected = (cotangent * np.log(2.0) * (inside * x - y.detach())).sum(1, keepdim=True)
    torch.testing.assert_close(torch.autograd.grad(y, grid.frac, cotangent)[0], expected)


def test_learnt_ranges_follow_weights_that_shrink() -> None:
    """Weights that come to a hundredth of what they were need finer grids."""
    errors = {}
    for ranges in ("data", "learnt"):
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(8, 4, bias=False), sc.LI()), torch.randn(10, 64, 8)
        small = copy.deepcopy(net)
        small[0].weight.data *= 0.01
        fixed = sc.quant.prepare(net, x, weights=4, ranges=ranges)
        rates = [{"params": [p], "lr": 0.3 if name.endswith("frac") else 3e-3} for name, p in fixed.named_parameters()]
        optimizer, before = torch.optim.Adam(rates), integers_of(fixed[0])[1]
        for _ in range(300):
            optimizer.zero_grad()
            (1e4 * (fixed[0](x) - small[0](x)).square().mean()).backward()
            optimizer.step()
        errors[ranges] = float((fixed[0].weight - small[0].weight).detach().square().mean())
        assert (max(integers_of(fixed[0])[1]) > max(before)) == (ranges == "learnt")
        assert sc.quant.report(fixed, x)
    assert errors["learnt"] < 0.1 * errors["data"]


# -- formats are state


def network(scale: float = 1.0, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    hidden: Any = sc.Recurrent(sc.LIF(tau=3.0, learn=("tau",), threshold=0.4), nn.Linear(8, 8, bias))
    net = nn.Sequential(nn.Linear(4, 8, bias), hidden, nn.Linear(8, 3, bias), sc.LI(tau=4.0))
    for layer in (net[0], net[2], hidden.linear):
        layer.weight.data.mul_(scale)
    return net


def driven(scale: float = 6.0) -> torch.Tensor:
    return scale * torch.randn(12, 5, 4, generator=torch.Generator().manual_seed(1))


def by_torch(net: nn.Module, other: nn.Module, path: Any) -> nn.Module:
    torch.save(net.state_dict(), path)
    other.load_state_dict(torch.load(path, weights_only=True))
    return other


def assigned(net: nn.Module, other: nn.Module, path: Any) -> nn.Module:
    other.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)
    return other


def by_a_checkpoint(net: nn.Module, other: nn.Module, path: Any) -> nn.Module:
    sc.save_checkpoint(path, {}, net=net.state_dict())
    other.load_state_dict(sc.load_checkpoint(path, {}, ["net"])["net"])
    return other


def by_safetensors(net: nn.Module, other: nn.Module, path: Any) -> nn.Module:
    tensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    tensors.save_file(net.state_dict(), path)
    other.load_state_dict(tensors.load_file(path))
    return other


def averaged(net: nn.Module, other: nn.Module, path: Any) -> nn.Module:
    average = torch.optim.swa_utils.AveragedModel(net, use_buffers=True)
    for _ in range(2):
        average.update_parameters(net)
    return by_torch(average.module, other, path)


@pytest.mark.parametrize("way", [by_torch, assigned, by_a_checkpoint, by_safetensors, averaged])
@pytest.mark.parametrize("ranges", ["data", "learnt"])
def test_a_file_has_the_formats(way: Any, ranges: str, tmp_path: Any) -> None:
    if way is assigned and "assign" not in nn.Module.load_state_dict.__code__.co_varnames:
        pytest.skip("torch has no assign before 2.1")
    x = driven()
    saved = sc.quant.prepare(network(4.0), x, ranges=ranges).eval()
    other = sc.quant.prepare(network(0.5), driven(0.3), ranges=ranges).eval()
    assert sc.quant.fixed_point_of(other[3]).frac != sc.quant.fixed_point_of(saved[3]).frac
    loaded = way(saved, other, tmp_path / "file")
    assert torch.equal(loaded(x), saved(x))
    assert sc.quant.fixed_point_of(loaded[3]) == sc.quant.fixed_point_of(saved[3])
    assert str(loaded) == str(saved)
    assert torch.equal(copy.deepcopy(loaded)(x), saved(x))


def test_what_was_trained_loads_and_goes_on() -> None:
    x, y = driven(), torch.randint(0, 3, (5,))
    saved = sc.quant.prepare(network(2.0), x)
    optimizer = torch.optim.Adam(saved.parameters(), 0.3)
    step = sc.training_model(saved, lambda out, y: nn.functional.cross_entropy(out.mean(0), y), optimizer)
    for _ in range(5):
        step(x, y)
    assert saved[1].neuron.tau != 3.0
    other = sc.quant.prepare(network(), x)
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other(x), saved(x))
    other[1].neuron.tau = 50.0  # beyond the range of the file: new grids
    with pytest.raises(RuntimeError, match=r"1\.neuron: tau is .*, and its grids are for values from 25 to 100"):
        other.load_state_dict({**other.state_dict(), "1.neuron.tau": torch.tensor(2.0)})


# -- layers that have a quantiser already


class PowerOfTwo(nn.Module):
    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return torch.clamp(torch.round(w * 64), -128, 127) / 64


def own_quantiser(kind: str, scale: float = 2.0**-6, inputs: int = 6, bias: bool = False) -> nn.Module:
    layer: Any = nn.Linear(inputs, 4, bias)
    if kind == "parametrisation":
        parametrize.register_parametrization(layer, "weight", PowerOfTwo())
        return layer  # type: ignore[no-any-return]
    from torch.ao.nn.qat import Linear
    from torch.ao.quantization import FakeQuantize, FixedQParamsObserver, QConfig

    def weight(factory_kwargs: Any = None) -> FakeQuantize:
        how = {"scale": scale, "zero_point": 0, "dtype": torch.qint8, "quant_min": -128, "quant_max": 127}
        return FakeQuantize(observer=FixedQParamsObserver, **how)

    return Linear(inputs, 4, bias, qconfig=QConfig(activation=nn.Identity, weight=weight))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["parametrisation", "torch.ao"])
def test_a_quantiser_that_is_there_stays(kind: str) -> None:
    torch.manual_seed(0)
    layer = own_quantiser(kind)
    x = (torch.rand(5, 2, 6) < 0.5).float()
    fixed = sc.quant.prepare(nn.Sequential(layer, sc.LIF()), x)
    assert torch.equal(fixed[0](x), layer(x))
    assert "int" in sc.quant.report(fixed, x).rows[0].format


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_quantiser_with_another_scale_is_refused() -> None:
    net = nn.Sequential(own_quantiser("torch.ao", scale=0.01), sc.LIF())
    with pytest.raises(ValueError, match=r"prepare: 0: its weight is not on a grid.*scales that are powers of two"):
        sc.quant.prepare(net, torch.ones(5, 2, 6))


def test_spikes_that_the_data_did_not_have_stay_1() -> None:
    net = nn.Sequential(sc.LIF(), nn.Linear(6, 6), sc.LIF(threshold=9.0), nn.AvgPool1d(2), nn.Linear(3, 3), sc.LI())
    fixed = sc.quant.prepare(net, torch.zeros(5, 2, 6))
    ends = torch.tensor([0.0, 0.125, 0.75, 1.0])
    assert torch.equal(fixed[4].input_format(ends), ends)
    assert fixed[1].input_format.format == sc.quant.Format(0, 0, 1)


def test_a_parametrised_bias_stays_and_another_is_rounded() -> None:
    class Halves(nn.Module):
        def forward(self, bias: torch.Tensor) -> torch.Tensor:
            return torch.round(bias * 2) / 2

    layer, x = nn.Linear(6, 4), torch.rand(5, 3, 6)
    parametrize.register_parametrization(layer, "weight", PowerOfTwo())
    bias = layer.bias.detach().clone()
    fixed = sc.quant.prepare(nn.Sequential(layer, sc.LIF()), x)
    assert torch.equal(layer.bias, bias)  # the copy has a class of its own
    exact = fixed[0].input_format(x).double() @ layer.weight.double().t() + fixed[0].bias.double()
    assert torch.equal(fixed[0](x).double(), exact)
    assert 0.0 < (fixed[0].bias - bias).abs().max() < 2.0**-12
    parametrize.register_parametrization(layer, "bias", Halves())
    fixed = sc.quant.prepare(nn.Sequential(layer, sc.LIF()), x)
    exact = fixed[0].input_format(x).double() @ fixed[0].weight.double().t() + layer.bias.double()
    assert torch.equal(fixed[0](x).double(), exact)


class Twice(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def within(kind: str, layer: nn.Module) -> nn.Module:
    if kind == "layer":
        return layer
    return sc.Delay(layer, 2, delay=1.0) if kind == "delay" else sc.Recurrent(sc.LIF(threshold=0.5), layer)


@pytest.mark.parametrize("kind", ["layer", "delay", "recurrent"])
@pytest.mark.parametrize("how", ["twice", "weight_norm"])
@pytest.mark.parametrize("ranges", ["data", "learnt"])
def test_a_parametrised_weight_is_rounded_behind_its_parametrisation(kind: str, how: str, ranges: str) -> None:
    torch.manual_seed(0)
    layer: Any = nn.Linear(4, 4)
    if how == "twice":
        parametrize.register_parametrization(layer, "weight", Twice())
    else:
        torch.nn.utils.parametrizations.weight_norm(layer)
    net = nn.Sequential(sc.LIF(), within(kind, layer), sc.LI())
    x = torch.rand(8, 3, 4) * 3
    weight, bias, names = layer.weight.detach().clone(), layer.bias.detach().clone(), [*net.state_dict()]
    fixed: Any = sc.quant.prepare(net, x, ranges=ranges)
    part = fixed[1] if kind == "layer" else fixed[1].linear
    largest = weight.abs().amax(1, keepdim=True)
    frac = 7 - torch.frexp(largest).exponent  # the coarsest grid that the best one can be
    assert ((part.weight - weight).abs() <= torch.maximum(2.0 ** -(frac + 1.0), largest / 127)).all()
    assert not torch.equal(part.weight, weight)
    assert all(((part.weight * 2.0**14).round() == part.weight * 2.0**14).flatten().tolist())
    assert torch.equal(layer.weight, weight)
    assert torch.equal(layer.bias, bias)
    assert [*net.state_dict()] == names
    # it trains, and stays on its grids
    optimizer = torch.optim.SGD(fixed.parameters(), 0.1)
    fixed(x).square().sum().backward()
    optimizer.step()
    assert not torch.equal(part.weight, weight)
    assert "int8" in sc.quant.report(fixed, x).rows[0].format
    other = sc.quant.prepare(net, x, ranges=ranges)
    other.load_state_dict(fixed.state_dict())
    assert torch.equal(other(x), fixed(x))


def test_a_parametrised_subclass_with_a_forward_is_refused() -> None:
    class Tripled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 3 * super().forward(x)

    layer = Tripled(6, 4, bias=False)
    parametrize.register_parametrization(layer, "weight", PowerOfTwo())
    with pytest.raises(ValueError, match="Tripled at '0' is a subclass with a forward of its own"):
        sc.quant.prepare(nn.Sequential(layer, sc.LIF()), torch.rand(5, 3, 6))


# -- the report, and errors


def test_the_report_counts_saturations_and_bits() -> None:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 5), sc.LI())
    x = torch.rand(7, 4, 6)
    fixed = sc.quant.prepare(net, x)
    layer, neuron = sc.quant.report(fixed, x, beside=net).rows
    assert (layer.name, layer.kind, neuron.name, neuron.reads) == ("0", "weights", "1", "v")
    integers, _ = integers_of(fixed[0])
    bias = fixed[0].parametrizations.bias[0].integers(fixed[0].bias)
    most = int(integers.abs().sum(1).max()) * fixed[0].input_format.high + int(bias.abs().max())
    assert layer.bits == most.bit_length()
    assert neuron.saturated == 0.0
    assert sc.quant.report(fixed, 1e4 * x).rows[1].saturated == 0.0  # the input of the layer saturates before
    report = sc.quant.report(fixed, x, beside=net)
    assert report.agreement > 0.7
    head, weights, values, _ = str(report).splitlines()
    assert weights[head.index("reads") :].startswith("[0, ")
    assert values[head.index("reads") :].startswith("v ")
    assert len(head) == len(weights) == len(values)  # numbers end where their heads do
    assert "int16 / 2^" in values


def one(weight: float = 1.0) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


@pytest.mark.parametrize("step", ["multi", "single"])
def test_a_difference_has_its_own_range(step: str) -> None:
    """3.735 + (-3.75 - 3.735) / 2; the currents and potentials are below 4, and their difference is 7.485."""
    net, x = nn.Sequential(one(), sc.LI()), torch.cat([torch.full((8, 1, 1), 3.75), torch.full((2, 1, 1), -3.75)])
    fixed = sc.quant.prepare(net, x)
    assert torch.equal(fixed(x), net(x))
    assert sc.quant.report(fixed, x).rows[1].saturated == 0.0
    coarse = sc.quant.prepare(net, x, frac=13)
    assert sc.quant.report(coarse, x).rows[1].saturated == 0.2  # two of ten differences
    inhibited = nn.Sequential(one(), sc.LIF())
    assert torch.equal(sc.quant.prepare(inhibited, -x)(-x), inhibited(-x))


def test_a_report_compares_one_tensor() -> None:
    class Two(nn.Sequential):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return y, y

    net, x = Two(nn.Linear(4, 3)), torch.rand(3, 2, 4)
    with pytest.raises(TypeError, match=r"report: beside= compares .*, and this is a tuple; give modules around both"):
        sc.quant.report(sc.quant.prepare(net, x), x, beside=net)


def test_a_report_refuses_a_parameter_that_was_changed_in_place() -> None:
    net, x = nn.Sequential(one(), sc.LI(tau=torch.tensor(20.0))), torch.rand(3, 1, 1)
    fixed = sc.quant.prepare(net, x)
    fixed[1].tau.fill_(2.0)
    with pytest.raises(ValueError, match="report: 1: tau is 2, and its grids are for 20: it was changed in place"):
        sc.quant.report(fixed, x)
    fixed[1].tau = torch.tensor(2.0)
    assert sc.quant.report(fixed, x)


def filled(layer: nn.Linear, name: str, value: float) -> nn.Module:
    getattr(layer, name).data[0] = value
    return nn.Sequential(layer, sc.LI())


NAN, INF = float("nan"), float("inf")


def test_sums_that_float32_does_not_hold_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2048, 2), sc.LIF())
    torch.nn.init.uniform_(net[0].weight, -1.0, 1.0)
    with pytest.raises(
        sc.quant.Inexact, match=r"prepare: 0: sums of its products reach .* float32 holds 24: take fewer"
    ):
        sc.quant.prepare(net, torch.rand(3, 2, 2048))
    assert sc.quant.prepare(net, torch.rand(3, 2, 2048), activations=4)


def test_a_bias_on_a_finer_grid_than_its_weights_counts_in_their_sums() -> None:
    net = nn.Sequential(nn.Linear(4000, 1), sc.LIF())
    net[0].weight.data.fill_(0.5)
    net[0].bias.data.fill_(3.0 / 2**15)
    x = torch.cat([torch.rand(2, 2, 4000), torch.ones(1, 2, 4000)])
    with pytest.raises(sc.quant.Inexact, match="which needs 26 bits, and float32 holds 24"):
        sc.quant.prepare(net, x)
    net[0].bias.data.zero_()
    fixed = sc.quant.prepare(net, x)  # without the bias, sums are of whole halves
    exact = fixed[0].input_format(x.double()) @ fixed[0].weight.double().t()
    assert torch.equal(fixed[0](x).double(), exact)


def test_weights_beyond_their_word_are_multiples_of_a_larger_power_of_two() -> None:
    net = nn.Sequential(nn.Linear(6, 3), sc.LIF(threshold=1000.0))
    torch.nn.init.uniform_(net[0].weight, -1000.0, 1000.0)
    fixed = sc.quant.prepare(net, (torch.rand(5, 2, 6) < 0.5).float())
    integers, fracs = integers_of(fixed[0])
    assert max(fracs) < 0
    scale = 2.0 ** -torch.tensor(fracs, dtype=torch.float64).unsqueeze(1)
    assert torch.equal(fixed[0].weight.double(), integers * scale)


test_refused = refusals.table(__file__, globals())
