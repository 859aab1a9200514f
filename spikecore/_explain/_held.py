"""What autograd keeps of a network that is watched: tensors, or the bits that ``sc.packed_spikes()`` makes of them."""

from __future__ import annotations

from typing import Optional

from torch import Tensor
from torch.autograd.profiler import record_function

from spikecore._explain._traffic import ASIDE
from spikecore.training._packed import InBits


class Held:
    """A tensor as autograd keeps it: gone when autograd drops it."""

    __slots__ = ("__weakref__", "bits", "value", "version")

    def __init__(self, value: Tensor, bits: Optional[InBits] = None) -> None:
        self.bits = bits
        self.value: Optional[Tensor] = None
        if bits is None:
            # a result that is saved by its own node would keep that node alive, which keeps the result: for ever, where
            # no backward pass goes through it
            self.value = value if value.is_leaf else value.detach()
        self.version = value._version

    def tensor(self) -> Tensor:
        """The tensor for the backward pass, which torch does not check where hooks keep it."""
        if self.bits is not None:
            with record_function(ASIDE):
                return self.bits.tensor()
        if self.value is None:
            raise RuntimeError("nothing is kept of this tensor")
        if self.value._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.value.type()} {list(self.value.shape)}] is at version {self.value._version}; expected version "
                f"{self.version} instead"
            )
        return self.value

    @property
    def kept(self) -> Optional[Tensor]:
        """What takes the memory; None for bits that hooks around ``sc.packed_spikes()`` keep."""
        return self.value if self.bits is None else self.bits.data

    @property
    def count(self) -> int:
        """How many numbers there are."""
        if self.bits is not None:
            return self.bits.size
        return 0 if self.value is None else self.value.numel()

    @property
    def bytes(self) -> int:
        """The memory that is kept."""
        if self.bits is not None:
            return self.bits.bytes
        return 0 if self.value is None else self.value.untyped_storage().nbytes()

    def has_spikes(self) -> bool:
        """Whether all numbers that are kept whole are 0 or 1."""
        return self.value is not None and bool(((self.value == 1) | (self.value == 0)).all())


def storage_of(tensor: Tensor) -> int:
    """What tells storages apart while their tensors are alive: sparse and other tensors have none of their own."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):
        return id(tensor)
