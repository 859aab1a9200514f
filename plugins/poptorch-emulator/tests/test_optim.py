"""Optimisers: PopTorch's classes, and what is read of any (rule E10)."""

from __future__ import annotations

import inspect
import logging
import math

import pytest
import torch

import refusals
from emulated_optim import Device, error, host, made, weights
from poptorch_emulator import Error, optim
from poptorch_emulator.hyperparameters import read

TORCHS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]

_ACCUM = "first_order_momentum_accum_type, second_order_momentum_accum_type"
#: Arguments in PopTorch 3.4; all but ``params``, and SGD's ``lr``, are None by default.
SIGNATURES = {
    "SGD": "params, lr, momentum, dampening, weight_decay, nesterov, maximize, foreach, differentiable, loss_scaling, "
    "velocity_scaling, use_combined_accum, accum_type, velocity_accum_type, max_grad_norm",
    "Adam": "params, lr, betas, eps, weight_decay, amsgrad, foreach, maximize, capturable, differentiable, fused, "
    f"loss_scaling, accum_type, {_ACCUM}, max_grad_norm",
    "AdamW": "params, lr, betas, eps, weight_decay, amsgrad, maximize, foreach, capturable, differentiable, fused, "
    f"loss_scaling, bias_correction, accum_type, {_ACCUM}, max_grad_norm",
    "RMSprop": "params, lr, alpha, eps, weight_decay, momentum, centered, foreach, maximize, differentiable, "
    f"loss_scaling, accum_type, {_ACCUM}, use_tf_variant",
    "LAMB": "params, lr, betas, eps, weight_decay, bias_correction, loss_scaling, max_weight_norm, accum_type, "
    f"{_ACCUM}",
}


class TestConstructors:
    @pytest.mark.parametrize("name", SIGNATURES)
    def test_signatures_are_poptorchs(self, name):
        parameters = inspect.signature(getattr(optim, name)).parameters
        assert ", ".join(parameters) == SIGNATURES[name]
        required = [key for key, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
        assert required == (["params", "lr"] if name == "SGD" else ["params"])
        assert {p.default for key, p in parameters.items() if key not in required} == {None}

    @pytest.mark.parametrize("torchs", TORCHS)
    def test_what_is_left_out_has_torchs_default(self, torchs):
        mine = made(getattr(optim, torchs.__name__), weights().values())
        theirs = made(torchs, weights().values())
        assert isinstance(mine, torchs)
        assert mine.defaults == theirs.defaults

    def test_own_defaults(self):
        sgd, adamw, lamb = [made(kind, weights().values()) for kind in (optim.SGD, optim.AdamW, optim.LAMB)]
        assert (sgd.loss_scaling, sgd.use_combined_accum, sgd.max_grad_norm) == (1.0, False, math.inf)
        assert sgd.accum_type == sgd.velocity_accum_type == torch.float32
        assert (adamw.bias_correction, adamw.first_order_momentum_accum_type) == (True, torch.float32)
        assert lamb.param_groups[0]["lr"] == 1e-3
        assert lamb.defaults == {
            "lr": 1e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 1e-2,
            "max_weight_norm": 65500.0,
        }
        assert not made(optim.RMSprop, weights().values()).use_tf_variant

    def test_velocity_scaling(self, caplog):
        """It belongs to groups, and to the combined variant."""
        combined = made(optim.SGD, weights().values(), velocity_scaling=2.0, use_combined_accum=True)
        assert combined.param_groups[0]["velocity_scaling"] == combined.defaults["velocity_scaling"] == 2.0
        combined.variable_attrs.markAsConstant("velocity_scaling")
        with caplog.at_level(logging.WARNING, "poptorch"):
            separate = made(optim.SGD, weights().values(), velocity_scaling=2.0)
        assert "velocity_scaling value ignored when using the separate variant" in caplog.text
        assert "velocity_scaling" not in separate.param_groups[0]
        assert not hasattr(separate, "velocity_scaling")


class TestVariables:
    def test_can_be_marked(self):
        attributes = optim.SGD(weights().values(), lr=0.1).variable_attrs
        attributes.markAsVariable("momentum")
        assert not attributes.isConstant("momentum")
        attributes.markAsConstant("momentum")
        assert attributes.isConstant("momentum")
        with pytest.raises(AssertionError, match="Unknown attribute beta, allowed values: "):
            attributes.markAsVariable("beta")
        with pytest.raises(AssertionError, match="Unknown attribute beta, allowed values: "):
            attributes.markAsConstant("beta")

    @pytest.mark.parametrize(
        ("kind", "keywords", "constants"),
        [
            (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}, {"dampening", "nesterov"}),
            (torch.optim.Adam, {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}, {"betas"}),
            (torch.optim.AdamW, {"weight_decay": 0.0}, {"betas", "eps"}),
            (torch.optim.RMSprop, {"alpha": 0.9}, {"alpha", "eps", "weight_decay", "momentum", "centered"}),
            (optim.Adam, {"lr": 1e-3, "betas": (0.9, 0.999)}, {"eps", "weight_decay"}),
            (optim.SGD, {"momentum": 0.0, "nesterov": False}, {"dampening", "weight_decay", "nesterov"}),
            (optim.LAMB, {"max_weight_norm": 5.0}, {"lr", "betas", "eps", "weight_decay"}),
        ],
    )
    def test_as_they_are_read(self, kind, keywords, constants):
        (group,) = read(made(kind, weights().values(), **keywords)).groups
        assert {name for name, value in group.items() if value.constant} == constants


class TestE10:
    """Only the listed optimisers, and only what PopTorch takes of them."""

    def test_a_subclass(self, caplog):
        class Mine(torch.optim.Adam):
            pass

        with caplog.at_level(logging.WARNING, "poptorch"):
            assert read(Mine(weights().values())).kind.name == "Adam"
        assert caplog.messages == ["Mine is run as Adam: what else it does is ignored"]

    def test_a_parameter_in_no_group(self):
        params = weights()
        with pytest.raises(Error, match=r"the optimizer does not hold b, c, which PopTorch would train all the same"):
            Device(torch.optim.Adam([params["a"]]), params)
        params["b"].requires_grad_(False)
        params["c"].requires_grad_(False)
        Device(torch.optim.Adam([params["a"]]), params)
        assert "b" not in Device(torch.optim.Adam([params["a"], params["b"]]), params).run(range(2)).weights


class TestSnapshot:
    """Hyper-parameters are read at wrapping and when an optimiser is set, and never in between."""

    @pytest.mark.parametrize("kind", [torch.optim.SGD, optim.LAMB])
    def test_torchs_schedulers_work(self, kind):
        params = weights()
        optimizer = kind(params.values(), lr=1.0)
        device = Device(optimizer, params)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.step()
        scheduler.step()
        device.updater.set(optimizer)
        assert read(optimizer).groups[0]["lr"].value == 0.5


class TestReplacement:
    def test_of_variables(self):
        params = weights()
        updater = Device(optim.SGD(params.values(), lr=0.1, momentum=0.0), params).updater
        updater.set(optim.SGD(params.values(), lr=0.2, momentum=0.5))

    def test_keeps_the_state(self):
        """The moments stay on the device, although the new optimiser has none."""
        params, reference = weights(), weights()
        device = Device(torch.optim.Adam(params.values()), params).run(range(3))
        device.updater.set(torch.optim.Adam(params.values(), lr=0.01))
        theirs = torch.optim.Adam(reference.values())
        host(theirs, reference, range(3))
        theirs.param_groups[0]["lr"] = 0.01
        assert error(device.run(range(3, 6)).weights, host(theirs, reference, range(3, 6))) < 1e-6


test_refused = refusals.table(__file__, globals())
