"""Packed spikes that two operations save: by which backend, and with a write between that autograd does not see."""

from __future__ import annotations

from typing import List, Optional

import torch
from torch import Tensor

import spikecore as sc
from spikecore._base.bits import Packing
from spikecore.backend import Bits, Whole
from spikecore.testing._loopback import Loopback, installed


def test_a_write_between_two_saves_is_found_by_value() -> None:
    """The second product must not get the bits that the first one has of the same memory and version."""
    first, second = (torch.ones((), requires_grad=True) for _ in range(2))
    x = (torch.rand(3, 8, 64, generator=torch.Generator().manual_seed(0)) * 4).requires_grad_()
    with sc.packed_spikes() as packs:
        z = sc.LIF(backend="torch")(x)
        before, y = z.sum(), (z * first).sum()
        z.data.mul_(0)
        z.data[0] = 1
        y = y + (z * second).sum()
    y.backward()
    assert packs.before == 2 * z.numel() * 4
    assert first.grad == before
    assert second.grad == z.sum() != before


def test_bits_that_differ_come_back_as_nan_where_nothing_is_read() -> None:
    """As on a device that nothing waits for, where the result of the check is a tensor, too."""
    one, reference = torch.ones(100), Packing()
    kept = reference.pack(one, Whole(1))
    agreeing, differing = (reference.pack(x, Whole(1), kept.data) for x in (one.clone(), torch.zeros(100)))
    assert agreeing.data is kept.data is differing.data
    assert torch.equal(reference.unpack(agreeing, Whole(1), 100, one.dtype), one)
    assert reference.unpack(differing, Whole(1), 100, one.dtype).isnan().all()


class Counting(Loopback):
    """Counts what it packs and unpacks."""

    name = "counting"
    calls: List[str] = []

    def pack(self, numbers: Tensor, whole: Whole, like: Optional[Tensor] = None) -> Bits:
        self.calls.append("pack" if like is None else "pack again")
        return super().pack(numbers, whole, like)

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        self.calls.append("unpack")
        return super().unpack(bits, whole, count, dtype)


def test_the_backend_of_the_neuron_packs() -> None:
    """Once for each save, into bits that are shared; a neuron on another backend has its own pack."""
    weights = [torch.ones((), requires_grad=True) for _ in range(3)]
    x = (torch.rand(3, 8, 64, generator=torch.Generator().manual_seed(0)) * 4).requires_grad_()
    Counting.calls.clear()
    with installed(Counting) as name, sc.packed_spikes() as packs:
        z = sc.LIF(backend=name)(x)
        y = (z * weights[0]).sum() + (z * weights[1]).sum()
        assert Counting.calls == ["pack", "pack again"]
        assert packs.after == z.numel() // 8
        y = y + (sc.LIF(backend="torch")(x) * weights[2]).sum()
    y.backward()
    assert Counting.calls == ["pack", "pack again", "unpack", "unpack"]
    assert all(weight.grad == z.sum() for weight in weights)
