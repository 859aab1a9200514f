"""Tensors of small whole numbers that are kept as bits, by the backend that gives the numbers.

On a CPU, where there is nothing to wait for, values are compared with what they are said to be: :func:`packed` gives
None for others. Elsewhere what differs comes back with NaN (:mod:`spikecore._base.bits`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Optional, Tuple

import torch
from torch import Tensor

from spikecore._base.bits import Bits, Packing, Whole
from spikecore._plugins.registry import default_registry
from spikecore.backend import BackendError

#: Fewer numbers than this stay as they are: their bits are not worth two launches.
LEAST = 1024
#: Operations of PyTorch, on any device.
REFERENCE = Packing()


@dataclass(eq=False)
class Packed:
    """Numbers side by side in bytes. Never changed: not frozen, since that takes three times as long to make."""

    #: None while something else keeps it.
    data: Optional[Tensor]
    #: See :class:`~spikecore._base.bits.Bits`.
    right: Tensor
    whole: Whole
    count: int
    dtype: torch.dtype
    #: What packed them, and unpacks them.
    packing: Packing

    def holding(self, data: Optional[Tensor]) -> Packed:
        """The same with other memory for the data, or none."""
        return replace(self, data=data)

    def numbers(self) -> Tensor:
        """The numbers, ``[count]``, as they were."""
        if self.data is None:
            raise RuntimeError("these bits are kept elsewhere")
        bits = Bits(self.data, self.right)
        try:
            return self.packing.unpack(bits, self.whole, self.count, self.dtype)
        except BackendError as error:
            _warn(self.packing, error)
            # a backend may give several numbers that tell whether all is right
            right = torch.where(self.right.isnan().any(), float("nan"), 1.0)
            return REFERENCE.unpack(bits._replace(right=right), self.whole, self.count, self.dtype)

    @property
    def bytes(self) -> int:
        """The memory that this keeps."""
        return 0 if self.data is None else self.data.numel()


def packed(
    numbers: Tensor, whole: Whole, packing: Packing = REFERENCE, kept: Optional[Packed] = None
) -> Optional[Packed]:
    """The numbers ``[n]`` in as few bits as hold them; None where it is seen that they are others.

    ``kept`` are those of the same memory, packed before: the result shares its bits. Something may have written into
    that memory in between without autograd's knowledge, as with ``tensor.data``, so it is compared; None where it is
    seen to differ.
    """
    like = None
    if kept is not None:
        if kept.data is None or kept.whole != whole:
            return None
        like = kept.data
    try:
        found = packing.pack(numbers, whole, like)
    except BackendError as error:
        _warn(packing, error)
        packing = REFERENCE
        found = packing.pack(numbers, whole, like)
    if numbers.device.type == "cpu" and bool(found.right.isnan().any()):
        return None
    return Packed(found.data, found.right, whole, numbers.numel(), numbers.dtype, packing)


def _warn(packing: Packing, error: BackendError) -> None:
    """Say, once, that a backend cannot pack. A neuron stays bound to a backend that was chosen automatically and whose
    kernels cannot be compiled, while another one computes.
    """
    name = getattr(packing, "name", type(packing).__name__)
    if default_registry().first(("packing", name, str(error))):
        warnings.warn(
            f"sc.packed_spikes(): operations of PyTorch pack instead of backend {name!r}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


def is_dense(shape: Tuple[int, ...], stride: Tuple[int, ...]) -> bool:
    """Whether the numbers fill their memory, each place once."""
    expected = 1
    for step, size in sorted(zip(stride, shape)):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True
