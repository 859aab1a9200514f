"""Optimizers and learning-rate schedules of torch in a training step on the device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import refusals
import spikecore as sc
from ipu_nets import Net, adam, data, same_weights, trained


class TestSchedules:
    @pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
    def test_a_learning_rate_schedule_acts(self, kind):
        nets = []
        for backend in ("torch", "ipu"):
            net = Net(backend)
            optimizer = kind(net.parameters(), lr=0.05)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            step = trained(net, optimizer)
            for seed in range(4):
                step(*data(seed=seed))
                schedule.step()
            nets.append(net)
        same_weights(*nets)


class TestOptimizers:
    def test_other_parameters(self):
        """Of another network, more than those of this one, and fewer."""
        net, other = Net(), nn.Linear(2, 2)
        both = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1)
        for optimizer, says in (
            (adam(Net()), "optimizer holds no parameter of this network"),
            (both, "optimizer holds 2 parameters that are not the network's"),
            (adam(net.fc2), r"optimizer holds no net\.fc1\.weight, net\.fc1\.bias, which PopTorch would"),
        ):
            with pytest.raises(ValueError, match=says):
                trained(net, optimizer)

    def test_a_frozen_parameter(self):
        net = Net()
        net.fc1.requires_grad_(False)
        before = net.fc1.weight.clone()
        trained(net, adam(net.fc2))(*data())
        assert torch.equal(net.fc1.weight, before)
        assert not torch.equal(net.fc2.weight, Net().fc2.weight)

    def test_one_of_poptorchs_own(self):
        net, reference = Net(), Net("torch")
        optimizer = poptorch.optim.AdamW(net.parameters(), lr=0.01)
        step, other = trained(net, optimizer), trained(reference, torch.optim.AdamW(reference.parameters(), lr=0.01))
        for rate in (0.01, 0.1):
            optimizer.param_groups[0]["lr"] = other.optimizer.param_groups[0]["lr"] = rate
            step(*data())
            other(*data())
        same_weights(net, reference)

    def test_what_a_program_cannot_follow(self):
        """New groups, and what was off and a constant, are refused until the program is compiled anew."""
        changes = {
            "momentum, 0 in all groups, has become 0.9": lambda opt, net: opt.param_groups[0].update(momentum=0.9),
            "groups hold other parameters": lambda opt, net: opt.param_groups[0]["params"].pop(),
            "maximize=True in a group": lambda opt, net: opt.param_groups[0].update(maximize=True),
            "requires_grad": lambda opt, net: net.fc1.requires_grad_(False),
        }
        for says, change in changes.items():
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            step = trained(net, optimizer)
            step(*data())
            change(optimizer, net)
            for _ in range(2):
                with pytest.raises(sc.backend.Unsupported, match=says):
                    step(*data())


test_refused = refusals.table(__file__, globals())
