"""``sc.explain`` and ``sc.energy`` leave nothing behind: a copy of the network runs."""

from __future__ import annotations

import gc
from typing import Any, List

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import spikecore as sc


def images() -> Tensor:
    return torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("look", [sc.explain, sc.energy])
def test_the_network_is_as_it_was(look: Any) -> None:
    """Values, gradients, statistics, modes, states, chosen backends, random streams, versions of tensors, hooks."""
    net = nn.Sequential(
        sc.encode.Poisson(4, generator=torch.Generator().manual_seed(3)),
        sc.layers.TimeBatched(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5)),
        sc.LIF(2.0, learn=("tau",), backend="torch"),
    )
    single = sc.LIF(step="single", backend="torch")
    single(torch.rand(3))
    both, state = nn.ModuleDict({"net": net, "single": single}), single.state
    net(images()).sum().backward()
    with torch.no_grad():
        net[2].tau.fill_(0.5)  # outside of its range: a call puts it back, and here it must stay
    net.eval()
    net[1].train()

    def everything() -> List[Any]:
        tensors = [*both.parameters(), *both.buffers()]
        versions = [tensor._version for tensor in tensors]
        modules = [(module.training, len(module._forward_hooks), "run" in vars(module)) for module in both.modules()]
        streams = [torch.get_rng_state().tolist(), net[0].generator.get_state().tolist()]
        gradients = [parameter.grad for parameter in net.parameters()]
        return [[tensor.tolist() for tensor in tensors], versions, modules, streams, gradients, dict(net[2].bound)]

    x, step, before = images(), torch.ones(3), everything()
    look(net, x)
    look(single, step)
    assert everything() == before
    assert single.state is state


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_what_torch_does_not_copy() -> None:
    """A weight that a hook of torch's computes from others is detached in the copy; a wrapper is left out."""
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)), sc.LIF(backend="torch"))
    net(torch.rand(4, 2, 3))
    for given, batch in ((net, torch.rand(4, 2, 3)), (torch.compile(net), {"input": torch.rand(4, 2, 3)})):
        assert [layer.kind for layer in sc.explain(given, batch).layers][-2:] == ["Linear", "LIF"]
    x = torch.rand(4, 3)
    sc.explain(sc.LIF(backend="torch"), x)
    assert not x.requires_grad


def test_a_network_that_raises_leaves_no_graph_behind() -> None:
    """What a rectifier saves is its own output, which must not keep its graph where no backward pass follows."""
    memory: List[Any] = []

    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.tanh = nn.Linear(6, 6), nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            out = self.tanh(self.linear(x))
            memory.append(StorageWeakRef(out.untyped_storage()))
            raise MemoryError("no more")

    net = Raises()
    with pytest.raises(MemoryError, match="no more"):
        sc.explain(net, torch.rand(2, 6))
    gc.collect()
    assert memory[0].expired()
    assert not net.linear._forward_hooks
