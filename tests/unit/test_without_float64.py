"""Where a device has no float64, nothing of spikecore asks it for a tensor of it: neurons, losses, encoders, layers.

Tensors of the device "meta" have no values, and a mode of torch refuses float64 among them. What is
computed is compared in tests/backend/test_single.py, on a device with values.
"""

from __future__ import annotations

import pytest
import torch
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
    monkeypatch.setattr("spikecore.context.dispatch_modes", tuple)


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


def test_the_reference_refuses_it_by_name(without):
    """The backend torch declares float64 where there is some, and says so where there is none."""
    with pytest.raises(Unsupported, match=r"backend 'torch' .* does not support float64 on meta"):
        sc.LIF(backend="torch")(torch.empty(4, 2, 3, dtype=torch.float64, device="meta"))
