"""nn.DataParallel splits the batch, never time, and loses no state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

T, B, C = 4, 2, 3


class OnTwo(nn.DataParallel):
    """``nn.DataParallel`` over two devices that are the CPU: its own forward, without the copies to devices."""

    def __init__(self, net, **options):
        super().__init__(net)
        self.device_ids, self.src_device_obj, self.output_device = [0, 1], torch.device("cpu"), 0
        self.dim = options.get("dim", 0)

    def scatter(self, inputs, kwargs, device_ids):
        return tuple((part,) for part in inputs[0].chunk(2, self.dim)), tuple({} for _ in device_ids)

    def replicate(self, module, device_ids):
        copies = []
        for _ in device_ids:
            found = {one: one._replicate_for_data_parallel() for one in module.modules()}
            for one, replica in found.items():
                for name, child in one._modules.items():
                    replica._modules[name] = found[child]
                for name, value in one._parameters.items():
                    setattr(replica, name, value.detach())
                for name, value in one._buffers.items():
                    if value is not None:
                        setattr(replica, name, value.clone())
            copies.append(found[module])
        return copies

    def parallel_apply(self, replicas, inputs, kwargs):
        return [replica(*given) for replica, given in zip(replicas, inputs)]

    def gather(self, outputs, output_device):
        return torch.cat(outputs, self.dim)


class TestDataParallel:
    """``nn.DataParallel`` splits the first dimension and forgets its replicas."""

    def net(self, **options):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(C, C), sc.LIF(threshold=0.2, **options))

    def test_time_is_not_split(self):
        """Along dimension 0 it raises."""
        says = r"^LIF is in an nn\.DataParallel.*nn\.DataParallel\(net, dim=1\).*Distributed.*sc\.Pipeline"
        with pytest.raises(RuntimeError, match=says):
            OnTwo(self.net())(torch.rand(T, 4, C))

    @pytest.mark.parametrize("learn", [("delay",), ()])
    def test_delays(self, learn):
        """Replicas have positions and widths of their own devices, and leave the first ones alone."""
        net = nn.Sequential(sc.Delay(nn.Linear(C, C), 3, learn=learn), sc.LIF(threshold=0.2))
        x, held = torch.rand(T, 4, C), net[0].delay
        before = held.detach().clone()
        assert torch.equal(OnTwo(net, dim=1)(x), net(x))
        replica = OnTwo(net).replicate(net, [0, 1])[0]
        assert replica[0].delay is not held
        assert replica[0].sigma is None or replica[0].sigma is not net[0].sigma
        assert net[0].delay is held
        assert torch.equal(held, before)
        with pytest.raises(RuntimeError, match=r"^Delay is in an nn\.DataParallel"):
            OnTwo(net[0])(x)

    def test_a_step_is_refused_at_once(self):
        """``training_model`` and ``inference_model`` say so before the first batch."""
        net = OnTwo(self.net())
        with pytest.raises(ValueError, match=r"nn\.DataParallel\(net, dim=1\).*Distributed.*sc\.Pipeline"):
            sc.training_model(net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), 0.1))
        with pytest.raises(ValueError, match=r"nn\.DataParallel\(net, dim=1\)"):
            sc.inference_model(net)
        sc.inference_model(OnTwo(self.net(), dim=1))

    def test_the_batch_is_split(self):
        """Along dimension 1 it is right."""
        net, x = self.net(), torch.rand(T, 4, C)
        assert torch.equal(OnTwo(net, dim=1)(x), net(x))

    def test_a_network_that_encodes(self):
        """Where an encoder inside makes time, dimension 0 of the network's input is the batch."""

        class Encodes(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.encode, self.net = sc.encode.Constant(T), net

            def forward(self, x):
                return self.net(self.encode(x)).mean(0)

        net, x = Encodes(self.net()), torch.rand(4, C)
        assert torch.equal(OnTwo(net)(x), net(x))
        assert torch.equal(sc.inference_model(OnTwo(net))(x), net(x))

    def test_a_network_whose_forward_makes_time(self):
        """It says so by an attribute, which the error names."""

        class BatchFirst(nn.Sequential):
            def forward(self, x):
                return super().forward(x.transpose(0, 1)).transpose(0, 1)

        class Says(BatchFirst):
            makes_time = True

        x = torch.rand(4, T, C)
        with pytest.raises(RuntimeError, match="makes time, write makes_time = True into its class"):
            OnTwo(BatchFirst(self.net()))(x)
        net = Says(self.net())
        assert torch.equal(OnTwo(net)(x), net(x))
        assert torch.equal(sc.inference_model(OnTwo(net))(x), net(x))

    @pytest.mark.parametrize("dim", [0, 1])
    def test_no_state_is_lost(self, dim):
        """A neuron that carries its state raises, whatever is split."""
        with pytest.raises(RuntimeError, match=r"^LIF carries its state, and nn\.DataParallel forgets .*Distributed"):
            OnTwo(self.net(step="single"), dim=dim)(torch.rand(4, C))
        net = self.net()
        with sc.carry_state(net), pytest.raises(RuntimeError, match="^LIF carries its state"):
            OnTwo(net, dim=dim)(torch.rand(T, 4, C))

    def test_a_network_without_neurons(self):
        """Other networks are as they were."""
        net, x = nn.Sequential(nn.Linear(C, C)), torch.rand(4, C)
        torch.testing.assert_close(OnTwo(net)(x), net(x))


def test_replicas_with_learnt_parameters() -> None:
    """They compute within the parameters' ranges, and the gradients reach the parameters."""

    class Derived(OnTwo):
        def replicate(self, module, device_ids):
            copies = [module._replicate_for_data_parallel() for _ in device_ids]
            for replica in copies:
                for name, value in module._parameters.items():
                    setattr(replica, name, value * 1)
            return copies

    x, found = torch.rand(5, 4, C) * 3, []
    for tau in (2.0, 0.5):
        for wrap in (lambda net: net, lambda net: Derived(net, dim=1)):
            lif = sc.LIF(2.0, learn=("tau", "threshold"))
            with torch.no_grad():
                lif.tau.fill_(tau)
            out = wrap(lif)(x)
            out.sum().backward()
            found.append([out.detach(), lif.tau.grad, lif.threshold.grad])
    for one, two in (found[:2], found[2:]):
        torch.testing.assert_close(one, two)
