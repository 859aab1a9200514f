"""Which module computed a tensor."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from spikecore._explain._held import storage_of


class _Result(NamedTuple):
    """A memory that a module filled, and how often it had been written to then."""

    there: StorageWeakRef
    version: int
    module: nn.Module


class Results:
    """The memories that modules filled. None of them is kept alive."""

    def __init__(self) -> None:
        self._made: Dict[int, _Result] = {}

    def note(self, module: nn.Module, value: Tensor) -> None:
        """``module`` gave ``value``. What gives back its input, or a view of it, computed nothing."""
        if value.layout is torch.strided and self.source(value) is None:
            self._made[storage_of(value)] = _Result(StorageWeakRef(value.untyped_storage()), value._version, module)

    def source(self, value: Tensor) -> Optional[nn.Module]:
        """The module that computed ``value``; None where none did, or where it was written to since."""
        found = self._made.get(storage_of(value)) if value.layout is torch.strided else None
        # torch gives memory that is free to other tensors
        if found is None or found.there.expired() or found.version != value._version:
            return None
        return found.module
