"""Graphs of other writers: by hand against NIR's equations in NumPy, files of other libraries; and what is refused."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import refusals
import spikecore as sc
from nir_peers import WRITERS, how
from places import check
from spikecore_nir import Convention

nir = pytest.importorskip("nir", reason="the package nir, which needs Python 3.10, is not installed")
N, T, B = 4, 30, 3
RNG = np.random.default_rng(0)


def _of(low, high):
    return RNG.uniform(low, high, N)


#: A node of each kind of neuron, in float64.
NODES = {
    "I": lambda: nir.I(r=_of(50, 90)),
    "IF": lambda: nir.IF(r=_of(300, 500), v_threshold=_of(1, 2), v_reset=_of(-0.2, 0.2)),
    "LI": lambda: nir.LI(tau=_of(4e-3, 9e-3), r=_of(1, 3), v_leak=_of(-0.2, 0.2)),
    "LIF": lambda: nir.LIF(
        tau=_of(4e-3, 9e-3), r=_of(2, 4), v_leak=_of(-0.2, 0.2), v_threshold=_of(0.3, 0.6), v_reset=_of(-0.3, 0)
    ),
    "CubaLI": lambda: nir.CubaLI(
        tau_syn=_of(2e-3, 5e-3), tau_mem=_of(4e-3, 9e-3), r=_of(1, 3), v_leak=_of(-0.2, 0.2), w_in=_of(1, 2)
    ),
    "CubaLIF": lambda: nir.CubaLIF(
        tau_syn=_of(2e-3, 5e-3),
        tau_mem=_of(4e-3, 9e-3),
        r=_of(1, 3),
        v_leak=_of(-0.2, 0.2),
        v_threshold=_of(0.3, 0.6),
        v_reset=_of(-0.3, 0),
        w_in=_of(1, 2),
    ),
}


def _graph(*nodes, **named):
    """Nodes in a row."""
    return nir.NIRGraph.from_list(*nodes, type_check=False)


def _part(tau, resistance, dt, way):
    """The factor of a step, and that of an input."""
    decay = 1 - dt / tau if way == "euler" else np.exp(-dt / tau)
    return decay, resistance * (1 - decay)


def _by_hand(node, x, dt, way):
    """NIR's equations, step by step."""
    kind, fires = type(node).__name__, hasattr(node, "v_threshold")
    i, out = np.zeros(N), []
    v = node.v_leak if hasattr(node, "v_leak") else (node.v_reset if fires else np.zeros(N))
    v, i = np.broadcast_to(v, x.shape[1:]), np.broadcast_to(i, x.shape[1:])
    for now in x:
        if kind.startswith("Cuba"):
            decay, gain = _part(node.tau_syn, node.w_in, dt, way)
            i = now = i * decay + gain * now
        if kind in ("I", "IF"):
            v = v + node.r * dt * now
        else:
            decay, gain = _part(node.tau_mem if kind.startswith("Cuba") else node.tau, node.r, dt, way)
            v = node.v_leak + (v - node.v_leak) * decay + gain * now
        z = (v > node.v_threshold).astype(float) if fires else v
        out.append(z)
        v = np.where(z == 1, node.v_reset, v) if fires else v
    return np.stack(out)


@pytest.mark.parametrize("way", ["euler", "exp"])
@pytest.mark.parametrize("kind", NODES)
def test_neurons_compute_the_equations_of_nir(kind: str, way: str) -> None:
    """In float64, spikes and potentials, with every parameter different for each neuron."""
    node, x = NODES[kind](), RNG.normal(0.5, 2, (T, B, N))
    want = _by_hand(node, x, 1e-3, way)
    got = sc.nir.load(_graph(node), dt=1e-3, discretization=way)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    if hasattr(node, "v_threshold"):
        assert 0.02 < want.mean() < 0.9


def test_every_node_of_the_package_is_mapped() -> None:
    """A node of a later nir is refused by name, and those of this one are in the list of the error."""
    there = {each.__name__ for each in nir.NIRNode.__subclasses__()} - {"Identity"}

    class Later(nir.Scale):
        pass

    with pytest.raises(ValueError, match="node 'later' is a Later, which has no module here; there are I, IF,") as told:
        sc.nir.load(_graph(Later(np.ones(3))))
    mapped = re.findall(r"\w+", str(told.value).partition("; there are ")[2])
    check("nodes of NIR", there, {*mapped, "Input", "Output", "NIRGraph"}, others=True)


@pytest.mark.parametrize(("rule", "gain"), [("current", 3 * 0.25), ("jump", 3.0), ("rate/decay", 3 * 0.25 / 0.75)])
def test_gains_of_conventions(rule: str, gain: float) -> None:
    """Gain of one unit of input, for each rule and each place that has one; tau = 4 steps of Euler."""
    one = np.ones(1)
    like = Convention("euler", 1.0, lif=rule, li=rule, synapse=rule)
    lif = nir.LIF(tau=4 * one, r=3 * one, v_leak=0 * one, v_threshold=one)
    cuba = nir.CubaLI(tau_syn=4 * one, tau_mem=4 * one, r=3 * one, v_leak=0 * one, w_in=3 * one)
    assert sc.nir.load(_graph(lif), convention=like).get_submodule("lif").gain == pytest.approx(gain)
    loaded = sc.nir.load(_graph(cuba), convention=like).get_submodule("cubali")
    assert (loaded.gain, loaded.syn_gain) == (pytest.approx(gain), pytest.approx(gain))
    exact = replace(like, discretization="exp", lif="current")
    loaded = sc.nir.load(_graph(lif), convention=exact).get_submodule("lif")
    assert (loaded.decay, loaded.gain) == (pytest.approx(np.exp(-0.25)), pytest.approx(3 * (1 - np.exp(-0.25))))


def test_a_convention_with_a_time_step() -> None:
    """dt= beside the name of a library is the time step of its convention."""
    one = np.ones(1)
    graph = _graph(nir.LIF(tau=2 * one, r=one, v_leak=0 * one, v_threshold=one))
    assert sc.nir.load(graph, convention="norse", dt=0.5).get_submodule("lif").decay == pytest.approx(0.75)


def test_layers_of_a_graph() -> None:
    """Every layer, in float64, and names with dots."""
    rng = np.random.default_rng(1)
    weight, bias = rng.normal(size=(4, 1, 3, 2)), rng.normal(size=4)
    scale, affine = rng.normal(size=16), nir.Affine(rng.normal(size=(3, 16)), rng.normal(size=3))
    nodes = {
        "in": nir.Input({"input": np.array([2, 7, 9])}),
        "a.conv": nir.Conv2d((7, 9), weight, (2, 1), (1, 0), (1, 2), 2, bias),
        "a.sum": nir.SumPool2d(np.array([2, 1]), np.array([2, 2]), np.array([0, 0])),
        "a.avg": nir.AvgPool2d(np.array([1, 2]), np.array([1, 2]), np.array([0, 0])),
        "flat": nir.Flatten({"input": np.array([4, 2, 2])}, 0, -1),
        "scale": nir.Scale(scale),
        "fc": affine,
        "cut": nir.Threshold(np.array([0.1, 0.0, -0.1])),
        "late": nir.Delay(np.array([0.0, 1e-3, 2e-3])),
        "out": nir.Output({"output": np.array([3])}),
    }
    names = list(nodes)
    net = sc.nir.load(nir.NIRGraph(nodes, list(zip(names, names[1:])), type_check=False), dt=1e-3)
    x = torch.from_numpy(rng.normal(size=(5, 2, 2, 7, 9)))
    y = F.conv2d(x.flatten(0, 1), torch.from_numpy(weight), torch.from_numpy(bias), (2, 1), (1, 0), (1, 2), 2)
    y = F.avg_pool2d(F.avg_pool2d(y, (2, 1), (2, 2)) * 2, (1, 2), (1, 2)).flatten(1) * torch.from_numpy(scale)
    y = F.linear(y, torch.from_numpy(affine.weight), torch.from_numpy(affine.bias)).view(5, 2, 3)
    z = (y > torch.tensor([0.1, 0.0, -0.1], dtype=torch.float64)).double()
    want = torch.stack([F.pad(z[: 5 - d, :, d], (0, 0, d, 0)) for d in range(3)], -1)
    assert torch.equal(net(x), want)
    assert isinstance(net.get_submodule("a.conv"), torch.nn.Conv2d)
    one = nir.Conv1d(9, rng.normal(size=(2, 2, 3)), 2, "valid", 1, 1, np.zeros(2))
    got = sc.nir.load(_graph(one))(x[:, :, :, 0])
    wanted = F.conv1d(x[:, :, :, 0].flatten(0, 1), torch.from_numpy(one.weight), stride=2)
    assert torch.equal(got, wanted.view(5, 2, 2, 4))


def _loop(extra_nodes=(), edges=(), kind="LIF"):
    """A neuron with feedback, and whatever else."""
    torch.manual_seed(0)
    nodes = {
        "in": nir.Input({"input": np.array([N])}),
        "lif": NODES[kind](),
        "w": nir.Linear(RNG.normal(size=(N, N)) * 3),
        "out": nir.Output({"output": np.array([N])}),
        **dict(extra_nodes),
    }
    first = edges or [("in", "lif"), ("lif", "w"), ("w", "lif"), ("lif", "out")]
    return nir.NIRGraph(nodes, list(first), type_check=False)


def test_an_output_that_comes_back_does_so_one_step_later() -> None:
    """In the graph itself and as a subgraph; with a delay, so many steps more."""
    x, rest = RNG.normal(0.5, 2, (T, B, N)), {"dt": 1e-3, "discretization": "euler"}
    for delay in (0, 2):
        graph = _loop()
        if delay:
            graph.nodes["d"] = nir.Delay(np.full(N, delay * 1e-3))
            graph.edges = [("in", "lif"), ("lif", "d"), ("d", "w"), ("w", "lif"), ("lif", "out")]
        node, w = graph.nodes["lif"], graph.nodes["w"].weight
        decay, gain = _part(node.tau, node.r, 1e-3, "euler")
        v, out = np.broadcast_to(node.v_leak, (B, N)), [np.zeros((B, N))] * (delay + 1)
        for t, now in enumerate(x):
            v = node.v_leak + (v - node.v_leak) * decay + gain * (now + out[t] @ w.T)
            z = (v > node.v_threshold) * 1.0
            v = np.where(z == 1, node.v_reset, v)
            out.append(z)
        outer = {"in": nir.Input({"input": np.array([N])}), "r": graph, "out": nir.Output({"output": np.array([N])})}
        nested = nir.NIRGraph(outer, [("in", "r"), ("r", "out")], type_check=False)
        for each in (graph, nested):
            net = sc.nir.load(each, **rest)
            np.testing.assert_array_equal(net(torch.from_numpy(x)).detach().numpy(), np.stack(out[delay + 1 :]))
        assert isinstance(net.get_submodule("r"), sc.Recurrent)


def _edges(*pairs):
    return [tuple(pair.split(">")) for pair in pairs]


def test_numbers_from_which_no_step_follows() -> None:
    """Such as an infinite tau, which makes R dt/tau NaN, and a dt in another unit than tau."""
    one, rest = np.ones(2), {"dt": 1e-3, "discretization": "euler"}
    lif = {"tau": one, "r": one, "v_leak": one, "v_threshold": one}
    for change, words in (
        (
            {"tau": np.array([1, np.inf])},
            "node 'lif', a LIF, has tau=inf; a neuron that does not leak must be an IF or I",
        ),
        ({"v_leak": one * np.nan}, "has v_leak=nan; it must be finite"),
        (
            {"v_threshold": one * np.inf},
            "has v_threshold=inf; give a neuron that never fires a finite threshold, which its potential does not",
        ),
        ({"tau": -one}, "node 'lif' has tau=-1, which must be above 0"),
        (
            {"tau": one * 1e-5},
            "has tau=1e-05, shorter than the time step dt=0.001, so that Euler's 1 - dt/tau is below 0",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            sc.nir.load(_graph(nir.LIF(**{**lif, **change})), **rest)
    short = _graph(nir.LIF(**{**lif, "tau": one * 1e-5}))
    assert sc.nir.load(short, dt=1e-3, discretization="exp").get_submodule("lif").decay == pytest.approx(0)


PEERS = ZipFile(Path(__file__).parent / "peers.zip")


def _read(name, folder):
    """The file of this name, its input and the spikes of its library."""
    PEERS.extract(f"{name}.nir", folder)
    held = np.load(io.BytesIO(PEERS.read(f"{name}.npz")))
    return folder / f"{name}.nir", torch.from_numpy(held["x"]), torch.from_numpy(held["y"]).float()


def test_every_writer_has_its_file() -> None:
    """The archive is that of the program that makes it."""
    check("peers.zip", {Path(each).stem for each in PEERS.namelist()}, WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_spikes_are_those_of_the_library(name: str, tmp_path) -> None:
    """Every spike of every step."""
    file, x, y = _read(name, tmp_path)
    net = sc.nir.load(file, **how(name))
    assert y.sum() > 20
    assert torch.equal(net(x), y)


test_refused = refusals.table(__file__, globals())
