"""NormNeuron, sc.fuse and sc.unfuse: the numbers of batch normalisation and neuron one after the other, everywhere."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import refusals
import spikecore as sc
from spikecore.context import COMPILES
from spikecore.layers import NormNeuron, TimeBatched

T, B, C = 5, 6, 4
SHAPE = (C, 3, 2)


def drive(*shape, seed=0):
    """Values that make neurons fire after normalisation, far from zero before."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2.0 + 3.0


def norm(**options):
    """Batch normalisation whose scale and shift are not those it begins with."""
    made = nn.BatchNorm2d(C, **options)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(0.6, 1.8, C))
        made.bias.copy_(torch.linspace(-0.2, 0.5, C))
    return made


def lif(**options):
    """A neuron of the reference backend."""
    return sc.LIF(backend="torch", **options)


def both(layer, plain, x, *skip):
    """Outputs and gradients of the layer and of the plain computation, of x, skips and parameters."""
    results = []
    for net in (layer, plain):
        tensors = [value.clone().requires_grad_() for value in (x, *skip)]
        y = net(*tensors)
        (y * torch.linspace(-1.0, 2.0, y.numel()).view(y.shape)).sum().backward()
        grads = [parameter.grad for parameter in net.parameters()]
        results.append([y, *(value.grad for value in tensors), *grads])
    return results


class Halving(sc.LIF):
    """A neuron with a call of its own, which changes its input."""

    def __call__(self, x):
        """LIF of half the input."""
        return super().__call__(0.5 * x)


class TestNormNeuron:
    """One layer."""

    def test_a_shortcut_is_no_longer_normalised(self):
        """Without its normalisation it is added as it is."""
        normed, neuron, x, skip = norm(), lif(), drive(T, B, *SHAPE), drive(T, B, *SHAPE, seed=9)
        layer = NormNeuron(normed, neuron, shortcut="before", shortcut_norm=norm(eps=0.1)).eval()
        layer(x, skip)
        layer.shortcut_norm = None
        torch.testing.assert_close(layer(x, skip), lif()(TimeBatched(normed)(x) + skip))

    def test_single_steps_carry_the_state_and_normalise_each_step(self):
        """x is [B, C, ...], and the state stays until sc.reset."""
        layer, plain = NormNeuron(norm(), lif(step="single")), nn.Sequential(norm(), lif(step="single"))
        for seed in range(4):
            x = drive(B, *SHAPE, seed=seed)
            assert torch.equal(layer(x), plain(x))
        sc.reset(layer), sc.reset(plain)
        assert torch.equal(layer(x), plain(x))


def network(step="multi"):
    """Convolutions with batch normalisation, nested, and one without."""
    wrap = TimeBatched if step == "multi" else nn.Sequential
    return nn.Sequential(
        wrap(nn.Conv2d(2, C, 3, padding=1), nn.BatchNorm2d(C)),
        lif(step=step),
        nn.Sequential(wrap(nn.Conv2d(C, C, 1, bias=False), nn.Sequential(nn.BatchNorm2d(C))), nn.Identity()),
        nn.Sequential(lif(step=step, learn=("tau",)), wrap(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(C * 4, 3))),
        lif(step=step),
    )


class TestFuse:
    """A network as it is."""

    def test_functional_call_says_which_names_it_takes(self):
        """Plain names lead to no parameter of a fused network; those of its modules do."""
        net, x = sc.fuse(network()), drive(T, B, 2, 4, 4)
        with pytest.raises(AttributeError, match=r"NormPlace has no tensor 'weight': .* names of net.named_parameters"):
            torch.func.functional_call(net, net.state_dict(), (x,))
        tau = {"1.tau": torch.tensor(3.0)}
        with pytest.raises(AttributeError, match="NormNeuron has no tensor 'tau'"):
            torch.func.functional_call(net, tau, (x,))
        named = {name: value.detach().clone() for name, value in net.named_parameters()}
        assert torch.equal(torch.func.functional_call(net.eval(), named, (x,)), net(x))

    def test_what_it_cannot_be_sure_of_is_left_alone(self):
        """Other norms, norms and neurons at two places, with hooks, in front of something else."""
        neuron = lif()
        hooked = nn.BatchNorm2d(C)
        hooked.register_forward_hook(lambda *_: None)
        twice = TimeBatched(nn.BatchNorm2d(C))
        nets = {
            "net.0.module": nn.Sequential(TimeBatched(nn.SyncBatchNorm(C)), lif()),
            "net.0.module before a neuron at two": nn.Sequential(TimeBatched(nn.BatchNorm2d(C)), neuron, neuron),
            "net.0.module with a hook": nn.Sequential(TimeBatched(hooked), lif()),
            "net.0.module.0": nn.Sequential(TimeBatched(nn.BatchNorm2d(C), nn.ReLU()), lif()),
            "net.0.module in a list": nn.ModuleList([TimeBatched(nn.BatchNorm2d(C)), lif()]),
            "net.0.module twice": nn.Sequential(twice, lif(), twice),
            "net.0": nn.Sequential(nn.BatchNorm2d(C), lif()),
            "": nn.Sequential(TimeBatched(nn.InstanceNorm2d(C)), lif()),
            " made by hand": nn.Sequential(NormNeuron(nn.BatchNorm2d(C), lif())),
            " without neurons": nn.Sequential(TimeBatched(nn.BatchNorm2d(C))),
        }
        for about, net in nets.items():
            before = [type(module) for module in net.modules()]
            norm = about.partition(" ")[0]
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                assert [type(module) for module in sc.fuse(net).modules()] == before, about
            assert [type(module) for module in sc.unfuse(net).modules()] == before, about
            # those without a name have no batch normalisation that a user could expect to be taken
            assert [f"neuron can take over ({norm}, for one" in str(one.message) for one in said] == [True][: len(norm)]
            assert [one.filename for one in said] == [__file__][: len(norm)]
        with pytest.raises(TypeError, match=r"sc\.fuse: net=3 is an int"):
            sc.fuse(3)

    def test_checkpoints_load_both_ways(self):
        """Plain and fused, within another network, of a part, copied, and under the names of the new modules."""
        plain, fused = network(), sc.fuse(network())
        for change in (lambda net: net, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))):
            for target, source in ((change(fused), plain), (plain, change(fused)), (change(fused), network())):
                wrapped = nn.ModuleDict({"a": target, "b": nn.Linear(2, 2)})
                wrapped.load_state_dict(nn.ModuleDict({"a": source, "b": nn.Linear(2, 2)}).state_dict())
                for name, value in source.state_dict().items():
                    assert torch.equal(target.state_dict()[name], value), name
        fused.load_state_dict({**dict(plain.state_dict()), "1.norm.weight": torch.ones(C)}, strict=False)
        assert torch.equal(fused.state_dict()["0.module.1.weight"], torch.ones(C))
        fused.load_state_dict({**dict(fused.named_parameters()), **dict(fused.named_buffers())})
        fused[1].load_state_dict(fused[1].state_dict())
        with pytest.raises(RuntimeError, match="1.norm.bias"):
            fused.load_state_dict({k: v for k, v in plain.state_dict().items() if k != "0.module.1.bias"})
        sc.unfuse(fused).load_state_dict(plain.state_dict())

    @pytest.mark.skipif(not COMPILES, reason="sc.checkpoint needs torch 2.6")
    def test_checkpointed_groups_move_running_statistics_once(self):
        """Of a fused network, each part of which is computed again."""
        net, plain = sc.fuse(network()), network()
        plain.load_state_dict(net.state_dict())
        net = sc.checkpoint(net, every=1)
        for mine, its in zip(*both(net, plain, drive(T, B, 2, 4, 4))):
            torch.testing.assert_close(mine, its)
        torch.testing.assert_close(dict(net.state_dict()), dict(plain.state_dict()))


test_refused = refusals.table(__file__, globals(), prune)
