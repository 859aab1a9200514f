"""Sums of SEW blocks within the kernels of their neurons, on a GPU: the bits of the sum that torch adds."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.context import compile_time
from spikecore.core.dispatch import Dispatch

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def _net(backend, last):
    torch.manual_seed(0)

    def neuron():
        return sc.LIF(backend=backend, detach_reset=True)

    first = sc.layers.TimeBatched(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32))
    blocks = [sc.layers.SEWBlock(32, 32, neuron), sc.layers.SEWBlock(32, 48, neuron, stride=2)]
    net = sc.fuse(nn.Sequential(first, neuron(), *blocks, sc.layers.SEWBlock(48, 48, neuron))).to(DEVICE)
    return net.to(memory_format=torch.channels_last) if last else net


def _results(net, x, compiled, half):
    """Output, and the gradients of input and parameters."""
    given = x.clone().requires_grad_()
    torch._dynamo.reset()
    run = torch.compile(net, fullgraph=True) if compiled else net
    with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        y = run(given)
    y.float().square().mean().backward()
    return y.detach(), [given.grad, *[p.grad for p in net.parameters()]]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("backend", ["cupy", "triton"])
def test_the_sum_within_a_kernel_is_that_of_torch(backend, last, half, compiled, monkeypatch):
    """Every sum is part of a kernel, its numbers are those of the sum behind the kernel, and so are the gradients."""
    net, x = _net(backend, last), 4 * torch.rand(4, 3, 3, 17, 16, device=DEVICE)
    if last:
        x = x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(x.shape)
    other, asked, adds = copy.deepcopy(net), [], Dispatch.adds_to_spikes

    @compile_time
    def adds_to_spikes(*call):  # torch.compile finds it by this name
        asked.append(within and adds(*call))
        return asked[-1]

    within = True
    monkeypatch.setattr(Dispatch, "adds_to_spikes", adds_to_spikes)
    mine, gradients = _results(net, x, compiled, half)
    assert asked == [True] * 3
    within = False
    its, expected = _results(other, x, compiled, half)
    assert torch.equal(mine, its)
    assert mine.max() >= 2
    for one, its_own in zip(gradients, expected):
        assert (one - its_own).norm() <= 1e-3 * its_own.norm()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_sums_are_packed(compiled):
    """Bits that a convolution behind three blocks keeps give the gradients of the whole tensor."""
    x = 4 * torch.rand(4, 3, 3, 16, 16, device=DEVICE)
    found = []
    for packs in (False, True):
        net = nn.Sequential(*_net("cupy", True), sc.layers.TimeBatched(nn.Conv2d(48, 5, 3))).to(DEVICE)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        options = sc.TrainingOptions(pack_spikes=packs, compile=compiled, channels_last=True)
        step = sc.training_model(net, lambda y, t: (y - t).square().mean(), optimizer, options=options)
        step(x, torch.zeros((), device=DEVICE))
        found.append([p.detach().clone() for p in net.parameters()])
    for one, other in zip(*found):
        assert (one - other).norm() <= 1e-4 * other.norm()
