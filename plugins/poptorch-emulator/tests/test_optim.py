"""Optimisers: PopTorch's classes, and what is read of any (rule E10)."""

from __future__ import annotations

import inspect
import logging
import math

import pytest
import torch

from emulated_optim import Device, error, host, made, weights
from poptorch_emulator import optim
from poptorch_emulator._errors import Error
from poptorch_emulator._hyperparameters import read

TORCHS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]
POPTORCHS = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB]

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

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            (optim.SGD, "velocity_accum_type"),
            (optim.AdamW, "first_order_momentum_accum_type"),
            (optim.LAMB, "accum_type"),
        ],
    )
    def test_accumulation_types(self, kind, name):
        with pytest.raises(AssertionError, match=r"Accumulation types must be either torch\.float32 or torch\.float16"):
            made(kind, weights().values(), **{name: torch.float64})

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

    @pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.NAdam, torch.optim.Adamax, torch.optim.Rprop])
    def test_other_types(self, kind):
        with pytest.raises(AssertionError, match=r"Unsupported optimizer type\. Types supported \['SGD', 'AdamW', 'Ad"):
            read(kind(weights().values()))

    @pytest.mark.parametrize(
        ("make", "kind", "says"),
        [
            (
                lambda w: torch.optim.Adam(w, amsgrad=True),
                ValueError,
                r"Only non-amsgrad Adam/AdamW optimizers are sup",
            ),
            (lambda w: optim.AdamW(w, amsgrad=True), ValueError, "Only non-amsgrad Adam/AdamW optimizers are"),
            (lambda w: torch.optim.RMSprop(w, maximize=True), Error, "ignores maximize=True and would minimise"),
            (lambda w: optim.SGD(w, lr=0.1, maximize=True), Error, "ignores maximize=True and would minimise"),
            (
                lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, dampening=0.5),
                Error,
                r"PopTorch's SGD dampens the first step, and steps without momentum, and tor",
            ),
            (lambda w: optim.SGD(w, lr=0.1, max_grad_norm=1.0), Error, r"max_grad_norm=1\.0 is not modelled"),
            (lambda w: optim.SGD(w, lr=0.1, max_grad_norm=math.nan), Error, "Maximum norm of gradients cannot be NaN"),
            (lambda w: optim.Adam(w, accum_type=torch.half), Error, r"accum_type=torch\.float16 is not modelled"),
            (lambda w: optim.SGD(w, lr=0.1, velocity_accum_type=torch.half), Error, "velocity_accum_type=torch.float1"),
            (lambda w: optim.RMSprop(w, use_tf_variant=True), Error, "use_tf_variant=True is not modelled"),
            (lambda w: optim.AdamW(w, bias_correction=False), Error, "AdamW with bias_correction=False is not"),
            (lambda w: optim.Adam(w, loss_scaling=0.0), Error, "Loss scaling cannot be 0"),
            (lambda w: torch.optim.Adam(w, eps=0.0), Error, r"Non-positive eps \(0\.0\) in Adam is not supported"),
            (lambda w: torch.optim.RMSprop(w, eps=0.0), Error, r"Non-positive eps \(0\.0\) in Adaptive is not supp"),
            (
                lambda w: torch.optim.RMSprop([{"params": [p], "centered": n == 0} for n, p in enumerate(w)]),
                AssertionError,
                r"same value for the 'centered' attribute \(Group 0: True / Group 1: False\)",
            ),
        ],
    )
    def test_values(self, make, kind, says):
        with pytest.raises(kind, match=says):
            read(make(list(weights().values())))

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("lr", torch.tensor(0.1), "Expected a number for lr but got 0.1"),
            ("betas", [0.9, 0.99], r"Expected a pair for betas but got \[0\.9, 0\.99\] instead"),
            ("weight_decay", None, "Mandatory attribute weight_decay not found in optimizer group"),
            ("decoupled_weight_decay", True, "PopTorch ignores decoupled_weight_decay=True"),
        ],
    )
    def test_values_written_into_a_group(self, name, value, says):
        optimizer = torch.optim.Adam(weights().values())
        optimizer.param_groups[0][name] = value
        with pytest.raises((AssertionError, Error), match=says):
            read(optimizer)

    def test_nesterov_and_dampening(self):
        optimizer = optim.SGD(weights().values(), lr=0.1, momentum=0.9, nesterov=True)
        optimizer.param_groups[0]["dampening"] = 0.5
        with pytest.raises(Error, match="When enable nesterov momentum, dampening"):
            read(optimizer)

    def test_a_subclass(self, caplog):
        class Mine(torch.optim.Adam):
            pass

        with caplog.at_level(logging.WARNING, "poptorch"):
            assert read(Mine(weights().values())).kind.name == "Adam"
        assert caplog.messages == ["Mine is run as Adam: what else it does is ignored"]

    def test_a_parameter_of_another_model(self):
        params, other = weights(), weights()
        with pytest.raises(KeyError, match="group 0 of the optimizer holds a parameter that is not the model's"):
            Device(torch.optim.Adam(other.values()), params)

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
    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            (
                torch.optim.Adam,
                torch.optim.AdamW,
                "Can not replace optimizer of type Adam with new optimizer of type AdamW",
            ),
            (
                lambda w: torch.optim.SGD(w, lr=0.1),
                lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9),
                r"Problem with momentum\. It was constant \(0\) .* and is variable \(0\.9\) now; optimizer\.variabl",
            ),
            (torch.optim.Adam, lambda w: torch.optim.Adam(w, betas=(0.8, 0.9)), "Problem with betas. It was constant"),
            (lambda w: optim.Adam(w, loss_scaling=2.0), optim.Adam, "Problem with loss_scaling. It was variable"),
            (
                lambda w: torch.optim.RMSprop(w, centered=True),
                torch.optim.RMSprop,
                r"Problem with centered\. It was constant \(True\)",
            ),
            (lambda w: optim.LAMB(w, bias_correction=False), optim.LAMB, "Can not replace optimizer of type LAMB"),
        ],
    )
    def test_of_what_is_compiled_in(self, old, new, says):
        params = weights()
        with pytest.raises(Error, match=rf"New optimizer is not a valid replacement\. {says}"):
            Device(old(params.values()), params).updater.set(new(params.values()))

    def test_of_variables(self):
        params = weights()
        updater = Device(optim.SGD(params.values(), lr=0.1, momentum=0.0), params).updater
        updater.set(optim.SGD(params.values(), lr=0.2, momentum=0.5))

    def test_of_groups(self):
        """PopTorch matches groups by number: a group of another make would change other parameters."""
        params = weights()
        a, b, c = params.values()
        updater = Device(torch.optim.SGD([{"params": [a, b]}, {"params": [c]}], lr=0.1), params).updater
        with pytest.raises(Error, match="the new optimizer has other groups of parameters"):
            updater.set(torch.optim.SGD([{"params": [a]}, {"params": [b, c]}], lr=0.1))

    def test_keeps_the_state(self):
        """The moments stay on the device, although the new optimiser has none."""
        params, reference = weights(), weights()
        device = Device(torch.optim.Adam(params.values()), params).run(range(3))
        device.updater.set(torch.optim.Adam(params.values(), lr=0.01))
        theirs = torch.optim.Adam(reference.values())
        host(theirs, reference, range(3))
        theirs.param_groups[0]["lr"] = 0.01
        assert error(device.run(range(3, 6)).weights, host(theirs, reference, range(3, 6))) < 1e-6
