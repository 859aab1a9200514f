"""Automatic choice on a GPU."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from spikecore._plugins.registry import default_registry


@pytest.fixture(autouse=True)
def _said_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings that are said once are said in every test."""
    monkeypatch.delenv("SPIKECORE_BACKEND", raising=False)
    default_registry()._said.clear()


def test_second_derivatives_are_the_references() -> None:
    """cupy, chosen automatically, hands them to the reference, with a warning; asked for by name it refuses."""
    values = torch.linspace(-1, 3, 60, dtype=torch.float64, device="cuda").view(20, 3)

    def second(backend: object) -> torch.Tensor:
        x = values.clone().requires_grad_()
        (grad,) = torch.autograd.grad((sc.LIF(backend=backend)(x) * x**3).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    with pytest.warns(
        RuntimeWarning, match="backend 'torch' computes instead of 'cupy', which was chosen automatically"
    ):
        ours = second(None)
    torch.testing.assert_close(ours, second("torch"))
    with pytest.raises(sc.Unsupported, match="derives first derivatives only"):
        second("cupy")


def test_zeros_without_memory_are_zeros() -> None:
    """As input and as cotangent."""
    shadow = torch._efficientzerotensor((4, 3), dtype=torch.float32, device="cuda")
    lif = sc.LIF(backend="cupy")
    assert not lif(shadow).any()
    x = torch.full((4, 3), 1.7, device="cuda", requires_grad=True)
    lif(x).backward(shadow)
    assert not x.grad.any()


def test_a_freed_tensor_is_refused() -> None:
    """Before a kernel reads from nowhere."""
    x = torch.full((4, 3), 1.7, device="cuda")
    x.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="has no memory"):
        sc.LIF(backend="cupy")(x)
