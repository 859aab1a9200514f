"""What losses and metrics share: outputs ``[T, B, C]`` beside class indices ``[B]``, and populations of neurons."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from spikecore.dtypes import compute_dtype

_INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def pool(outputs: Tensor, num_classes: Optional[int]) -> Tensor:
    """Sum populations of neighbours, ``[..., C] -> [..., num_classes]``; None changes nothing."""
    if num_classes is None:
        return outputs
    neurons = outputs.shape[-1]
    if isinstance(num_classes, bool) or not isinstance(num_classes, int):
        raise TypeError(f"num_classes must be an int or None, got {num_classes!r}")
    if num_classes < 1 or neurons % num_classes:
        raise ValueError(f"num_classes must divide the number of output neurons, {neurons}, got {num_classes}")
    return outputs.reshape(*outputs.shape[:-1], num_classes, neurons // num_classes).sum(-1)


def computed(outputs: Tensor) -> Tensor:
    """In the dtype that losses compute in: float32, and float64 for float64."""
    return outputs.to(compute_dtype(outputs.dtype))


def check_readout(name: str, outputs: Tensor, targets: Tensor, *, floating: bool = True) -> None:
    """Raise unless ``outputs`` is ``[T, B, C]`` and ``targets`` are ``[B]`` integers. Reads shapes and dtypes only."""
    _check_outputs(name, outputs, targets, floating)
    if targets.dtype not in _INDEX_DTYPES:
        raise TypeError(f"targets must be integer class indices such as torch.int64, got {targets.dtype}")
    if tuple(targets.shape) != (outputs.shape[1],):
        raise ValueError(
            f"targets must be one class index per sample, shape ({outputs.shape[1]},) for {name} of shape "
            f"{tuple(outputs.shape)} ([T, B, C]), got shape {tuple(targets.shape)}"
        )


def check_times(name: str, outputs: Tensor, times: Tensor) -> None:
    """Raise unless ``outputs`` is ``[T, B, C]`` and ``times``, as targets, are ``[B, C]`` or ``[F, B, C]``."""
    _check_outputs(name, outputs, times, floating=True)
    if times.dtype == torch.bool or times.is_complex():
        raise TypeError(f"targets must be spike times, numbers of steps, got {times.dtype}")
    wanted = tuple(outputs.shape[1:])
    if times.ndim not in (2, 3) or tuple(times.shape[-2:]) != wanted or not len(times):
        raise ValueError(
            f"targets must be one spike time per sample and neuron, shape {wanted}, or F of them, (F, *{wanted}), with "
            f"target_is_time=True, got shape {tuple(times.shape)}"
        )


def _check_outputs(name: str, outputs: Tensor, targets: Tensor, floating: bool) -> None:
    for argument, value in ((name, outputs), ("targets", targets)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{argument} must be a tensor, got {type(value).__name__}")
    if outputs.ndim != 3:
        hint = ""
        if outputs.ndim == 2:
            hint = "; put sc.encode.Constant(T) in front of the network, or give it all steps, [T, B, ...]"
        raise ValueError(f"{name} must be [T, B, C] (time, batch, classes), got shape {tuple(outputs.shape)}{hint}")
    if outputs.shape[0] == 0 or outputs.shape[2] == 0:
        raise ValueError(f"{name} must have at least one time step and one class, got shape {tuple(outputs.shape)}")
    if floating and not outputs.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {outputs.dtype}")
