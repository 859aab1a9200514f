"""``sc.functional.calibrate``: rates of networks of many kinds, what stays, and what cannot be reached."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc

T, B = 20, 16


class Decaying(sc.Neuron):
    """A user's neuron of two states."""

    states = {"i": 0.0, "v": 0.0}
    params = {"threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        i = 0.8 * s.i + x
        v = 0.9 * s.v + 0.2 * i
        z = self.spike(v - p.threshold)
        return z, {"i": i, "v": v - z * p.threshold}


class Skipping(nn.Module):
    """A network with a forward of its own, and a sum of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(24, 32)
        self.a, self.b = sc.LIF(), sc.LIF()

    def forward(self, x: Tensor) -> Tensor:
        """The second layer of neurons reads the input, too."""
        return self.b(self.second(self.a(self.first(x))) + self.third(x))


class Looped(nn.Module):
    """A loop over steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 32), nn.Linear(32, 8)
        self.a, self.b = sc.LIF(step="single"), sc.LIF(step="single")

    def forward(self, x: Tensor) -> Tensor:
        """One call of each layer a step."""
        return torch.stack([self.b(self.second(self.a(self.first(x_t)))) for x_t in x])


class Twice(nn.Module):
    """A layer of neurons that is called twice, whose second weights another layer reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 32), nn.Linear(32, 32)
        self.a, self.b = sc.LIF(), sc.LIF(threshold=0.3)

    def forward(self, x: Tensor) -> Tensor:
        """The second weights drive both layers."""
        y = self.second(self.a(self.first(x)))
        return self.a(y) + self.b(y)


def dense(neuron: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(24, 64), neuron(), nn.Linear(64, 32), neuron(), nn.Linear(32, 8), neuron())


def convolutional(*norm: nn.Module) -> nn.Module:
    tail = nn.Sequential(nn.Flatten(2), nn.Linear(4 * 3 * 2, 8), sc.LIF())
    pool = sc.layers.TimeBatched(nn.AvgPool2d(2))
    conv = sc.layers.TimeBatched(nn.Conv2d(1, 4, 3, padding=1), *norm)
    return nn.Sequential(nn.Unflatten(2, (1, 6, 4)), conv, sc.LIF(), pool, *tail)


NETWORKS: Dict[str, Callable[[], nn.Module]] = {
    "LIF": lambda: dense(sc.LIF),
    "LIF of a long memory": lambda: dense(lambda: sc.LIF(tau=20.0)),
    "Leaky": lambda: dense(lambda: sc.Leaky(0.9)),
    "ALIF": lambda: dense(sc.ALIF),
    "two states": lambda: dense(Decaying),
    "counts": lambda: dense(lambda: sc.ILIF(levels=4)),
    "recurrent": lambda: nn.Sequential(nn.Linear(24, 32), sc.Recurrent(sc.LIF(), nn.Linear(32, 32))),
    "a sum": Skipping,
    "a loop over steps": Looped,
    "a norm": lambda: nn.Sequential(nn.Linear(24, 32), sc.layers.TimeBatched(nn.BatchNorm1d(32)), sc.LIF()),
    "a fused norm": lambda: sc.fuse(convolutional(nn.BatchNorm2d(4))),
    "a convolution": convolutional,
    "blocks": lambda: nn.Sequential(nn.Unflatten(2, (1, 6, 4)), sc.layers.SEWBlock(1, 4, sc.LIF)),
    "a delay": lambda: nn.Sequential(sc.Delay(nn.Linear(24, 32), 5), sc.LIF()),
}
INPUTS: Dict[str, Callable[[], Tensor]] = {
    "images": lambda: torch.rand(B, 24).expand(T, B, 24).contiguous(),
    "normal": lambda: torch.randn(T, B, 24),
    "spikes": lambda: torch.rand(T, B, 24).lt(0.3) * 1.0,
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_each_layer_fires_at_the_rate(name: str, kind: str) -> None:
    """Rates are those that a monitor counts, and nothing but weights changes until ``undo``."""
    torch.manual_seed(1)
    net, x = NETWORKS[name](), INPUTS[kind]()
    before = copy.deepcopy(net.state_dict())
    report = sc.functional.calibrate(net, x, rate=0.1)
    changed = {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
    assert all(key.endswith(("weight", "bias")) for key in changed)
    copied = copy.deepcopy(net)
    with sc.monitor(copied) as seen:
        copied(x)
    assert report.rates == pytest.approx({name: rate for name, rate in seen.rates.items() if rate is not None})
    assert all(0.05 <= rate <= 0.2 for rate in report.rates.values()), str(report)
    report.undo()
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_sources_are_the_nearest_weights() -> None:
    """Both branches of a sum are scaled by one number; a normalisation is, and not what lies before it."""
    torch.manual_seed(0)
    net, x = Skipping(), torch.rand(T, B, 24)
    first, second = sc.functional.calibrate(net, x).rows
    assert (first.sources, second.sources) == (("first",), ("second", "third"))
    net = nn.Sequential(nn.Linear(24, 32), sc.layers.TimeBatched(nn.BatchNorm1d(32)), sc.LIF())
    (row,) = sc.functional.calibrate(net, x).rows
    assert row.sources == ("1.module",)
    assert str(row.name) in str(sc.functional.calibrate(net, x))


def test_weights_are_scaled_once() -> None:
    """Weights before a later call of a layer are not scaled again for another layer, and ``undo`` finds them."""
    torch.manual_seed(0)
    net, x = Twice(), torch.rand(T, B, 24)
    before = copy.deepcopy(net.state_dict())
    first, second = sc.functional.calibrate(net, x).rows
    assert (first.sources, second.sources) == (("first", "second"), ())
    assert second.remark == "Linear at 'second' is a source of an earlier layer"
    assert torch.allclose(net.second.weight, before["second.weight"] * first.factor)
    net.load_state_dict(before)
    sc.functional.calibrate(net, x).undo()
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_a_compiled_network_is_scaled_as_the_network_itself() -> None:
    torch.manual_seed(0)
    net, x = dense(sc.LIF), torch.rand(T, B, 24)
    plain = copy.deepcopy(net)
    report = sc.functional.calibrate(torch.compile(net, backend="eager"), x)  # type: ignore[arg-type]  # a module
    assert report.rates == sc.functional.calibrate(plain, x).rates
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters()))


def test_the_mode_and_random_numbers_stay() -> None:
    """Dropout draws what it would have drawn, and a state that is carried is there afterwards."""
    net, x = nn.Sequential(nn.Linear(24, 8), nn.Dropout(0.5), sc.LIF()), torch.rand(T, B, 24)
    torch.manual_seed(0)
    want = torch.rand(3)
    torch.manual_seed(0)
    with sc.carry_state(net):
        net(x)
        torch.manual_seed(0)
        state = sc.get_state(net)
        sc.functional.calibrate(net, x)
        assert torch.equal(torch.rand(3), want)
        assert torch.equal(sc.get_state(net)["2.v"], state["2.v"])
    assert net.training


class Fire(sc.Neuron):
    """A spike and a reset, behind a module."""

    inputs = ("u", "h")

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        z = self.spike(x.u - 1.0)
        return (z, sc.ops.select(z, 0.0, x.h)), {}


@pytest.mark.parametrize(("module", "source"), [(nn.Identity(), "0"), (nn.BatchNorm1d(64), "1")])
def test_a_module_between_charge_and_spikes_is_scaled_if_it_has_weights(module: nn.Module, source: str) -> None:
    """``Between`` is a layer of neurons."""
    net = nn.Sequential(nn.Linear(24, 64), sc.layers.Between(sc.LI(2.0), module, Fire()))
    (row,) = sc.functional.calibrate(net, torch.randn(T, B, 24), rate=0.1).rows
    assert row.sources == (source,)
    assert row.after == pytest.approx(0.1, rel=0.06)


class Failing(nn.Linear):
    """A layer that fails at its sixth call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """The product, five times."""
        self.calls += 1
        if self.calls > 5:
            raise MemoryError
        return super().forward(x)


def test_weights_are_as_before_after_an_error() -> None:
    """In the midst of a search."""
    net = nn.Sequential(Failing(24, 64), sc.LIF(tau=20.0))
    weight = copy.deepcopy(net[0].weight)
    with pytest.raises(MemoryError):
        sc.functional.calibrate(net, torch.randn(T, B, 24) * 1e-3)
    assert net[0].calls == 6
    assert torch.equal(net[0].weight, weight)


def test_remarks_say_why_a_rate_was_not_reached() -> None:
    x = torch.rand(T, B, 24)
    shared = nn.Linear(24, 24)
    first, second = sc.functional.calibrate(nn.Sequential(shared, sc.LIF(), shared, sc.LIF()), x).rows
    assert first.remark == ""
    assert second.remark == "Linear at '0' is a source of an earlier layer"
    (alone,) = sc.functional.calibrate(nn.Sequential(sc.LIF()), x).rows
    assert (alone.remark, alone.factor) == ("no weights lie before it", 1.0)
    net = nn.Sequential(nn.Linear(24, 8), sc.LIF())
    net.requires_grad_(False)[0].weight.fill_(-1.0)
    (never,) = sc.functional.calibrate(net, x).rows
    assert "no factor up to 128 brings half to twice the rate, and the nearest is 0" in never.remark
    assert (never.factor, never.after, never.silent) == (1.0, 0.0, 1.0)
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(24, 8)), sc.LIF())
    (computed,) = sc.functional.calibrate(net, x).rows
    assert "has no weights that scale what it gives" in computed.remark


def test_no_factor_is_absurd() -> None:
    """Of four neurons whose input is hardly ever positive one would fire, with weights times 500,000."""
    factors, silent = [], []
    for seed in range(12):
        torch.manual_seed(0)
        x = torch.rand(40, 50, 16)
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(16, 64), sc.LIF(tau=20.0), nn.Linear(64, 4), sc.LIF(tau=20.0))
        hidden, last = sc.functional.calibrate(net, x).rows
        assert 0.05 <= hidden.after <= 0.2
        assert "raise the learning rate with the factor; or decay_input=False" in hidden.remark
        assert 0.05 <= last.after <= 0.2 or (last.factor == 1.0 and "its weights stay" in last.remark)
        factors.append(last.factor)
        silent.append(last.silent)
    assert max(factors) <= 128.0
    assert {0.25, 0.5, 0.75, 1.0} & set(silent)


def test_a_layer_that_is_left_out_stays() -> None:
    """Its weights, and the rates of the others as without it."""
    torch.manual_seed(0)
    net, x = dense(sc.LIF), torch.rand(T, B, 24)
    alone, last = copy.deepcopy(net)[:4], net[4].weight.clone()
    report = sc.functional.calibrate(net, x, leave=("5",))
    assert torch.equal(net[4].weight, last)
    assert report.rows[2][5:] == (1.0, (), "left as it was")
    assert report.rows[:2] == sc.functional.calibrate(alone, x).rows


@pytest.mark.parametrize("net", [dense(sc.LIF), Looped()])
def test_a_mask_has_rates_of_real_steps(net: nn.Module) -> None:
    """The rates of the sequences alone, whatever is behind their ends."""
    x, lengths = torch.rand(T, B, 24), torch.randint(5, T, (B,))
    mask = sc.functional.mask_of(lengths, T)
    report = sc.functional.calibrate(net, torch.where(mask[..., None], x, 9.0), mask=mask)
    spikes = steps = 0.0
    for b, length in enumerate(lengths.tolist()):
        sc.reset(net)
        out = net(x[:length, b : b + 1]).detach()
        spikes, steps = spikes + float(out.sum()), steps + out.numel()
    assert report.rows[-1].after == pytest.approx(spikes / steps)
    assert report.rows[-1].after == pytest.approx(0.1, rel=1.0)


def test_a_forward_that_branches_is_refused_with_its_place() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.lif = nn.Linear(4, 4), sc.LIF()

        def forward(self, x: Tensor) -> Tensor:
            y = self.lif(self.fc(x))
            return y if y.sum() > 1 else x

    with pytest.raises(ValueError, match=r"calibrate: forward of .*Branches.*calibrate the parts"):
        sc.functional.calibrate(Branches(), torch.rand(5, 2, 4))


test_refused = refusals.table(__file__, globals())
