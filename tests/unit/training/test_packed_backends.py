"""Which backend packs for sc.packed_spikes(), and what becomes of one that cannot."""

from __future__ import annotations

from typing import Optional

import pytest
import torch

import spikecore as sc
from spikecore._base.bits import Bits, Packing
from spikecore._plugins import registry
from spikecore._shell import marked
from spikecore.backend import BackendError, Whole
from spikecore.training._packed.bits import packed


class Half(Packing):
    """It packs or unpacks, and fails in the other."""

    name = "half"

    def __init__(self, packs: bool, kind: type) -> None:
        self.packs, self.kind = packs, kind

    def pack(self, numbers: torch.Tensor, whole: Whole, like: Optional[torch.Tensor] = None) -> Bits:
        """As the reference, with a word on what is right for each half."""
        if not self.packs:
            raise self.kind("no compiler here")
        found = super().pack(numbers, whole, like)
        return found._replace(right=found.right.expand(2))

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Never."""
        raise self.kind("no driver here")


@pytest.mark.parametrize(("packs", "says"), [(False, "no compiler here"), (True, "no driver here")])
def test_a_backend_that_cannot_pack(packs: bool, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of PyTorch do, with one warning; errors of other kinds come through."""
    monkeypatch.setattr(registry, "_defaults", [registry.Registry(registry.BUILTINS, entry_points=[])])
    numbers = torch.arange(100) % 2.0

    def there_and_back() -> torch.Tensor:
        found = packed(numbers, Whole(1), Half(packs, BackendError))
        assert found is not None
        return found.numbers()

    with pytest.warns(RuntimeWarning) as caught:
        both = [there_and_back(), there_and_back()]
    assert all(torch.equal(found, numbers) for found in both)
    assert [str(warning.message) for warning in caught] == [
        f"sc.packed_spikes(): operations of PyTorch pack instead of backend 'half': {says}"
    ]
    with pytest.raises(ValueError, match=says):
        packed(numbers, Whole(1), Half(packs, ValueError)).numbers()  # type: ignore[union-attr]  # the numbers are right


def test_backends_in_turn_share_bits() -> None:
    """What one packed is compared with and kept by the next."""
    numbers = torch.arange(100) % 2.0
    first = packed(numbers, Whole(1))
    assert first is not None
    second = packed(numbers, Whole(1), Packing(), first)
    assert second is not None
    assert second.data is first.data
    assert torch.equal(second.numbers(), numbers)


def test_no_backend_is_held_behind_the_context() -> None:
    """While spikes are packed, the backend of their neuron is known; behind it, none is."""
    with sc.packed_spikes():
        sc.LIF(backend="torch")(torch.ones(4, 3, requires_grad=True))
        assert [backend.name for backend in marked.packing_backends.values()] == ["torch"]
    assert marked.packing_backends == {}
