"""A fused network whose modules are changed afterwards: it refuses to compute, or computes what the plain one does."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import TimeBatched

T, B, C = 4, 6, 8
REFUSED = "a module was put in, replaced or taken away.*sc.fuse.net. again, or sc.unfuse"


def lif():
    """A neuron of the reference backend."""
    return sc.LIF(backend="torch")


def network(nested=False):
    """Two pairs of normalisation and neuron, in sequences within the sequence where ``nested``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        front = TimeBatched(nn.Conv2d(2, C, 3, padding=1), nn.BatchNorm2d(C), nn.Identity())
        back = TimeBatched(nn.Conv2d(C, C, 3, padding=1), nn.BatchNorm2d(C))
    for one in (front, back):
        nn.init.constant_(one.module[1].bias, 0.6)
    if nested:
        return nn.Sequential(nn.Sequential(nn.Identity(), front), nn.Sequential(lif(), back), lif())
    return nn.Sequential(front, lif(), back, lif())


def batch():
    """Images of some steps."""
    return torch.rand(T, B, 2, 6, 6, generator=torch.Generator().manual_seed(1)) * 2


def put(index, module):
    """A change that puts a module at a place of the network."""

    def change(net):
        net[index] = module()

    return change


def put_within(index, module):
    """The same within the TimeBatched of the first layer."""

    def change(net):
        net[0].module[index] = module()

    return change


CHANGES = {
    "neuron replaced by another kind": put(1, nn.ReLU),
    "neuron replaced by a neuron": put(1, sc.IF),
    "last neuron replaced": put(3, lif),
    "normalisation replaced": put_within(1, lambda: nn.BatchNorm2d(C, eps=0.3)),
    "normalisation taken away": put_within(1, nn.Identity),
    "layer replaced": put(2, nn.Identity),
    "put behind the normalisation": lambda net: net[0].module.append(nn.Hardtanh()),
    "put in the place of what did nothing": put_within(2, nn.Hardtanh),
    "put in front of the neuron": lambda net: net.insert(1, nn.Hardtanh()),
    "neuron taken away": lambda net: net.__delitem__(1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_between_the_two_is_refused_until_it_is_fused_again(change):
    """Then, and unfused, it computes what the plain network with the same change computes."""
    torch.manual_seed(2)
    plain = network()
    change(plain)
    fused = sc.fuse(network())
    change(fused)
    fused.load_state_dict(plain.state_dict(), strict=False)
    with pytest.raises(RuntimeError, match=REFUSED) as raised:
        fused(batch())
    assert "step='single'" not in str(raised.value)
    expected = plain(batch())
    for again in (sc.unfuse, sc.fuse, sc.fuse):
        again(fused)
        fused.load_state_dict(plain.state_dict())
        assert torch.equal(fused(batch()), expected)
    sc.unfuse(fused)
    assert "computed by the neuron" not in repr(fused)


@pytest.mark.parametrize("nested", [False, True])
def test_other_changes_are_none_of_its_business(nested):
    """What stands in front of a normalisation or behind a neuron; wrappers that call a module as it is."""
    fused, plain = sc.fuse(network(nested)), network(nested)
    for net in (fused, plain):
        with torch.no_grad():
            torch.manual_seed(3)
            convolutions = [one for one in net.modules() if isinstance(one, TimeBatched)]
            for one in convolutions:
                one.module[0] = nn.Conv2d(one.module[0].in_channels, C, 1)
        net.append(nn.Flatten(2))
    assert repr(fused).count("computed by the neuron") == 2
    assert torch.equal(fused(batch()), plain(batch()))
    fused[0] = torch.compile(fused[0], backend="eager")
    assert torch.equal(fused(batch()), plain(batch()))


@pytest.mark.parametrize("nested", [False, True])
def test_copies(nested):
    """Of the whole network they are fused; a copy of a part feeds no neuron, or is fed by no normalisation."""
    fused = sc.fuse(network(nested))
    expected = fused(batch())
    for copied in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), copy.copy(fused)):
        assert torch.equal(copied(batch()), expected)
        assert repr(copied).count("computed by the neuron") == 2
    assert torch.equal(copy.deepcopy(nn.ModuleDict({"net": fused}))["net"](batch()), expected)
    if not nested:
        for part, x in ((fused[0], batch()), (fused[1], torch.rand(T, B, C, 6, 6))):
            alone = copy.deepcopy(part)
            with pytest.raises(RuntimeError, match="a copy of a part of the network"):
                alone(x)
            assert torch.equal(sc.unfuse(alone)(x), sc.unfuse(copy.deepcopy(fused))[0 if part is fused[0] else 1](x))


@pytest.mark.parametrize("nested", [False, True])
def test_a_module_that_a_sequence_calls_twice_stands_between(nested):
    """One pooling layer in two places: the second one is between the normalisation and the neuron."""
    pool = TimeBatched(nn.MaxPool2d(2))
    front = network()
    layers = [*front[:2], pool, front[2], pool, front[3]]
    net = nn.Sequential(nn.Sequential(*layers[:4]), *layers[4:]) if nested else nn.Sequential(*layers)
    expected = net(batch())
    assert repr(sc.fuse(net)).count("computed by the neuron") == 1
    assert torch.equal(net(batch()), expected)


@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6),
    reason="torch.compile looks through neurons from torch 2.6 on",
)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_network_sees_it_too():
    """It is one graph, and is traced anew after a change."""
    net = sc.fuse(network())
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch()), net(batch()))
    net[1] = nn.ReLU()
    with pytest.raises(Exception, match=REFUSED):
        compiled(batch())
    plain = network()
    plain[1] = nn.ReLU()
    sc.unfuse(net).load_state_dict(plain.state_dict())
    torch.testing.assert_close(torch.compile(net, backend="eager", fullgraph=True)(batch()), plain(batch()))
