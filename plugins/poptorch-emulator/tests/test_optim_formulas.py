"""The emulator's optimizers compute torch's formulas, or PopART's where those differ."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from emulated_optim import Device, error, gradients, host, made, weights
from poptorch_emulator import optim

TORCHS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]


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
    def test_are_torchs(self, name, settings, module):
        """Ten steps with two groups."""
        params, reference = weights(torch.float64), weights(torch.float64)
        device = Device(grouped(name, settings, params, module), params).run(range(10))
        expected = host(grouped(name, settings, reference), reference, range(10))
        assert error(device.weights, expected) < 4e-14

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
        """``step()`` without a device computes the same."""
        params, reference = weights(), weights()
        device = Device(optim.LAMB(params.values(), lr=0.1), params).run(range(3))
        assert error(device.weights, host(optim.LAMB(reference.values(), lr=0.1), reference, range(3))) == 0

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
        """A weight that no gradient reaches does not even decay, and has no state."""
        params = weights()
        device = Device(made(kind, params.values(), weight_decay=0.1), params)
        given = gradients(0, params)
        given["b"] = None
        device.updater.update(given)
        assert torch.equal(device.weights["b"], params["b"])
        assert not torch.equal(device.weights["a"], params["a"])
        assert not [key for key in device.updater.read_state()["ipu_state"] if key.endswith("___b")]
