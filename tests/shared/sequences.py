"""Sequences that do not call their parts one after the other, once each."""

from __future__ import annotations

from typing import Any, Iterator

from torch import Tensor, nn


class Backwards(nn.Sequential):
    """A sequence that calls its last part first, and each module once."""

    def __iter__(self) -> Iterator[nn.Module]:
        """The parts from the last one."""
        return iter(dict.fromkeys(reversed(list(self._modules.values()))))


class Halved(nn.Sequential):
    """A sequence with a call of its own."""

    def __call__(self, x: Tensor) -> Any:
        """Of half the input."""
        return 0.5 * super().__call__(x)
