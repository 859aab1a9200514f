"""``sc.fuse`` behind ``sc.convert``: SpikingJelly's layers with ``step_mode``, containers and attentions."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import NormNeuron

pytestmark = pytest.mark.peers

T, B = 4, 3


class Basic(nn.Module):
    """A residual block as in SpikingJelly's spiking ResNet (``before``) and SEW-ResNet."""

    def __init__(self, j, channels, before):
        super().__init__()
        self.conv1, self.bn1, self.sn1 = (
            j.layer.Conv2d(channels, channels, 3, 1, 1),
            j.layer.BatchNorm2d(channels),
            lif(j),
        )
        self.conv2, self.bn2, self.sn2 = (
            j.layer.Conv2d(channels, channels, 3, 1, 1),
            j.layer.BatchNorm2d(channels),
            lif(j),
        )
        self.before = before

    def forward(self, x):
        out = self.bn2(self.conv2(self.sn1(self.bn1(self.conv1(x)))))
        if self.before:
            out += x
            return self.sn2(out)
        return self.sn2(out) + x


def lif(j):
    return j.neuron.LIFNode(tau=2.0, surrogate_function=j.surrogate.ATan())


@pytest.fixture(scope="module")
def j():
    """SpikingJelly."""
    from types import SimpleNamespace

    from spikingjelly.activation_based import functional, layer, neuron, surrogate
    from spikingjelly.activation_based.model import ms_resnet, qkformer, spike_driven_transformer, spikformer

    return SimpleNamespace(
        functional=functional,
        layer=layer,
        neuron=neuron,
        surrogate=surrogate,
        ms_resnet=ms_resnet.MSResNet,
        qkformer=qkformer.QKFormer,
        spike_driven=spike_driven_transformer.SpikeDrivenTransformer,
        spikformer=spikformer.Spikformer,
    )


def resnet(j, before=True):
    learnt = j.neuron.ParametricLIFNode(surrogate_function=j.surrogate.ATan())
    stem = [j.layer.Conv2d(3, 8, 3, 1, 1), j.layer.BatchNorm2d(8), learnt, j.layer.MaxPool2d(2, 2)]
    rest = [Basic(j, 8, before), j.layer.AdaptiveAvgPool2d(1), j.layer.Flatten(), j.layer.Linear(8, 5)]
    return nn.Sequential(*stem, *rest)


def features(j):
    folded = j.layer.SeqToANNContainer(nn.Flatten(), nn.Linear(3 * 16 * 16, 16), nn.BatchNorm1d(16))
    return nn.Sequential(folded, lif(j), j.layer.Linear(16, 8), j.layer.BatchNorm1d(8), lif(j))


def spikformer(j):
    sizes = {"img_size_h": 16, "img_size_w": 16, "patch_size": 4, "in_channels": 3}
    return j.spikformer(**sizes, num_classes=5, embed_dims=16, num_heads=2, depths=1, T=T)


#: A network, and how many of its neurons take over their normalisation: all but those behind a pooling, those of
#: attention, those behind a sum of another module, and those that stand in front of convolutions.
NETWORKS = {
    "resnet": (resnet, 3),
    "sew": (lambda j: resnet(j, before=False), 3),
    "features": (features, 2),
    "spikformer": (spikformer, 7),
    "qkformer": (lambda j: j.qkformer(T=T, num_classes=5, embed_dims=16, num_heads=(2, 2, 2), depths=(1, 1, 1)), 18),
    "spike-driven": (
        lambda j: j.spike_driven(
            T=T,
            num_classes=5,
            embed_dims=16,
            num_heads=2,
            depths=1,
            pooling_stat="0011",
            surrogate_function=j.surrogate.ATan(),
        ),
        7,
    ),
    "ms-resnet": (
        lambda j: j.ms_resnet(T, layers=(1, 1, 1, 1), num_classes=5, base_channels=8, spiking_neuron=j.neuron.LIFNode),
        4,
    ),
}


def made(j, name, dtype=torch.float64):
    """A converted network whose neurons fire, in eval() with the statistics of a batch."""
    torch.manual_seed(0)
    net = NETWORKS[name][0](j)
    j.functional.set_step_mode(net, "m")
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.constant_(module.weight, 1.5)
            nn.init.constant_(module.bias, 0.3)
    sc.convert(net, strict=True)
    net.to(dtype)(images(dtype))
    j.functional.reset_net(net)
    return net.eval()


def images(dtype=torch.float64):
    return 2 * torch.rand(T, B, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)


def fused(net):
    return sum(isinstance(module, NormNeuron) for module in net.modules())


def trained(net):
    """Output, gradients by name and running statistics of a call in training and of one that goes on from it."""
    net.train()
    outputs = [net(images()), net(images())]
    (outputs[0].square().sum() + outputs[1].sum()).backward()
    rows = {name: value.clone() for name, value in net.state_dict().items()}
    return outputs, [value.grad for _, value in sorted(plain_names(net))], rows


def plain_names(net):
    """Parameters by the place that they have in the network before fusing."""
    keys = {id(value): key for key, value in net.state_dict(keep_vars=True).items()}
    return [(keys[id(value)], value) for value in net.parameters()]


@pytest.mark.parametrize("name", NETWORKS)
class TestEach:
    def test_eval(self, j, name):
        """Spikes are the same."""
        net = made(j, name)
        other = sc.fuse(copy.deepcopy(net))
        assert fused(other) == NETWORKS[name][1]
        assert torch.equal(other(images()), net(images()))

    def test_training(self, j, name):
        """Outputs, gradients and running statistics are the same, and a second call continues from the first."""
        net = made(j, name)
        other = sc.fuse(copy.deepcopy(net))
        (y, grads, rows), (y2, grads2, rows2) = trained(net), trained(other)
        torch.testing.assert_close(y2, y)
        largest = max(grad.abs().max() for grad in grads if grad is not None)
        for grad, grad2 in zip(grads, grads2):
            assert (grad is None) == (grad2 is None)
            assert grad is None or (grad - grad2).abs().max() <= 1e-10 * largest
        assert rows.keys() == rows2.keys()
        for key, value in rows.items():
            torch.testing.assert_close(rows2[key], value)


@pytest.mark.parametrize("name", ["resnet", "sew"])
def test_single_steps(j, name):
    """``set_step_mode`` counts after ``sc.fuse``: steps one by one give what all steps gave."""
    net = sc.fuse(made(j, name))
    expected = net(images())
    j.functional.reset_net(net)
    j.functional.set_step_mode(net, "s")
    torch.testing.assert_close(torch.stack([net(x) for x in images()]), expected)


def test_state_stays_spikingjellys(j):
    """The node keeps ``v``, ``v_seq``, ``reset`` and its numbers; ``unfuse`` puts everything back."""
    net = made(j, "resnet")
    keys = list(net.state_dict())
    plain = copy.deepcopy(net)
    sc.fuse(net)
    for each in (net, plain):
        each[2].store_v_seq = True
        each[2].v_threshold = 0.8
        each(images())
    assert isinstance(net[2].neuron, NormNeuron)
    assert net[2].neuron.neuron.threshold == 0.8
    torch.testing.assert_close(net[2].v, plain[2].v)
    torch.testing.assert_close(net[2].v_seq, plain[2].v_seq)
    j.functional.reset_net(net)
    assert net[2].v == 0.0
    copied = pickle.loads(pickle.dumps(net))
    j.functional.reset_net(plain)
    assert torch.equal(copied(images()), plain(images()))
    sc.unfuse(net)
    assert fused(net) == 0
    assert list(net.state_dict()) == keys
    j.functional.reset_net(net)
    j.functional.reset_net(plain)
    assert torch.equal(net(images()), plain(images()))


def test_checkpoints_load_both_ways(j):
    """A fused network takes the file of a plain one, and gives one; what is missing has its plain name."""
    net, other = made(j, "resnet"), sc.fuse(made(j, "resnet"))
    with torch.no_grad():
        net[1].weight.fill_(0.7)
        net[2].w.fill_(0.2)
    assert set(other.state_dict()) == set(net.state_dict())
    other.load_state_dict(net.state_dict())
    assert other[2].neuron.norm.weight[0] == 0.7
    assert other[2].neuron.neuron.w == 0.2
    net.load_state_dict(other.state_dict())
    missing = {key: value for key, value in net.state_dict().items() if key != "2.w"}
    assert other.load_state_dict(missing, strict=False).missing_keys == ["2.w"]


def test_what_stays(j):
    """A normalisation of single steps in front of a node of all steps, one that a list holds, and one with a hook."""
    mixed = nn.Sequential(j.layer.BatchNorm2d(3, step_mode="s"), lif(j))
    mixed[1].step_mode = "m"
    hooked = nn.Sequential(j.layer.BatchNorm2d(3, step_mode="m"), lif(j))
    hooked[1].step_mode = "m"
    hooked[0].register_forward_hook(lambda module, args, y: y)
    listed = nn.Sequential(j.layer.BatchNorm2d(3, step_mode="m"), lif(j))
    listed[1].step_mode = "m"
    listed.norms = [listed[0]]
    for net in (mixed, hooked, listed):
        assert list(sc.convert(net).replaced) == ["1"]
        with pytest.warns(UserWarning, match="found no batch normalisation"):
            sc.fuse(net)
    assert listed.norms[0] is listed[0]
