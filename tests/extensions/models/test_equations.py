"""Transformers and the U-Net beside the equations of their papers, in plain torch on images ``[T, B, C, H, W]``."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spikecore as sc
from arctan import spike

WEIGHTED = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def lif(x, threshold=1.0):
    """``LIF(tau=2, detach_reset=True)``."""
    v, spikes = torch.zeros_like(x[0]), []
    for now in x:
        h = v + (now - v) / 2
        z = spike(h - threshold)
        v = torch.where(z.detach() > 0, torch.zeros_like(h), h)
        spikes.append(z)
    return torch.stack(spikes)


def pooled(x, pool, *sizes):
    return pool(x.flatten(0, 1), *sizes).unflatten(0, x.shape[:2])


class Plain:
    """The layers of a network, taken one after the other in the order in which papers name them."""

    def __init__(self, net):
        self.layers = iter([layer for layer in net.modules() if isinstance(layer, (*WEIGHTED, *NORMS))])

    def conv(self, x, stride=1):
        """A convolution or linear layer, whose padding keeps the size."""
        layer, samples = next(self.layers), x.flatten(0, 1)
        if isinstance(layer, nn.ConvTranspose2d):
            y = F.conv_transpose2d(samples, layer.weight, layer.bias, 2, 1, 1)
        else:
            weight = layer.weight if layer.weight.ndim == 4 else layer.weight[:, :, None, None]
            y = F.conv2d(samples, weight, layer.bias, stride, weight.shape[-1] // 2 if weight.shape[-1] % 2 else 0)
        return y.unflatten(0, x.shape[:2])

    def norm(self, x):
        """The statistics of the batch, over time, too."""
        layer = next(self.layers)
        y = F.batch_norm(x.flatten(0, 1), None, None, layer.weight, layer.bias, True, eps=layer.eps)
        return y.unflatten(0, x.shape[:2])

    def conv_norm(self, x, stride=1):
        return self.norm(self.conv(x, stride))

    def fired(self, x, stride=1):
        return lif(self.conv_norm(x, stride))

    def halved(self, x):
        """A convolution with its normalisation, and max pooling."""
        return pooled(self.conv_norm(x), F.max_pool2d, 3, 2, 1)

    def read_out(self, x):
        layer = next(self.layers)
        assert next(self.layers, None) is None
        return F.linear(x, layer.weight, layer.bias)

    # -- QKFormer

    def qkformer(self, x, early, heads):
        """``early``: as for ImageNet."""
        x = lif(self.halved(x)) if early else self.fired(x)
        for stage in range(3):
            y = x
            if early:
                x = self.fired(lif(self.halved(x)))
            elif stage:
                x = lif(self.halved(self.fired(x)))
            else:
                x = self.fired(x)
            x = x + self.fired(y, 2 if early or stage else 1)
            x = x + (self.self_attention(x, heads) if stage == 2 else self.token_attention(x, heads))
            x = x + self.fired(self.fired(x))
        return self.read_out(x.mean((-1, -2)))

    def token_attention(self, x, heads):
        q, k = [self.fired(x).flatten(3).unflatten(2, (heads, -1)) for _ in range(2)]
        attended = lif(q.sum(3, keepdim=True), 0.5) * k
        return self.fired(attended.flatten(2, 3).view_as(x))

    def self_attention(self, x, heads):
        q, k, v = [self.fired(x).flatten(3).unflatten(2, (heads, -1)) for _ in range(3)]
        attended = torch.einsum("tbhdn,tbhdm,tbhem->tbhen", q, k, v) * 0.125
        return self.fired(lif(attended.flatten(2, 3), 0.5).view_as(x))

    # -- spike-driven transformer

    def spike_driven(self, x):
        x = self.fired(self.fired(x))
        x = self.halved(pooled(self.fired(x), F.max_pool2d, 3, 2, 1))
        x = self.conv_norm(lif(x)) + x
        s = lif(x)
        q, k, v = [self.fired(s) for _ in range(3)]
        x = self.conv_norm(q * lif((k * v).sum((-1, -2), keepdim=True), 0.5)) + x
        x = self.conv_norm(lif(self.conv_norm(lif(x)))) + x
        return self.read_out(lif(x.mean((-1, -2))))

    # -- U-Net

    def unet(self, x, depth):
        levels = [self.fired(self.fired(x))]
        for _ in range(depth):
            above = levels[-1]
            down = self.fired(pooled(above, F.avg_pool2d, 2))
            levels.append(self.fired(torch.cat([self.conv(above, 2), down], 2)))
        x = levels.pop()
        while levels:
            x = self.fired(self.fired(torch.cat([levels.pop(), self.fired(x)], 2)))
        x = self.conv(x)
        assert next(self.layers, None) is None
        return x


NETWORKS = {
    "qkformer, 4 pixels": (
        lambda: sc.models.qkformer((1, 1, 1), 32, heads=2, classes=5),
        lambda plain, x: plain.qkformer(x, early=False, heads=2),
    ),
    "qkformer, 16 pixels": (
        lambda: sc.models.qkformer((1, 1, 1), 32, heads=2, classes=5, patch=16),
        lambda plain, x: plain.qkformer(x, early=True, heads=2),
    ),
    "spike-driven": (
        lambda: sc.models.spike_driven_transformer(1, 16, patch=4, classes=5),
        lambda plain, x: plain.spike_driven(x),
    ),
    "unet": (lambda: sc.models.spiking_unet(2, 4, classes=2), lambda plain, x: plain.unet(x, 2)),
}


def network(name):
    """A network in float64 whose neurons fire."""
    torch.manual_seed(0)
    net = NETWORKS[name][0]().double()
    for module in net.modules():
        if isinstance(module, NORMS):
            nn.init.constant_(module.weight, 1.5)
            nn.init.constant_(module.bias, 0.7 if "16" in name else 0.4)
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.2)
    return net


def images():
    size = (3, 2, 3, 32, 32)
    return (2 * torch.rand(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).requires_grad_()


def gradients(y, x, net):
    return torch.autograd.grad(y.square().sum(), [x, *net.parameters()])


def in_order(net, fused, grads):
    """Gradients of a fused network, in the order of the parameters of the plain one."""
    places = {id(value): name for name, value in fused.state_dict(keep_vars=True).items()}
    by_name = {places[id(value)]: grad for value, grad in zip(fused.parameters(), grads[1:])}
    return [grads[0], *[by_name[name] for name, _ in net.named_parameters()]]


@pytest.mark.parametrize("name", NETWORKS)
class TestEach:
    def test_equations(self, name):
        """Outputs and the gradients of the images and all parameters, in training."""
        net, x = network(name), images()
        y, expected = net(x), NETWORKS[name][1](Plain(net), x)
        torch.testing.assert_close(y, expected)
        assert y.std(0).max() > 0
        grads = gradients(y, x, net)
        torch.testing.assert_close(grads, gradients(expected, x, net))
        assert all(grad.any() for grad, value in zip(grads[1:], net.parameters()) if value.ndim > 1)

    def test_fused(self, name):
        """``sc.fuse`` changes neither outputs nor gradients."""
        net, x = network(name), images()
        fused = sc.fuse(copy.deepcopy(net))
        y, other = net(x), fused(x)
        torch.testing.assert_close(other, y)
        torch.testing.assert_close(in_order(net, fused, gradients(other, x, fused)), [*gradients(y, x, net)])
        count = sum(isinstance(module, sc.layers.NormNeuron) for module in fused.modules())
        assert count == {"qkformer, 4 pixels": 23, "qkformer, 16 pixels": 22, "spike-driven": 7, "unet": 12}[name]
