"""Where a device has no float64, nothing of spikecore asks it for a tensor of it: neurons, losses, encoders, layers.

Tensors of the device "meta" have no values, and a mode of torch refuses float64 among them. What is
computed is compared in tests/backend/test_single.py, on a device with values.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import spikecore as sc
from spikecore import dtypes
from spikecore.backend import Unsupported
from tests.shared.single import uses


class Single(TorchDispatchMode):
    """Refuses float64 tensors but those of the CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_flatten(out)[0]:
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64 and value.device.type != "cpu":
                raise TypeError(f"{func} made a float64 tensor on {value.device}")
        return out


@pytest.fixture
def without(monkeypatch):
    """The device "meta" has no float64."""
    monkeypatch.setitem(dtypes._FLOAT64, "meta", False)
    # the mode is no reason to compute in another way than on a device
    monkeypatch.setattr("spikecore.lang._plain.dispatch_modes", tuple)


@pytest.mark.parametrize("name", uses.PLAIN)
def test_no_float64_is_made(name, without):
    """Forward and backward."""
    if name == "noise" and torch.__version__.startswith("2.0."):
        pytest.skip("torch 2.0 shifts no bits of tensors without values")
    with Single():
        for value in uses.PLAIN[name]("meta"):
            assert value.dtype != torch.float64
            assert value.device.type == "meta"


def test_the_mode_sees_float64(without):
    """A root by way of float64, as on a CPU, is refused."""
    with Single(), pytest.raises(TypeError, match="made a float64 tensor on meta"):
        torch.empty(3, device="meta").double().sqrt()


@pytest.mark.parametrize(("device", "has"), [("cpu", True), ("cuda", True), ("mps", False), ("meta", True)])
def test_what_is_known_of_devices(device, has):
    """Of some types of device it is known."""
    assert dtypes.has_float64(device) is has


def test_what_is_not_known_is_tried(monkeypatch):
    """Once, and not while something else than autograd follows what is computed."""
    monkeypatch.setattr(dtypes, "_FLOAT64", {})
    tried = []
    monkeypatch.setattr(dtypes, "_tried", lambda device: bool(tried.append(device)))
    with Single():
        assert dtypes.has_float64("xpu")
    assert [dtypes.has_float64("xpu"), dtypes.has_float64("xpu"), tried] == [False, False, ["xpu"]]


@pytest.mark.parametrize(("device", "has"), [("cpu", True), ("meta", False), ("no such device", False)])
def test_a_try(device, has):
    """It computes and reads a number: a device that is not here has none, and neither has one without values."""
    assert dtypes._tried(device) is has


def test_the_reference_refuses_it_by_name(without):
    """The backend torch declares float64 where there is some, and says so where there is none."""
    with pytest.raises(Unsupported, match=r"backend 'torch' .* does not support float64 on meta"):
        sc.LIF(backend="torch")(torch.empty(4, 2, 3, dtype=torch.float64, device="meta"))


def test_a_default_device_without_float64():
    """Numbers of definitions are computed on the CPU, whatever torch's default device is."""

    class Root(sc.Neuron):
        states = {"v": 0.0}
        params = {"tau": 2.0}

        def dynamics(self, x, s, p):
            v = s.v + x * sc.ops.sqrt(sc.ops.exp(0.5))
            return self.spike(v - 1.0), {"v": v * sc.ops.exp(-1.0 / p.tau)}

    if not hasattr(torch, "set_default_device"):
        pytest.skip("torch 2.0 and newer have a default device")
    torch.set_default_device("meta")
    try:
        net = nn.Sequential(Root(backend="torch"))
        with Single():
            assert net(torch.empty(3, 2)).device.type == "meta"
    finally:
        torch.set_default_device(None)
