"""A saved network loads as the same network: the same outputs, gradients and names of parameters."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import TimeBatched

nir = pytest.importorskip("nir", reason="the package nir, which needs Python 3.10, is not installed")
#: What NIR cannot say and these networks have.
LOSSY = tuple(
    "soft_reset delayed_reset surrogate detach_reset gradient no_reset initial_state many_spikes detach".split()
)


def _both(net, other, x):
    """Outputs and gradients of two networks, with their names."""
    found = []
    for each in (net, other):
        leaf = x.clone().requires_grad_()
        y = each(leaf)
        weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
        named = dict(each.named_parameters())
        grads = torch.autograd.grad((y * weights).sum(), [leaf, *named.values()])
        found.append(dict(zip(["y", "x", *named], [y.detach(), *grads])))
    return found


def _same(net, other, x):
    first, second = _both(net, other, x)
    assert list(first) == list(second)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    return first["y"]


def _trip(net, path, **options):
    sc.nir.save(net, path, dt=1e-3, **options)
    return sc.nir.load(path)


def _value(draw, low, high, size):
    """A number, a 0-d tensor, or one value for each of ``size`` channels."""
    kind = draw.randrange(3)
    drawn = [draw.uniform(low, high) for _ in range(size)]
    return drawn[0] if kind == 0 else torch.tensor(drawn[0] if kind == 1 else drawn)


def _neuron(draw, size, lossy):
    """A neuron with random parameters, settings and learnt names."""
    threshold, v_reset = _value(draw, 0.3, 1.0, size), _value(draw, 0.0, 0.2, size)
    common = {"threshold": threshold, "v_reset": v_reset}
    if lossy:
        common["reset"] = draw.choice(["hard", "soft", "none"])
        common["surrogate"] = draw.choice([sc.surrogate.ATan(3.0), sc.surrogate.FastSigmoid(), sc.surrogate.ATan()])
        common["detach_reset"] = draw.random() < 0.5
    tau, decay_input = _value(draw, 1.5, 8.0, size), draw.random() < 0.5
    alpha, beta = _value(draw, 0.1, 0.9, size), _value(draw, 0.1, 0.9, size)
    leaky = {name: value for name, value in common.items() if name != "v_reset"}
    delayed = (
        {"reset_delay": draw.random() < 0.5, "reset": "soft"} if lossy else {"reset_delay": False, "reset": "hard"}
    )
    still = 0.0 if not lossy else v_reset
    kinds = [
        lambda: sc.IF(**common),
        lambda: sc.LIF(tau, decay_input=decay_input, learn=draw.choice([(), ("tau",), ("tau", "threshold")]), **common),
        lambda: sc.PLIF(tau, decay_input=decay_input, learn=draw.choice([(), ("w",)]), **common),
        lambda: sc.LI(tau, decay_input=decay_input, v_rest=v_reset, learn=draw.choice([(), ("tau",)])),
        lambda: sc.Leaky(beta, learn=draw.choice([(), ("beta",)]), **{**leaky, **delayed}),
        lambda: sc.Synaptic(alpha, beta, **{**common, "v_reset": still}),
        lambda: sc.SynapticLeaky(alpha, beta, learn=draw.choice([(), ("alpha",)]), **{**leaky, **delayed}),
        lambda: sc.nir.NIRLIF(decay=beta, gain=alpha, v_leak=v_reset, **common if not lossy else leaky_of(common)),
        lambda: sc.nir.NIRLI(decay=beta, gain=tau, v_leak=v_reset),
        lambda: sc.nir.NIRCubaLI(decay=beta, gain=tau, syn_decay=alpha, syn_gain=tau, learn=("syn_decay",)),
        lambda: sc.nir.NIRCubaLIF(decay=beta, syn_decay=alpha, threshold=threshold, strict=draw.random() < 0.5),
    ]
    return draw.choice(kinds)()


def leaky_of(common):
    """Settings that a neuron of NIR takes."""
    return {**common, "reset": "soft" if common["reset"] == "none" else common["reset"]}


def _dense(draw, lossy):
    """Layers in a row on ``[T, B, 7]``."""
    width, layers = 7, []
    for _ in range(draw.randrange(1, 4)):
        after = draw.choice([4, 7, 9])
        kind = draw.randrange(4)
        if kind == 0:
            delay = torch.randint(0, 4, (width,), generator=torch.Generator().manual_seed(draw.randrange(99))).float()
            layers.append(sc.Delay(nn.Linear(width, after), 5, delay=delay, learn=()))
        else:
            layers.append(nn.Linear(width, after, bias=kind != 1))
        neuron = _neuron(draw, after, lossy)
        if draw.random() < 0.3 and isinstance(neuron, (sc.IF, sc.LIF)):
            back = nn.Linear(after, after, bias=draw.random() < 0.5)
            if draw.random() < 0.5:
                back = sc.Delay(back, 3, delay=2.0, per="input", learn=())
            neuron = sc.Recurrent(neuron, back, detach=lossy and draw.random() < 0.5)
        layers.append(neuron)
        width = after
    return nn.Sequential(*layers)


def _convolutional(draw, lossy):
    """Convolutions, pooling and a read-out on ``[T, B, 2, 8, 8]``."""
    conv = nn.Conv2d(2, 4, draw.choice([1, 3, (1, 3)]), stride=draw.choice([1, (2, 1)]), bias=draw.random() < 0.5)
    pool = draw.choice([nn.AvgPool2d(2), sc.nir.SumPool2d((2, 1)), nn.AvgPool2d(3, 2, 1)])
    between = _neuron(draw, 4, lossy)
    front = nn.Sequential(TimeBatched(conv, nn.Dropout(0.5)).eval(), between, TimeBatched(pool), nn.Flatten(2))
    with torch.no_grad():
        size = front(torch.zeros(1, 1, 2, 8, 8)).shape[-1]
    return nn.Sequential(front, nn.Linear(size, 5), _neuron(draw, 5, lossy))


@pytest.mark.parametrize("seed", range(10))
def test_random_networks_come_back_bit_for_bit(seed: int, tmp_path) -> None:
    """Outputs, gradients, and the names and values of parameters."""
    lossy, way = seed % 2 == 1, ("euler", "exp")[seed // 2 % 2]
    dtype = torch.float64 if seed % 5 == 0 else torch.float32
    draw = random.Random(seed)
    torch.manual_seed(seed)
    spatial = seed % 3 == 2
    net = (_convolutional if spatial else _dense)(draw, lossy).to(dtype)
    x = 2 * torch.randn(9, 3, *((2, 8, 8) if spatial else (7,)), dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if lossy else "error", UserWarning)
        warnings.filterwarnings("ignore", "sc.nir.save: nir.read refuses this file")  # a kernel that is no square
        # without a shape it is that of nn.Linear, or of a Delay of one
        options = {"keep": LOSSY if lossy else (), "input_shape": x.shape[2:] if spatial else None}
        loaded = _trip(net, tmp_path / "net.nir", discretization=way, **options)
    _same(net, loaded, x)
    state = loaded.state_dict()
    assert {name: value for name, value in net.state_dict().items() if not torch.equal(value, state[name])} == {}
    # what is loaded can be saved, with the same result
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        again = _trip(loaded, tmp_path / "again.nir", discretization=way, input_shape=x.shape[2:], keep=LOSSY)
    _same(net, again, x)
    neurons = [[part for part in each.modules() if isinstance(part, sc.Neuron)] for each in (net, loaded)]
    for first, second in zip(*neurons):
        assert (type(second), second.learn) == (type(first), first.learn)


@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (nn.Conv2d(2, 4, 3, groups=2), (2, 5, 5)),
        (nn.Conv1d(4, 4, 3, groups=4), (4, 7)),
        (nn.Conv2d(2, 4, (1, 3)), (2, 8, 8)),
    ],
    ids=["groups", "depthwise", "no square"],
)
def test_convolutions_whose_shapes_nir_infers_wrongly(conv, shape, tmp_path) -> None:
    """The file is right, and a warning says how to read it: nir 1.0.8 looks at one group, at one side of a kernel."""
    net, x = nn.Sequential(TimeBatched(conv), sc.LIF()), 3 * torch.rand(5, 2, *shape)
    with pytest.warns(UserWarning, match=r"nir\.read refuses this file .*; .* nir\.read\(path, type_check=False\)"):
        sc.nir.save(net, tmp_path / "net.nir", dt=1e-3, input_shape=shape)
    with pytest.raises(ValueError, match="Type inference error"):
        nir.read(tmp_path / "net.nir")
    for source in (tmp_path / "net.nir", nir.read(tmp_path / "net.nir", type_check=False)):
        assert torch.equal(sc.nir.load(source)(x), net(x))


class Residual(nn.Module):
    """A branch around two layers, and a flattening that is a call."""

    def __init__(self):
        super().__init__()
        self.first = TimeBatched(nn.Conv2d(2, 2, 3, padding=1))
        self.lif = sc.LIF()
        self.block = nn.Sequential(TimeBatched(nn.Conv2d(2, 2, 3, padding="same", bias=False)), sc.IF(threshold=0.3))
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        x = self.lif(self.first(x))
        x = x + self.block(x)
        return self.out(torch.flatten(x, 2))


def test_branches_sums_and_calls_of_flatten(tmp_path) -> None:
    """A residual network in a class of its own."""
    torch.manual_seed(0)
    net = Residual()
    loaded = _trip(net, tmp_path / "net.nir", input_shape=(2, 4, 4))
    _same(net, loaded, 3 * torch.randn(5, 2, 2, 4, 4))
    assert set(nir.read(tmp_path / "net.nir").nodes) == {
        *("input", "first.module", "lif", "block.0.module", "block.1", "flatten", "out", "output")
    }


def test_networks_of_single_steps(tmp_path) -> None:
    """They are saved with batch alone in front, and load as networks of whole sequences."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), sc.LIF(step="single"), nn.Flatten(), nn.Linear(12, 4), sc.LI(step="single"))
    loaded = _trip(net, tmp_path / "net.nir", input_shape=(1, 4, 4))
    x = 2 * torch.randn(6, 2, 1, 4, 4)
    with torch.no_grad():
        steps = torch.stack([net(step) for step in x])
    assert torch.equal(loaded(x), steps)
    sc.set_step(loaded, "single")
    assert torch.equal(torch.stack([loaded(step) for step in x]), steps)
    sc.reset(loaded)
    assert torch.equal(loaded(x[0]), steps[0])
    # and is saved as one of single steps
    assert torch.equal(_trip(loaded, tmp_path / "net.nir", input_shape=(1, 4, 4))(x), steps)


@pytest.mark.parametrize(
    "neuron",
    [sc.Synaptic(0.4, 0.8), sc.SynapticLeaky(0.4, 0.8, reset="hard", reset_delay=False)],
    ids=["cuba", "leaky"],
)
def test_numbers_of_the_file_alone_give_the_same_spikes(tmp_path, neuron) -> None:
    """Without what we keep, constants are rounded: potentials to some units in the last place, spikes stay here."""
    torch.manual_seed(0)
    front = nn.Linear(7, 9), sc.LIF(3.0, decay_input=False), nn.Linear(9, 5), neuron
    net = nn.Sequential(*front, nn.Linear(5, 3), sc.LI(5.0))
    x = 8 * torch.randn(20, 4, 7)
    for way in ("euler", "exp"):
        sc.nir.save(net, tmp_path / "net.nir", dt=2e-3, discretization=way)
        bare = nir.read(tmp_path / "net.nir")
        bare.metadata = {}
        for node in bare.nodes.values():
            node.metadata = {}
        loaded = sc.nir.load(bare, dt=2e-3, discretization=way)
        assert [type(loaded.get_submodule(name)).__name__ for name in "135"] == ["NIRLIF", "NIRCubaLIF", "NIRLI"]
        assert net[:4](x).sum() > 20
        torch.testing.assert_close(loaded(x), net(x), rtol=1e-5, atol=1e-6)


def test_numbers_that_somebody_changed_count(tmp_path) -> None:
    """Metadata does not count for a node that no longer has its numbers, which is told."""
    sc.nir.save(nn.Sequential(nn.Linear(2, 2), sc.LIF()), tmp_path / "net.nir", dt=1e-3)
    graph = nir.read(tmp_path / "net.nir")
    graph.nodes["1"].v_threshold = graph.nodes["1"].v_threshold * 3
    with pytest.warns(UserWarning, match="node '1' no longer has the numbers of the LIF that spikecore saved"):
        neuron = sc.nir.load(graph).get_submodule("1")
    assert isinstance(neuron, sc.nir.NIRLIF)
    assert neuron.threshold == 3.0


# -- networks in integers: weights on their grids, and formats as metadata


def test_weights_and_formats(tmp_path: Path) -> None:
    """The file has the rounded weights, with the normalisation in them, and says how each node computes."""
    torch.manual_seed(0)
    x = torch.randn(10, 4, 6)
    net = nn.Sequential(
        sc.layers.TimeBatched(nn.Linear(6, 8), nn.BatchNorm1d(8)),
        sc.LIF(),
        sc.Recurrent(sc.LIF(), nn.Linear(8, 8, bias=False)),
        nn.Linear(8, 3),
    )
    prepared = sc.quant.prepare(net.eval(), x, weights=4, word=12)
    before = prepared(x)
    plain, formats = sc.quant.plain(prepared)
    sc.nir.save(plain, tmp_path / "net.nir", dt=1e-4, formats=formats)
    assert torch.equal(prepared(x), before)
    nodes = nir.read(str(tmp_path / "net.nir")).nodes
    layer = prepared[0].module[0]
    assert torch.equal(torch.from_numpy(nodes["0.module.0"].weight), layer.weight.detach())
    assert torch.equal(torch.from_numpy(nodes["0.module.0"].bias), layer.bias.detach())
    written = {name: json.loads(node.metadata["spikecore_formats"]) for name, node in nodes.items() if node.metadata}
    of_layer = written["0.module.0"]["0.module.0"]
    scaled = layer.weight.detach() * 2.0 ** torch.tensor(of_layer["weight"]["fracs"]).unsqueeze(1)
    assert torch.equal(scaled, scaled.round())
    assert (of_layer["weight"]["low"], of_layer["weight"]["high"]) == (-8, 7)
    assert of_layer["input"]["fracs"] == layer.input_format.fracs
    how = sc.quant.fixed_point_of(prepared[1])
    expected = {"word": 12, "frac": how.frac, "factors": 12, "rounding": "nearest", "dtype": "torch.float32"}
    assert written["1"]["1"] == {**expected, "tables": [], "values": {name: [*ends] for name, ends in how.values}}
    assert set(written["2"]) == {"2.neuron", "2.linear"}


def _prepared(kind: str) -> tuple:
    """A prepared network, trained for a step, an input, and options of ``save``."""
    torch.manual_seed(1)
    learnt, x, options = {}, torch.randn(10, 4, 6), {}
    if kind == "convolutional":
        x = torch.randn(6, 3, 2, 8, 8)
        options["input_shape"] = (2, 8, 8)
        net = nn.Sequential(
            TimeBatched(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)),
            sc.LIF(threshold=0.3, learn=("tau",)),
            TimeBatched(nn.AvgPool2d(2), nn.Conv2d(8, 4, 3, padding=1)),
            sc.PLIF(threshold=0.3),
            nn.Flatten(2),
            nn.Linear(64, 5),
        )
    elif kind == "recurrent":
        back = sc.Delay(nn.Linear(8, 8), 3, delay=2.0, per="input", learn=())
        net = nn.Sequential(nn.Linear(6, 8), sc.Recurrent(sc.LIF(threshold=0.2), back), nn.Linear(8, 3))
        learnt["ranges"] = "learnt"
    elif kind == "delayed":
        delay = torch.tensor([0.0, 1.0, 2.0, 3.0, 1.0, 0.0])
        front = sc.Delay(nn.Linear(6, 8), 3, delay=delay, learn=())
        net = nn.Sequential(front, sc.LIF(threshold=0.2), nn.Linear(8, 3, bias=False))
        learnt["per_channel"] = False
    elif kind == "sum":
        net, options["keep"] = Sum(), ("soft_reset", "delayed_reset")
    else:
        neuron = getattr(sc, kind, None) or getattr(sc.nir, kind)
        net = nn.Sequential(nn.Linear(6, 8), neuron(*BETA.get(kind, ())), nn.Linear(8, 3))
        options["keep"] = ("soft_reset", "delayed_reset", "initial_state")
    prepared = sc.quant.prepare(net.eval(), x, weights=5, **learnt)
    prepared(x).square().sum().backward()
    torch.optim.SGD(prepared.parameters(), 1e-3).step()
    prepared.zero_grad()
    return prepared, x, options


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.neuron = sc.Leaky(0.9)

    def forward(self, x):
        return self.neuron(self.first(x) + self.second(x))


BETA = {"Leaky": (0.9,)}
ALONE = "IF LIF PLIF LI Leaky Synaptic SynapticLeaky NIRLIF NIRLI NIRCubaLIF NIRCubaLI".split()


@pytest.mark.filterwarnings("ignore:sc.nir.save. the graph is written without")
@pytest.mark.parametrize("kind", ["convolutional", "recurrent", "delayed", "sum", *ALONE])
def test_what_is_restored_has_the_same_bits(tmp_path: Path, kind: str) -> None:
    """Outputs and gradients of a prepared network, through a file, and the same formats again; through a second file
    of what was loaded, too.
    """
    prepared, x, options = _prepared(kind)
    expected = prepared(x)
    plain, formats = sc.quant.plain(prepared)
    sc.nir.save(plain, tmp_path / "net.nir", dt=1e-4, formats=formats, **options)
    loaded = sc.nir.load(tmp_path / "net.nir")
    restored = sc.quant.restored(loaded, loaded.formats)
    assert torch.equal(restored(x), expected)
    assert expected.any()
    # a weight at the end of its grid has a derivative there, and none where training had it beyond
    for net in (prepared, restored):
        x.requires_grad_().grad = None
        net(x).square().sum().backward()
        net.gradients = [x.grad, *[value.grad for name, value in net.named_parameters() if "weight" not in name]]
    assert len(prepared.gradients) == len(restored.gradients)
    assert all(torch.equal(*pair) for pair in zip(prepared.gradients, restored.gradients))
    again, formats_again = sc.quant.plain(restored)
    assert sorted(map(str, formats_again.values())) == sorted(map(str, formats.values()))
    sc.nir.save(again, tmp_path / "again.nir", dt=1e-4, formats=formats_again, **options)
    once_more = sc.nir.load(tmp_path / "again.nir")
    assert torch.equal(sc.quant.restored(once_more, once_more.formats)(x), expected)


def test_formats_that_are_no_formats(tmp_path: Path) -> None:
    """A file may be a stranger's: what is no format, or not that of the weights, is refused by name."""
    prepared, _, _ = _prepared("LIF")
    plain, formats = sc.quant.plain(prepared)
    with pytest.raises(ValueError, match=r"sc.nir.save: formats has '7', and no such module is a node"):
        sc.nir.save(plain, tmp_path / "net.nir", dt=1e-4, formats={**formats, "7": {}})
    grid = formats["0"]["weight"]
    wrong = [
        ({"0": {"weight": {**grid, "fracs": [2**70]}}}, "0.*must be a whole number of size"),
        ({"0": {"weight": {**grid, "fracs": [1, 2]}}}, "0.*its weight has not the 2 channels"),
        ({"0": {"weight": {**grid, "low": 3, "high": 3}}}, "0.*its weight is not on the grid of its format"),
        ({"0": {"weights": grid}}, "0.*Linear has no format of 'weights'"),
        ({"0": {"weight": 3}}, "0.*TypeError"),
        ({"5": {}}, "5.*AttributeError"),
        ({"1": {**formats["1"], "word": 400}}, "1.*400 must be a whole number"),
        ({"1": {**formats["1"], "tables": [["exp", [0, 1, 2**40]]]}}, "1.*must be a whole number of size"),
        ({"1": {**formats["1"], "values": {}}}, "1.*its values are of , and the neuron has"),
        ({"1": {**formats["1"], "dtype": "torch.load"}}, "1.*KeyError"),
    ]
    for formats_of_stranger, message in wrong:
        with pytest.raises(ValueError, match=f"sc.quant.restored: '?{message}"):
            sc.quant.restored(plain, formats_of_stranger)
    sc.nir.save(plain, tmp_path / "net.nir", dt=1e-4, formats=formats)
    for text, message in (("[1", "is damaged"), ('{"other": {}}', "has 'other', which is no node")):
        graph = nir.read(tmp_path / "net.nir")
        graph.nodes["1"].metadata["spikecore_formats"] = text
        with pytest.raises(ValueError, match=f"spikecore_formats.*{message}"):
            sc.nir.load(graph)


def test_what_is_loaded_computes_in_floats(tmp_path: Path) -> None:
    """With the weights of the integers, and neurons of the same parameters."""
    torch.manual_seed(0)
    x = (torch.rand(10, 4, 6) < 0.5).float()
    prepared = sc.quant.prepare(nn.Sequential(nn.Linear(6, 8), sc.LIF()), x)
    plain, formats = sc.quant.plain(prepared)
    sc.nir.save(plain, tmp_path / "net.nir", dt=1e-4, formats=formats)
    loaded = sc.nir.load(tmp_path / "net.nir")
    expected = sc.LIF()(prepared[0](x))
    assert torch.equal(loaded(x), expected)
