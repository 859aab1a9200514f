"""The state of an optimizer on the device: what it has, how it is saved and loaded."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from emulated_optim import Device, error, host, weights
from poptorch_emulator import Error, optim

POPTORCHS = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB]


class TestState:
    @pytest.mark.parametrize(
        ("make", "states", "variables"),
        [
            (lambda w: optim.SGD(w, lr=0.1), set(), {"learningRate"}),
            (lambda w: optim.SGD(w, lr=0.1, momentum=0.0), {"Accl"}, {"learningRate", "momentum"}),
            (
                lambda w: optim.Adam(w, lr=0.1, betas=(0.9, 0.99), weight_decay=0.1),
                {"Accl1", "Accl2", "Step"},
                {"learningRate", "beta1", "beta2", "weightDecay"},
            ),
            (lambda w: optim.RMSprop(w, lr=0.1), {"Accl1"}, {"learningRate"}),
            (
                lambda w: optim.RMSprop(w, eps=1e-5, momentum=0.5, centered=True),
                {"Accl1", "Accl2", "Accl3"},
                {"eps", "momentum"},
            ),
            (lambda w: optim.LAMB(w, max_weight_norm=2.0), {"Accl1", "Accl2", "Step"}, {"maxWeightNorm"}),
        ],
    )
    def test_is_on_the_device_under_poparts_names(self, make, states, variables):
        params = weights()
        optimizer = make(params.values())
        device = Device(optimizer, params)
        state = optimizer.state_dict()
        assert set(state["ipu_state"]) == {f"{kind}___{name}" for kind in states for name in params}
        assert set(state["ipu_param"]) == {f"{kind}___specific___{name}" for kind in variables for name in params}
        assert all(float(tensor.abs().max()) == 0 for tensor in state["ipu_state"].values())
        device.run(range(1))
        assert all(float(tensor.abs().max()) > 0 for tensor in optimizer.state_dict()["ipu_state"].values())

    @pytest.mark.parametrize("kind", POPTORCHS)
    def test_goes_on_in_another_optimiser(self, kind):
        """Six steps are three, a state dict, and three more on another device."""
        params = weights()
        whole = Device(kind(params.values(), lr=0.05), params).run(range(6))
        first = kind(params.values(), lr=0.05)
        begun = Device(first, params).run(range(3))
        state = pickle.loads(pickle.dumps(first.state_dict()))
        rest = {name: nn.Parameter(value) for name, value in begun.weights.items()}
        second = kind(rest.values(), lr=1.0)
        second.load_state_dict(state)
        assert second.has_state()
        resumed = Device(second, rest).run(range(3, 6))
        assert error(resumed.weights, whole.weights) == 0

    def test_loaded_while_a_device_runs(self):
        """It is written before the next update; until then ``state_dict`` has what was loaded."""
        params = weights()
        optimizer = optim.Adam(params.values(), lr=0.05)
        device = Device(optimizer, params)
        begin = copy.deepcopy(optimizer.state_dict())
        device.run(range(3))
        optimizer.load_state_dict(begin)
        assert float(optimizer.state_dict()["ipu_state"]["Step___a"]) == 0
        device.run(range(1))
        assert float(optimizer.state_dict()["ipu_state"]["Step___a"]) == 1

    def test_a_loaded_learning_rate_is_used(self):
        """Variables come from the state, as on the device."""
        params = weights()
        trained = optim.SGD(params.values(), lr=0.5)
        device = Device(trained, params)
        other = optim.SGD(params.values(), lr=0.1)
        other.load_state_dict(trained.state_dict())
        assert other.param_groups[0]["lr"] == 0.5
        assert error(Device(other, params).run(range(2)).weights, device.run(range(2)).weights) == 0

    def test_of_the_host(self):
        params = weights()
        elsewhere = torch.optim.Adam(params.values())
        host(elsewhere, params, range(1))
        optimizer = optim.Adam(weights().values(), lr=0.7)
        with pytest.raises(RuntimeError, match=r"Only IPU optimizer states can be loaded onto the IPU\."):
            optimizer.load_state_dict(elsewhere.state_dict())
        assert optimizer.param_groups[0]["lr"] == 0.7

    def test_empty(self):
        with pytest.raises(RuntimeError, match="Cannot load optimizer state dictionary because it is empty"):
            optim.Adam(weights().values()).load_state_dict({})

    def test_of_another_optimiser(self):
        params = weights()
        rmsprop, adam = optim.RMSprop(params.values()), optim.Adam(params.values())
        device = Device(adam, params)
        rmsprop.load_state_dict({**adam.state_dict(), "param_groups": rmsprop.state_dict()["param_groups"]})
        with pytest.raises(Error, match="the state Accl2___a of shape .* which have no such state"):
            Device(rmsprop, params)
        assert device.updater.read_state()["ipu_state"]

    def test_is_handed_over_by_set(self):
        """The old optimiser keeps what it had, and hears no more of the device."""
        params = weights()
        old = optim.Adam(params.values(), lr=0.1)
        device = Device(old, params).run(range(2))
        new = optim.Adam(params.values(), lr=0.1)
        device.updater.set(new)
        device.run(range(2, 5))
        assert float(old.state_dict()["ipu_state"]["Step___a"]) == 2
        assert float(new.state_dict()["ipu_state"]["Step___a"]) == 5

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
    def test_a_copy_takes_it_along(self, copied):
        params = weights()
        optimizer = optim.Adam(params.values(), lr=0.1, loss_scaling=2.0)
        optimizer.variable_attrs.markAsVariable("weight_decay")
        device = Device(optimizer, params).run(range(2))
        twin = copied(optimizer)
        before = {name: tensor.clone() for name, tensor in twin.state_dict()["ipu_state"].items()}
        device.run(range(2, 4))
        assert twin.loss_scaling == 2.0
        assert not twin.variable_attrs.isConstant("weight_decay")
        assert all(torch.equal(tensor, before[name]) for name, tensor in twin.state_dict()["ipu_state"].items())
        assert twin.ipu_state_is_dirty
