"""The numbers of ``sc.explain`` beside those counted by hand; it and ``sc.energy`` leave nothing behind."""

from __future__ import annotations

import gc
from typing import Any, List

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import spikecore as sc


def products(net: nn.Module, *given: Tensor) -> List[int]:
    return [layer.products for layer in sc.explain(net, given).layers if layer.products]


def test_products_of_every_layer_with_weights() -> None:
    """Each is the loop over its weights: a transposed convolution from its input, a recurrent layer at every step."""
    x = torch.rand(3, 2, 4, 5, 5)
    images = nn.Sequential(
        sc.layers.TimeBatched(nn.Conv2d(4, 6, 3, groups=2)),
        sc.LIF(),
        sc.layers.TimeBatched(nn.ConvTranspose2d(6, 8, 2, 2)),
    )
    assert products(images, x) == [6 * (6 * 9) * (2 * 9), 6 * (6 * 9) * (8 * 4)]
    recurrent = nn.Sequential(nn.Linear(4, 5), sc.Recurrent(sc.LIF(), nn.Linear(5, 5)))
    assert products(recurrent, torch.rand(7, 2, 4)) == [7 * 2 * 4 * 5, 7 * 2 * 5 * 5]


def test_products_of_calls_that_differ() -> None:
    """A layer that is called with tensors of two sizes computes the products of both."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 5)

        def forward(self, few: Tensor, many: Tensor) -> Tensor:
            return self.linear(few).sum() + self.linear(many).sum()

    assert products(Twice(), torch.rand(2, 4), torch.rand(30, 4)) == [32 * 4 * 5]


def test_products_that_are_computed_once_count_once() -> None:
    """``sc.hoist``: the output has six steps, of which one was computed."""
    net = nn.Sequential(sc.encode.Constant(6), nn.Linear(4, 5), sc.LIF(), nn.Linear(5, 3))
    assert products(net, torch.rand(2, 4)) == [6 * 2 * 4 * 5, 6 * 2 * 5 * 3]
    assert products(sc.hoist(net), torch.rand(2, 4)) == [2 * 4 * 5, 6 * 2 * 5 * 3]


@pytest.mark.parametrize("steps", range(2, 26))
def test_other_numbers_in_the_memory_of_spikes_are_no_spikes(steps: int) -> None:
    """Spikes that are freed leave their memory to what the next layer keeps, often at the same address."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lif, self.linear = sc.LIF(threshold=0.2, backend="torch"), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.lif(x) * 0.5 + 0.1)

    found = sc.explain(Scaled(), torch.rand(steps, 8, 16))
    assert [layer.saved_spikes for layer in found.layers] == [0, 0]


def test_what_autograd_dropped_is_not_kept() -> None:
    """A part of the network whose outputs nobody took keeps nothing; what it shared counts where it is kept."""

    class Monitors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.used = nn.Sequential(nn.Linear(6, 64), nn.Tanh()), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x + 1
            self.seen(x)
            return self.used(x)

    found = sc.explain(Monitors(), torch.rand(2, 6))
    assert [(layer.name, layer.saved) for layer in found.layers] == [("seen.0", 0), ("seen.1", 0), ("used", 4 * 2 * 6)]
    assert found.saved == 4 * 2 * 6


# -- a copy of the network runs, and nothing is left behind


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
