"""Choice of a device, its memory and compiler, and errors where it cannot compute."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch

import spikecore as sc
import spikecore_opencl
from kernel_names import assert_like_torch
from spikecore.backend import BackendError
from spikecore.lang.dialects import WORDS
from spikecore.testing.naming import ROLES, namings, usable
from spikecore_opencl.device import CHOICE, chosen, reason


@pytest.fixture(autouse=True)
def _ready() -> None:
    """No test of this file says anything where there is no device."""
    why = reason()
    if why:
        pytest.skip(why)


def gradients(name: str, x: torch.Tensor) -> Any:
    """Spikes, and the gradients of the input and of a learnt parameter for each neuron."""
    lif = sc.LIF(tau=torch.full(x.shape[1:], 2.5), learn=("tau",), backend=name)
    x = x.clone().requires_grad_()
    spikes = lif(x)
    (spikes * torch.linspace(-1, 1, x[0].numel(), dtype=x.dtype).view(x.shape[1:])).sum().backward()
    return spikes.detach(), x.grad, lif.tau.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_memory_of_its_own(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """To a device as a graphics card is, tensors are copied and back, those whose steps lie apart as well."""
    monkeypatch.setattr(chosen(), "shares_memory", False)
    x = torch.randn(5, 40, dtype=dtype)[:, :33]
    for ours, right in zip(gradients("opencl", x), gradients("torch", x)):
        assert torch.allclose(ours, right, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)


def test_words_of_every_dialect() -> None:
    """A kernel compiles, and computes what torch does, where each value is called like a word of some dialect."""
    for naming in [*namings(usable(WORDS), 150)][:: len(ROLES) + 1]:
        assert_like_torch(naming, "opencl")


def test_another_device_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "no such device")
    (info,) = spikecore_opencl.spikecore_backends()
    assert info.probe() == f"no OpenCL device has 'no such device' in its name, as {CHOICE} asks"


def test_what_does_not_compile_is_shown() -> None:
    with pytest.raises(BackendError, match=r"kernel wrong for .*, so choose backend='torch'; its compiler says:"):
        chosen().kernel("wrong", "__kernel void wrong(void) { undeclared = 1; }")


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_a_forked_process_is_refused() -> None:
    """With the way out, before the driver waits for ever."""
    lif, x = sc.LIF(backend="opencl"), torch.zeros(2, 3)
    lif(x)
    refused = pytest.raises(BackendError, match="begin processes with multiprocessing's 'spawn'")
    with multiprocessing.get_context("fork").Pool(1) as pool, refused:
        pool.apply(lif, (x,))
