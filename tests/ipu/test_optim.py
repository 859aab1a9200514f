"""Optimisers: PopTorch's classes, what is read of any (rule E10), and the updates that follow from it."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import pickle

import pytest
import torch
from torch import nn

from spikecore_ipu.emulator import optim
from spikecore_ipu.emulator.errors import Error
from spikecore_ipu.emulator.hyperparameters import read
from spikecore_ipu.emulator.update import Updater

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


def made(kind, params, **keywords):
    """An optimiser; SGD has no default for its learning rate in PopTorch."""
    return kind(params, **{"lr": 0.05, **keywords} if issubclass(kind, torch.optim.SGD) else keywords)


def weights(dtype=torch.float32, seed=0):
    """Three parameters by name."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (5, 7), "b": (7,), "c": (3, 2, 4)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for name, shape in shapes.items()}


def gradients(step, like):
    """Those of one step, in the dtype of the parameters."""
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(w.shape, generator=generator, dtype=w.dtype) for name, w in like.items()}


class Device:
    """An updater, and the memory that it changes."""

    def __init__(self, optimizer, params, hyperparameters=None):
        self.weights = {name: value.detach().clone() for name, value in params.items() if value.requires_grad}
        self.updater = Updater(optimizer, params, self.weights, hyperparameters)

    def run(self, steps):
        for step in steps:
            self.updater.update(gradients(step, self.weights))
        return self


def host(optimizer, params, steps):
    """The same with ``optimizer.step()``."""
    for step in steps:
        for name, gradient in gradients(step, params).items():
            params[name].grad = gradient
        optimizer.step()
    return params


def error(got, expected):
    """Relative to the largest number."""
    return max(float((got[name] - w.detach()).abs().max() / w.detach().abs().max()) for name, w in expected.items())


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
            (optim.SGD, "accum_type"),
            (optim.SGD, "velocity_accum_type"),
            (optim.Adam, "accum_type"),
            (optim.AdamW, "first_order_momentum_accum_type"),
            (optim.RMSprop, "second_order_momentum_accum_type"),
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
    @pytest.mark.parametrize("kind", POPTORCHS)
    def test_what_is_given_is_variable(self, kind):
        optimizer = kind(weights().values(), lr=0.1)
        assert not optimizer.variable_attrs.isConstant("lr")
        assert optimizer.variable_attrs.isConstant("weight_decay")
        assert optimizer.variable_attrs.isConstant("loss_scaling")

    def test_a_learning_rate_that_is_not_given_is_constant(self):
        assert optim.Adam(weights().values()).variable_attrs.isConstant("lr")

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
            (torch.optim.SGD, {}, {"momentum", "dampening", "weight_decay", "nesterov"}),
            (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}, {"dampening", "nesterov"}),
            (torch.optim.Adam, {}, {"betas", "eps", "weight_decay"}),
            (torch.optim.Adam, {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}, {"betas"}),
            (torch.optim.AdamW, {}, {"betas", "eps", "weight_decay"}),
            (torch.optim.AdamW, {"weight_decay": 0.0}, {"betas", "eps"}),
            (torch.optim.RMSprop, {"alpha": 0.9}, {"alpha", "eps", "weight_decay", "momentum", "centered"}),
            (optim.Adam, {}, {"lr", "betas", "eps", "weight_decay"}),
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

    @pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, optim.Adam, optim.AdamW])
    def test_amsgrad(self, kind):
        with pytest.raises(ValueError, match=r"Only non-amsgrad Adam/AdamW optimizers are supported\."):
            read(kind(weights().values(), amsgrad=True))

    @pytest.mark.parametrize("kind", TORCHS + POPTORCHS[:4])
    def test_maximize(self, kind):
        """PopTorch would minimise, and say nothing."""
        with pytest.raises(Error, match="PopTorch ignores maximize=True and would minimise"):
            read(made(kind, weights().values(), maximize=True))

    def test_an_adam_that_is_an_adamw(self):
        optimizer = torch.optim.Adam(weights().values())
        optimizer.param_groups[0]["decoupled_weight_decay"] = True
        with pytest.raises(Error, match="PopTorch ignores decoupled_weight_decay=True"):
            read(optimizer)

    def test_dampening_of_torch(self):
        with pytest.raises(Error, match=r"PopTorch's SGD dampens the first step, and steps without momentum, and tor"):
            read(torch.optim.SGD(weights().values(), lr=0.1, momentum=0.9, dampening=0.5))
        read(optim.SGD(weights().values(), lr=0.1, momentum=0.9, dampening=0.5))

    @pytest.mark.parametrize(
        ("make", "kind", "says"),
        [
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
        ],
    )
    def test_values_written_into_a_group(self, name, value, says):
        optimizer = torch.optim.Adam(weights().values())
        optimizer.param_groups[0][name] = value
        with pytest.raises(AssertionError, match=says):
            read(optimizer)

    def test_an_accumulation_type_written_later(self):
        optimizer = optim.Adam(weights().values())
        optimizer.accum_type = torch.float64
        with pytest.raises(ValueError, match=r"accum_type must be set to either torch\.float16 or torch\.float32 not"):
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

    def test_choices_of_an_implementation(self):
        """They change no number."""
        read(torch.optim.Adam(weights().values(), foreach=False, capturable=False))
        read(optim.SGD(weights().values(), lr=0.1, loss_scaling=8.0, use_combined_accum=True, velocity_scaling=4.0))

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

    def test_a_frozen_parameter_may_be_in_a_group(self):
        params = weights()
        params["b"].requires_grad_(False)
        assert "b" not in Device(torch.optim.Adam(params.values()), params).run(range(2)).weights


class TestSnapshot:
    """Hyper-parameters are read at two moments, and never in between."""

    def test_a_changed_learning_rate_has_no_effect(self):
        params = weights()
        optimizer = torch.optim.SGD(params.values(), lr=0.1)
        device = Device(optimizer, params)
        optimizer.param_groups[0]["lr"] = 100.0
        device.run(range(2))
        assert (
            error(device.weights, Device(torch.optim.SGD(params.values(), lr=0.1), params).run(range(2)).weights) == 0
        )

    def test_nor_between_wrapping_and_compiling(self):
        params = weights()
        optimizer = torch.optim.SGD(params.values(), lr=0.1)
        wrapped = read(optimizer)
        optimizer.param_groups[0]["lr"] = 100.0
        device = Device(optimizer, params, wrapped).run(range(2))
        assert (
            error(device.weights, Device(torch.optim.SGD(params.values(), lr=0.1), params).run(range(2)).weights) == 0
        )

    def test_until_it_is_set(self):
        params, reference = weights(), weights()
        mine, theirs = [torch.optim.Adam(each.values(), lr=0.01) for each in (params, reference)]
        device = Device(mine, params)
        for step in range(4):
            mine.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = 0.01 * (step + 1)
            device.updater.set(mine)
            device.run([step])
            host(theirs, reference, [step])
        assert error(device.weights, reference) < 1e-6

    @pytest.mark.parametrize("kind", TORCHS + POPTORCHS)
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
    def device(self, optimizer, params):
        return Device(optimizer, params).run(range(1)).updater

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
            (
                torch.optim.Adam,
                lambda w: torch.optim.Adam(w, betas=(0.8, 0.9)),
                "Problem with betas. It was constant",
            ),
            (
                optim.Adam,
                lambda w: optim.Adam(w, lr=0.1),
                r"Problem with lr\. It was constant \(0\.001\) .* and is variable \(0\.1\)",
            ),
            (
                lambda w: optim.Adam(w, loss_scaling=2.0),
                optim.Adam,
                "Problem with loss_scaling. It was variable",
            ),
            (
                lambda w: torch.optim.RMSprop(w, centered=True),
                torch.optim.RMSprop,
                r"Problem with centered\. It was constant \(True\)",
            ),
            (
                lambda w: optim.LAMB(w, bias_correction=False),
                optim.LAMB,
                "Can not replace optimizer of type LAMB",
            ),
        ],
    )
    def test_of_what_is_compiled_in(self, old, new, says):
        params = weights()
        with pytest.raises(Error, match=rf"New optimizer is not a valid replacement\. {says}"):
            self.device(old(params.values()), params).set(new(params.values()))

    def test_of_variables(self):
        params = weights()
        updater = self.device(optim.SGD(params.values(), lr=0.1, momentum=0.0), params)
        updater.set(optim.SGD(params.values(), lr=0.2, momentum=0.5))

    def test_of_groups(self):
        """PopTorch matches groups by number: a group of another make would change other parameters."""
        params = weights()
        a, b, c = params.values()
        updater = self.device(torch.optim.SGD([{"params": [a, b]}, {"params": [c]}], lr=0.1), params)
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


#: Optimiser -> settings of its two groups.
FORMULAS = [
    ("SGD", [{"lr": 0.1}, {"lr": 0.02}]),
    ("SGD", [{"lr": 0.1, "weight_decay": 0.1}, {"lr": 0.02}]),
    ("SGD", [{"lr": 0.1, "momentum": 0.9}, {"lr": 0.02, "momentum": 0.5, "weight_decay": 0.1}]),
    ("SGD", [{"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.02, "momentum": 0.5, "nesterov": True}]),
    ("Adam", [{"lr": 0.1}, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-5}]),
    ("Adam", [{"weight_decay": 0.1}, {}]),
    ("AdamW", [{"lr": 0.1}, {"lr": 0.02, "weight_decay": 0.3}]),
    ("AdamW", [{"weight_decay": 0.0}, {"betas": (0.5, 0.9)}]),
    ("RMSprop", [{"lr": 0.1}, {"lr": 0.02, "alpha": 0.8, "eps": 1e-4, "weight_decay": 0.1}]),
    ("RMSprop", [{"lr": 0.1, "momentum": 0.9}, {"lr": 0.02}]),
    ("RMSprop", [{"lr": 0.01, "momentum": 0.9, "centered": True}, {"lr": 0.02, "centered": True}]),
]


def grouped(name, settings, params, module=torch.optim):
    groups = [{"params": [params["a"], params["c"]], **settings[0]}, {"params": [params["b"]], **settings[1]}]
    return made(getattr(module, name), groups)


class TestFormulas:
    @pytest.mark.parametrize("module", [torch.optim, optim])
    @pytest.mark.parametrize(("name", "settings"), FORMULAS)
    @pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-7), (torch.float64, 1e-14)])
    def test_are_torchs(self, name, settings, dtype, limit, module):
        """Ten steps with two groups; in float32 the sums round in another order here and there."""
        params, reference = weights(dtype), weights(dtype)
        device = Device(grouped(name, settings, params, module), params).run(range(10))
        expected = host(grouped(name, settings, reference), reference, range(10))
        assert error(device.weights, expected) < 4 * limit
        distances = {n: device.weights[n] - w.detach() for n, w in expected.items()}
        assert all(float(distances[n].norm() / device.weights[n].norm()) < limit for n in expected)

    @pytest.mark.parametrize("momentum", [None, 0.9])
    def test_dampening_is_poparts(self, momentum):
        """The velocity begins at 0, and dampening works without momentum."""
        params = weights(torch.float64)
        optimizer = optim.SGD(params.values(), lr=0.1, momentum=momentum, dampening=0.4, weight_decay=0.1)
        device = Device(optimizer, params).run(range(3))
        w, v = params["a"].detach().clone(), torch.zeros(5, 7, dtype=torch.float64)
        for step in range(3):
            v = (momentum or 0.0) * v + 0.6 * (gradients(step, params)["a"] + 0.1 * w)
            w -= 0.1 * v
        torch.testing.assert_close(device.weights["a"], w, rtol=1e-13, atol=0)

    @pytest.mark.parametrize("keywords", [{}, {"bias_correction": False}, {"max_weight_norm": 2.0}])
    def test_lamb(self, keywords):
        """You et al., 2020, algorithm 2, with PopTorch's defaults."""
        params = weights(torch.float64)
        device = Device(optim.LAMB(params.values(), lr=0.1, **keywords), params).run(range(3))
        w = params["a"].detach().clone()
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for step in range(3):
            g = gradients(step, params)["a"]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            correct = keywords.get("bias_correction", True)
            first, second = (1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)) if correct else (1, 1)
            r = (m / first) / ((v / second).sqrt() + 1e-8) + 0.01 * w
            w = w - 0.1 * min(float(w.norm()), keywords.get("max_weight_norm", 65500.0)) / float(r.norm()) * r
        torch.testing.assert_close(device.weights["a"], w, rtol=1e-12, atol=0)

    def test_lamb_of_zeros(self):
        """Where the weight is 0 the trust ratio is 1."""
        params = {"a": nn.Parameter(torch.zeros(4))}
        device = Device(optim.LAMB(params.values(), lr=0.1), params)
        device.updater.update({"a": torch.ones(4)})
        torch.testing.assert_close(device.weights["a"], torch.full((4,), -0.1))

    def test_lamb_on_the_host(self):
        params, reference = weights(), weights()
        device = Device(optim.LAMB(params.values(), lr=0.1), params).run(range(3))
        optimizer = optim.LAMB(reference.values(), lr=0.1)
        assert error(device.weights, host(optimizer, reference, range(3))) == 0
        assert optimizer.step(lambda: 3.0) == 3.0

    def test_half_precision_weights(self):
        """The moments are float32, and only the result is rounded."""
        params = weights(torch.float16)
        device = Device(torch.optim.Adam(params.values(), lr=0.01, eps=1e-6), params).run(range(1))
        state = device.updater.read_state()["ipu_state"]
        assert {tensor.dtype for tensor in state.values()} == {torch.float32}
        assert device.weights["a"].dtype == torch.float16
        # the first step of Adam is lr wide
        torch.testing.assert_close(
            device.weights["a"].float(),
            params["a"].float() - 0.01 * gradients(0, params)["a"].sign(),
            atol=2e-3,
            rtol=0,
        )

    @pytest.mark.parametrize("kind", TORCHS)
    def test_without_a_gradient(self, kind):
        """What no gradient reaches does not even decay, and has no state."""
        params = weights()
        device = Device(made(kind, params.values(), weight_decay=0.1), params)
        given = gradients(0, params)
        given["b"] = None
        device.updater.update(given)
        assert torch.equal(device.weights["b"], params["b"])
        assert not torch.equal(device.weights["a"], params["a"])
        assert not [key for key in device.updater.read_state()["ipu_state"] if key.endswith("___b")]

    def test_the_host_is_left_alone(self):
        params = weights()
        Device(torch.optim.Adam(params.values()), params).run(range(2))
        assert all(torch.equal(params[name], value) for name, value in weights().items())
        assert all(parameter.grad is None for parameter in params.values())


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
