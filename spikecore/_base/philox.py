"""Uniform random numbers by counter: Philox4x32-10 in integer operations of torch, on any device the same bits.

A number is a function of a key and of its place, and of nothing else: not of the device, the memory layout, the order
in which numbers are computed, or how many others there are. Source: Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3" (SC 2011); constants and test vectors are those of their library Random123.
"""

from __future__ import annotations

from typing import Sequence, Tuple

import torch
from torch import Tensor

#: Multipliers of the two halves of a counter, and what the words of a key grow by in each round.
_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF
#: Neurons of one step that have numbers: four for each value of the first word of a counter.
MOST = 4 << 32
#: Numbers that a CPU makes at a time.
_BLOCK = 1 << 17


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words for each counter of four words, under a key of two; words are in int64, from 0 to 2^32 - 1.

    Counter and key broadcast against each other. A product of two words that is 2^63 or more wraps around, which leaves
    its bits as they are.
    """
    a, b, c, d = counter
    first, second = key
    for _ in range(_ROUNDS):
        low, high = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (high >> 32 & _WORD) ^ b ^ first, high & _WORD, (low >> 32 & _WORD) ^ d ^ second, low & _WORD
        first, second = first + _WEYL[0] & _WORD, second + _WEYL[1] & _WORD
    return a, b, c, d


def uniform(key: Tensor, steps: int, shape: Sequence[int], stream: int, dtype: torch.dtype) -> Tensor:
    """``[steps, *shape]`` numbers in [0, 1), multiples of 2^-24 in float32 and of 2^-32 in float64.

    ``key`` is two words in int64, on the device where the numbers are to be. Number ``i`` of step ``t``, counted over
    ``shape`` row by row, is word ``i % 4`` of counter ``(i // 4, stream, t, 0)``, of which float32 takes the upper 24
    bits. ``shape`` has at most :data:`MOST` numbers.
    """
    count = 1
    for size in shape:
        count *= size
    together = steps
    if key.device.type == "cpu":  # so that what the rounds pass on stays in the cache: three times as fast
        together = max(1, min(steps, _BLOCK // max(count, 1)))
    begins = range(0, steps, max(together, 1))
    blocks = [_block(key, first, min(together, steps - first), count, stream, dtype) for first in begins]
    numbers = blocks[0] if len(blocks) == 1 else torch.cat([*blocks, key.new_empty((0, count), dtype=dtype)])
    return numbers.reshape(steps, *shape)


def _block(key: Tensor, first: int, steps: int, count: int, stream: int, dtype: torch.dtype) -> Tensor:
    """``[steps, count]`` numbers, of the steps from ``first`` on."""
    device = key.device
    place = torch.arange((count + 3) // 4, device=device)
    step = torch.arange(first, first + steps, device=device).unsqueeze(1)
    other = torch.full((), stream, dtype=torch.int64, device=device)
    words = torch.stack(philox((place, other, step, torch.zeros_like(other)), key.unbind(0)), -1)
    words = words.reshape(steps, -1)[:, :count]
    if dtype == torch.float64:
        return words.to(dtype) * 2.0**-32
    return (words >> 8).to(dtype) * 2.0**-24
