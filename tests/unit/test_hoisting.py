"""``sc.hoist`` moves a constant encoder behind the layers that see no time: values, names, and where it stops."""

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
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3), (B, 4, 8)),
    "Linear": (lambda: nn.Linear(7, 5), (B, 7)),
    "LayerNorm": (lambda: nn.LayerNorm(8), IMAGE),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGE),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), IMAGE),
    "ZeroPad2d": (lambda: nn.ZeroPad2d(1), IMAGE),
    "Flatten": (nn.Flatten, IMAGE),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 2)), IMAGE),
    "GELU": (nn.GELU, (B, 7)),
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

    def test_of_a_network_that_sc_fuse_changed(self):
        """The neuron normalises its one step."""
        every = pair(TimeBatched(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), sc.LIF(backend="torch"))[1]
        fused = sc.hoist(sc.fuse(copy.deepcopy(every)))
        assert fused[2].neuron.repeat == T
        check_same(fused, every, values(*IMAGE))

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
            TimeBatched(nn.Linear(7, 7), nn.Dropout()),
            nn.ReLU(inplace=True),
            nn.Flatten(0, 1),
            TimeBatched(nn.Flatten(0)),
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

    def test_to_the_end(self):
        """A chain of layers without a neuron, and an encoder that is not the first."""
        net = nn.Sequential(nn.Flatten(), sc.encode.Constant(T), nn.Linear(8, 7))
        x = torch.rand(B, 2, 4)
        expected = net(x)
        sc.hoist(net)
        assert isinstance(net[3], sc.encode.Constant)
        torch.testing.assert_close(net(x), expected)


class TestCalls:
    """What is refused, and what goes with it."""

    def test_a_training_step_and_the_steps_of_a_stream(self):
        """The same losses as of the network as it is; single steps go on."""
        losses = []
        for net in pair(nn.Linear(7, 5), sc.LIF(threshold=0.2), nn.Linear(5, 2), sc.LI()):
            step = sc.training_model(net, sc.losses.ce_max_membrane, torch.optim.SGD(net.parameters(), 0.1))
            losses.append([float(step(values(B, 7), torch.tensor([0, 1, 1]))[1]) for _ in range(3)])
            sc.set_step(net, "single")
            assert net(values(B, 7)).shape == (B, 2)
        torch.testing.assert_close(*map(torch.tensor, losses))

    def test_nothing_to_move_warns(self):
        """An encoder that makes spikes, and none."""
        for net in (nn.Sequential(sc.encode.Poisson(T), nn.Linear(7, 5), sc.LIF()), nn.Linear(7, 5)):
            with pytest.warns(UserWarning, match=r"found no encode.Constant.*repeat=T"):
                assert sc.hoist(net) is net

    def test_no_module(self):
        """The sentence says what to give."""
        with pytest.raises(TypeError, match=r"sc.hoist: net=3 is an int; give the network itself"):
            sc.hoist(3)

    def test_unhoist_says_what_to_write(self):
        """It is no longer there."""
        with pytest.raises(AttributeError, match=r"sc.hoist\(copy.deepcopy\(net\)\)"):
            sc.unhoist(nn.Linear(2, 2))

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


class TestConstant:
    """The encoder is a plain one."""

    def test_steps_have_memory_of_their_own(self):
        """So that one of them can be written, and the input stays; dimensions lie as those of the input."""
        x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
        y = sc.encode.Constant(T)(x)
        assert y[0].is_contiguous(memory_format=torch.channels_last)
        y[0] = 0
        assert torch.equal(y[1], x)
