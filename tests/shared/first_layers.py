"""Layers behind an encoder that repeats its input, and the same layers computed at every step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import per_sample

T, B = 5, 3


def _compiles():
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)


COMPILED = pytest.mark.skipif(not _compiles(), reason="torch.compile looks through neurons from torch 2.6 on")


def same_weights():
    """The same weights in every run: a fixture, once a test file makes it one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class EveryStep(sc.encode.Constant):
    """Constant whose steps lie apart in memory, so that nothing is known to be the same."""

    def forward(self, x):
        """A copy for every step."""
        return super().forward(x).clone()


@per_sample
class Scale(nn.Module):
    """A user's layer, which remembers the shape that it saw."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        """Every number times the factor."""
        self.seen = tuple(x.shape)
        return x * self.factor


class Noisy(Scale):
    """Derived from a marked class, with a forward that draws: not marked."""

    def forward(self, x):
        """Noise."""
        return super().forward(x) + torch.rand_like(x)


class Residual(nn.Module):
    """A user's layer with layers inside."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        """The input added."""
        return x + self.inside(x)


def values(*shape, seed=0):
    """Values in [0, 3), in float64."""
    return 3 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(*modules):
    """The same layers behind an encoder that repeats, and behind one whose steps are computed each."""
    net = nn.Sequential(*modules).double()
    return nn.Sequential(sc.encode.Constant(T), *net), nn.Sequential(EveryStep(T), *copy.deepcopy(net))


def gradients(net, x, cotangent):
    """Outputs, and gradients of input and parameters."""
    x = x.clone().requires_grad_()
    out = net(x)
    return out.detach(), torch.autograd.grad(out, [x, *net.parameters()], cotangent)


def check_same(once, every, x):
    """Outputs, gradients and buffers of both."""
    expected = every(x)
    every.load_state_dict(once.state_dict())
    cotangent = values(*expected.shape, seed=1)
    (a, grads), (b, others) = gradients(once, x, cotangent), gradients(every, x, cotangent)
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for grad, other in zip(grads, others):
        torch.testing.assert_close(grad, other, rtol=1e-9, atol=1e-9)
    for (name, buffer), other in zip(once.named_buffers(), every.buffers()):
        torch.testing.assert_close(buffer, other, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


def is_once(net, x):
    """Whether the output of a network is one step that is repeated."""
    return net(x).stride(0) == 0
