"""sc.checkpoint with bits, and in groups between spikes: what is kept, and the numbers of the plain network."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable, Dict, List, Sequence

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.context import COMPILES

pytestmark = pytest.mark.skipif(not COMPILES, reason="sc.checkpoint needs torch 2.6")
T, B, C = 3, 2, 8
BACKENDS = ("torch", "numba")


def convolved(channels: int, out: int) -> nn.Module:
    return sc.layers.TimeBatched(nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out))


class PreActivation(nn.Module):
    """A block that hands potentials on."""

    def __init__(self, neuron: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(neuron(), convolved(C, C), neuron(), convolved(C, C))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.body(x)
        return y


def networks(backend: str = "torch") -> Dict[str, Callable[[], nn.Module]]:
    """A chain with poolings, residual blocks of spikes and of potentials, attention."""

    def neuron() -> nn.Module:
        return sc.LIF(2.0, threshold=0.4, learn=("tau",), backend=backend)

    pool, end = sc.layers.TimeBatched(nn.MaxPool2d(2)), [nn.Flatten(2), nn.LazyLinear(3)]
    chain = [convolved(2, C), neuron(), pool, convolved(C, C), neuron(), convolved(C, C), neuron()]
    blocks = [convolved(2, C), neuron(), *[sc.layers.SEWBlock(C, C, neuron) for _ in range(3)]]
    driven = [convolved(2, C), *[PreActivation(neuron) for _ in range(3)], neuron()]
    attention = [
        *(convolved(2, C), neuron(), sc.layers.Tokens(), sc.layers.SpikingSelfAttention(C, 2, neuron)),
        nn.Linear(C, C),
    ]
    made = {"chain": chain, "blocks": blocks, "driven": driven, "attention": attention}
    return {name: lambda layers=layers: _made([*layers, *end]) for name, layers in made.items()}  # type: ignore[misc]


def _made(layers: Sequence[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    net = copy.deepcopy(nn.Sequential(*layers))
    net(images())
    for module in net.modules():
        if module is not net and hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return net


def images() -> Tensor:
    return 2 * torch.rand(T, B, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def trained(net: nn.Module, run: Callable[[nn.Module, Tensor], Tensor], **autocast: Any) -> List[Tensor]:
    """Outputs, gradients of inputs and parameters, and statistics."""
    x = images().requires_grad_()
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=bool(autocast)):
        y = run(net, x)
    y.float().square().sum().backward()
    results = [y.detach(), x.grad, *[p.grad for p in net.parameters()], *net.buffers()]
    return [value for value in results if value is not None]


def assert_same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    assert len(found) == len(wanted)
    assert all(map(torch.equal, found, wanted))


def at_once(net: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = net(x)
    return y


def twice(net: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = net(x) + net(0.5 * x)
    return y


def in_chunks(net: nn.Module, x: Tensor) -> Tensor:
    with sc.carry_state(net):
        return torch.cat([net(chunk) for chunk in x.split(1)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", list(networks()))
def test_numbers_are_those_of_the_plain_network(name: str, backend: str) -> None:
    """Bit for bit: fused and packed, under autocast, called twice, with carried states, with retain_graph."""
    make = networks(backend)[name]
    for change, run, autocast in (
        (lambda net: net, twice, {}),
        (sc.fuse, at_once, {"on": True}),
        (sc.fuse, in_chunks, {}),
        (lambda net: sc.layers.pack(sc.fuse(net)), at_once, {}),
    ):
        wanted = trained(change(make()), run, **autocast)
        assert_same(trained(sc.checkpoint(change(make()), "spikes"), run, **autocast), wanted)
    net, plain = sc.checkpoint(make(), "spikes"), make()
    for each in (net, plain):
        loss = each(images()).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same([p.grad for p in net.parameters()], [p.grad for p in plain.parameters()])


@pytest.mark.parametrize("name", list(networks()))
def test_nested(name: str) -> None:
    """Groups within groups, and within torch's own checkpoint."""
    make = networks()[name]
    wanted = trained(sc.fuse(make()), at_once)
    for every in (2, "spikes"):
        inner = sc.checkpoint(sc.fuse(make()), every, bits=True)
        assert_same(trained(sc.checkpoint(nn.Sequential(inner), 1, bits=True), at_once), wanted)


def test_inputs_of_layers_are_kept_as_bits() -> None:
    """Groups of layers and named modules keep a bit for a spike, and whole what is not known."""
    plain = networks()["blocks"]()
    net: Any = sc.checkpoint(networks()["blocks"](), 2, bits=True)
    assert [[whole and whole.largest for whole in group] for group in net.wholes] == [[None], [1], [3], [4]]
    assert_same(trained(net, at_once), trained(plain, at_once))
    assert "group 1 input in 1 bit; 96 bytes in the last call" in repr(net)
    net = sc.checkpoint(networks()["blocks"](), 1, ["3", "4"], bits=True)
    assert [net[k].wholes[0][0].largest for k in (3, 4)] == [2, 3]
    assert_same(trained(net, at_once), trained(networks()["blocks"](), at_once))


class Kept:
    """Bytes of the tensors that a forward pass leaves for backward, each storage once."""

    def __init__(self) -> None:
        self.storages: Dict[int, Any] = {}

    def __call__(self, net: nn.Module, x: Tensor) -> int:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda value: value):
            y = net(x)
        assert y.requires_grad
        mine = {p.untyped_storage().data_ptr() for p in (*net.parameters(), *net.buffers(), x)}
        return sum(size for pointer, size in self.storages.items() if pointer not in mine)

    def _pack(self, value: Tensor) -> Tensor:
        self.storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value


@pytest.mark.parametrize("name", ["chain", "blocks", "attention"])
def test_a_thirtieth_is_kept(name: str) -> None:
    """Of a wide network: bits, and what a last layer makes."""
    make = networks()[name]
    plain, saving = Kept()(make(), images()), Kept()(sc.checkpoint(sc.fuse(make()), "spikes"), images())
    assert saving < plain / 12


def test_other_numbers_are_reported() -> None:
    """A part that is called with other values than the network gives it raises."""
    net: Any = sc.checkpoint(networks()["blocks"](), 1, ["3"], bits=True)
    with pytest.raises(ValueError, match=r"is not what its layer was said to get.*bits=False"):
        net[3](torch.full((T, B, C, 4, 4), 0.3))


def test_what_it_keeps_is_said() -> None:
    net = sc.checkpoint(networks()["driven"](), "spikes")
    assert "group 1 to LIF at '2.body.0': add whole" in repr(net)
    other = pickle.loads(pickle.dumps(net))
    assert_same(trained(other, at_once), trained(networks()["driven"](), at_once))
    assert "bytes in the last call" in repr(other)
    assert list(net.state_dict()) == list(networks()["driven"]().state_dict())
    assert type(sc.checkpoint(net, None)) is nn.Sequential


def test_a_network_that_changes_is_read_again() -> None:
    """Modules that take others' places, and a step that is set, count from the next call on."""
    net: Any = sc.checkpoint(networks()["blocks"](), "spikes")
    plain = networks()["blocks"]()
    for each in (net, plain):
        each(images())
        sc.fuse(each)
    assert_same(trained(net, at_once), trained(plain, at_once))
    net.module[1] = nn.ReLU()
    assert net(images()).shape == (T, B, 3)


class Scaled(nn.Module):
    """A forward that reads a number, or changes a value in place that it read before."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.end = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.a, self.b, self.scale = sc.LIF(), sc.LIF(), scale

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.end(self.b(self.second(self.a(self.first(x))) * self.scale))
        return y


class InPlace(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        spikes, other = self.a(self.first(x)), self.b(self.first(x) * 2)
        doubled = spikes * 2
        spikes += other
        y: Tensor = self.end(self.b(self.second(spikes) + doubled))
        return y


def test_attributes_of_the_wrapper_are_those_of_the_network() -> None:
    """A number that forward reads, and a layer in the place of another, count from the next call on."""
    torch.manual_seed(1)
    x, end = torch.randn(T, B, 4) * 3, nn.Linear(8, 2)
    net: Any = sc.checkpoint(Scaled(), "spikes")
    net(x)
    net.scale, net.end = 4.0, end
    plain = Scaled(4.0)
    plain.end = copy.deepcopy(end)
    assert torch.equal(net(x), plain(x))
    assert not torch.equal(Scaled()(x), Scaled(4.0)(x))
    for each in (net, plain):
        each(x).square().sum().backward()
    assert_same([p.grad for p in net.parameters()], [p.grad for p in plain.parameters()])
    assert [*net.state_dict()] == [*plain.state_dict()]


def test_changes_in_place_are_refused_where_groups_would_see_them_early() -> None:
    with pytest.raises(ValueError, match="changes the value of LIF at 'a' in place, and groups of calls keep that"):
        sc.checkpoint(InPlace(), "spikes")


class Branch(nn.Module):
    """A forward that cannot be followed, around parts that can."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.end = networks()["blocks"](), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return self.end(y) if float(y.detach().sum()) > -1e9 else y


def test_parts_have_groups_where_the_whole_cannot_be_read() -> None:
    torch.manual_seed(0)
    net: Any = sc.checkpoint(Branch(), "spikes")
    assert isinstance(net.body, sc.parallel.Grouped)
    torch.manual_seed(0)
    assert_same(trained(net, at_once), trained(Branch(), at_once))
    with pytest.raises(ValueError, match=r"finds no group between spikes in net, a Sequential, since no value"):
        sc.checkpoint(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), "spikes")


def test_dropout_is_computed_once_without_random_states() -> None:
    """Random layers draw the same numbers again, or are in no group."""

    def make() -> nn.Module:
        net = networks()["blocks"]()
        return nn.Sequential(net[:3], nn.Dropout(0.5), net[3:])  # type: ignore[index]  # a chain

    for preserve in (True, False):
        net = sc.checkpoint(make(), "spikes", preserve_rng_state=preserve)
        assert_same(trained(net, at_once), trained(make(), at_once))


@pytest.mark.parametrize("form", [{}, {"pack_spikes": True}, {"autocast": torch.bfloat16}])
def test_training_in_little_memory(form: Dict[str, Any]) -> None:
    """TrainingOptions(memory="low") trains to the weights of the plain step, bit for bit."""
    results = []
    for memory in (None, "low"):
        net = sc.fuse(networks()["blocks"]())
        optimizer = torch.optim.Adam(net.parameters(), 0.01)
        options = sc.TrainingOptions(memory=memory, **form)
        step: Any = sc.training_model(net, sc.losses.ce_rate, optimizer, options=options)
        for label in range(3):
            step(images(), torch.tensor([label, 0]))
        assert step.form.get("memory") == ("used" if memory else None)
        results.append([*net.state_dict().values()])
        assert all(torch.equal(a, b) for a, b in zip(step.state_dict()["net"].values(), results[-1]))
    assert_same(*results)
    predict: Any = sc.inference_model(net, options=options)
    assert predict.form["memory"] == "left out: inference keeps nothing for backward"
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with pytest.raises(sc.Unsupported, match=r'memory="low" cannot be: every=.spikes. finds no group.*memory=None'):
        sc.training_model(
            plain, len, torch.optim.SGD(plain.parameters(), 0.1), options=sc.TrainingOptions(memory="low")
        )
    with pytest.raises(ValueError, match=r"memory='much' must be 'low', or None"):
        sc.TrainingOptions(memory="much")
