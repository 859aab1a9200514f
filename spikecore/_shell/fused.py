"""Calls of a neuron that normalises which passed every check before: what lets the next one go straight to its kernels.

As :mod:`spikecore._shell.earlier` for other calls. What the normalisation holds is read anew at each call: its modules,
modes, numbers and tensors may be set, moved and replaced at any time. Nothing here raises for a call that is not as an
earlier one was; it goes through every check again.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.running import NormalisedCall
from spikecore._shell import norms
from spikecore._shell.earlier import Earlier
from spikecore._shell.moved import BY_KERNELS, Held, Running, held_by, running_of, written
from spikecore.backend import MAX_STATIC_STEPS, ParamValue, Tensors
from spikecore.dtypes import compute_dtype


class FusedCall(NamedTuple):
    """A call that passed every check."""

    #: Its runner, and the neuron's own parameters.
    earlier: Earlier
    call: NormalisedCall
    #: How many parameters stand before those of the normalisation.
    before: int


class Taken(NamedTuple):
    """A call that can go straight to its kernels: all that is to be known before statistics move."""

    norm: Any
    held: Held
    #: How the input lies, as kernels know it.
    laid: Any
    #: Whether kernels may find the statistics, and the running ones that they are to move; None where none move.
    by_kernels: bool
    running: Optional[Running]


def kind_of(norm: Any, shortcut: str, asked: bool, x: Tensor, skip: Optional[Tensor]) -> Tuple[Any, ...]:
    """What decides the runner of a call at rest that asks for outputs alone, beside the neuron's own parameters. It
    differs from what :func:`earlier.signature` gives for any call.

    ``asked``: whether one program was asked for. ``skip``: the shortcut, if one goes into the kernel.
    """
    grad, steps = torch.is_grad_enabled(), x.shape[0]
    weight, bias = norm._parameters.get("weight"), norm._parameters.get("bias")
    return (
        type(norm),
        shortcut,
        asked,
        x.dtype,
        x.ndim,
        steps if steps <= MAX_STATIC_STEPS else None,
        x.device,
        grad,
        grad and x.requires_grad,
        None if skip is None else grad and skip.requires_grad,
        weight is not None and weight.requires_grad,
        bias is not None and bias.requires_grad,
        norms.takes_batch(norm),
    )


def taken(found: FusedCall, norm: Any, x: Tensor, skip: Optional[Tensor], own: Sequence[ParamValue]) -> Optional[Taken]:
    """The call, if its normalisation and its tensors are as a kernel takes them. ``own``: the neuron's parameters."""
    held, channels = held_by(norm), x.shape[2]
    # of one number per channel torch computes no variance, and says so
    if held is None or norm.num_features != channels or x.numel() <= channels:
        return None
    by_kernels, running, compute = BY_KERNELS, None, compute_dtype(x.dtype)
    tensors = [value for value in (held.weight, held.bias) if value is not None]
    statistics = [value for value in (held.mean, held.variance) if value is not None]
    if norms.takes_batch(norm):
        # without running statistics calls are counted all the same, by torch
        if norm.training and norm.track_running_stats and not (held.mean is None is held.calls):
            running = running_of(norm, held, x.device)
            by_kernels = running is not None
    elif len(statistics) < 2:
        return None
    else:
        tensors.append(statistics[0])
    for value in (*tensors, *statistics):
        if value.device != x.device or value.shape != (channels,) or value.dtype not in (x.dtype, compute):
            return None
    laid = found.call.laid(x, skip, [*tensors, *[value for value in own if isinstance(value, Tensor)]])
    return None if laid is None else Taken(norm, held, laid, by_kernels, running)


def constants(found: FusedCall, one: Taken, x: Tensor) -> norms.Constants:
    """What a call is normalised by; in training the running statistics move."""
    norm, held = one.norm, one.held
    if norms.takes_batch(norm):
        moved = found.call.statistics(one.laid, x, norm.eps, one.running) if one.by_kernels else None
        if moved is None:
            return norms.constants(norm, x, getattr(found.earlier.runner, "moments", None))
        written(one.running)
        mean, rstd = moved
    else:
        own: Any = held.mean  # it is there: see takes_batch
        # backward reads the mean: a copy is not moved by a call in training before it
        mean = own.clone() if torch.is_grad_enabled() else own
        rstd = torch.rsqrt(held.variance.to(compute_dtype(x.dtype)) + norm.eps)  # type: ignore[union-attr]  # as above
    weight = torch.ones_like(mean) if held.weight is None else held.weight
    return norms.Constants(mean, rstd, weight, torch.zeros_like(mean) if held.bias is None else held.bias)


def outputs(
    found: FusedCall, one: Taken, x: Tensor, skip: Optional[Tensor], own: Tuple[ParamValue, ...], by: norms.Constants
) -> Optional[Tensors]:
    """The outputs, normalised ``by`` these; None if the runner has to compute them."""
    inputs = (x,) if skip is None else (x, skip)
    return found.call(one.laid, inputs, (*own[: found.before], *by, *own[found.before :]))
