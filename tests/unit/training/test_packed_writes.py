"""Packed spikes whose memory was written to without autograd's knowledge between two operations that save it."""

from __future__ import annotations

import dataclasses

import torch

import spikecore as sc
from spikecore.training._packed.bits import Whole, packed, shared


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
    one, right = torch.ones(100), torch.tensor(1.0)
    kept, same, other = (packed(x, Whole(1)) for x in (one, one, torch.zeros(100)))
    assert kept is not None
    assert same is not None
    assert other is not None
    agreeing = shared(kept, dataclasses.replace(same, right=right))
    differing = shared(kept, dataclasses.replace(other, right=right))
    assert agreeing is not None
    assert differing is not None
    assert agreeing.data is kept.data
    assert torch.equal(agreeing.numbers(), one)
    assert differing.numbers().isnan().all()
