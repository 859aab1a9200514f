"""Weights that do not lie contiguously are laid out anew by the backend."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

LAID_OUT = "did not lie contiguously.*laid out anew, with the same values"


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3), sc.encode.Constant(4), sc.LIF(threshold=0.1, backend="ipu")
    )


def trained(net):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    step = sc.training_model(net, sc.losses.ce_count, optimizer, backend="ipu")
    generator = torch.Generator().manual_seed(1)
    return step, (torch.rand(3, 2, 4, 4, generator=generator), torch.tensor([0, 1, 2]))


class TestBackend:
    """``training_model`` and ``inference_model`` lay weights out, and say so."""

    def test_channels_last(self):
        """A channels-last network trains as one that is not, and its parameters stay the same objects."""
        net, plain = convolutional().to(memory_format=torch.channels_last), convolutional()
        before = [id(one) for one in net.parameters()]
        step, batch = trained(net)
        with pytest.warns(UserWarning, match=r"net.0.weight " + LAID_OUT):
            step(*batch)
        step.destroy()
        same, _ = trained(plain)
        same(*batch)
        same.destroy()
        assert before == [id(one) for one in net.parameters()]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(net.parameters(), plain.parameters()))

    @pytest.mark.filterwarnings("ignore:net.1.tau did not lie contiguously")
    @pytest.mark.parametrize("learn", [(), ("tau",)])
    def test_expanded_parameter_of_a_neuron(self, learn):
        """``tau=t.expand(C)`` has its values, once per channel, learnt or not."""
        tau = torch.tensor(3.0).expand(2)
        net = nn.Sequential(sc.encode.Constant(3), sc.LIF(tau=tau, learn=learn, threshold=0.1, backend="ipu"))
        x = torch.rand(4, 2)
        assert torch.equal(sc.inference_model(net, backend="ipu")(x), net(x))
        assert net[1].tau.is_contiguous()

    def test_shared_memory(self):
        """A transposed view of another weight is refused: laid out anew it would be tied no more."""
        net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False))
        net[1].weight = nn.Parameter(net[0].weight.detach().t())
        with pytest.raises(ValueError, match=r"net.1.weight is a view of the memory of net.0.weight.*in forward"):
            sc.inference_model(net, backend="ipu")(torch.ones(1, 3))

    @pytest.mark.parametrize("share", [lambda w: w.detach(), lambda w: w.detach()[:1]], ids=["all", "part"])
    def test_two_parameters_in_one_memory(self, share):
        """Weights tied by their memory are refused: PopTorch would train each for itself, and the last one stays."""
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        net[1].weight = nn.Parameter(share(net[0].weight))
        step = sc.training_model(net, nn.functional.mse_loss, torch.optim.SGD(net.parameters(), 0.1), backend="ipu")
        said = r"net.[01].weight and net.[01].weight are two tensors in the same memory.*b.weight = a.weight"
        with pytest.raises(ValueError, match=said):
            step(torch.ones(1, 2), torch.ones(1, net[1].weight.shape[0]))

    def test_memory_that_is_shared_rightly(self):
        """One parameter in two modules, parts of one memory side by side, and what is not trained are taken."""
        flat = torch.arange(8.0)
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        net[0].weight, net[1].weight = (nn.Parameter(part.reshape(2, 2)) for part in flat.split(4))
        net[2].weight = net[1].weight
        step = sc.training_model(net, nn.functional.mse_loss, torch.optim.SGD(net.parameters(), 1e-6), backend="ipu")
        step(torch.ones(1, 2), torch.ones(1, 2))
        step.destroy()
        net[2].weight = nn.Parameter(net[1].weight.detach())
        net.requires_grad_(False)
        x = torch.ones(1, 2)
        assert torch.equal(sc.inference_model(net, backend="ipu")(x), net(x))

    def test_moved_after_compilation(self):
        """``.to(memory_format=...)`` after compilation is an error that says how to take it back."""
        net = convolutional()
        step, batch = trained(net)
        step(*batch)
        net.to(memory_format=torch.channels_last)
        with pytest.raises(sc.backend.Unsupported, match="net.0.weight became non-contiguous.*contiguous_format"):
            step(*batch)
        net.to(memory_format=torch.contiguous_format)
        step(*batch)
