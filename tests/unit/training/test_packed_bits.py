"""What sc.packed_spikes() keeps of a tensor: numbers as bits, and the same numbers back."""

from __future__ import annotations

import pickle

import pytest
import torch

from spikecore.backend import Whole
from spikecore.training._packed.bits import packed


class TestBits:
    """Numbers in, numbers out."""

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("count", [1, 7, 8, 9, 1025])
    def test_the_same_numbers_come_back(self, dtype: torch.dtype, count: int) -> None:
        """Of 1, 2, 4 and 8 bits, whole and quarters, of any count."""
        generator = torch.Generator().manual_seed(count)
        for bits in (1, 2, 4, 8):
            for unit in (1.0, 0.25):
                numbers = torch.randint(0, 1 << bits, (count,), generator=generator).to(dtype) * unit
                whole, size = Whole((1 << bits) - 1, unit), -(-count * bits // 8)
                found = packed(numbers, whole)
                assert found is not None
                assert found.bytes == size
                assert torch.equal(found.numbers(), numbers)
                assert found.numbers().dtype == dtype

    def test_every_byte_comes_back(self) -> None:
        """All neighbours of all numbers."""
        every = torch.arange(256)
        for bits in (1, 2, 4):
            each = 8 // bits
            numbers = (
                torch.stack([every >> bits * place & (1 << bits) - 1 for place in range(each)], 1).flatten().float()
            )
            found = packed(numbers, Whole((1 << bits) - 1))
            assert found is not None
            assert torch.equal(found.data, every.to(torch.uint8))
            assert torch.equal(found.numbers(), numbers)

    @pytest.mark.parametrize("wrong", [2.0, 0.5, -1.0, 256.0, float("nan"), float("inf")])
    def test_other_numbers_are_seen(self, wrong: float) -> None:
        """One number that is none of those it is said to be."""
        for whole in (Whole(1), Whole(1, 0.25), Whole(3, 0.5), Whole(5, 4.0), Whole(255, 2.0)):
            numbers = torch.zeros(100)
            numbers[77] = wrong
            fits = wrong / whole.unit in range(whole.largest + 1)
            assert (packed(numbers, whole) is not None) == fits


@pytest.mark.parametrize("largest", [0, -1, 256, 65535])
def test_numbers_that_no_byte_holds_are_refused(largest: int) -> None:
    """Also 0 alone, which some backends took for right and others not."""
    with pytest.raises(ValueError, match=rf"^Whole: largest={largest} must be from 1 to 255$"):
        Whole(largest)


def test_what_holds_numbers_is_a_tuple_of_two() -> None:
    """It is pickled, compared and unpacked as one."""
    whole = Whole(3, 0.5)
    assert tuple(whole) == (3, 0.5)
    assert Whole(largest=3, unit=0.5) == whole
    assert repr(whole) == "Whole(largest=3, unit=0.5)"
    copied = pickle.loads(pickle.dumps(whole))
    assert (type(copied), copied.bits, copied) == (Whole, 2, whole)
