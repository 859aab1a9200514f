"""The state of an optimizer on the device: what it has, how it is saved and loaded."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from emulated_optim import Device, error, gradients, host, weights
from poptorch_emulator import optim
from poptorch_emulator._errors import Error
from poptorch_emulator._hyperparameters import read

POPTORCHS = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB]


class TestState:
    def test_before_there_is_a_device(self):
        state = optim.Adam(weights().values()).state_dict()
        assert state["ipu_state"] is None
        assert state["ipu_param"] is None
        assert state["param_groups"][0]["lr"] == 1e-3

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

    def test_loss_scaling_is_in_it(self):
        params = weights()
        optimizer = optim.Adam(params.values(), loss_scaling=8.0)
        device = Device(optimizer, params)
        assert float(optimizer.state_dict()["ipu_param"]["lossScaling_FLOAT"]) == 8.0
        assert device.updater.read_state().keys() == {"ipu_state", "ipu_param"}

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

    @pytest.mark.parametrize("kind", POPTORCHS)
    def test_outlives_the_device(self, kind):
        """An executor asks for ``state_dict()`` before it lets go; a later one goes on from there."""
        params = weights()
        optimizer = kind(params.values(), lr=0.05)
        whole = Device(kind(params.values(), lr=0.05), params).run(range(6))
        device = Device(optimizer, params).run(range(3))
        optimizer.state_dict()
        rest = device.weights
        del device
        assert optimizer.state_dict()["ipu_param"]
        with torch.no_grad():
            for name, parameter in params.items():
                parameter.copy_(rest[name])
        assert error(Device(optimizer, params).run(range(3, 6)).weights, whole.weights) == 0

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

    def test_saved_values_are_not_used(self):
        """The values that were read when the model was wrapped count: saved ones get no further than to the host."""
        params = weights()
        trained = optim.Adam(params.values(), betas=(0.5, 0.6))
        device = Device(trained, params)  # noqa: F841  # whose values are saved
        other = optim.Adam(params.values(), betas=(0.9, 0.99))
        wrapped = read(other)
        other.load_state_dict(trained.state_dict())
        plain = Device(optim.Adam(params.values(), betas=(0.9, 0.99)), params)
        assert error(Device(other, params, wrapped).run(range(3)).weights, plain.run(range(3)).weights) == 0

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

    def test_of_another_shape(self):
        params = weights()
        optimizer = optim.RMSprop(params.values())
        device = Device(optimizer, params)
        state = device.updater.read_state()
        state["ipu_state"]["Accl1___a"] = torch.zeros(2)
        with pytest.raises(Error, match=r"Accl1___a of shape \[2\] does not belong .* have one of shape \[5, 7\]"):
            device.updater.write_state(state)

    def test_what_is_missing_stays(self):
        params = weights()
        device = Device(optim.Adam(params.values()), params).run(range(2))
        state = device.updater.read_state()
        step = state["ipu_state"].pop("Step___a")
        device.updater.write_state({"ipu_state": state["ipu_state"], "ipu_param": {"weightDecay___specific___x": step}})
        assert float(device.updater.read_state()["ipu_state"]["Step___a"]) == 2

    def test_of_what_no_gradient_reaches(self):
        params = weights()
        optimizer = optim.Adam(params.values())
        device = Device(optimizer, params)
        begin = optimizer.state_dict()
        device.updater.update({**gradients(0, params), "b": None})
        optimizer.load_state_dict(begin)
        device.updater.update({**gradients(1, params), "b": None})
        assert float(optimizer.state_dict()["ipu_state"]["Step___a"]) == 1

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

    def test_given_by_set(self):
        params = weights()
        old = optim.Adam(params.values(), lr=0.1)
        device = Device(old, params)
        new = optim.Adam(params.values(), lr=0.1)
        new.load_state_dict(old.state_dict())
        device.run(range(2)).updater.set(new)
        assert float(new.state_dict()["ipu_state"]["Step___a"]) == 0

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
    @pytest.mark.parametrize("kind", POPTORCHS)
    def test_a_copy_takes_it_along(self, kind, copied):
        params = weights()
        optimizer = kind(params.values(), lr=0.1, loss_scaling=2.0)
        optimizer.variable_attrs.markAsVariable("weight_decay")
        device = Device(optimizer, params).run(range(2))
        twin = copied(optimizer)
        before = {name: tensor.clone() for name, tensor in twin.state_dict()["ipu_state"].items()}
        device.run(range(2, 4))
        assert twin.loss_scaling == 2.0
        assert not twin.variable_attrs.isConstant("weight_decay")
        assert all(torch.equal(tensor, before[name]) for name, tensor in twin.state_dict()["ipu_state"].items())
        assert twin.ipu_state_is_dirty
