"""SpikingJelly's nodes for online learning, and the rules ``ottt`` and ``sltt``, give the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

pytestmark = pytest.mark.peers

T, B, N, K = 15, 4, 7, 3


def squares(y: Tensor, targets: Tensor) -> Tensor:
    """A sum over steps."""
    return 0.5 * (y - targets).square().sum()


@pytest.mark.parametrize("rule", ["ottt", "sltt"])
@pytest.mark.parametrize("decay_input", [False, True])
def test_gradients_of_two_layers(rule: str, decay_input: bool) -> None:
    """Of the weights before a neuron, without biases, whose trace SpikingJelly leaves out.

    Its traces of spikes have the leak of the neuron that fires, ours that of the one that reads: one ``tau`` for all.
    """
    from spikingjelly.activation_based import layer, neuron, surrogate

    torch.manual_seed(0)
    tau, kind = 3.0, {"ottt": neuron.OTTTLIFNode, "sltt": neuron.SLTTLIFNode}[rule]
    weights = [nn.Linear(*size, bias=False).double() for size in ((N, N), (N, N), (N, K))]
    x = (torch.rand(T, B, N) < 0.5).double() * 2
    targets = torch.randn(T, B, K, dtype=torch.float64)
    nodes = [
        kind(tau=tau, decay_input=decay_input, v_threshold=0.6, v_reset=None, surrogate_function=surrogate.ATan(2.0))
        for _ in range(2)
    ]
    chain = layer.OTTTSequential if rule == "ottt" else nn.Sequential
    theirs = chain(weights[0], nodes[0], weights[1], nodes[1], weights[2])
    trace = torch.zeros_like(x[0])
    for x_t, target in zip(x, targets):
        trace = (1 - 1 / tau) * trace + x_t
        y = theirs([x_t, trace] if rule == "ottt" else x_t)
        squares(y[0] if isinstance(y, list) else y, target).backward()
    want = [each.weight.grad.clone() for each in weights[:2]]
    ours = [sc.LIF(tau, decay_input=decay_input, reset="soft", threshold=0.6) for _ in range(2)]
    net = nn.Sequential(weights[0], ours[0], weights[1], ours[1], weights[2])
    options = sc.OnlineOptions(rule=rule, chunk=4, time_targets=True)
    sc.training_model(net, squares, torch.optim.SGD(net.parameters(), lr=0.0), options=options)(x, targets)
    for each, gradient in zip(weights, want):
        assert (each.weight.grad - gradient).abs().max() <= 1e-12 * gradient.abs().max()
