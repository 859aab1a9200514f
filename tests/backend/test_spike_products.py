"""Float32 numbers in parts of bfloat16: by torch's operations, and by the kernel of cupy, here on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spikecore.kernels import spike_products
from spikecore_cupy.host import HostBackend, reason

#: What splits: operations of torch, or the kernel.
SPLITS = [
    "torch",
    pytest.param("kernel", marks=[pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]),
]


@pytest.fixture
def split(request: pytest.FixtureRequest) -> Any:
    """One of :data:`SPLITS`."""
    return spike_products.split if request.param == "torch" else HostBackend().split


def drawn(rows: int, width: int) -> torch.Tensor:
    """Numbers of all sizes, the largest among them; none is so small that it loses bits."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(rows, width, generator=generator) * torch.randn(rows, width, generator=generator).mul(20).exp()
    x[x.abs() < 2.0**-100] = 0.0
    x[0, 0] = -torch.finfo(torch.float32).max
    return x


@pytest.mark.parametrize("split", SPLITS, indirect=True)
@pytest.mark.parametrize(("rows", "width"), [(5, 7), (3, 12), (9, 16), (2, 513)])
def test_three_parts_are_the_number(split: Any, rows: int, width: int) -> None:
    """All bits of it; rows are filled up with zeros, and one part is that with the highest bits."""
    x = drawn(rows, width)
    parts = split(x, 3)
    assert parts.shape == (rows, 3, -(-width // 8) * 8)
    assert torch.equal(parts.double().sum(1)[:, :width], x.double())
    assert not parts[:, :, width:].any()
    assert torch.equal(split(x, 1)[:, 0], parts[:, 2])


@pytest.mark.parametrize("split", SPLITS, indirect=True)
def test_numbers_that_do_not_begin_at_sixteen_bytes(split: Any) -> None:
    """A view that begins at its second number."""
    x = drawn(1, 33)[0, 1:].view(4, 8)
    assert torch.equal(split(x, 3).double().sum(1), x.double())


def check_gradient(monkeypatch: pytest.MonkeyPatch, width: int, rows: int, split: Any) -> None:
    """The gradient of 50 rows, so many at once, beside the product in float64. On a CPU no product of bfloat16 gives
    float32.
    """
    monkeypatch.setattr(spike_products, "ROWS", rows)
    monkeypatch.setattr(spike_products, "multiplied", lambda a, b: a.float() @ b.float())
    generator = torch.Generator().manual_seed(0)
    grads, spikes = torch.randn(50, width, generator=generator), torch.rand(50, width, generator=generator).round()
    found = spike_products.of_gradient(grads, spikes, split)
    torch.testing.assert_close(found.double(), grads.double().t() @ spikes.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("width", "rows"), [(16, 50), (21, 50), (21, 16)])
def test_the_gradient_is_the_product(monkeypatch: pytest.MonkeyPatch, width: int, rows: int) -> None:
    """Of all rows at once or of some."""
    check_gradient(monkeypatch, width, rows, spike_products.split)


@pytest.mark.parametrize("part", [0, 1, 2, "some rows"])
@pytest.mark.parametrize("times", [0, 2], ids=["dropped", "twice"])
def test_a_part_that_is_dropped_or_counted_twice_is_caught(
    monkeypatch: pytest.MonkeyPatch, part: Any, times: int
) -> None:
    """Of the parts of the cotangents, the smallest too; and of the rows that are multiplied at once."""
    calls = []

    def wrong(x: torch.Tensor, count: int) -> torch.Tensor:
        parts = spike_products.split(x, count)
        if count == spike_products.PARTS:
            calls.append(count)
            if part != "some rows":
                parts[:, part] *= times
            elif len(calls) == 2:
                parts *= times
        return parts

    with pytest.raises(AssertionError, match="not close"):
        check_gradient(monkeypatch, 16, 16, wrong)
