"""Residual blocks, voting and attention against loops over steps, heads and tokens; and what networks do with them."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import refusals
import spikecore as sc
from kernel_loop import Loop, bound
from spikecore import layers, models
from spikecore.layers import TEBN, MSBlock, SEWBlock, SpikingSelfAttention, TimeBatched, Voting

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


@pytest.mark.parametrize(
    ("connect", "out", "stride", "bottleneck"),
    [("add", C, 1, False), ("add", 8, 2, False), ("add", 3, 2, True), ("and", 8, 2, False), ("iand", C, 1, False)],
)
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


@pytest.mark.parametrize(("out", "stride", "pooled"), [(C, 1, False), (8, 2, True), (8, 1, True)])
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


@pytest.mark.parametrize(("size", "stride"), [((7, 7), 2), ((9, 6), 3), ((1, 5), 2)])
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


def test_voting():
    """The mean of each group of neighbours, for all steps, one, and within TimeBatched."""
    x = spikes(T, B, 12)
    expected = np.stack([x.numpy()[..., 4 * c : 4 * c + 4].mean(-1) for c in range(3)], -1)
    for found in (Voting(4)(x), torch.stack([Voting(4)(step) for step in x]), TimeBatched(Voting(4))(x)):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    for wrong, error in ((0, ValueError), (2.5, TypeError)):
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
    def test_fused(self, kind):
        """sc.fuse finds every normalisation before a neuron; values, gradients and keys stay."""
        plain = BLOCKS[kind]().double()
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


def test_token_layers_take_patches_of_two_pixels():
    """Rows of patches follow one another; a linear layer sees each token by itself."""
    x = torch.arange(2 * 3 * 4 * 4, dtype=torch.float32).reshape(1, 2, 3, 4, 4)
    patches = sc.layers.TimeBatched(nn.PixelUnshuffle(2))
    tokens = sc.layers.Tokens()(patches(x))
    assert tokens.shape == (1, 2, 4, 12)
    torch.testing.assert_close(tokens[0, 1, 1], x[0, 1, :, 0:2, 2:4].reshape(12))
    linear = nn.Linear(12, 5)
    torch.testing.assert_close(sc.layers.EachToken(linear)(tokens), linear(tokens))
    torch.testing.assert_close(sc.layers.MeanOfTokens()(tokens)[0, 1], tokens[0, 1].mean(0))


def on_loop() -> sc.Neuron:
    """A neuron on a backend whose kernels are loops."""
    made: sc.Neuron = bound(sc.LIF(), Loop(4))
    return made


def fusable(*arguments: int, make: Any = on_loop, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return SEWBlock(*arguments, make, **options)


def images(channels: int = 4) -> Tensor:
    return (torch.rand(T, B, channels, 6, 6, generator=torch.Generator().manual_seed(1)) < 0.4).float()


def test_a_monitor_sees_the_spikes_without_the_shortcut() -> None:
    """The block is computed with its sum outside meanwhile."""
    plain, fused = fusable(4, 4), sc.fuse(fusable(4, 4))
    wanted = fused(images())
    with sc.monitor(fused) as watched:
        assert torch.equal(fused(images()), wanted)
    assert watched["body.3"].rate == pytest.approx(plain.body(images()).mean().item())


test_refused = refusals.table(__file__, globals(), layers, models)
