"""``sc.explain`` leaves nothing behind: the network and what is given to it are as they were."""

from __future__ import annotations

import copy
from typing import Dict

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc


def images() -> Tensor:
    return torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def _tensors(net: nn.Module) -> Dict[str, Tensor]:
    """Parameters and buffers; state_dict() would put a learnt parameter back into its range."""
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def _held(net: nn.Module) -> Dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in _tensors(net).items()}


def test_the_network_is_as_it_was() -> None:
    """Values, gradients, statistics, modes, states, chosen backends, random streams, versions of tensors."""
    net = nn.Sequential(
        sc.encode.Poisson(4, generator=torch.Generator().manual_seed(3)),
        sc.layers.TimeBatched(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5)),
        sc.LIF(2.0, learn=("tau",), backend="torch"),
    )
    single = sc.LIF(step="single", backend="torch")
    single(torch.rand(3))
    both = nn.ModuleDict({"net": net, "single": single})
    state, step = single.state, torch.rand(3)
    net(images()).sum().backward()
    with torch.no_grad():
        net[2].tau.fill_(0.5)  # outside of its range: a call puts it back, and here it must stay
    net.eval()
    net[1].train()
    graph = (net[2].tau * net[2].tau).sum()
    gradients = [parameter.grad for parameter in net.parameters()]
    before, streams, modes = _held(both), torch.get_rng_state(), [module.training for module in net.modules()]
    versions = [tensor._version for tensor in _tensors(both).values()]
    encoder = net[0].generator.get_state()
    bound = dict(net[2].bound)
    sc.explain(net, images())
    sc.explain(net, images(), training=False)
    sc.explain(single, step)
    sc.explain(net, images(), backend="torch")
    after = _held(both)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert float(net[2].tau.detach()) == 0.5
    assert [parameter.grad for parameter in net.parameters()] == gradients
    assert torch.equal(torch.get_rng_state(), streams)
    assert torch.equal(net[0].generator.get_state(), encoder)
    assert [module.training for module in net.modules()] == modes
    assert single.state is state
    assert dict(net[2].bound) == bound
    assert [tensor._version for tensor in _tensors(both).values()] == versions
    graph.backward()
    for module in both.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert "run" not in vars(module)


def test_nothing_is_left_behind_where_the_network_raises() -> None:
    """Hooks, ranges of the profiler and states are gone; a second run works."""

    class Raises(nn.Module):
        wrong = True

        def forward(self, x: Tensor) -> Tensor:
            if self.wrong:
                raise RuntimeError("no such day")
            return x

    net = nn.Sequential(nn.Linear(3, 3), nn.Sequential(Raises()), sc.LIF(step="single", backend="torch"))
    with pytest.raises(RuntimeError, match="no such day"):
        sc.explain(net, torch.rand(2, 3))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    net[1][0].wrong = False
    assert len(sc.explain(net, torch.rand(2, 3)).layers) == 3
    assert net[2].state is None


def test_what_is_given_stays() -> None:
    """The input, a wrapped network's own network, and a batch in a dict."""
    x = torch.rand(4, 3)
    sc.explain(sc.LIF(backend="torch"), x)
    assert not x.requires_grad
    net = nn.Sequential(nn.Linear(3, 3))
    assert [layer.kind for layer in sc.explain(torch.compile(net), x).layers] == ["Linear"]
    assert [layer.kind for layer in sc.explain(net, {"input": x}).layers] == ["Linear"]
    copied = copy.deepcopy(net)
    assert torch.equal(copied(x), net(x))
