"""``sc.hoist`` and ``sc.fuse`` rewrite a network: values, names, and where each stops."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import TimeBatched

T, B = 5, 3
IMAGE = (B, 4, 8, 8)


@pytest.fixture(autouse=True)
def _same_weights():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def values(*shape, seed=0):
    """Values in [0, 3), in float64."""
    return 3 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(*modules):
    """The layers behind an encoder, hoisted and as they are."""
    net = nn.Sequential(sc.encode.Constant(T), *modules).double()
    return sc.hoist(copy.deepcopy(net)), net


def check_same(once, every, x):
    """Names, outputs, and gradients of input and parameters."""
    assert [*once.state_dict()] == [*every.state_dict()]
    cotangent, results = None, []
    for net in (once, every):
        step = x.clone().requires_grad_()
        out = net(step)
        cotangent = values(*out.shape, seed=1) if cotangent is None else cotangent
        results.append((out.detach(), *torch.autograd.grad(out, [step, *net.parameters()], cotangent)))
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


SAMPLES = {
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3), IMAGE),
    "Linear": (lambda: nn.Linear(7, 5), (B, 7)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGE),
    "Flatten": (nn.Flatten, IMAGE),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU()), nn.MaxPool2d(2)), IMAGE),
}


class TestLayers:
    """Which layers see no time."""

    @pytest.mark.parametrize("name", SAMPLES)
    def test_within_time_batched(self, name):
        """A chain that ends in the neuron, which repeats."""
        make, shape = SAMPLES[name]
        once, every = pair(TimeBatched(make()), sc.LIF())
        assert isinstance(once[0], nn.Identity)
        assert type(once[1]) is nn.Sequential
        assert once[2].repeat == T
        check_same(once, every, values(*shape))

    def test_as_they_are(self):
        """Linear layers, activations, nn.LayerNorm, a flattening behind time and batch, and chains within chains."""
        layers = [nn.Sequential(nn.Flatten(2), nn.Linear(256, 7)), nn.LayerNorm(7), nn.Sequential(nn.Tanh(), sc.LIF())]
        once, every = pair(*layers, nn.Linear(7, 2), sc.LI())
        assert once[1][0].start_dim == 1
        assert once[3][1].repeat == T
        assert once[5].repeat is None
        check_same(once, every, values(*IMAGE))

    def test_batch_normalisation_counts_one_step(self):
        """The running variance is the unbiased one of B numbers, where it was that of T * B."""
        once, every = pair(TimeBatched(nn.BatchNorm1d(4, momentum=1.0)), sc.LIF())
        x = values(B, 4)
        once(x), every(x)
        torch.testing.assert_close(once[1].module.running_var, x.var(0))
        torch.testing.assert_close(every[1].module.running_var, x.expand(T, B, 4).reshape(-1, 4).var(0))

    @pytest.mark.parametrize(
        "layer",
        [
            nn.Dropout(),
            nn.ReLU(inplace=True),
            nn.Flatten(0, 1),
            nn.BatchNorm1d(7),
            type("Mine", (nn.Linear,), {})(7, 7),
            sc.Recurrent(sc.LIF(), nn.Linear(7, 7)),
        ],
        ids=lambda layer: type(layer).__name__,
    )
    def test_where_it_stops(self, layer):
        """The encoder stands in front, under a name of its own; names of the others stay."""
        net = nn.Sequential(sc.encode.Constant(T), nn.Linear(7, 7), nn.Sequential(nn.Tanh(), layer))
        names = [*net.state_dict()]
        sc.hoist(net)
        assert [name for name, _ in net[2].named_children()] == ["0", "constant", "1"]
        assert [*net.state_dict()] == names
        before = repr(net)
        assert repr(sc.hoist(net)) == before  # a second call changes nothing, and does not warn

    def test_a_neuron_at_two_places_takes_time(self):
        """At the other one its input has time."""
        neuron = sc.LIF()
        net = sc.hoist(nn.Sequential(sc.encode.Constant(T), nn.Linear(7, 7), neuron, nn.Linear(7, 7), neuron))
        assert neuron.repeat is None
        assert net(torch.rand(B, 7)).shape == (T, B, 7)


class TestCalls:
    """What is refused, and what goes with it."""

    def test_nothing_to_move_warns(self):
        """An encoder that makes spikes, and none."""
        for net in (nn.Sequential(sc.encode.Poisson(T), nn.Linear(7, 5), sc.LIF()), nn.Linear(7, 5)):
            with pytest.warns(UserWarning, match=r"found no encode.Constant.*repeat=T"):
                assert sc.hoist(net) is net

    def test_hooks_stop_the_encoder(self):
        """They see every step, of a layer and of a neuron."""
        for hooked in (0, 1):
            layers = [nn.Linear(4, 4), sc.LIF()]
            seen = []
            layers[hooked].register_forward_hook(lambda module, args, out, seen=seen: seen.append(args[0].shape[0]))
            net = nn.Sequential(sc.encode.Constant(T), *layers)
            with (
                pytest.warns(UserWarning, match="found no encode.Constant") if hooked == 0 else contextlib.nullcontext()
            ):
                sc.hoist(net)
            net(torch.rand(B, 4))
            assert seen == [T]


STEPS, MANY, CHANNELS = 4, 6, 8


def lif():
    """A neuron of the reference backend."""
    return sc.LIF(backend="torch")


def network():
    """Two pairs of normalisation and neuron."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        front = TimeBatched(nn.Conv2d(2, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.Identity())
        back = TimeBatched(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS))
    for one in (front, back):
        nn.init.constant_(one.module[1].bias, 0.6)
    return nn.Sequential(front, lif(), back, lif())


def batch():
    """Images of some steps."""
    return torch.rand(STEPS, MANY, 2, 6, 6, generator=torch.Generator().manual_seed(1)) * 2


class Doubled(nn.Identity):
    """No identity, although derived from one."""

    def forward(self, input):
        """Twice the input."""
        return 2 * input


def test_an_identity_that_computes_something_stands_between():
    """The normalisation in front of it stays where it is."""
    front = network()
    net = nn.Sequential(front[0], Doubled(), *front[1:])
    expected = net(batch())
    assert repr(sc.fuse(net)).count("NormNeuron(") == 1
    assert torch.equal(net(batch()), expected)


class Halved(nn.Sequential):
    """A sequence that does more than to call its parts."""

    def forward(self, input):
        """Half of what its parts give."""
        return 0.5 * super().forward(input)


def test_a_sequence_that_does_more_than_to_call_its_parts_is_not_seen_through():
    """The normalisation that it holds last is not what it computes last."""
    front = network()
    net = nn.Sequential(Halved(front[0]), *front[1:])
    expected = net(batch())
    assert repr(sc.fuse(net)).count("NormNeuron(") == 1
    assert torch.equal(net(batch()), expected)
