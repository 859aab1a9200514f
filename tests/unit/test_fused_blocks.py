"""``sc.fuse`` in blocks whose ``forward`` adds, or has tokens: the numbers and the names of the plain network."""

from __future__ import annotations

import copy
import functools
import pickle
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spikecore as sc
from kernel_loop import Loop, bound
from spikecore.context import COMPILES
from spikecore.layers import NormNeuron, TimeBatched

T, B = 3, 2


class BasicBlock(nn.Module):
    """A residual block, its sum in place, with a projection or without."""

    def __init__(self, channels, out):
        super().__init__()
        self.lif1, self.lif2 = sc.LIF(), sc.LIF(tau=torch.tensor(2.0), learn=("tau",))
        self.conv1, self.bn1 = TimeBatched(nn.Conv2d(channels, out, 3, padding=1)), TimeBatched(nn.BatchNorm2d(out))
        self.conv2 = TimeBatched(nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out))
        self.down = TimeBatched(nn.Conv2d(channels, out, 1), nn.BatchNorm2d(out)) if channels != out else None

    def forward(self, x):
        """``[T, B, C, H, W]``."""
        identity = x if self.down is None else self.down(x)
        out = self.conv2(self.lif1(self.bn1(self.conv1(x))))
        out += identity
        return self.lif2(out)


class Folded(nn.Module):
    """Torch's layers on samples; time comes back in front of each neuron."""

    def __init__(self, channels, out):
        super().__init__()
        self.conv1, self.bn1, self.lif1 = nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), sc.LIF()
        self.conv2 = nn.Sequential(nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out))
        self.down = nn.Sequential(nn.Conv2d(channels, out, 1), nn.BatchNorm2d(out))
        self.lif2 = sc.LIF()

    def forward(self, x):
        """``[T, B, C, H, W]``."""
        steps, batch, _, height, width = x.shape
        x = x.flatten(0, 1)
        out = self.lif1(self.bn1(self.conv1(x)).unflatten(0, (steps, batch))).flatten(0, 1)
        return self.lif2((self.down(x) + self.conv2(out)).view(steps, batch, -1, height, width))


class Attention(nn.Module):
    """Tokens as the programs of papers have them: transposed for the normalisation, or flattened."""

    def __init__(self, dim):
        super().__init__()
        for name in ("q", "k", "v"):
            self.add_module(f"{name}_linear", nn.Linear(dim, dim))
            self.add_module(f"{name}_bn", nn.BatchNorm1d(dim))
            self.add_module(f"{name}_lif", sc.LIF())
        self.fc, self.bn, self.lif = nn.Linear(dim, dim), TimeBatched(nn.BatchNorm1d(dim)), sc.LIF()

    def forward(self, x):
        """``[T, B, N, C]``."""
        steps, batch, tokens, dim = x.shape
        flat = x.flatten(0, 1)
        q = self.q_bn(self.q_linear(flat).transpose(-1, -2)).transpose(-1, -2).reshape(steps, batch, tokens, dim)
        k = self.k_bn(self.k_linear(x.flatten(0, 2))).view(steps, batch, tokens, dim)
        v = self.v_bn(self.v_linear(flat).permute(0, 2, 1)).permute(0, 2, 1).unflatten(0, (steps, batch)).contiguous()
        q, k, v = self.q_lif(q.contiguous()), self.k_lif(k), self.v_lif(v)
        y = q @ (k.transpose(-2, -1) @ v) * 0.25
        return self.lif(self.bn(self.fc(y).transpose(2, 3)).transpose(2, 3)) + x


#: A network, its input, and the shortcuts of its NormNeurons with the dimension of their channels.
NETWORKS = {
    "BasicBlock": (
        lambda: nn.Sequential(BasicBlock(2, 2), BasicBlock(2, 3)),
        (T, B, 2, 5, 5),
        [(None, 1), ("before", 1), (None, 1), ("normalised", 1)],
    ),
    "Folded": (lambda: Folded(2, 3), (T, B, 2, 5, 5), [(None, 1), ("normalised", 1)]),
    "Attention": (lambda: Attention(8), (T, B, 5, 8), [(None, -1)] * 3 + [("after", -1)]),
    "resnet19": (
        functools.partial(sc.models.resnet19, steps=T),
        (B, 3, 8, 8),
        [(None, 1), ("before", 1)] * 3
        + [(None, 1), ("normalised", 1)]
        + [(None, 1), ("before", 1)] * 2
        + [(None, 1), ("normalised", 1), (None, 1), ("before", 1)],
    ),
}


def made(name):
    """A network in float64 whose neurons fire, and its input."""
    torch.manual_seed(0)
    net = NETWORKS[name][0]().double()
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.bias, 0.2, 0.8)
    return net, 3 * torch.rand(NETWORKS[name][1], dtype=torch.float64)


def forms(net):
    """Shortcut and dimension of the channels of each NormNeuron."""
    layers = [module for module in net.modules() if isinstance(module, NormNeuron)]
    return [("normalised" if len(layer.norms) > 1 else layer.shortcut, layer.channel_dim) for layer in layers]


def results(net, x):
    """Output, gradient of the input, gradients of parameters by those of the plain network, and its state_dict."""
    given = x.clone().requires_grad_()
    out = net(given)
    out.backward(torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).view_as(out))
    return out.detach(), given.grad, [value.grad for value in net.parameters()], dict(net.state_dict())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fused_block_computes_what_it_computed(name):
    """In train() and eval(), of copies and pickles as well; its parameters are the same objects; and back again."""
    plain, x = made(name)
    fused = copy.deepcopy(plain)
    parameters = {id(value): place for place, value in enumerate(fused.parameters())}
    assert sc.fuse(fused) is fused
    assert forms(fused) == NETWORKS[name][2]
    order = [parameters[id(value)] for value in fused.parameters()]
    expected = results(plain, x)
    for net in (fused, copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        *values, gradients, state = results(net, x)
        torch.testing.assert_close(values, [*expected[:2]])
        for place, gradient in zip(order, gradients):
            torch.testing.assert_close(gradient, expected[2][place])
        assert state.keys() == expected[3].keys()
        for key, value in state.items():
            torch.testing.assert_close(value, expected[3][key])
    torch.testing.assert_close(fused.eval()(x), plain.eval()(x))
    fused.load_state_dict(plain.state_dict())
    sc.unfuse(fused)
    assert [type(module) for module in fused.modules()] == [type(module) for module in plain.modules()]
    assert torch.equal(fused(x), plain(x))


class Nothing(nn.Module):
    """A part that gives no tensor."""

    def __init__(self):
        super().__init__()
        self.part = nn.Identity()

    def forward(self, x):
        """None."""
        self.part(x)


class Other(BasicBlock):
    """A block with another ``forward``, and methods that it may call."""

    def branch(self, x):
        """Computes."""
        return self.conv2(x)

    def __init__(self, channels, out):
        super().__init__(channels, out)
        self.nothing = Nothing()


def other(forward):
    """Such a block."""
    block = type("Block", (Other,), {"forward": forward})(2, 2)
    block.log, block.rng = [], random.Random(0)
    block.hidden = [block.lif1]
    return block


def loops(self, x):
    """Over parts of the block, by a method of its own, with a condition on what it has."""
    for layer in [self.conv1, self.conv1][:1]:
        x = layer(x) if self.down is None else x
    return self.lif2(self.branch(x) + F.relu(x.flatten(0, 1).contiguous()).unflatten(0, (T, B)))


def takes_a_position(self, x, /):
    return self.lif2(self.conv2(x) + x)


@pytest.mark.parametrize("forward", [loops, takes_a_position], ids=lambda forward: forward.__name__)
def test_a_block_with_loops_and_methods_is_fused(forward):
    """Conditions and loops over its attributes, its methods, functions of torch and methods of values."""
    block = other(forward)
    x = torch.rand(T, B, 2, 4, 4)
    expected = copy.deepcopy(block)(x)
    assert forms(sc.fuse(block))
    assert torch.equal(block(x), expected)


class Tokens(nn.Module):
    """A normalisation of tokens, and shapes between it and the neuron."""

    def __init__(self, how):
        super().__init__()
        self.how, self.drop, self.linear, self.conv = how, nn.Dropout(0.0), nn.Linear(4, 4), nn.Conv1d(4, 4, 1)
        self.norm, self.neuron = nn.BatchNorm1d(4), sc.LIF()

    def forward(self, x):
        """``[T, B, 4, 4]``."""
        if self.how == "matrix":
            y = self.norm(self.linear(self.drop(x.flatten(0, 2)))).view(T, B, 4, 4)
        elif self.how == "heads":
            y = self.norm(x.flatten(0, 1).transpose(1, 2)).transpose(1, 2).reshape(T, B, 4, 2, 2)
        elif self.how == "convolution":
            y = self.norm(self.conv(x.flatten(0, 1))).view(T, B, 4, 4)
        else:
            y = self.norm(x.reshape(T * B, 4, 4)).view(T, B, 4, 4)
        return self.neuron(y)


@pytest.mark.parametrize(("how", "expected"), [("matrix", []), ("heads", []), ("convolution", [1]), ("samples", [1])])
@pytest.mark.filterwarnings("ignore:sc.fuse:UserWarning")
def test_tokens_whose_channels_are_not_known_stay_as_they_are(how, expected):
    """With as many tokens as channels no size tells them apart."""
    plain = Tokens(how).double()
    nn.init.uniform_(plain.norm.weight, 1.0, 3.0)
    fused = sc.fuse(copy.deepcopy(plain))
    assert [dim for _, dim in forms(fused)] == expected
    x = 3 * torch.rand(T, B, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(fused(x), plain(x))


def test_a_shortcut_that_broadcasts_is_added_by_torch():
    """Positions that are added to every sample, in front of the neuron and behind it."""

    class Positions(nn.Module):
        def __init__(self, behind):
            super().__init__()
            self.norm, self.neuron = TimeBatched(nn.BatchNorm2d(2)), sc.LIF()
            self.where, self.behind = nn.Parameter(torch.rand(2, 4, 4)), behind

        def forward(self, x):
            if self.behind:
                return self.neuron(self.norm(x)) + self.where
            return self.neuron(self.norm(x) + self.where)

    x = torch.rand(T, B, 2, 4, 4)
    for behind in (False, True):
        plain = Positions(behind)
        fused = sc.fuse(copy.deepcopy(plain))
        assert forms(fused) == [("after" if behind else "before", 1)]
        torch.testing.assert_close(fused(x), plain(x))


@pytest.mark.skipif(not COMPILES, reason="spikes are kept as bits with torch 2.6 or newer")
def test_spikes_of_a_rewritten_block_are_packed():
    """``sc.layers.pack`` follows its graph: through sums of spikes, and shapes."""
    net = nn.Sequential(BasicBlock(2, 3), Attention(5), nn.Linear(5, 2))
    packed = sc.layers.pack(sc.fuse(net))
    layers = {name for name, part in packed.named_modules() if type(part).__name__.startswith("Packed")}
    assert layers == {"0.conv2.module.0", "1.q_linear", "1.k_linear", "1.v_linear", "2"}
    assert packed[2].spikes.largest == 2


@pytest.mark.skipif(not COMPILES, reason="spikes are kept as bits with torch 2.6 or newer")
def test_a_sum_with_a_factor_is_not_packed_as_a_sum():
    """``alpha`` is no part of its bound."""

    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.linear = sc.LIF(), sc.LIF(), nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(torch.add(self.first(x), self.second(x), alpha=2))

    with pytest.warns(RuntimeWarning, match="found no linear layer"):
        sc.layers.pack(Weighted())


@pytest.mark.skipif(not COMPILES, reason="spikes are kept as bits with torch 2.6 or newer")
def test_a_packed_shortcut_takes_a_bit_a_spike():
    """Of a neuron that normalises by one kernel; numbers stay, and ``unpack`` undoes it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Identity(), sc.LIF(), BasicBlock(3, 3), BasicBlock(3, 3))
    for module in [*net.modules()]:
        if isinstance(module, sc.Neuron):
            bound(module, Loop(4))
    x, kept, expected = 3 * torch.rand(T, B, 3, 16, 16), [], None
    for change in (sc.fuse, sc.layers.pack, sc.layers.unpack):
        change(net)
        sizes = {}

        def save(tensor, sizes=sizes):
            sizes[tensor.data_ptr()] = tensor.element_size() * tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            net(x)
        kept.append(sum(sizes.values()))
        found = [*results(net, x)[:3]]
        expected = found if change is sc.fuse else expected
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    # of the outputs of four convolutions and the spikes of four neurons the former are whole
    assert kept[1] < 0.6 * kept[0]
    assert kept[2] == kept[0]


@pytest.mark.skipif(not COMPILES, reason="torch.compile of what spikecore computes needs torch 2.6")
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
def test_a_rewritten_block_compiles_in_one_graph():
    """With the numbers of the plain one."""
    plain, x = made("BasicBlock")
    fused = sc.fuse(copy.deepcopy(plain))
    torch.testing.assert_close(torch.compile(fused, fullgraph=True, backend="aot_eager")(x), plain(x))


# -- networks around blocks


class OverTime(nn.Module):
    """A ``forward`` that cannot be followed."""

    def __init__(self, *parts):
        super().__init__()
        self.body = nn.Sequential(*parts)

    def forward(self, x):
        """Step after step."""
        return torch.stack([self.body(step[None])[0] for step in x])


class WithSkip(BasicBlock):
    """The tensor that the caller adds may be left out."""

    def forward(self, x, skip=None):
        """``[T, B, C, H, W]``."""
        h = self.bn1(self.conv1(x))
        return self.lif1(h if skip is None else h * skip)


class Caller(nn.Module):
    """A block that gives another one its second argument."""

    def __init__(self):
        super().__init__()
        self.inner = WithSkip(2, 2)

    def forward(self, x):
        """``[T, B, C, H, W]``."""
        return self.inner(x, x)


class Keeps(nn.Module):
    """A network that calls a part of one of its chains by itself."""

    def __init__(self):
        super().__init__()
        self.chain = nn.Sequential(TimeBatched(nn.BatchNorm2d(2)), sc.LIF())

    def forward(self, x):
        """``[T, B, C, H, W]``."""
        return self.chain(x) + self.chain[0](x)


def hooked(*parts):
    """A chain with a hook of its own."""
    chain = nn.Sequential(*parts)
    chain.register_forward_hook(lambda module, args, out: 2 * out)
    return chain


class Strange(BasicBlock):
    """A block with a part whose name would be code in the text of a graph."""

    name = 'a") or print("it runs") or getattr(self, "conv1'

    def __init__(self):
        super().__init__(2, 2)
        self.add_module(self.name, nn.Identity())

    def forward(self, x):
        """``[T, B, C, H, W]``."""
        return super().forward(self._modules[self.name](x))


def norm_and_neuron():
    return TimeBatched(nn.BatchNorm2d(2)), sc.LIF()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # what cannot be followed is one call of what is around it, and has pairs of its own
        (
            lambda: nn.Sequential(*norm_and_neuron(), OverTime(BasicBlock(2, 2)), *norm_and_neuron()),
            [None, None, "before", None],
        ),
        (lambda: hooked(*norm_and_neuron(), BasicBlock(2, 2)), [None, None, "before"]),
        (lambda: nn.Sequential(TimeBatched(nn.BatchNorm2d(2)), hooked(sc.LIF())), []),
        (lambda: WithSkip(2, 2), []),
        (Caller, []),
        (Keeps, []),
        (Strange, [None]),
    ],
)
@pytest.mark.filterwarnings("ignore:sc.fuse:UserWarning")
def test_a_network_is_fused_as_far_as_it_can_be_read(make, expected, capsys):
    torch.manual_seed(0)
    plain, x = make().double(), 3 * torch.rand(T, B, 2, 4, 4, dtype=torch.float64)
    fused = sc.fuse(copy.deepcopy(plain))
    assert [shortcut for shortcut, _ in forms(fused)] == expected
    torch.testing.assert_close(fused(x), plain(x))
    torch.testing.assert_close(sc.unfuse(fused)(x), plain(x))
    assert not capsys.readouterr().out


@pytest.mark.parametrize("kind", [BasicBlock, Folded])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("in_kernel", [False, True])
def test_biases_before_normalisations_are_taken_over(kind, momentum, in_kernel):
    """Gradients and running statistics of a training, outputs and gradients in eval(), and names and places undone."""
    torch.manual_seed(0)
    plain = nn.Sequential(kind(3, 4), kind(4, 5)).double()
    for norm in [part for part in plain.modules() if isinstance(part, nn.BatchNorm2d)]:
        norm.momentum = momentum
        norm.weight.data.uniform_(0.5, 1.5)
    for conv in [part for part in plain.modules() if isinstance(part, nn.Conv2d)]:
        conv.bias.data.normal_(0.0, 2.0)
    fused = copy.deepcopy(plain)
    for neuron in [part for part in fused.modules() if in_kernel and isinstance(part, sc.Neuron)]:
        bound(neuron, Loop(4))
    parameters = [[*net.parameters()] for net in (plain, fused)]
    names, kinds = [name for name, _ in plain.named_parameters()], [type(part) for part in plain.modules()]
    sc.fuse(fused)
    biases = [name for name, _ in fused.named_parameters() if name.endswith("_bias")]
    assert len(biases) == sum(isinstance(part, nn.Conv2d) for part in plain.modules())
    assert all(part.bias is None for part in fused.modules() if isinstance(part, nn.Conv2d))
    for training in (True, True, False):
        x = torch.randn(T, B, 3, 6, 6, dtype=torch.float64)
        found = []
        for net, own in zip((plain, fused), parameters):
            y = net.train(training)(x)
            cotangent = torch.arange(y.numel(), dtype=torch.float64).cos().view(y.shape)
            found.append([y.detach(), *torch.autograd.grad(y, own, cotangent)])
        for mine, its in zip(found[1], found[0]):
            torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-9)
        state = fused.state_dict()
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-12)
        with torch.no_grad():
            torch.testing.assert_close(fused.eval()(x), plain.eval()(x))
    copy.deepcopy(fused).load_state_dict(plain.state_dict())
    sc.unfuse(fused)
    assert [name for name, _ in fused.named_parameters()] == names
    assert [*map(id, fused.parameters())] == [*map(id, parameters[1])]
    assert [type(part) for part in fused.modules()] == kinds


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("in_kernel", [False, True])
def test_biases_before_frozen_normalisations_have_a_gradient(affine, in_kernel):
    """DistributedDataParallel waits for a gradient of each parameter."""
    norm = nn.BatchNorm1d(4, affine=affine)
    for parameter in norm.parameters():
        parameter.requires_grad_(False)
    net = sc.fuse(nn.Sequential(TimeBatched(nn.Linear(3, 4), norm), sc.LIF()).double())
    if in_kernel:
        bound(net[1].neuron, Loop(4))
    net(torch.randn(T, B, 3, dtype=torch.float64)).sum().backward()
    torch.testing.assert_close(net[1].input_bias.grad, torch.zeros(4, dtype=torch.float64))
    assert net[0].module[0].weight.grad.abs().max() > 0


def test_biases_that_stay():
    """One that a hook sees, one that is shared or computed, and one whose layer is called elsewhere, too."""
    hooked, shared, again = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    hooked.register_forward_hook(lambda module, args, y: 2 * y)
    shared.bias = nn.Conv2d(3, 3, 1).bias
    other = nn.Conv2d(3, 3, 1)
    other.bias = shared.bias
    computed = nn.Conv2d(3, 3, 1)
    nn.utils.parametrize.register_parametrization(computed, "bias", nn.Identity())
    layers = [hooked, shared, again, computed]
    pairs = [nn.Sequential(TimeBatched(conv, nn.BatchNorm2d(3)), sc.LIF()) for conv in layers]
    net = nn.Sequential(TimeBatched(other), TimeBatched(again), *pairs)
    sc.fuse(net)
    assert not [name for name, _ in net.named_parameters() if name.endswith("_bias")]
    assert sum(isinstance(part, NormNeuron) for part in net.modules()) == 4
