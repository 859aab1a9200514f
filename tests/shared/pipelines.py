"""A network of three stages, as nn.Sequential and as a pipeline, whose sums are exact in any order."""

from __future__ import annotations

import torch
from torch import nn

import spikecore as sc

T, B, N, C = 6, 8, 5, 3


def linear(inputs, outputs):
    """A layer whose products and sums are exact for inputs such as spikes, so that no order of them matters."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((parameter * 32).round() / 16)
    return layer


def layers(step="multi", feedback=False):
    """Three stages, always with the same weights."""
    torch.manual_seed(0)
    second = sc.PLIF(1.8, threshold=0.5, step="multi" if feedback else step)
    return [
        nn.Sequential(linear(N, 16), sc.LIF(1.6, threshold=0.4, learn=("tau",), step=step)),
        sc.Recurrent(second, linear(16, 16), step=step) if feedback else nn.Sequential(linear(16, 16), second),
        nn.Sequential(linear(16, C), sc.LI(3.0, learn=("tau",), step=step)),
    ]


def plain(**kwargs):
    """The network that a pipeline is compared with."""
    return nn.Sequential(*layers(**kwargs))


def pipeline(*, step="multi", split=None, **kwargs):
    """The same network as a pipeline, all on the CPU: of ``[T, B, ...]``, or of ``[B, ...]`` in single steps."""
    stages = [(stage, "cpu") for stage in layers(step=step, **kwargs)]
    return sc.Pipeline(stages, **(split or {}), batch_dim=1 if step == "multi" else 0)


def inputs(dtype=torch.float32, steps=T):
    """Multiples of 1/16, which need a gradient."""
    drawn = torch.randn(steps, B, N, generator=torch.Generator().manual_seed(1))
    return ((drawn + 0.5) * 16).round().div(16).to(dtype).requires_grad_()


def gradients(net, x):
    """Of the input, then of all parameters."""
    return [x.grad, *[parameter.grad for parameter in net.parameters()]]


def assert_close(found, wanted, tolerance=1e-6):
    """Each tensor within the tolerance of the largest number of the one that it should be."""
    for a, b in zip(found, wanted):
        assert (a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1e-30)


def states(net):
    """What the neurons of a network carry, in order."""
    return [value.detach() for m in sc.functional.stateful_modules(net) for value in (m.state or {}).values()]
