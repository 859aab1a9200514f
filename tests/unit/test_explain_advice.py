"""``sc.explain``: advice that ends where it was followed, and is given only where it brings something."""

from __future__ import annotations

import copy
import re
from typing import Any, Callable, Dict, Iterator

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from kernel_loop import Loop as KernelLoop
from spikecore._base.versions import COMPILES
from spikecore.testing._loopback import installed


def has(found: Any, *words: str) -> bool:
    """Whether one piece of advice has all these words."""
    return any(all(word in text for word in words) for text in found.advice)


# -- spikes as bits


def spiking(backend: str = "torch") -> nn.Sequential:
    """Its second linear layer keeps 4 * 8 * 64 spikes for backward."""
    return nn.Sequential(nn.Linear(6, 64), sc.LIF(backend=backend), nn.Linear(64, 3))


@pytest.mark.skipif(not COMPILES, reason="spikes are kept as bits with torch 2.6 or newer")
def test_spikes_that_are_packed_are_counted_as_bits() -> None:
    """After ``sc.pack`` the row has the bytes of the bits, and packing is not advised again."""
    x, net = 4 * torch.rand(4, 8, 6), spiking()
    whole = sc.explain(net, x)
    found = sc.explain(sc.pack(net), x)
    numbers = 4 * 8 * 64
    before, after = whole.layers[2], found.layers[2]
    assert (before.saved, before.saved_spikes) == (4 * numbers, 4 * numbers)
    # the bits, and a number that tells whether they are right
    assert (after.saved, after.saved_spikes) == (numbers // 8 + 4, 0)
    assert after.notes == ("keeps its input as bits",)
    assert has(whole, "sc.pack(net), or sc.TrainingOptions(pack_spikes=True)")
    assert not has(found, "pack")
    assert [layer.copied for layer in found.layers] == [layer.copied for layer in whole.layers]


def test_in_a_forward_of_ones_own_the_layers_are_advised() -> None:
    """``sc.pack`` cannot look into it."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lif, self.last = sc.PLIF(backend="torch"), nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.lif(x))
            return out

    found = sc.explain(Own(), 4 * torch.rand(4, 8, 64))
    assert has(found, "sc.layers.PackedLinear and sc.layers.PackedConv2d in the place of torch's")
    assert not has(found, "sc.pack(")


# -- normalisation in a neuron's kernel


class InForward(nn.Module):
    """A normalisation and a neuron that a ``forward`` of one's own calls."""

    def __init__(self, neuron: sc.Neuron, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.lif = sc.layers.TimeBatched(norm), neuron

    def forward(self, x: Tensor) -> Any:
        return self.lif(self.between(self.norm(x)))

    def between(self, x: Tensor) -> Tensor:
        return x


class Scaled(InForward):
    def between(self, x: Tensor) -> Tensor:
        return 2 * x


class Changed(InForward):
    def between(self, x: Tensor) -> Tensor:
        return x.mul_(2)


class Twice(InForward):
    def forward(self, x: Tensor) -> Any:
        return self.lif(self.norm(x)) + self.norm(x)


class Halves(sc.LIF):
    """A neuron with a ``forward`` of its own, which sees the input before the kernel does."""

    def forward(self, x: Tensor, **options: Any) -> Any:
        return super().forward(x / 2, **options)


@pytest.fixture
def kernels() -> Iterator[str]:
    """The name of a backend on the CPU that normalises in its kernels."""
    with installed(KernelLoop, devices=("cpu",)) as name:
        yield name


def test_fusing_is_advised_with_what_it_brings(kernels: str) -> None:
    """On a CPU it saves memory alone. One neuron follows, two follow."""
    first = nn.Sequential(
        sc.layers.TimeBatched(nn.Linear(5, 6), nn.BatchNorm1d(6)), nn.Identity(), sc.LIF(backend=kernels)
    )
    second = nn.Sequential(sc.layers.TimeBatched(nn.Linear(6, 6), nn.BatchNorm1d(6)), sc.LIF(backend=kernels))
    x = torch.rand(4, 3, 5)
    one = sc.explain(first, x)
    assert has(one, "2 (LIF) follows a batch normalisation", "on a CPU that saves memory, and no time", "sc.fuse(net)")
    assert has(sc.explain(nn.Sequential(first, second), x), "0.2 (LIF), 1.1 (LIF) follow a batch normalisation")
    assert not has(one, "NormNeuron")
    assert not has(sc.explain(sc.fuse(first), x), "batch normalisation")


def test_fusing_is_not_advised_where_one_step_is_normalised_once(kernels: str) -> None:
    """With ``repeat`` no kernel of both is used, and fusing keeps as much for backward."""
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), sc.LIF(backend=kernels, repeat=4))
    x = torch.rand(3, 5)
    found = sc.explain(net, x)
    assert not has(found, "batch normalisation")
    fused = nn.Sequential(net[0], sc.layers.NormNeuron(net[1], net[2]))
    assert sc.explain(fused, x).saved >= found.saved


def nothing_fused(net: nn.Module) -> nn.Module:
    """The network after ``sc.fuse``, which says what to write instead."""
    with pytest.warns(UserWarning, match=r"net\.norm.*In a forward of your own, write sc.layers.NormNeuron"):
        return sc.fuse(net)


def test_what_fusing_leaves_is_advised_by_hand(kernels: str) -> None:
    """``sc.fuse`` does not see through a ``forward`` of one's own: there it is ``NormNeuron`` alone."""
    net = InForward(sc.LIF(backend=kernels), nn.BatchNorm1d(5))
    for change in (lambda net: net, nothing_fused):
        found = sc.explain(change(net), torch.rand(4, 3, 5))
        assert has(found, "lif (LIF) follows a batch normalisation", "sc.layers.NormNeuron(norm, neuron)")
        assert not has(found, "sc.fuse")


@pytest.mark.parametrize(
    "net",
    [
        lambda name: InForward(Halves(backend=name), nn.BatchNorm1d(5)),
        lambda name: nn.Sequential(sc.layers.TimeBatched(nn.BatchNorm1d(5)), Halves(backend=name)),
        lambda name: Scaled(sc.LIF(backend=name), nn.BatchNorm1d(5)),
        lambda name: Changed(sc.LIF(backend=name), nn.BatchNorm1d(5)),
        lambda name: Twice(sc.LIF(backend=name), nn.BatchNorm1d(5)),
        lambda name: InForward(sc.LIF(backend=name), nn.SyncBatchNorm(5).eval()),
    ],
    ids=["forward", "forward in a sequence", "scaled", "in place", "called twice", "another class"],
)
def test_no_advice_where_nothing_can_be_done(kernels: str, net: Callable[[str], nn.Module]) -> None:
    """Something stands between the two, or sees the input before the kernel does."""
    assert not has(sc.explain(net(kernels), torch.rand(4, 3, 5)), "batch normalisation")


def test_channels_in_another_place_are_not_advised(kernels: str) -> None:
    """A normalisation of ``[T, B, C]`` that is called as it is takes the batch for channels."""

    class Direct(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm, self.lif = nn.BatchNorm1d(channels), sc.LIF(backend=kernels)

        def forward(self, x: Tensor) -> Any:
            return self.lif(self.norm(x))

    assert not has(sc.explain(Direct(3), torch.rand(4, 3, 5)), "batch normalisation")


# -- what is wrong


class Looped(nn.Module):
    """A network that is called for one time step after the other."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 5), sc.LIF(backend="torch", step=step))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.net(one) for one in x])


def test_a_loop_over_time_that_takes_the_batch_for_time_is_told_first() -> None:
    """It computes other numbers, in silence; a loop of single steps, and one that carries the state, do not."""
    x = torch.rand(3, 4, 6)
    found = sc.explain(Looped("multi"), x)
    assert found.advice[0].startswith("net.1 (LIF) was called 3 times, each time with dimension 0, of size 4")
    assert "sc.set_step(net, 'single')" in found.advice[0]
    assert not has(sc.explain(Looped("single"), x), "as time")
    assert not has(sc.explain(spiking(), x), "as time")
    net = Looped("multi")
    with sc.carry_state(net):
        assert not has(sc.explain(net, x), "from rest")


#: What makes a neuron for a layer that is then driven far too weakly, and far too strongly.
NEURONS: Dict[str, Callable[[], Any]] = {
    "IF": sc.IF,
    "LIF": sc.LIF,
    "LIF, tau=20": lambda: sc.LIF(tau=20.0),
    "LIF, learnt": lambda: sc.LIF(tau=torch.full((12,), 4.0), learn=("tau", "threshold")),
    "PLIF": sc.PLIF,
    "KLIF": sc.KLIF,
    "ALIF": sc.ALIF,
    "Leaky": lambda: sc.Leaky(0.9),
    "Synaptic": sc.Synaptic,
    "QIF": sc.QIF,
    "GLIF": sc.GLIF,
    "CLIF": sc.CLIF,
    "Recurrent": lambda: sc.Recurrent(sc.LIF(), nn.Linear(12, 12)),
}
#: A setting and its rate, in a piece of advice.
TRIED = re.compile(
    r"(?:(\w+)=(\S+)|(\w+) times (\S+)|its input times (\S+) \(weights and bias of the layer before\)) gives a rate of "
    r"(\S+?)(?:;|\.? |$)"
)


def words(samples: int = 8, steps: int = 40, channels: int = 16) -> Tensor:
    """Spoken words as spikes: each of six words has its own time in each channel, around which that channel fires."""
    generator = torch.Generator().manual_seed(0)
    times = steps * torch.rand(6, channels, generator=generator)
    centre = times[torch.arange(samples) % 6] + 2 * torch.randn(samples, 1, generator=generator)
    near = torch.exp(-(((torch.arange(float(steps))[:, None, None] - centre) / 3) ** 2) / 2)
    return (torch.rand(steps, samples, channels, generator=generator) < 0.8 * near).float()


def driven(name: str, rate: str) -> nn.Sequential:
    """A layer of weights, and neurons that never fire on words, or always."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 12), NEURONS[name]()).requires_grad_(False)
    net[0].weight.mul_(0.02 if rate == "silent" else 1.0)
    net[0].bias.fill_(0.002 if rate == "silent" else 40.0)
    return net


def followed(net: nn.Sequential, parameter: str, value: str, scaled: str, factor: str, of_input: str) -> nn.Sequential:
    """A copy that does what a piece of advice says."""
    net = copy.deepcopy(net)
    neuron = net[1].neuron if isinstance(net[1], sc.Recurrent) else net[1]
    if parameter:
        setattr(neuron, parameter, value == "True" if value in ("True", "False") else float(value))
    elif scaled and scaled != "input":
        getattr(neuron, scaled).mul_(float(factor))
    else:
        net[0].weight.mul_(float(of_input or factor))
        net[0].bias.mul_(float(of_input or factor))
    return net


@pytest.mark.parametrize("rate", ["silent", "saturated"])
@pytest.mark.parametrize("name", NEURONS)
def test_advice_on_rates_gives_the_rate_that_it_says(name: str, rate: str) -> None:
    """Each setting, followed, brings the layer to the rate that was told, within the usable range."""
    net, x = driven(name, rate), words()
    before = sc.explain(net, x, training=False)
    assert before.layers[-1].rate == (0.0 if rate == "silent" else 1.0)
    text = next(text for text in before.advice if "on this batch" in text)
    found = TRIED.findall(text)
    assert found, text
    for *setting, told in found:
        changed = followed(net, *setting)
        with sc.monitor(changed) as seen:
            changed(x)
        (after,) = seen.rates.values()
        print(f"| {name} | {before.layers[-1].rate:g} | {' '.join(filter(None, setting))} | {told} | {after:.3f} |")
        assert after == pytest.approx(float(told), abs=0.0051), setting
        assert 0.01 <= after <= 0.4


def test_a_larger_tau_is_not_advised_where_it_makes_a_neuron_more_silent() -> None:
    """With ``decay_input=True`` the input is divided by tau: rates fall as it grows; without, they rise."""
    x = 1.3 * torch.ones(200, 1, 1)
    rates = [sc.LIF(tau=tau, backend="torch")(x).mean().item() for tau in (1.0, 2.0, 5.0, 10.0, 20.0)]
    assert rates == sorted(rates, reverse=True)
    (text,) = [text for text in sc.explain(sc.LIF(tau=50.0, backend="torch"), x[:60]).advice if "never fired" in text]
    (tau,) = re.findall(r"tau=(\S+) gives a rate", text)
    assert float(tau) < 50.0


def test_what_is_wrong_comes_before_what_is_slow() -> None:
    """A layer that never fires, with what helps; where nothing does, with what it was given."""
    x = torch.rand(8, 16, 6)
    net = nn.Sequential(nn.Linear(6, 512), sc.LIF(threshold=10.0, backend="torch"), nn.Linear(512, 3))
    first = sc.explain(net, x).advice[0]
    assert first.startswith(
        "1 (LIF) never fired on this batch, so that next to nothing comes out. Tried for 1 (LIF), one"
    )
    assert "threshold=" in first
    assert re.search(r"its input times \S+ \(weights and bias of the layer before\) gives", first)
    below = sc.explain(sc.LIF(backend="torch"), -x).advice[0]
    assert "None of the parameters and settings of LIF, and no larger or smaller input, changed alone" in below
    assert "The input of LIF is 0 at every step" in sc.explain(sc.LIF(backend="torch"), 0 * x).advice[0]


# -- errors


def test_a_step_is_no_network() -> None:
    """What :func:`spikecore.training_model` gives is named with its article, and the network is asked for."""
    net = spiking()
    step = sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1))
    with pytest.raises(TypeError, match=r"is an EagerTraining; give the network"):
        sc.explain(step, torch.rand(4, 8, 6))


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (
            sc.losses.ce_count,
            r"loss=ce_count .* alone \(missing a required argument: 'targets'\); .* ce_count\(outputs, targets\)",
        ),
        (nn.CrossEntropyLoss(), r"loss=CrossEntropyLoss .* alone \(missing a required argument: 'target'\)"),
        (lambda: 0, r"loss=<lambda> .* alone \(too many positional arguments\); .* criterion\(outputs, targets\)"),
    ],
    ids=["function", "module", "no argument"],
)
def test_a_loss_that_needs_targets_is_named(loss: Any, text: str) -> None:
    """Before the network runs, with what to write instead."""

    class Runs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("it ran")

    with pytest.raises(TypeError, match=text):
        sc.explain(Runs(), torch.rand(4, 3), loss=loss)


def test_a_loss_may_have_further_arguments_with_defaults() -> None:
    """Only what has to be given counts; a function in C has no signature that could be asked."""
    for loss in (lambda out, scale=2.0: scale * out.sum(), torch.sum, nn.Identity()):
        assert sc.explain(nn.Linear(3, 1), torch.rand(1, 3), loss=loss).training
