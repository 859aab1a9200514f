"""Reading networks: the calls of a forward, who reads each value, and what cannot be followed."""

import copy
import random
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import refusals
import spikecore as sc
from spikecore.graph import NotFollowed, Refused, computed, folded, layer_of, norm_source, read, run, values


class Parts(nn.Module):
    """Layers for the forwards below."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm, self.lif = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4), sc.LIF()
        self.seen = []


class ReadTwice(Parts):
    def forward(self, x):
        h = self.a(x)
        return self.lif(h) + h


class CalledTwice(Parts):
    def forward(self, x):
        return self.a(self.a(x))


class Functional(Parts):
    def forward(self, x):
        return F.linear(x, self.a.weight) + self.a(x)


class WithDefault(Parts):
    def forward(self, x, y=None):
        return self.a(x) if y is None else self.b(y)


class Unfolded(Parts):
    def forward(self, x):
        h = self.a(x)
        return self.lif(self.norm(h.flatten(0, 1)).view_as(h))


class Loop(Parts):
    def forward(self, x):
        for layer in (self.a, self.b):
            x = x + layer(x)
        return {"out": x}["out"]


class OverTime(Parts):
    def forward(self, x):
        return self.lif(sc.layers.TimeBatched(nn.Sequential(self.a, self.norm))(x))


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.lif = TwoSpikes()

    def forward(self, x):
        first, second = self.lif(x)
        return first - second


class TwoSpikes(sc.Neuron):
    states = {"v": 0.0}
    params = {"threshold": 1.0}

    def dynamics(self, x, s, p):
        h = s.v + x
        return (self.spike(h - p.threshold), h), {"v": h}


def titles(graph):
    return [call.title for call in graph.calls if call.kind not in ("input", "output")]


FORWARDS = [ReadTwice, CalledTwice, Functional, WithDefault, Unfolded, Loop, OverTime, TwoOutputs]


@pytest.mark.parametrize("kind", FORWARDS)
def test_the_calls_of_a_graph_compute_what_the_network_computes(kind):
    net = kind().eval()
    x = torch.rand(3, 2, 4)
    *_, (output, value) = values(read(net), x)
    assert output.kind == "output"
    assert torch.equal(value, net(x))


def test_a_value_knows_its_readers_and_a_module_its_calls():
    net = ReadTwice()
    graph = read(net)
    (call,) = graph.calls_of(net.a)
    assert [reader.title for reader in call.readers] == ["LIF at 'lif'", "the call of add (add)"]
    assert len(read(twice := CalledTwice()).calls_of(twice.a)) == 2


def test_a_weight_that_forward_reads_itself_is_used_twice():
    net = Functional()
    graph = read(net)
    assert [call.title for call in graph.uses(net.a.weight)] == ["the attribute 'a.weight'", "Linear at 'a'"]


def test_who_asks_for_the_shape_of_a_value_is_no_reader():
    net = Unfolded()
    graph = read(net)
    assert [reader.function for reader in graph.calls_of(net.a)[0].readers] == ["flatten"]


def test_layers_of_time_batched_are_calls_with_time_folded_into_the_batch():
    net = nn.Sequential(sc.layers.TimeBatched(nn.Linear(4, 4), nn.BatchNorm1d(4)), sc.LIF())
    graph = read(net)
    folded, linear, norm, unfolded, lif = graph.calls[1:-1]
    assert [call.function for call in (folded, unfolded)] == ["folded", "unfolded_as"]
    assert [call.title for call in (linear, norm, lif)] == [
        "Linear at '0.module.0'",
        "BatchNorm1d at '0.module.1'",
        "LIF at '1'",
    ]
    assert linear.is_folded
    assert norm.is_folded
    assert not lif.is_folded
    assert not any(call.is_folded for call in read(sc.set_step(net, "single")).calls)


def test_a_layer_is_what_its_class_says_where_nothing_of_it_is_overridden():
    class Plain(nn.Linear):
        """A name of its own."""

    class Dale(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.abs(), self.bias)

    class Called(nn.Linear):
        def __call__(self, x):
            return 2 * super().__call__(x)

    assert layer_of(Plain(2, 2)) is layer_of(weight_norm(nn.Linear(2, 2))) is nn.Linear
    assert layer_of(Dale(2, 2)) is layer_of(Called(2, 2)) is None


def test_a_forward_may_loop_over_the_steps_of_an_example():
    net = Steps()
    graph = read(net, inputs=[torch.rand(3, 2, 4)])
    assert len(graph.calls_of(net.a)) == 3
    *_, (_, value) = values(graph, x := torch.rand(3, 2, 4))
    assert torch.equal(value, net(x))


def test_hooks_make_a_call_of_what_has_them_whatever_it_holds():
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    net[0].register_forward_hook(lambda module, args, output: 2 * output)
    (call,) = read(net).calls[1:2]
    assert call.title == "Sequential at '0'"
    assert call.is_hooked
    net.register_forward_hook(lambda module, args, output: output)
    assert titles(read(net)) == ["Sequential"]


def test_a_module_with_hooks_is_followed_past_them_where_that_is_asked_for():
    net = nn.Sequential(nn.Linear(4, 4))
    net.register_forward_hook(lambda module, args, output: 2 * output)
    assert titles(read(net)) == ["Sequential"]
    assert titles(read(net, inside=True)) == ["Linear at '0'"]


def test_a_call_knows_the_forwards_that_it_is_made_in():
    net = nn.Sequential(nn.Sequential(ReadTwice()))
    graph = read(net)
    assert [call.owners for call in graph.calls_of(net[0][0].a)] == [(net, net[0], net[0][0])]
    assert graph.followed == {net: True, net[0]: True, net[0][0]: True}


class Records(Parts):
    def forward(self, x):
        self.seen.append(self.a(x))
        return x


class Keeps(Parts):
    def forward(self, x):
        self.last = self.a(x)
        return self.last


class DropsPath(Parts):
    def forward(self, x):
        return x if random.random() < 0.5 else self.a(x)


class Noise(Parts):
    def forward(self, x):
        return self.a(x) + torch.randn(4)


class NoGrad(Parts):
    def forward(self, x):
        with torch.no_grad():
            return self.a(x)


class Branches(Parts):
    def forward(self, x):
        return self.a(x) if x.sum() > 0 else x


class Steps(Parts):
    def forward(self, x):
        return torch.stack([self.a(x_t) for x_t in x])


class RecordsWithin(Parts):
    def __init__(self):
        super().__init__()
        self.kept = {"spikes": []}
        self.kept["itself"] = self.kept

    def forward(self, x):
        self.kept["spikes"].append(self.a(x))
        return x


@dataclass
class Memory:
    v: object = None


class KeepsInObject(Parts):
    def __init__(self):
        super().__init__()
        self.memories = [Memory()]

    def forward(self, x):
        self.memories[0].v = self.a(x)
        return self.memories[0].v


class OtherWeights(Parts):
    def __init__(self):
        super().__init__()
        self.fast = {"weight": torch.ones(4, 4)}

    def forward(self, x):
        return torch.func.functional_call(self.a, self.fast, (x,))


class OtherThreshold(Parts):
    def forward(self, x):
        before, self.lif.threshold = self.lif.threshold, 0.5
        y = self.lif(x)
        self.lif.threshold = before
        return y


class HookForACall(Parts):
    def forward(self, x):
        hook = self.a.register_forward_hook(lambda module, args, output: 2 * output)
        y = self.a(x)
        hook.remove()
        return y


class Catches(Parts):
    def forward(self, x):
        try:
            return self.a(x) * float(x.max())
        except TypeError:
            return x


class OfAnIterator(Parts):
    def forward(self, x):
        return F.linear(x, next(self.a.parameters()).abs())


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x)


class Surrogate(Parts):
    def forward(self, x):
        return OwnFunction.apply(self.a(x))


class Squared(Parts):
    def forward(self, x):
        h = self.a(x)
        u = h
        u **= 2
        return h


class Alias(Parts):
    def forward(self, x):
        h = self.a(x)
        skip = h
        h += self.b(x)
        return h + skip


class View(Parts):
    def forward(self, x):
        h = self.a(x)
        first = h.flatten(0, 1)
        first += 1.0
        return h


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Records, r"changes Records\.seen"),
        (Keeps, r"changes Keeps\.last"),
        (DropsPath, "draws random numbers itself"),
        (Noise, "draws random numbers itself"),
        (NoGrad, r"forward of NoGrad at '0' .* within torch\.no_grad"),
        (RecordsWithin, r"changes RecordsWithin\.kept"),
        (KeepsInObject, r"changes KeepsInObject\.memories"),
        (OtherWeights, r"forward of OtherWeights at '0' .* it changes Linear\._parameters before a call"),
        (OtherThreshold, r"it changes LIF\.threshold before a call"),
        (HookForACall, r"it changes Linear\._forward_hooks before a call"),
        (Catches, "forward of Catches at '0' cannot be followed: it reads the number of a value"),
        (OfAnIterator, "with a parameter that it takes from an iterator"),
        (Surrogate, "a function of autograd"),
        (Squared, r"ipow .* changes the value of Linear at '0.a' in place"),
        (Branches, "forward of Branches at '0' cannot be followed: it branches on a value"),
        (Steps, "forward of Steps at '0' cannot be followed: it iterates over a value"),
        (Alias, r"iadd .* changes the value of Linear at '0.a' in place, and the call of add .* reads that afterwards"),
        (View, r"iadd .* changes the value of Linear at '0.a' in place, and what the network returns reads that"),
    ],
)
def test_what_one_trace_does_not_stand_for_is_refused_and_nothing_changes(kind, reason):
    net = nn.Sequential(kind())
    before, generator, python = copy.deepcopy(vars(net[0])), torch.get_rng_state(), random.getstate()
    with pytest.raises(NotFollowed, match=reason):
        read(net)
    assert vars(net[0]).keys() == before.keys()
    assert net[0].seen == []
    assert torch.equal(torch.get_rng_state(), generator)
    assert random.getstate() == python


class AddsToSum(Parts):
    def forward(self, x):
        h = x + self.a(x)
        h += self.b(x)
        return h + x


def test_a_change_in_place_of_a_new_value_is_followed():
    net, x = AddsToSum(), torch.rand(3, 2, 4)
    output, _ = run(read(net), x)
    assert torch.equal(output, net(x))


def test_a_hook_within_a_layer_is_one_of_its_call():
    net = nn.Sequential(sc.Recurrent(sc.LIF(), nn.Linear(4, 4)))
    assert not read(net).calls[1].is_hooked
    net[0].linear.register_forward_hook(lambda module, args, output: 2 * output)
    assert read(net).calls[1].is_hooked


class WithOther(Parts):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 5)

    def forward(self, x):
        return self.b(self.a(x))


# -- folding a normalisation


def trained_norm(*without):
    norm = nn.BatchNorm1d(4)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.uniform_(-1.0, 1.0)
        norm.running_mean.uniform_(-1.0, 1.0)
        norm.running_var.uniform_(0.5, 2.0)
    for name in without:
        norm.register_parameter(name, None)
    return norm


def source_of(net, x):
    graph = read(net)
    shapes = {call: tuple(value.shape) for call, value in values(graph, x) if isinstance(value, torch.Tensor)}
    (call,) = graph.calls_of(net.norm)
    return norm_source(graph, call, shapes)


@pytest.mark.parametrize("without", [(), ("weight", "bias"), ("bias",)])
@pytest.mark.parametrize("reshape", ["flatten", "reshape", "twice"])
def test_a_norm_behind_changes_of_shape_folds_into_the_layer_whose_features_it_normalises(reshape, without):
    class Net(Parts):
        def forward(self, x):
            h = self.a(x)
            if reshape == "twice":
                h = h.unsqueeze(1).flatten(0, 1)
            return self.norm(h.flatten(0, 1) if reshape == "flatten" else h.reshape(-1, 4))

    net = Net().eval()
    net.norm = trained_norm(*without).eval()
    x = torch.rand(3, 2, 4)
    layer = source_of(net, x).module
    assert layer is net.a
    assert torch.allclose(folded(layer, net.norm)(x).reshape(-1, 4), net(x), atol=1e-6)


class Skips(Parts):
    def forward(self, x):
        h = self.a(x)
        return self.norm(h.flatten(0, 1)) + h.flatten(0, 1)


class Again(Parts):
    def forward(self, x):
        return self.norm(self.a(self.a(x)).flatten(0, 1))


class Tied(Parts):
    def __init__(self):
        super().__init__()
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.norm(self.a(self.b(x)).flatten(0, 1))


class OfLength(Parts):
    def forward(self, x):
        return self.norm(self.a(x))


class BehindSum(Parts):
    def forward(self, x):
        return self.norm((self.a(x) + self.b(x)).flatten(0, 1))


class OfSubclass(Parts):
    def __init__(self):
        super().__init__()
        self.a = Tripled(4, 4)

    def forward(self, x):
        return self.norm(self.a(x).flatten(0, 1))


class Tripled(nn.Linear):
    def forward(self, x):
        return 3 * F.linear(x, self.weight, self.bias)


class Sliced(Parts):
    def forward(self, x):
        return self.norm(self.a(x).flatten(0, 1)[..., :4])


@torch.no_grad()
@pytest.mark.parametrize("kind", [nn.Linear, lambda *sizes: weight_norm(nn.Linear(*sizes))])
def test_a_layer_is_folded_with_the_weight_that_it_computes(kind):
    layer, norm, x = kind(4, 4).eval(), trained_norm().eval(), torch.rand(3, 4)
    before = copy.deepcopy(layer)
    assert torch.allclose(folded(layer, norm)(x), norm(layer(x)), atol=1e-5)
    assert torch.equal(computed(layer)(x), before(x))
    computed(layer).weight.zero_()
    assert torch.equal(layer(x), before(x))
    assert type(layer) is type(before)


test_refused = refusals.table(__file__, globals(), Refused)
