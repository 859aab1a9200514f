"""Networks of several processes, in one: names, shards, micro-batches. (tests/e2e/test_distributed.py has several.)"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import distributed, nn

import spikecore as sc

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
T, B, C = 5, 4, 6

pytestmark = pytest.mark.filterwarnings("ignore")  # of process groups of one CPU
shards = pytest.mark.skipif(TORCH < (2, 6), reason="before torch 2.6 fully_shard is private")


@pytest.fixture
def group():
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def network(**options) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(C, C), sc.LIF(torch.tensor([2.0]), learn=("tau",), **options), nn.Linear(C, 3))


def training(net: nn.Module):
    return sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 1e-2))


class TestNames:
    """A step's weights have the names of the network itself, so that any process loads them."""

    @pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, torch.compile])
    def test_wrapped(self, group, wrap):
        """A plain network loads a file of a wrapped one, and the other way round."""
        step, plain = training(wrap(network())), training(network())
        state = copy.deepcopy(step.state_dict())
        assert list(state["net"]) == ["0.weight", "0.bias", "1.tau", "2.weight", "2.bias"]
        state["net"]["1.tau"].fill_(3.0)
        plain.load_state_dict(state)
        assert plain.net[1].tau.item() == 3.0
        plain.net[1].tau.data.fill_(4.0)
        step.load_state_dict(plain.state_dict())
        assert step.state_dict()["net"]["1.tau"].item() == 4.0

    def test_refused_as_a_whole(self, group):
        """A state that does not fit changes nothing, and the error has the names of the network itself."""
        step = training(nn.parallel.DistributedDataParallel(network()))
        state = copy.deepcopy(step.state_dict())
        state["net"]["1.tau"].fill_(0.5)
        with pytest.raises(RuntimeError, match=r"1\.tau holds 0\.5, and tau of LIF must be at least 1"):
            step.load_state_dict(state)
        assert step.state_dict()["net"]["1.tau"].item() == 2.0


@shards
class TestShards:
    """Parameters under ``fully_shard``."""

    def sharded(self, net: nn.Module, *parts: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (1,))
        for part in (*parts, net):
            fully_shard(part, mesh=mesh)
        return net

    def test_outside(self, group):
        """A call past the forward of the module that was sharded says how the parameters are gathered."""
        net = network()
        self.sharded(net, net[1])
        with pytest.raises(RuntimeError, match=r"LIF: tau is sharded over processes.*forward_method\(neuron, 'run'\)"):
            net[1].run(torch.rand(T, B, C))
        net[1].unshard()
        assert net[1].run(torch.rand(T, B, C))[0].shape == (T, B, C)
        net[1].reshard()
        from torch.distributed.fsdp import register_fsdp_forward_method

        register_fsdp_forward_method(net[1], "run")
        x = torch.rand(T, B, C) * 3
        assert torch.equal(net[1].run(x)[0], sc.LIF()(x))
