"""What autograd keeps of a network that is watched."""

from __future__ import annotations

from torch import Tensor


class Held:
    """A tensor as autograd keeps it: gone when autograd drops it."""

    __slots__ = ("__weakref__", "value", "version")

    def __init__(self, value: Tensor) -> None:
        # a result that is saved by its own node would keep that node alive, which keeps the result: for ever, where no
        # backward pass goes through it
        self.value = value if value.is_leaf else value.detach()
        self.version = value._version

    def tensor(self) -> Tensor:
        """The tensor for the backward pass, which torch does not check where hooks keep it."""
        if self.value._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.value.type()} {list(self.value.shape)}] is at version {self.value._version}; expected version "
                f"{self.version} instead"
            )
        return self.value

    @property
    def bytes(self) -> int:
        """The memory that is kept."""
        return self.value.untyped_storage().nbytes()

    def has_spikes(self) -> bool:
        """Whether all numbers are 0 or 1."""
        return bool(((self.value == 1) | (self.value == 0)).all())


def storage_of(tensor: Tensor) -> int:
    """What tells storages apart while their tensors are alive: sparse and other tensors have none of their own."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):
        return id(tensor)
