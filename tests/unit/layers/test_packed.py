"""Layers that keep spikes as bits, and sc.layers.pack, which puts them in: torch's numbers, from less memory."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc
from plain_loop import Plain
from spikecore.backend import BackendError
from spikecore.context import COMPILES
from spikecore.layers import PackedConv1d, PackedConv2d, PackedConv3d, PackedLinear, SEWBlock, TimeBatched
from spikecore.plugins import selection
from spikecore.plugins.registry import Registry
from spikecore.testing import installed

HALF = torch.bfloat16
pytestmark = pytest.mark.skipif(not COMPILES, reason="spikes are kept as bits with torch 2.6 or newer")
ORDERS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def zeros_and_ones(*shape: int, largest: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, largest + 1, shape, generator=generator).float()


def saved_by(call: Callable[[], Tensor]) -> Tuple[Tensor, List[Tensor]]:
    """The result of a call, and the tensors that autograd keeps of it."""
    kept: List[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return call(), kept


def results(module: nn.Module, x: Tensor, half: bool = False) -> Tuple[List[Tensor], List[Tensor]]:
    """Output and gradients, and what was kept."""
    leaf = x.clone().requires_grad_()  # in the order of x
    with torch.autocast("cpu", HALF, enabled=half):
        y, kept = saved_by(lambda: module(leaf))
    y.backward(torch.cos(torch.arange(y.numel())).view(y.shape).to(y.dtype))
    return [y.detach(), leaf.grad, *[p.grad for p in module.parameters()]], kept  # type: ignore[list-item]


def check_same(plain: nn.Module, packed: nn.Module, x: Tensor, bits: int = 1, half: bool = False) -> None:
    """The bits of torch's outputs and gradients, with bits in the place of the input."""
    packed.load_state_dict(plain.state_dict())
    expected, _ = results(plain, x, half)
    found, kept = results(packed, x, half)
    for mine, its in zip(found, expected):
        assert torch.equal(mine, its)
        assert mine.stride() == its.stride()
    assert [one.numel() for one in kept if one.dtype == torch.uint8] == [-(-x.numel() * bits // 8)]
    assert all(one.numel() <= 1 for one in kept if one.shape != plain.weight.shape and one.dtype != torch.uint8)


@pytest.mark.parametrize(
    ("shape", "bias", "half"),
    [((5,), True, False), ((3, 5), False, False), ((4, 3, 5), True, True), ((2, 4, 3, 5), True, False)],
)
def test_linear_layers_are_those_of_torch(shape: Any, bias: bool, half: bool) -> None:
    check_same(nn.Linear(5, 7, bias=bias), PackedLinear(5, 7, bias=bias), zeros_and_ones(*shape), half=half)


@pytest.mark.parametrize(
    ("options", "dtype", "half"),
    [
        ({"kernel_size": 3, "padding": 1}, torch.float32, True),
        ({"kernel_size": 3, "padding": "same", "bias": False}, HALF, False),
        ({"kernel_size": (3, 2), "dilation": (1, 2), "groups": 2}, torch.float64, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", ORDERS)
def test_convolutions_are_those_of_torch(options: Any, dtype: torch.dtype, half: bool, order: str) -> None:
    torch.manual_seed(0)
    plain, packed = (kind(4, 6, **options).to(dtype) for kind in (nn.Conv2d, PackedConv2d))
    for one in (plain, packed):
        one.to(memory_format=ORDERS[order])  # type: ignore[call-overload]  # the stub lacks it alone
    x = zeros_and_ones(5, 4, 13, 11).to(dtype).contiguous(memory_format=ORDERS[order])
    if options.get("padding") == "same":
        # kept are the bits of the padded input
        packed.load_state_dict(plain.state_dict())
        assert all(map(torch.equal, results(packed, x)[0], results(plain, x)[0]))
    else:
        check_same(plain, packed, x, half=half)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("plain", "packed", "sizes"), [(nn.Conv1d, PackedConv1d, (13,)), (nn.Conv3d, PackedConv3d, (5, 6, 7))]
)
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 2, "dilation": 2, "groups": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "padding_mode": "circular", "bias": False},
        {"kernel_size": 1},
    ],
    ids=str,
)
def test_convolutions_of_other_dimensions(plain: Any, packed: Any, sizes: Any, options: Any, order: str) -> None:
    """Torch's numbers and the layout of the input, where torch's own of one dimension is contiguous."""
    torch.manual_seed(0)
    expected, found = plain(4, 6, **options).double(), packed(4, 6, **options).double()
    found.load_state_dict(expected.state_dict())
    x = zeros_and_ones(5, 4, *sizes).double()
    x = x.movedim(1, -1).contiguous().movedim(-1, 1) if order == "channels-last" else x
    (y, grad, *others), kept = results(found, x)
    for mine, its in zip((y, grad, *others), results(expected, x)[0]):
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-12)
    assert [one.dtype for one in kept if one.ndim == 1 and one.dtype == torch.uint8] == [torch.uint8]
    if order == "channels-last" and plain is nn.Conv1d and options.get("padding_mode") is None:
        assert y.movedim(1, -1).is_contiguous()
        assert grad.movedim(1, -1).is_contiguous()


@pytest.mark.parametrize(("largest", "unit", "bits"), [(3, 1.0, 2), (4, 0.25, 4), (255, 2.0, 8)])
def test_sums_and_averages_take_more_bits(largest: int, unit: float, bits: int) -> None:
    x = zeros_and_ones(4, 3, 5, largest=largest) * unit
    check_same(nn.Linear(5, 7), PackedLinear(5, 7, largest=largest, unit=unit), x, bits)


def test_what_is_not_kept_is_not_packed() -> None:
    """Without gradients, a frozen weight, torch.func: torch's layer, whatever the numbers are."""
    layer, x = PackedLinear(5, 7), torch.rand(3, 5)
    with torch.no_grad():
        expected = layer(x)
    assert torch.equal(torch.func.functional_call(copy.deepcopy(layer).requires_grad_(False), {}, (x,)), expected)
    found = torch.func.grad(lambda w: torch.func.functional_call(layer, {"weight": w}, (x,)).sum())(layer.weight)
    assert torch.equal(found, x.sum(0).expand(7, 5))


# -- which backend packs


class Broken(Plain):
    """It packs, or unpacks, and fails in the other."""

    name = "broken"
    fails = ""

    def pack(self, *given: Any) -> Any:
        if self.fails == "pack":
            raise BackendError("no compiler here")
        return super().pack(*given)

    def unpack(self, *given: Any) -> Any:
        if self.fails == "unpack":
            raise BackendError("no driver here")
        return super().unpack(*given)


@pytest.mark.parametrize("fails", ["pack", "unpack"])
def test_a_backend_that_cannot_pack(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is the caller's, also where nobody asked for it."""
    monkeypatch.setattr(selection, "AUTO", {"cpu": ("broken",)})
    monkeypatch.setattr(Registry, "offers", lambda self, name: True)
    layer, x = PackedLinear(5, 7), zeros_and_ones(3, 5)
    fails = type("Fails", (Broken,), {"fails": fails})
    with installed(fails), pytest.raises(BackendError, match="^no (compiler|driver) here$"):
        layer(x).sum().backward()


# -- into networks


def network(backend: str = "torch") -> nn.Sequential:
    """Spikes, pooled spikes, averages and sums of spikes before layers with weights; a first layer that gets others."""
    torch.manual_seed(0)

    def neuron() -> sc.Neuron:
        return sc.LIF(threshold=0.3, backend=backend)

    return nn.Sequential(
        sc.encode.Constant(2),
        TimeBatched(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)),
        neuron(),
        TimeBatched(nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)),
        neuron(),
        nn.Sequential(SEWBlock(4, 4, neuron), nn.Identity(), SEWBlock(4, 6, neuron, stride=2)),
        TimeBatched(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24, 8)),
        neuron(),
        nn.Linear(8, 5),
        nn.Linear(5, 3),
    )


def images() -> Tensor:
    return torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def said(net: nn.Module) -> List[str]:
    """The layers that keep bits, and of what."""
    found = [(name, one) for name, one in net.named_modules() if isinstance(one, (PackedLinear, PackedConv2d))]
    return [f"{name}: {one.spikes.largest} x {one.spikes.unit:g}" for name, one in found]


#: Of the network above: what follows from where each layer stands.
KEPT = [
    "3.module.1: 1 x 1",
    "5.0.body.0.module.0: 1 x 1",
    "5.0.body.2.module.0: 1 x 1",
    "5.2.body.0.module.0: 2 x 1",
    "5.2.body.2.module.0: 1 x 1",
    "5.2.shortcut.0.module.0: 2 x 1",
    "6.module.2: 8 x 0.25",
    "8: 1 x 1",
]


def check_gradients(net: nn.Module, plain: nn.Module, x: Tensor, name: str = "", most: float = 0.0) -> None:
    """The same of both."""
    for one in (plain, net):
        one(x).square().sum().backward()
    for mine, its in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(mine.grad, its.grad, rtol=most, atol=10 * most, msg=name or None)


@pytest.mark.parametrize("fused", [False, True])
def test_layers_behind_spikes_are_replaced(fused: bool) -> None:
    """Those that a chain leads to, with the same gradients, parameters and names."""
    net = sc.fuse(network()) if fused else network()
    plain, parameters = copy.deepcopy(net), dict(net.named_parameters())
    assert sc.layers.pack(net) is net
    assert said(net) == KEPT
    assert all(net.get_parameter(name) is one for name, one in parameters.items())
    assert [*net.state_dict()] == [*plain.state_dict()]
    sizes = []
    for one in (plain, net):
        out, kept = saved_by(lambda: one(images()))  # noqa: B023  # called at once
        sizes.append({(k.data_ptr(), k.numel() * k.element_size()) for k in kept})
        out.square().sum().backward()
    assert sum(size for _, size in sizes[1]) < sum(size for _, size in sizes[0])
    for mine, its in zip(net.parameters(), plain.parameters()):
        assert torch.equal(mine.grad, its.grad)
    assert said(sc.layers.pack(net)) == KEPT
    assert said(sc.layers.unpack(net)) == []
    assert [type(one) for one in net.modules()] == [type(one) for one in plain.modules()]


def test_blocks_and_networks_of_the_field() -> None:
    """The tensors that each keeps, and the gradients of the plain network."""
    lif = lambda: sc.LIF(threshold=0.1, backend="torch")  # noqa: E731
    cases = {
        "ms": (nn.Sequential(lif(), sc.layers.MSBlock(3, 3, lif), nn.Linear(16, 2)), 2),
        "spikformer": (sc.models.spikformer(1, 16, heads=2, steps=1, neuron=lif, attention_neuron=lif), 10),
        "and": (nn.Sequential(lif(), SEWBlock(3, 3, lif, connect="and"), nn.Linear(16, 2)), 3),
        "iand": (nn.Sequential(lif(), SEWBlock(3, 3, lif, connect="iand"), nn.Linear(16, 2)), 3),
        "norm": (nn.Sequential(sc.layers.NormNeuron(nn.BatchNorm2d(3), lif()), nn.Linear(16, 2)), 1),
        "recurrent": (nn.Sequential(sc.Recurrent(lif(), nn.Linear(16, 16)), nn.Linear(16, 2)), 1),
    }
    for name, (net, count) in cases.items():
        plain = copy.deepcopy(net)
        assert len(said(sc.layers.pack(net))) == count, name
        timed = not any(getattr(part, "makes_time", False) for part in net.modules())
        x = images()[None] if timed else images()[:2]
        check_gradients(net, plain, x, name)


@pytest.mark.parametrize(("levels", "bits"), [(1, 1), (3, 2), (4, 4), (255, 8)])
def test_counts_take_the_bits_of_the_largest(levels: int, bits: int) -> None:
    """Weights get the gradients of the layer as it was."""
    plain = nn.Sequential(sc.ILIF(levels=levels, backend="torch"), nn.Linear(8, 4, bias=False))
    net, x = sc.layers.pack(copy.deepcopy(plain)), 9.0 * torch.rand(5, 3, 8)
    assert said(net) == [f"1: {levels} x 1"]
    assert net[1].spikes.bits == bits
    check_gradients(net, plain, x)


def test_what_is_left_as_it_is() -> None:
    linear = nn.Linear(4, 4)
    own_forward = nn.Linear(4, 4)
    own_forward.forward = lambda x: x  # type: ignore[method-assign]  # what some libraries do
    hooked = sc.LIF()
    hooked.register_forward_hook(lambda module, args, out: 2 * out)
    unknown = "Linear at '1' gets what is not known to be spikes"
    chains = {
        "a potential": ([sc.LI(), nn.Linear(4, 4)], unknown),
        "three values": ([sc.TernaryLIF(), nn.Linear(4, 4)], unknown),
        "a hook": ([hooked, nn.Linear(4, 4)], unknown),
        "scaled": ([sc.LIF(), nn.Dropout(), nn.Linear(4, 4)], "Linear at '2' gets"),
        "an average of nine": ([sc.LIF(), TimeBatched(nn.AvgPool2d(3), nn.Conv2d(4, 4, 1))], "Conv2d at '1.module.1'"),
        "parametrised": ([sc.LIF(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))], ""),
        "a forward of its own": ([sc.LIF(), own_forward], ""),
        "twice": ([sc.LIF(), linear, sc.LIF(), linear], "Linear at '1' is in the network 2 times: make a layer for"),
        "another layer between": ([sc.LIF(), nn.Tanh(), nn.Linear(4, 4)], "Linear at '2' gets"),
        "a branch": ([Branches()], "forward of Branches cannot be followed: it branches on a value"),
    }
    for name, (chain, reason) in chains.items():
        net = nn.Sequential(*chain)
        with pytest.warns(
            RuntimeWarning, match=f"found no linear layer or convolution behind a spiking neuron.*{reason}"
        ):
            sc.layers.pack(net)
        assert said(net) == [], name


class Branches(nn.Module):
    """A forward that cannot be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.lif, self.linear = sc.LIF(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.lif(x)) if x.sum() > 0 else x


class Shares(nn.Module):
    """A forward that gives one layer spikes twice, and another one sums and products of spikes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.twice, self.joined = sc.LIF(), sc.LIF(), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(2 * x)
        inner = self.twice(a[:1].expand_as(a)) + self.twice(b.transpose(0, 1)).transpose(0, 1)
        return inner + self.joined((a + b) * (1 - a) + b)


def test_values_are_followed_through_a_forward_in_all_calls_of_a_layer() -> None:
    """With gradients of the plain network."""
    torch.manual_seed(0)
    plain = nn.Sequential(Shares(), Branches(), nn.Linear(4, 4))
    net = sc.layers.pack(copy.deepcopy(plain))
    assert said(net) == ["0.twice: 1 x 1", "0.joined: 3 x 1"]
    check_gradients(net, plain, 3 * torch.rand(5, 2, 4), most=1.3e-6)


# -- steps of training


def test_a_step_packs_the_network_that_it_is_given() -> None:
    """With the weights of the plain step; a network without a place for it is refused."""
    found = []
    for pack in (False, True):
        net = network()
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        step = sc.training_model(
            net,
            sc.losses.ce_rate,
            optimizer,
            options=sc.TrainingOptions(autocast=HALF, pack_spikes=pack, channels_last=True),
        )
        for _ in range(2):
            step(images(), torch.tensor([0, 1, 2]))
        assert said(net) == (KEPT if pack else [])
        found.append(net.state_dict())
    for mine, its in zip(found[1].values(), found[0].values()):
        assert torch.equal(mine, its)
    none = nn.Sequential(nn.Linear(4, 3), sc.LI())
    with pytest.raises(
        sc.backend.Unsupported, match=r"pack_spikes=True cannot be: no linear layer or convolution of it stands"
    ):
        sc.training_model(
            none,
            sc.losses.ce_rate,
            torch.optim.SGD(none.parameters(), 0.1),
            options=sc.TrainingOptions(pack_spikes=True),
        )


def test_a_compiled_graph_keeps_bits() -> None:
    """In one graph, and a ValueError comes through it."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = nn.Sequential(PackedLinear(16, 8), nn.Tanh(), nn.Linear(8, 2))
    x = zeros_and_ones(4, 6, 16)
    expected = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
    run = torch.compile(net, fullgraph=True, backend="aot_eager")
    out, kept = saved_by(lambda: run(x))
    assert [one.numel() for one in kept if one.dtype == torch.uint8] == [4 * 6 * 16 // 8]
    assert all(one.data_ptr() != x.data_ptr() for one in kept)
    for mine, its in zip(torch.autograd.grad(out.square().sum(), [*net.parameters()]), expected):
        torch.testing.assert_close(mine, its)
    with pytest.raises(ValueError, match="is not what its layer was said to get"):
        run(x + 0.5)


test_refused = refusals.table(__file__, globals())
