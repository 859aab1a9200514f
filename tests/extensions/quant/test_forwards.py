"""``sc.quant.prepare`` of forwards in which a layer has several readers, calls or owners: right, or refused by name."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spikecore as sc
from spikecore.layers import TimeBatched


def linear(weight, size=1):
    layer = nn.Linear(size, size, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def norm(*gains):
    layer = nn.BatchNorm1d(len(gains), eps=0.0)
    layer.weight.data = torch.tensor(gains)
    return layer


def eye(size):
    layer = nn.Linear(size, size, bias=False)
    layer.weight.data = torch.eye(size)
    return layer


class Net(nn.Module):
    """Layers for the forwards below; ``over(module, x)``: a module on samples."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.m, self.n = linear(1.0), linear(0.5), norm(2.0), norm(3.0)
        self.lif, self.out = sc.LIF(), sc.LI(tau=1.0)

    def having(self, names):
        """The network with these layers alone: one that is not called is refused."""
        for name in [*self._modules.keys() - {*names.split()}]:
            delattr(self, name)
        return self.eval()

    @staticmethod
    def over(module, x):
        return module(x.flatten(0, 1)).view_as(x)


class PreActivation(Net):
    def forward(self, x):
        h = self.a(x)
        return self.out(h + self.b(self.lif(self.over(self.m, h))))


class NormAndSum(Net):
    def forward(self, x):
        h = self.a(x)
        return self.out(self.over(self.m, h) + h)


class TwoNorms(Net):
    def forward(self, x):
        h = self.a(x)
        return self.out(self.over(self.m, h) + self.over(self.n, h))


class NormAndNeuron(Net):
    def forward(self, x):
        h = self.a(x)
        return self.out(self.over(self.m, h) + self.lif(h))


class CalledTwice(Net):
    def forward(self, x):
        h = self.lif(self.over(self.m, self.a(x)))
        return self.out(self.over(self.n, self.a(h)))


class OneUseWithNorm(Net):
    def forward(self, x):
        return self.out(self.a(self.lif(self.over(self.m, self.a(x)))))


class OneNorm(Net):
    def forward(self, x):
        return self.out(self.over(self.m, self.b(self.lif(self.over(self.m, self.a(x))))))


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(self.over(self.n, self.b(self.lif(self.over(self.m, self.a(x))))))


class Looped(Net):
    def forward(self, x):
        for layer in (self.m, self.n):
            x = self.lif(self.over(layer, self.a(x)))
        return self.out(x)


class Tripled(nn.Linear):
    def forward(self, x):
        return 3 * F.linear(x, self.weight, self.bias)


class Subclassed(Net):
    def __init__(self):
        super().__init__()
        self.a = Tripled(1, 1)

    def forward(self, x):
        return self.out(self.over(self.m, self.a(x)))


class SubclassedWithoutNorm(Subclassed):
    def forward(self, x):
        return self.out(self.a(x))


class Absolute(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x).abs()


class SubclassedNorm(Net):
    def __init__(self):
        super().__init__()
        self.m = Absolute(1)

    def forward(self, x):
        return self.out(self.over(self.m, self.a(x)))


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.a.register_forward_hook(double)

    def forward(self, x):
        return self.out(self.over(self.m, self.a(x)))


def double(module, args, output):
    return 2 * output


class Functional(Net):
    def forward(self, x):
        return self.out(F.linear(self.a(x), self.a.weight))


class ByName(Net):
    def forward(self, x):
        return self.out(self.lif(self.a(input=x)))


class OnlyItsWeight(Net):
    def forward(self, x):
        return self.out(self.lif(torch.einsum("...i,oi->...o", x, self.a.weight)))


class OverLength(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.m, self.out = eye(2), norm(2.0, 3.0), sc.LI(tau=1.0)

    def forward(self, x):
        return self.out(TimeBatched(self.m)(self.a(x)))


class Sliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.m, self.out = eye(4), norm(2.0, 3.0), sc.LI(tau=1.0)

    def forward(self, x):
        return self.out(TimeBatched(self.m)(self.a(x)[..., :2]))


class WithBranch(Net):
    def forward(self, x):
        return self.out(self.a(x) if x.sum() > 0 else self.b(x))


ALONE = "make a layer for each call"
COPY = r"copy of the layer \(copy.deepcopy\)"
REFUSED = [
    (PreActivation, f"Linear at 'a' is read by the call of add .*{COPY}"),
    (NormAndSum, f"Linear at 'a' is read by the call of add .*{COPY}"),
    (TwoNorms, f"Linear at 'a' is read by the call of flatten .*{COPY}"),
    (NormAndNeuron, f"Linear at 'a' is read by LIF at 'lif' as well.*{COPY}"),
    (CalledTwice, f"Linear at 'a' is called 1 times without BatchNorm1d at 'm' behind it.*{ALONE}"),
    (OneUseWithNorm, f"Linear at 'a' is called 1 times without BatchNorm1d at 'm' behind it.*{ALONE}"),
    (OneNorm, "BatchNorm1d at 'm' is called behind Linear at 'b' and behind Linear at 'a'"),
    (Tied, "Linear at 'a' shares its weight with Linear at 'b'.*copy.deepcopy"),
    (Looped, f"Linear at 'a' is called 1 times without BatchNorm1d at 'm' behind it.*{ALONE}"),
    (Subclassed, "Tripled at 'a' is a subclass with a forward of its own"),
    (SubclassedWithoutNorm, "Tripled at 'a' is a subclass with a forward of its own"),
    (SubclassedNorm, "Absolute at 'm' is a subclass with a forward of its own"),
    (Hooked, "Linear at 'a' has hooks or a forward of its own.*remove them"),
    (Functional, "the call of linear .*reads 'a.weight' itself.*call the layer"),
    (ByName, "Linear at 'a' is called with input by name.*give it by position"),
    (OverLength, r"BatchNorm1d at 'm' normalises dimension 1 of \[4, 2, 2\], .*'a' are dimension 2"),
    (Sliced, "BatchNorm1d at 'm' reads the call of getitem"),
    (WithBranch, "forward of WithBranch cannot be followed: it branches on a value"),
]


@pytest.mark.parametrize(("kind", "reason"), REFUSED)
def test_what_would_be_another_network_is_refused_by_name_and_the_network_stays(kind, reason):
    net = kind().eval()
    x = torch.ones(2, 2, 2, 2) if kind is OverLength else torch.ones(2, 2, 4 if kind is Sliced else 1)
    before, plain = copy.deepcopy(net.state_dict()), net(x)
    with pytest.raises(ValueError, match=rf"sc\.quant\.prepare: .*{reason}"):
        sc.quant.prepare(net, x)
    assert torch.equal(net(x), plain)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_layer_whose_weight_alone_is_read_is_refused():
    with pytest.raises(ValueError, match="a is not called, and has no ranges; call it, or remove it"):
        sc.quant.prepare(OnlyItsWeight().having("a lif out"), torch.ones(2, 2, 1))


class OneCopyEach(Net):
    """The way out of the refusals above."""

    def __init__(self):
        super().__init__()
        self.second = copy.deepcopy(self.a)

    def forward(self, x):
        return self.out(self.second(x) + self.b(self.lif(self.over(self.m, self.a(x)))))


class SharedWithoutNorms(Net):
    def __init__(self):
        super().__init__()
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(self.a(self.lif(self.a(x))) + self.b(self.lif(x)))


class TwoReadersOfTheInput(Net):
    def forward(self, x):
        return self.out(self.lif(self.a(x)) + self.b(x))


class ReadByANeuronAndASum(Net):
    def forward(self, x):
        h = self.a(x)
        return self.out(self.b(self.lif(h)) + h)


class SameNormEachTime(Net):
    """A loop over steps: the layer and its normalisation are called at each of them."""

    def __init__(self):
        super().__init__()
        sc.set_step(self, "single")

    def forward(self, x):
        return torch.stack([self.out(self.lif(self.m(self.a(x_t)))) for x_t in x])


OTHERS = [
    (SameNormEachTime, "a m lif out"),
    (OneCopyEach, "a b m lif out second"),
    (SharedWithoutNorms, "a b lif out"),
    (TwoReadersOfTheInput, "a b lif out"),
    (ReadByANeuronAndASum, "a b lif out"),
]


@pytest.mark.parametrize(("kind", "layers"), OTHERS)
@pytest.mark.parametrize("value", [1.0, 0.4])
def test_other_forwards_compute_what_the_network_computes(kind, layers, value):
    net, x = kind().having(layers), torch.full((3, 1, 1), value)
    prepared = sc.quant.prepare(net, x).eval()
    assert torch.allclose(prepared(x), net(x), atol=0.02)


def test_a_layer_that_a_neuron_and_a_sum_read_is_rounded_as_what_a_sum_reads():
    x = torch.rand(8, 4, 1)
    assert hasattr(sc.quant.prepare(ReadByANeuronAndASum().having("a b lif out"), x).a, "output_format")
    assert not hasattr(sc.quant.prepare(TwoReadersOfTheInput().having("a b lif out"), x).a, "output_format")


class LayerAndNeuron(Net):
    def forward(self, x):
        return self.out(self.a(x)) + self.lif(x)


class Plus(Net):
    def forward(self, x):
        return self.out(x + self.lif(self.a(x)))


def test_layers_and_neurons_that_read_the_input_round_it_alike():
    prepared = sc.quant.prepare(LayerAndNeuron().having("a lif out"), torch.rand(8, 4, 1) * 1.7)
    assert prepared.a.input_format.fracs == prepared.lif.input_format.fracs
    x = torch.rand(8, 4, 1)
    assert torch.equal(prepared(x), prepared(prepared.a.input_format(x)))


def test_a_sum_that_reads_the_input_in_floats_is_refused():
    net, x = Plus().having("a lif out"), torch.rand(8, 4, 1)
    with pytest.raises(ValueError, match=r"the call of add .* reads the input of the network in floats, .* as spikes"):
        sc.quant.prepare(net, x)
    spikes = (x > 0.5).float()
    assert torch.equal(sc.quant.prepare(net, spikes).eval()(spikes), net(spikes))
