"""Tensors of PyTorch as arrays of JAX and back, in the memory where they are."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.dlpack import from_dlpack

#: Bytes.
ALIGNMENT = 16


def x64(on: bool) -> Any:
    """A context in which JAX has float64, or has it not."""
    # JAX 0.8 took it out of jax.experimental, and JAX 0.6 is the last one for Python 3.10
    place = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
    return place.enable_x64(on)


def array(value: Tensor) -> Any:
    """A tensor as an array, in its own memory where that is dense and aligned as XLA asks."""
    return jax.dlpack.from_dlpack(aligned(value.detach().contiguous()))


def aligned(value: Tensor) -> Tensor:
    """A dense tensor, or a copy of one that begins where XLA takes none.

    On a CPU XLA copies what is not aligned itself. On CUDA the compiled function raises "Address of buffer 2 must be a
    multiple of 10", a hexadecimal number: so begin a step of a longer tensor and a state carried from one.
    """
    return value.clone() if value.device.type != "cpu" and value.data_ptr() % ALIGNMENT else value


def tensor(value: Any, steps: int, neurons: int, device: torch.device) -> Tensor:
    """A result ``[T, N]`` or ``[N]`` as a tensor, without what a padded call has more."""
    # JAX computes beside this thread; a user may change an argument as soon as the call is over
    found = from_dlpack(value.block_until_ready() if device.type == "cpu" else value)
    if found.shape[-1] != neurons:
        found = found[..., :neurons]
    if found.ndim > 1 and found.shape[0] != steps:
        found = found[:steps]
    return found.contiguous()


def padded(value: Tensor, rows: int, columns: int) -> Tensor:
    """``[T, N]`` or ``[N]`` with zeros behind, to so many rows and columns."""
    more = [0, columns - value.shape[-1]]
    if value.ndim > 1:
        more += [0, rows - value.shape[0]]
    return pad(value, more) if any(more) else value
