"""``[B, T, ...]`` seen as ``[T, B, ...]``: nothing is copied, and results lie as the input does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.kernels import Layout, layout_of

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("on_host")]


def batch_first(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Data ``[B, T, ...]`` seen with time first."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).add(0.5).to(dtype).transpose(0, 1)


VIEWS = {
    "features": batch_first(3, 5, 8),
    "odd rows": batch_first(3, 5, 9),
    "images": batch_first(3, 5, 2, 4, 4),
    "channels last": batch_first(3, 5, 4, 4, 2).permute(0, 1, 4, 2, 3),
    "two outer": torch.randn(2, 3, 5, 8).permute(2, 0, 1, 3),
    "half": batch_first(3, 20, 16, dtype=torch.bfloat16),
    "a batch of part": batch_first(6, 5, 8)[:, ::2],
}


def in_rows(x: Tensor) -> bool:
    """Whether a call of this input is computed in rows."""
    return layout_of(x, rows=True).outer > 0


@pytest.mark.parametrize("name", VIEWS)
def test_the_layout_is_that_of_the_view(name: str) -> None:
    """The tensor is taken as it is, and a new one of its layout has its strides where memory has no gaps."""
    x = VIEWS[name]
    layout = layout_of(x, rows=True)
    assert layout.outer > 0
    assert layout.fit_steps(x) is x
    assert Layout.decoded(layout.shape, layout.encoded) == layout
    new = layout.empty_steps(x, x.dtype)
    assert new.shape == x.shape
    if name != "a batch of part":
        assert new.stride() == x.stride()
    assert layout_of(x).outer == 0


def test_short_rows_and_gaps_are_copied() -> None:
    """Rows of less than a sector of memory, and those that lie apart for another reason than time."""
    assert not in_rows(torch.randn(64, 5).t())
    assert not in_rows(torch.randn(3, 5, 7).transpose(0, 1))
    assert in_rows(torch.randn(3, 5, 8).transpose(0, 1))
    assert not in_rows(torch.randn(5, 3, 20)[:, :, :10])
    assert not in_rows(torch.randn(5, 3, 20))


class Constant(sc.Neuron):
    """A state that depends on no input."""

    states = {"v": 0.0}
    params = {"gain": 1.5, "leak": 2.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return s.v * x + p.gain, {"v": p.leak * 0.5}


def test_rows_that_the_kernel_does_not_read() -> None:
    """Of a cotangent in rows that leads to nothing learnt, the gradient is 0."""
    each = {name: torch.full((4,), value, dtype=torch.float64) for name, value in Constant.params.items()}
    neuron = Constant(**each, learn=("gain",), backend="cupy_host")
    trace = neuron.run(torch.ones(2, 5, 4, dtype=torch.float64).transpose(0, 1), record=("v",))[2]["v"]
    trace.backward(torch.ones(2, 5, 4, dtype=torch.float64).transpose(0, 1))
    assert neuron.gain.grad.tolist() == [0.0] * 4
