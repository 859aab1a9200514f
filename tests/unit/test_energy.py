"""``sc.energy`` counts the products that numbers ask for: a loop over all products counts the same."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import refusals
import spikecore as sc
from spikecore.inspect import SRAM_45NM, Arithmetic, Hardware, Memory


def spikes(*shape: int, rate: float = 0.3) -> torch.Tensor:
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(7)) < rate).float()


def image(*shape: int) -> torch.Tensor:
    """Numbers, some of which are 0."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(8)) * spikes(*shape, rate=0.6)


def convolved(x: torch.Tensor, layer: nn.Conv2d) -> tuple:
    """(products with an input other than 0, all products), one by one."""
    batch, _, height, width = x.shape
    rows, columns = layer(x).shape[2:]
    within = layer.in_channels // layer.groups
    each = layer.out_channels // layer.groups
    found = every = 0
    window = itertools.product(range(layer.kernel_size[0]), range(layer.kernel_size[1]))
    for (i, j), r, c in itertools.product(list(window), range(rows), range(columns)):
        y = r * layer.stride[0] - layer.padding[0] + i * layer.dilation[0]
        z = c * layer.stride[1] - layer.padding[1] + j * layer.dilation[1]
        if 0 <= y < height and 0 <= z < width:
            for b, out in itertools.product(range(batch), range(layer.out_channels)):
                begin = out // each * within
                found += int((x[b, begin : begin + within, y, z] != 0).sum())
                every += within
    return found, every


CONVOLUTIONS = [{}, {"padding": (2, 1), "stride": (2, 3)}, {"padding": 2, "dilation": 2, "groups": 2}]


def counted(net, x, **energies):
    """The result with the counts of the batch, whole numbers, in place of those per sample."""
    found = sc.energy(net, x, **energies)
    names = ("macs", "acs", "products", "sums")
    rows = [{name: round(getattr(row, name) * found.samples) for name in names} for row in found.layers]
    return replace(found, layers=tuple(replace(row, **counts) for row, counts in zip(found.layers, rows)))


@pytest.mark.parametrize("how", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("x", [spikes(2, 4, 7, 8), image(2, 4, 7, 8)], ids=["spikes", "image"])
def test_convolutions(x: torch.Tensor, how: dict) -> None:
    """Padding makes no products, at edges or within strides; spikes are accumulates, an image multiply-accumulates."""
    layer = nn.Conv2d(4, 8, (3, 2), **how)
    found = counted(layer, x)
    asked, every = convolved(x, layer)
    (row,) = found.layers
    assert ((row.acs, row.macs) if bool((x == x.bool()).all()) else (row.macs, row.acs)) == (asked, 0)
    assert row.products == every > asked > 0
    assert row.twin == pytest.approx(4.6 * every / 2)


def test_transposed_and_other_convolutions():
    """A transposed convolution takes each input to a window of outputs, cut where padding takes them away."""
    x = spikes(2, 4, 5, 6)
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    height, width = layer(x).shape[2:]
    asked = 0
    for y, z in x.nonzero()[:, 2:].tolist():
        reached = [(2 * y - 1 + i, 2 * z - 1 + j) for i in range(3) for j in range(3)]
        asked += 3 * sum(0 <= r < height and 0 <= s < width for r, s in reached)
    assert counted(layer, x).acs == asked
    line = nn.Conv1d(3, 5, 4, padding=2)
    x = spikes(2, 3, 9)
    padded = nn.functional.pad(x, (2, 2)).unfold(2, 4, 1)
    assert counted(line, x).acs == 5 * int(padded.sum())
    cube = nn.Conv3d(2, 3, 2)
    x = spikes(1, 2, 4, 4, 4)
    assert counted(cube, x).acs == 3 * int(x.unfold(2, 2, 1).unfold(3, 2, 1).unfold(4, 2, 1).sum())


def test_linear_layers_and_sparse_inputs():
    """Each spike goes to every output; an input of numbers is counted where it is not 0; weights of 0 count."""
    layer = nn.Linear(6, 5)
    layer.weight.data[0] = 0
    x = spikes(4, 3, 6)
    found = counted(layer, x, e_mac=2.0, e_ac=0.5)
    assert (found.macs, found.acs, found.layers[0].products) == (0, 5 * int(x.sum()), 5 * x.numel())
    assert found.energy == pytest.approx(0.5 * 5 * int(x.sum()) / 4)
    assert found.twin == pytest.approx(2.0 * 5 * x.numel() / 4)
    x = image(4, 3, 6)
    assert (counted(layer, x).macs, counted(layer, x).acs) == (5 * int((x != 0).sum()), 0)
    assert counted(layer, torch.zeros(4, 6)).energy == 0


class Uses(nn.Module):
    """A weight of -1, 0 and 1, which looks like spikes, and one way to use it."""

    def __init__(self, use) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6, bias=False)
        self.layer.weight.data = torch.arange(36.0).remainder(3).sub(1).view(6, 6)
        self.register_buffer("mask", torch.arange(6.0).remainder(2))
        self.register_buffer("memory", torch.zeros(4, 3, 6))
        self.use = use(self.layer) if isinstance(use, type) else use

    def forward(self, x):
        return self.use(self, x)


class Tied(nn.Module):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.other = nn.Linear(6, 6, bias=False)
        self.other.weight = layer.weight

    def forward(self, net, x):
        return self.other(x)


class Parametrised(Tied):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        parametrize.register_parametrization(self.other, "weight", nn.Hardtanh())


class Normed(Tied):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        parametrizations.spectral_norm(self.other)


class Pruned(Tied):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        prune.l1_unstructured(self.other, "weight", 5)


def of_rows(net: Uses, x: Tensor) -> Tensor:
    net.memory[0] = x[0]
    net.memory[1:].copy_(x[1:])
    return net.layer(net.memory)


def by_a_new_mask(net: Uses, x: Tensor) -> Tensor:
    mask = torch.ones_like(net.layer.weight)
    mask[:, ::2] = 0
    return F.linear(x, torch.tensor(2.0) * net.layer.weight * mask)


#: A way to use a weight, and the times that it does.
USES = {
    "a module": (lambda net, x: net.layer(x), 1),
    "called twice": (lambda net, x: net.layer(x) + net.layer(x), 2),
    "tied": (Tied, 1),
    "parametrised": (Parametrised, 1),
    "normed": (Normed, 1),
    "pruned": (Pruned, 1),
    "a function": (lambda net, x: F.linear(x, net.layer.weight), 1),
    "a layer and its weight": (lambda net, x: net.layer(x) + F.linear(x, net.layer.weight), 2),
    "of signs": (lambda net, x: F.linear(x, net.layer.weight.sign()), 1),
    "masked": (lambda net, x: F.linear(x, net.layer.weight * net.mask), 1),
    "by a new mask": (by_a_new_mask, 1),
    "of two weights": (lambda net, x: F.linear(x, net.layer.weight @ net.layer.weight), 1),
    "in parts": (lambda net, x: F.linear(x, torch.cat([net.layer.weight[:2], net.layer.weight[2:]])), 1),
    "out of autograd": (lambda net, x: F.linear(x, net.layer.weight.data), 1),
    "a product": (lambda net, x: x @ net.layer.weight.abs().t(), 1),
    "a sum of products": (lambda net, x: torch.einsum("tbi,oi->tbo", x, net.layer.weight), 1),
    "into a tensor": (lambda net, x: torch.ones(12, 6).addmm_(x.flatten(0, 1), net.layer.weight), 1),
    "of a buffer": (lambda net, x: net.layer(net.memory.copy_(x)), 1),
    "of a buffer by rows": (of_rows, 1),
}


@pytest.mark.parametrize("way", USES)
def test_a_weight_is_one_however_it_is_used(way: str) -> None:
    """Weights of 0 count, and no weight is a spike: computed ones were counted by their numbers, so that those of -1, 0
    and 1 made accumulates of an image's products.
    """
    use, times = USES[way]
    x = spikes(4, 3, 6)
    found = counted(Uses(use), x)
    assert (found.macs, found.acs) == (0, times * 6 * int(x.sum()))
    x = image(4, 3, 6)
    found = counted(Uses(use), x)
    assert (found.macs, found.acs) == (times * 6 * int((x != 0).sum()), 0)
    assert sum(layer.products for layer in found.layers) == times * 6 * x.numel()


class Attention(nn.Module):
    def __init__(self, mixed: bool = False) -> None:
        super().__init__()
        self.mixed = mixed

    def forward(self, q, k, v):
        weights = q @ k.transpose(-2, -1)
        if self.mixed:
            weights = weights * 0.1 + torch.einsum("bnd,bmd->bnm", q, v)
        return weights @ v


def test_products_of_attention():
    """Of two tensors that are no weights both must not be 0, in products and in einsum; one spike makes it an
    accumulate.
    """
    q, k, v = (spikes(2, 5, 3, rate=rate) for rate in (0.3, 0.5, 0.4))
    scores = q @ k.transpose(-2, -1)
    asked = int(scores.sum())
    for b, n, m, d in itertools.product(range(2), range(5), range(5), range(3)):
        asked += int(scores[b, n, m] != 0 and v[b, m, d] != 0)
    found = counted(Attention(), (q, k, v))
    assert (found.macs, found.acs) == (0, asked)
    assert found.layers[0].products == 2 * (2 * 5 * 5 * 3)
    numbers = image(2, 5, 3)
    found = counted(Attention(), (numbers, numbers, numbers))
    first = int(((numbers != 0).float() @ (numbers != 0).float().transpose(-2, -1)).sum())
    both = (numbers @ numbers.transpose(-2, -1) != 0).float()
    assert (found.macs, found.acs) == (first + int((both @ (numbers != 0).float()).sum()), 0)
    assert len(counted(Attention(mixed=True), (q, k, v)).layers) == 1
    if not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return  # an older torch computes it by products, which are counted
    with pytest.raises(
        sc.backend.Unsupported, match=r"layer '' calls torch's .*attention.*, whose products cannot be seen"
    ):
        sc.energy(Fused(), q.unsqueeze(0))


class Fused(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_average_pooling_adds_and_its_scale_is_folded():
    """An addition for each number other than 0 in a window; the layer behind it gets counts of spikes."""
    x = spikes(2, 3, 6, 7)
    for pool in (nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)):
        size, stride, pad = (pool.kernel_size, pool.stride, pool.padding)
        rows, columns = pool(x).shape[2:]
        padded = nn.functional.pad(x, (pad, size + 2, pad, size + 2))
        windows = [
            padded[..., r * stride : r * stride + size, c * stride : c * stride + size]
            for r in range(rows)
            for c in range(columns)
        ]
        found = counted(pool, x)
        assert (found.macs, found.acs) == (0, sum(int(window.sum()) for window in windows))
        assert found.twin == pytest.approx(0.9 * found.layers[0].sums / 2)
    pool = nn.AdaptiveAvgPool2d((4, 3))
    places = [
        (range(i * 6 // 4, -(-(i + 1) * 6 // 4)), range(j * 7 // 3, -(-(j + 1) * 7 // 3)))
        for i in range(4)
        for j in range(3)
    ]
    assert counted(pool, x).acs == sum(int(x[:, :, list(r)][..., list(c)].sum()) for r, c in places)
    assert counted(nn.AdaptiveAvgPool2d(1), x).acs == int(x.sum())
    assert counted(nn.MaxPool2d(2), x).layers == ()
    net = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(3, 4, 1))
    found = counted(net, x)
    assert found.layers[1].acs == 4 * int(x[..., :6].sum())
    assert found.macs == 0


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        sc.LIF(repeat=4),
        sc.layers.TimeBatched(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)),
        sc.LIF(),
        nn.Flatten(2),
        nn.Linear(4 * 36, 6),
        sc.Recurrent(sc.LIF(), nn.Linear(6, 6)),
    )


class Runs(nn.Module):
    """A layer with state that is called by ``run``."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.run(x)[0]


@pytest.mark.parametrize("samples", [2, 20], ids=["one input each", "convolution"])
@pytest.mark.parametrize("called", [nn.Sequential, Runs], ids=["called", "run"])
def test_a_connection_has_one_delay_however_it_is_called(called: type, samples: int) -> None:
    """One product for each connection and step, not one for each lag; a spike that arrives behind the end is none."""
    steps, layer, x = 7, sc.Delay(nn.Linear(6, 4), 3, sigma=1.0), spikes(7, samples, 6)
    asked = sum(int(x[: steps - lag, :, j].sum()) for row in layer.whole.tolist() for j, lag in enumerate(row))
    (row,) = counted(called(layer), x).layers
    assert (row.kind, row.products, row.acs, row.macs) == ("Delay", x.numel() * 4, asked, 0)
    fed = sc.Recurrent(sc.LIF(threshold=0.1), sc.Delay(nn.Linear(6, 6), 3, sigma=1.0))
    (row,) = counted(called(fed), x).layers
    assert (row.kind, row.products) == ("Recurrent", x.numel() * 6)


def test_a_network_over_time_and_its_twin():
    """The first layer is computed once for an image; the others at each step, on the spikes of the neurons before
    them; feedback is seen although a kernel computes it; the twin takes every product once.
    """
    net, x = network(), 4 * torch.rand(3, 1, 6, 6)
    net[6].weight.data.mul_(8)
    net[6].bias.data.add_(1.5)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.eval()
    with sc.monitor(net, spikes=True) as seen:
        net(x)
    net.train()
    found = counted(net, x)
    assert (found.samples, found.steps) == (3, 4)
    rows = {row.name: row for row in found.layers}
    assert list(rows) == ["0", "3.module.0", "6", "7.linear"]
    first, every = convolved(x, net[0])
    assert (rows["0"].macs, rows["0"].acs) == (first, 0)
    middle = convolved(seen["2"].spikes.flatten(0, 1), net[3].module[0])
    assert (rows["3.module.0"].macs, rows["3.module.0"].acs) == (0, middle[0])
    assert rows["6"].acs == 6 * int(seen["4"].spikes.sum())
    assert rows["7.linear"].acs == 6 * int(seen["7"].spikes[:-1].sum()) > 0
    products = every + middle[1] // 4 + 3 * (6 * 144 + 36)
    assert found.twin == pytest.approx(4.6 * products / 3)
    assert found.energy == pytest.approx((4.6 * found.macs + 0.9 * found.acs) / 3)
    assert net.training
    assert net[7].fused is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    assert sc.energy(sc.fuse(network()), x).macs == sc.energy(network(), x).macs


class Looped(nn.Module):
    """Single-step neurons, called for one step after the other."""

    def __init__(self, steps: int = 0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), sc.LIF(step="single"), nn.Linear(5, 2))
        self.steps = steps

    def forward(self, x):
        return torch.stack([self.body(now) for now in ([x] * self.steps if self.steps else x)])


@pytest.mark.parametrize(("net", "shape", "samples"), [(Looped(), (4, 3, 6), 3), (Looped(4), (4, 6), 4)])
def test_samples_of_networks_that_loop_over_steps(net, shape, samples):
    """Time was taken for the batch where neurons take single steps, and the batch for channels."""
    found = sc.energy(net, spikes(*shape))
    assert (found.steps, found.samples) == (4, samples)
    assert found.twin == pytest.approx(4.6 * 40 * (1 if net.steps else 4))
    ways = {0: "read as [T, B, ...]: T=4 steps, B=3 samples", 4: "B=4 samples, for which the network makes T=4 steps"}
    assert ways[net.steps] in str(found).splitlines()[0]
    assert ("at each of the 4 steps" in str(found)) is (net.steps == 0)


def test_the_table_says_what_was_counted():
    """Amounts per sample, energies with units, and where the constants stand."""
    found = sc.energy(nn.Sequential(nn.Linear(1000, 50), nn.ReLU()), image(4, 1000))
    text = str(found)
    assert text.splitlines()[0] == "input 4x1000, read as [B, ...]: B=4 samples, without time"
    headings = ["layer", "kind", "MACs", "ACs", "computed", "energy", "ReLU", "twin", "words", "memory"]
    assert text.splitlines()[2].split() == headings
    assert text.splitlines()[-1].startswith("left out: arithmetic within neurons, biases, normalisation,")
    assert f"{found.macs / 1000:.2f} k" in text
    assert "230.00 nJ" in text
    assert "4.6 pJ a MAC, 0.9 pJ an AC" in text
    assert "<td>230.00 nJ</td>" in found._repr_html_()


def test_words_of_a_layer_behind_spikes():
    """By hand: a spike is read once; each of its sums reads a weight, and reads and writes a sum; each neuron reads and
    writes two states in a step, and writes spikes. The twin and the network on every product read a weight a product.
    """
    net = nn.Sequential(nn.Linear(6, 5, bias=False), sc.Synaptic(threshold=0.2))
    x = spikes(4, 3, 6)
    with sc.monitor(net, spikes=True) as seen, torch.no_grad():
        net(x)
    layer, neurons = sc.energy(net, x).traffic
    k, fired = int(x.sum()) / 3, int(seen["1"].spikes.sum()) / 3
    assert layer.sparse == pytest.approx((0, 5 * k, k, 5 * k, 2 * 5 * k, 0, 0))
    assert layer.dense == pytest.approx((0, 4 * 30, 4 * 6, 4 * 30, 0, 0, 4 * 5))
    assert layer.twin == pytest.approx((4 * 30, 0, 4 * 6, 4 * 30, 0, 0, 4 * 5))
    assert neurons.sparse == pytest.approx((0, 0, 0, 0, 0, 2 * 2 * 4 * 5, fired))
    assert fired > 0
    assert (layer.sizes.inputs, layer.sizes.weights, layer.sizes.sums, neurons.sizes.states) == (6, 30, 5, 10)


def test_words_of_a_convolution_of_an_image():
    """Computed once for all steps, and no spikes: a read of an input and of a weight for each product that is not 0,
    and a write for each output.
    """
    layer = nn.Conv2d(2, 4, 3, padding=1)
    x = image(2, 2, 5, 6)
    asked, every = convolved(x, layer)
    first, _ = sc.energy(nn.Sequential(layer, sc.LIF(repeat=3)), x).traffic
    assert first.sparse == pytest.approx((asked / 2, 0, asked / 2, asked / 2, 0, 0, 4 * 30))
    assert first.twin == pytest.approx((every / 2, 0, every / 2, every / 2, 0, 0, 4 * 30))
    assert (first.sizes.inputs, first.sizes.weights, first.sizes.outputs) == (60, 72, 120)


def test_costs_of_stated_hardware():
    """Every number of a form by hand: picojoules of operations, and of words by the size of their memory."""
    source = "made up"
    hardware = Hardware(
        "a chip",
        Arithmetic(32, 3.0, 1.0, source),
        Arithmetic(8, 0.5, 0.25, source),
        (Memory(100, 8.0, source), Memory(1100, 16.0, source)),
    )
    x = spikes(4, 20, rate=0.2)
    found = sc.energy(nn.Linear(20, 15, bias=False), x, hardware=hardware)
    k = int(x.sum()) / 4
    by_form = {(form.name, form.bits): form for form in found.forms}
    # 300 weights of 4 bytes are more than 1100, of 1 byte 300: 8 + 8 * 200 / 1000; inputs and sums are below 100
    sparse, dense = by_form["sparse", 32], by_form["dense", 32]
    assert sparse.operations == pytest.approx(15 * k)
    assert sparse.memory == pytest.approx(k * 8 / 2 + 15 * k * 16 / 2 + 30 * k * 8 / 2)
    assert dense.memory == pytest.approx(20 * 8 / 2 + 300 * 16 / 2 + 15 * 8 / 2)
    few, twin = by_form["sparse", 8], by_form["twin", 8]
    assert few.operations == pytest.approx(15 * k / 4)
    assert few.memory == pytest.approx(k * 8 / 8 + 15 * k * 9.6 / 8 + 30 * k * 8 / 2)
    assert twin.energy == pytest.approx(300 * 0.5 + 20 * 8 / 8 + 300 * 9.6 / 8 + 15 * 8 / 8)
    # all of it grows with the spikes
    assert found.break_even == pytest.approx(k / 20 * twin.energy / few.energy)
    assert sc.energy(nn.Linear(20, 15), image(3, 20)).break_even is None
    assert f"{100 * found.break_even:.1f} % of the products behind spikes" in str(found)
    assert all("ISSCC 2014" in source for source in SRAM_45NM.sources)
    assert sc.energy(nn.Linear(20, 15), x, e_ac=2.0).hardware.full.source == "given"


def test_layers_that_get_nothing_are_named():
    """The energy of a network that does not fire was praised without a word."""
    net = nn.Sequential(nn.Linear(10, 8), sc.LIF(20.0), nn.Linear(8, 4), sc.LIF(20.0), nn.Linear(4, 2))
    text = str(sc.energy(net, image(5, 3, 10)))
    assert text.startswith(
        "1, 3 gave no spike, and every input of 2, 4 was 0: before you compare energies, see why by sc.explain(net, x)."
    )
    assert "was 0" not in str(sc.energy(net[:1], image(5, 3, 10)))


def test_padding_costs_nothing() -> None:
    """Neither the network nor its twin: the sum of what sequences alone cost, although neurons fire behind the ends."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 8), sc.LIF(), nn.Linear(8, 3), sc.LIF())
    net.requires_grad_(False)[2].bias.fill_(3.0)
    lengths, x = torch.tensor([9, 3, 5, 3]), torch.rand(9, 4, 4)
    mask = sc.functional.mask_of(lengths, 9)
    found = sc.energy(net, x * mask[..., None], mask=mask)
    alone = [sc.energy(net, x[:length, b : b + 1]) for b, length in enumerate(lengths.tolist())]
    assert (found.macs, found.acs) == (sum(each.macs for each in alone) / 4, sum(each.acs for each in alone) / 4)
    assert found.twin == pytest.approx(sum(each.twin for each in alone) / 4)
    assert found.twin < sc.energy(net, x * mask[..., None]).twin
    assert (found.samples, found.steps) == (4, 9)
    assert "T=9 steps, B=4 samples, of which 5 steps of a sample are real" in str(found)
    with pytest.raises(ValueError, match="mask"):  # a sequence without a step
        sc.energy(net, x, mask=mask & torch.tensor([True, False, True, True]))
    with pytest.raises(ValueError, match="mask must be True at the first steps of each sequence"):
        sc.energy(net, x, mask=mask.flip(0))
    with pytest.raises(ValueError, match=r"it seems to be \[B, T\]"):
        sc.energy(net, x, mask=mask.T)


test_refused = refusals.table(__file__, globals())
