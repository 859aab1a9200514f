"""Makes weights contiguous, because PopTorch ignores strides: it copies memory from the first number on.

A transposed, channels-last or expanded weight would arrive permuted, or with memory that is not its own.
"""

from __future__ import annotations

import warnings
from typing import Dict, Iterator, List, Tuple

import torch
from torch import Tensor, nn

from spikecore_ipu.overlap import overlapping


def lay_out(net: nn.Module) -> None:
    """Make every parameter and buffer contiguous, in place: the same object and values, in memory of its own.

    Warns of those that were not. Raises ValueError for one that shares its memory with another of the network: laid out
    anew it would follow the other no more.
    """
    with torch._C.DisableTorchFunctionSubclass():
        scattered = [(name, tensor) for name, tensor in _named(net) if not tensor.is_contiguous()]
        if not scattered:
            return
        sharing = _sharing(net)
        for name, tensor in scattered:
            others = [other for other in sharing[_memory(tensor)] if other != name]
            if others:
                raise ValueError(
                    f"net.{name} is a view of the memory of net.{', net.'.join(others)}, with strides "
                    f"{tuple(tensor.stride())}, and PopTorch copies memory as if it were contiguous; share the "
                    "nn.Parameter itself and turn it in forward, or give each its own with .contiguous()"
                )
        for _, tensor in scattered:
            tensor.data = tensor.data.contiguous()
    warnings.warn(
        f"{', '.join(f'net.{name}' for name, _ in scattered)} did not lie contiguously (channels-last, transposed or "
        "expanded), and PopTorch copies memory as if it did: laid out anew, with the same values",
        UserWarning,
        stacklevel=5,
    )


def check_sharing(net: nn.Module) -> None:
    """Raise ValueError for a trained parameter whose memory is that of another parameter or buffer, too.

    PopTorch gives each its own memory on the device, trains them apart, and copies both back to the same place.
    """
    with torch._C.DisableTorchFunctionSubclass():
        for one, other in overlapping(_named(net)):
            if one.tensor.requires_grad or other.tensor.requires_grad:
                raise ValueError(
                    f"net.{one.name} and net.{other.name} are two tensors in the same memory; PopTorch would train "
                    "them apart without a word; share the nn.Parameter itself, b.weight = a.weight, or clone() one"
                )


def scattered(net: nn.Module) -> List[str]:
    """The names of the parameters and buffers that are not contiguous."""
    with torch._C.DisableTorchFunctionSubclass():
        return [name for name, tensor in _named(net) if not tensor.is_contiguous()]


def _named(net: nn.Module) -> Iterator[Tuple[str, Tensor]]:
    yield from net.named_parameters()
    yield from net.named_buffers()


def _sharing(net: nn.Module) -> Dict[int, List[str]]:
    names: Dict[int, List[str]] = {}
    for name, tensor in _named(net):
        names.setdefault(_memory(tensor), []).append(name)
    return names


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
