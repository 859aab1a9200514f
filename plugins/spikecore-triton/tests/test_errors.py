"""Failures of Triton or of the driver are errors of the backend, which name the kernel and the way out."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch

import spikecore as sc
from spikecore.backend import BackendError
from spikecore_triton import backend


class Uncompiled(sc.Neuron):
    """A program that no test has compiled."""

    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = s.v * 0.3125 + x * 1.0390625
        return v, {"v": v}


class Failing:
    """In the place of Triton's function of a kernel."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def run(*_: Any, **__: Any) -> None:
            raise self.error

        return run


def test_a_kernel_that_cannot_be_compiled_is_named(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """In forward, with the first line of what Triton said."""
    monkeypatch.setattr(backend, "compiled", lambda source: Failing(ValueError("no such intrinsic\nand more")))
    with pytest.raises(
        BackendError, match="cannot run kernel uncompiled_forward: ValueError: no such intrinsic; choose"
    ):
        Uncompiled(backend="triton")(torch.rand(4, 3, device=device))


def test_so_is_one_of_backward(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Backward compiles its own kernel, when it is first needed."""
    out = Uncompiled(backend="triton")(torch.rand(5, 3, device=device).requires_grad_())
    monkeypatch.setattr(backend, "compiled", lambda source: Failing(RuntimeError("")))
    with pytest.raises(BackendError, match="cannot run kernel uncompiled_backward: RuntimeError: no text; choose"):
        out.sum().backward()


class Detached(sc.Neuron):
    """A parameter, and the same one without its gradient."""

    params = {"a": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return x * p.a + sc.ops.detach(p.a), {}


def test_a_parameter_and_itself_detached_are_one_argument(device: str) -> None:
    """A step that takes both is a function of one of them."""
    x = torch.tensor([[1.0, 2.0]], device=device)
    neuron = Detached(learn=("a",), backend="triton").to(device)
    out = neuron(x)
    assert out.tolist() == [[4.0, 6.0]]
    out.sum().backward()
    assert neuron.a.grad.item() == 3.0
