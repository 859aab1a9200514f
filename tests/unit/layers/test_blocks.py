"""Residual blocks, voting and attention against loops over steps, heads and tokens; and what networks do with them."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spikecore as sc
from spikecore._base.versions import COMPILES
from spikecore.layers import TEBN, MSBlock, SEWBlock, SpikingSelfAttention, TimeBatched, Voting, tdbn

T, B, C = 4, 3, 6
LIF = functools.partial(sc.LIF, detach_reset=True, backend="torch")


def spikes(*shape, seed=0):
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.4).float()


def scattered(net, seed=1):
    """Every parameter and running statistic another number."""
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if value.is_floating_point():
                drawn = torch.rand(value.shape, generator=generator)
                of_norm = isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))
                value.data = drawn + 0.4 if of_norm and name != "running_mean" else 2 * drawn - 0.9
    return net


def lif(x):
    """LIF of tau 2 with a hard reset, in a loop."""
    v, out = torch.zeros_like(x[0]), []
    for step in x:
        v = v + (step - v) / 2
        out.append((v >= 1).float())
        v = torch.where(v >= 1, torch.zeros_like(v), v)
    return torch.stack(out)


def conv_norm(x, layer):
    """A convolution and its normalisation by the running statistics, one step after the other."""
    convolution, norm = layer.module
    return torch.stack(
        [
            F.batch_norm(
                F.conv2d(step, convolution.weight, None, convolution.stride, convolution.padding),
                norm.running_mean,
                norm.running_var,
                norm.weight,
                norm.bias,
                eps=norm.eps,
            )
            for step in x
        ]
    )


@pytest.mark.parametrize("connect", ["add", "and", "iand"])
@pytest.mark.parametrize(("out", "stride", "bottleneck"), [(C, 1, False), (8, 2, False), (3, 2, True)])
def test_sew_block(connect, out, stride, bottleneck):
    """Spikes of branch and shortcut, joined element by element."""
    block = scattered(SEWBlock(C, out, LIF, stride=stride, connect=connect, bottleneck=bottleneck)).eval()
    x = spikes(T, B, C, 8, 8)
    a = x
    for layer in block.body[::2]:
        a = lif(conv_norm(a, layer))
    s = x if isinstance(block.shortcut, nn.Identity) else lif(conv_norm(x, block.shortcut[0]))
    expected = {"add": a + s, "and": a * s, "iand": (1 - a) * s}[connect]
    with torch.no_grad():
        found = block(x)
    assert found.shape == (T, B, 4 * out if bottleneck else out, 8 // stride, 8 // stride)
    assert 0.05 < a.mean() < 0.95
    assert torch.equal(found, expected)
    assert ("shortcut.0.module.0.weight" in block.state_dict()) == (stride != 1)


@pytest.mark.parametrize(("out", "stride", "pooled"), [(C, 1, False), (8, 2, False), (8, 2, True), (8, 1, True)])
def test_ms_block(out, stride, pooled):
    """Potentials of branch and shortcut, added; neurons stand before the convolutions."""
    block = scattered(MSBlock(C, out, LIF, stride=stride, pooled_shortcut=pooled)).eval()
    x = 3 * torch.rand(T, B, C, 8, 8, generator=torch.Generator().manual_seed(2)) - 0.5
    a = conv_norm(lif(conv_norm(lif(x), block.body[1])), block.body[3])
    s = x
    if stride == 2 and pooled:
        s = conv_norm(torch.stack([F.avg_pool2d(step, 2) for step in x]), block.shortcut[1])
    elif out != C:
        s = conv_norm(x, block.shortcut)
    with torch.no_grad():
        torch.testing.assert_close(block(x), a + s)


@pytest.mark.parametrize("size", [(7, 7), (9, 6), (3, 3), (1, 5)])
@pytest.mark.parametrize("stride", [2, 3])
def test_shortcuts_of_sizes_that_the_stride_does_not_divide(size, stride):
    """Pooling rounded down where convolutions round up: an error, or of 3 pixels one that was added to all."""
    x = 3 * torch.rand(T, B, C, *size, generator=torch.Generator().manual_seed(2)) - 0.5
    wanted = tuple(-(-length // stride) for length in size)
    for pooled in (False, True):
        block = scattered(MSBlock(C, 8, LIF, stride=stride, pooled_shortcut=pooled)).eval()
        assert block.body(x).shape == block.shortcut(x).shape == (T, B, 8, *wanted)
    found = block.shortcut[0](x)
    for row, column in ((0, 0), (wanted[0] - 1, wanted[1] - 1)):
        square = x[..., row * stride : (row + 1) * stride, column * stride : (column + 1) * stride]
        torch.testing.assert_close(found[..., row, column], square.mean((-2, -1)))
    assert SEWBlock(C, 8, LIF, stride=stride)(x).shape == (T, B, 8, *wanted)


def test_zero_init():
    """The branch gives nothing at first: the block is the identity, and its last normalisation still learns."""
    x = 3 * spikes(T, B, C, 8, 8)
    for block in (
        SEWBlock(C, C, LIF, zero_init=True),
        SEWBlock(C, C, LIF, zero_init=True, connect="iand", norm=functools.partial(TEBN, steps=T)),
        MSBlock(C, C, LIF),
    ):
        y = block(x)
        assert torch.equal(y, x)
        y.square().sum().backward()
        assert any(value.grad.ne(0).any() for name, value in block.named_parameters() if "weight" in name)
    assert not torch.equal(MSBlock(C, C, LIF, zero_init=False)(x), x)
    with pytest.raises(ValueError, match="SEWBlock: zero_init with connect='and' would give no spike at all"):
        SEWBlock(C, C, LIF, zero_init=True, connect="and")
    with pytest.raises(ValueError, match="zero_init needs a normalisation with a weight, got Identity"):
        MSBlock(C, C, LIF, norm=lambda channels: nn.Identity())
    with pytest.raises(ValueError, match="SEWBlock: connect must be one of 'add', 'and', 'iand', got 'or'"):
        SEWBlock(C, C, LIF, connect="or")


def test_attention():
    """q (k^T v) by head, token and channel, in loops; without softmax, scaled by 0.125."""
    heads, tokens, channels = 2, 5, 8
    layer = SpikingSelfAttention(channels, heads, LIF, attention_neuron=functools.partial(LIF, threshold=0.5))
    scattered(layer).eval()
    x = spikes(T, B, tokens, channels)

    def dense(part, value):
        weight, norm = part[0].module
        y = F.linear(value, weight.weight, weight.bias)
        return lif((y - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias)

    q, k, v = (dense(part, x).numpy() for part in (layer.query, layer.key, layer.value))
    attended = np.zeros((T, B, tokens, channels), np.float32)
    size = channels // heads
    for t, b, h, n, m in np.ndindex(T, B, heads, tokens, tokens):
        part = slice(h * size, (h + 1) * size)
        attended[t, b, n, part] += (q[t, b, n, part] * k[t, b, m, part]).sum() * v[t, b, m, part]
    fired = lif(2 * 0.125 * torch.from_numpy(attended))  # a threshold of 0.5 is twice the input of one of 1
    assert 0.01 < fired.mean() < 0.98
    with torch.no_grad():
        found = layer(x)
    assert torch.equal(found, dense(layer.projected, fired))
    assert 0.02 < found.mean() < 0.98
    with pytest.raises(ValueError, match="channels=8 must be a multiple of heads=3"):
        SpikingSelfAttention(8, 3, LIF)
    with pytest.raises(ValueError, match=r"x must be \[T, B, N, C\] with C=8, .* got shape \(4, 3, 5, 6\)"):
        layer(x[..., :6])
    assert "bias" not in str(
        list(
            SpikingSelfAttention(
                8, 2, LIF, bias=False, norm=functools.partial(nn.BatchNorm1d, affine=False)
            ).state_dict()
        )
    )


def test_voting():
    """The mean of each group of neighbours, for all steps, one, and within TimeBatched."""
    x = spikes(T, B, 12)
    expected = np.stack([x.numpy()[..., 4 * c : 4 * c + 4].mean(-1) for c in range(3)], -1)
    for found in (Voting(4)(x), torch.stack([Voting(4)(step) for step in x]), TimeBatched(Voting(4))(x)):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(F.avg_pool1d(x, 4).numpy(), expected, rtol=1e-6)
    for wrong, error in ((0, ValueError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match=f"Voting: voters={wrong} must be"):
            Voting(wrong)
    with pytest.raises(ValueError, match=r"a multiple of voters=5, got shape \(4, 3, 12\)"):
        Voting(5)(x)
    assert repr(Voting(4)) == "Voting(voters=4)"


BLOCKS = {
    "sew": lambda **norm: SEWBlock(C, 8, LIF, stride=2, **norm),
    "ms": lambda **norm: MSBlock(C, 8, LIF, stride=2, zero_init=False, **norm),
    "attention": lambda **norm: SpikingSelfAttention(C, 2, LIF, **norm),
}


def given(kind):
    return 2 * spikes(T, B, 5, C) if kind == "attention" else 2 * spikes(T, B, C, 8, 8)


@pytest.mark.parametrize("kind", BLOCKS)
class TestInNetworks:
    @pytest.mark.parametrize("backend", ["torch", "auto"])
    def test_fused(self, kind, backend):
        """sc.fuse finds every normalisation before a neuron; values, gradients and keys stay."""
        plain = BLOCKS[kind]().double()
        sc.set_backend(plain, backend)
        fused = sc.fuse(copy.deepcopy(plain))
        found = []
        for net in (plain, fused):
            x = given(kind).double().requires_grad_()
            y = net(x)
            y.square().sum().backward()
            found.append([y, x.grad, *(value.grad for value in net.parameters())])
        torch.testing.assert_close(*found)
        assert list(plain.state_dict()) == list(fused.state_dict())
        shown = str(sc.explain(fused, given(kind).double()))
        assert shown.count("normalises its input") == {"sew": 3, "ms": 1, "attention": 4}[kind]

    def test_streams(self, kind):
        """Single steps give the same spikes in eval()."""
        net, x = scattered(BLOCKS[kind]()).eval(), given(kind)
        with torch.no_grad():
            expected = net(x)
            sc.set_step(net, "single")
            torch.testing.assert_close(torch.stack([net(step) for step in x]), expected)

    def test_channels_last(self, kind):
        """Steps in channels-last memory give the same, and stay so where they are images."""
        if kind == "attention":
            pytest.skip("tokens have no channels-last memory")
        net, x = scattered(BLOCKS[kind]()).eval(), given(kind)
        expected = net(x)
        last = x.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (T, B))
        found = net.to(memory_format=torch.channels_last)(last)
        torch.testing.assert_close(found, expected)
        assert found.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)

    def test_other_normalisations(self, kind):
        """tdBN within TimeBatched, TEBN outside it."""
        dims = 1 if kind == "attention" else 2
        for norm in (functools.partial(tdbn, dims=dims), lambda channels: TEBN(channels, T, dims=dims)):
            net = BLOCKS[kind](norm=norm)
            y = net(given(kind))
            y.sum().backward()
            assert y.isfinite().all()
            assert all(value.grad is not None for value in net.parameters())

    @pytest.mark.skipif(
        not COMPILES,
        reason="before 2.3 torch does not say that it compiles",
    )
    @pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")  # by torch's compiler itself
    def test_compiled(self, kind):
        """torch.compile gives what eager code gives."""
        torch.compiler.reset()
        net, x = scattered(BLOCKS[kind]()).eval(), given(kind)
        torch.testing.assert_close(torch.compile(net, backend="aot_eager")(x), net(x))

    def test_trained(self, kind):
        """training_model trains it, as its fastest form is on a CPU."""
        net = nn.Sequential(BLOCKS[kind](), nn.Flatten(2), nn.Linear(30 if kind == "attention" else 128, 3))
        step = sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1))
        losses = [step(given(kind), torch.tensor([0, 1, 2]))[1].item() for _ in range(8)]
        assert losses[-1] < losses[0]


def test_delay_stands_by_itself():
    """Behind folded layers, before a neuron or before a read-out, it takes all steps; a loop gives the same."""
    delay = sc.Delay(nn.Linear(12, 5), 3, learn=())
    net = nn.Sequential(TimeBatched(nn.Conv2d(2, 3, 3), nn.Flatten()), delay, sc.LI()).eval()
    x = torch.rand(T, B, 2, 4, 4)
    flat, expected = net[0](x), torch.zeros(T, B, 5)
    for t in range(T):
        for k in range(4):
            if t >= k:
                expected[t] += flat[t - k] @ (delay.linear.weight * (delay.whole == k)).T
        expected[t] += delay.linear.bias
    with torch.no_grad():
        torch.testing.assert_close(delay(flat), expected)
        torch.testing.assert_close(net(x), sc.LI()(expected))
    with pytest.raises(ValueError, match="Delay, which has state and needs the time dimension"):
        TimeBatched(nn.Flatten(), sc.Delay(nn.Linear(12, 5), 3))
