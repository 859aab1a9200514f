"""The text of a neuron's kernels. Printing needs no device and no compiler."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import Tensor

from spikecore.backend import MAX_STATIC_STEPS, Backend, BackendError, Spec, Unsupported
from spikecore.core import checks
from spikecore.core.checks import lacking
from spikecore.core.neuron import Neuron
from spikecore.dtypes import DTYPES
from spikecore.kernels import KernelBackend
from spikecore.plugins.registry import default_registry
from spikecore.plugins.selection import Resolved
from spikecore.words import shown

_ASKER = "kernel_source()"


def kernel_source(
    neuron: Neuron, backend: str = "cupy", dtype: torch.dtype = torch.float32, steps: int = 4
) -> Dict[str, str]:
    """The kernels of a call at rest: ``{"forward": text, "backward": text}``.

    backend: name of the backend that prints; it need not be usable here. dtype: of inputs and outputs. steps: number of
    time steps; beyond 16 the kernels are those for any number. Parameters are numbers or tensors as they are in the
    neuron, and the backward kernel gives the gradients of the inputs and of the learnt ones.

    Raises :class:`Unsupported` for a backend that has no text or does not support the call, and what
    :class:`BackendError` there is for one that is unknown, blocked or broken.
    """
    value: Any = neuron
    if not isinstance(value, Neuron):
        hint = f"; give an object, {value.__name__}(...)" if isinstance(value, type) else ""
        raise TypeError(f"neuron={shown(value)} must be a spikecore neuron{hint}")
    if dtype not in DTYPES.values():
        raise ValueError(f"dtype={dtype!r} must be one of {', '.join(map(str, DTYPES.values()))}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps!r} must be a whole number, 1 or more")
    program = neuron.program
    values = [*neuron.named_values().values()]
    spec = Spec(
        dtype=dtype,
        steps=steps if steps <= MAX_STATIC_STEPS else None,
        params=tuple(map(_kind, values)),
        learn=tuple(n for n, v in zip(program.params, values) if isinstance(v, Tensor) and v.requires_grad),
        final=False,
    )
    printer: Any = default_registry().unprobed(backend, _ASKER)
    if not _prints(printer):
        able = ", ".join(filter(_can_print, default_registry().names())) or "none"
        raise Unsupported(f"backend {backend!r} (from {_ASKER}) has no kernels to show; those that have: {able}")
    # text is printed for no particular device, so these are the capabilities on any device
    lacks = lacking(printer.capabilities, program, spec, gradients=True)
    if lacks:
        raise Unsupported(checks.unsupported(Resolved(printer, _ASKER, ""), type(neuron).__name__, lacks))
    texts: Dict[str, str] = printer.source(program, spec)
    return texts


def _kind(value: Any) -> str:
    """Kind of parameter of a value (see ``Spec.params``), without the shape of a time step."""
    return {0: "scalar", 1: "channel"}.get(value.ndim, "full") if isinstance(value, Tensor) else "number"


def _prints(backend: Backend) -> bool:
    return isinstance(backend, KernelBackend) and type(backend).text is not KernelBackend.text


def _can_print(name: str) -> bool:
    try:
        return _prints(default_registry().unprobed(name, _ASKER))
    except BackendError:
        return False
