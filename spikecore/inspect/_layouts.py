"""Layouts of tensors in memory, and what layers copy because of them."""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence

import torch
from torch import Tensor, nn

from spikecore.graph import CONVOLUTIONS
from spikecore.inspect.record import Call, neuron_of
from spikecore.kernels import KernelBackend, layout_of
from spikecore.layers import ChannelsLastConv1d, NormNeuron, TimeBatched
from spikecore.neurons import Recurrent


def memory_layout(x: Tensor) -> str:
    """Order of a tensor's numbers in memory, in a word or two."""
    if x.layout is not torch.strided:
        return str(x.layout).replace("torch.", "")
    if x.numel() == 0:
        return "empty"
    if x.ndim and x.stride(0) == 0 and x.shape[0] > 1:
        return f"one step repeated, {memory_layout(x[0])}"
    if x.is_contiguous():
        return "contiguous"
    if _is_channels_last(x):
        return "channels-last"
    if x.ndim > 1 and x.transpose(0, 1).is_contiguous():
        return "batch before time"
    if x.ndim > 1 and _is_channels_last(x.transpose(0, 1), (2,)):
        return "batch before time, channels-last"
    order = sorted(range(x.ndim), key=lambda dim: (-x.stride()[dim], dim))
    dense = x.permute(order).is_contiguous()
    return f"dimensions in the order {', '.join(map(str, order))}" if dense else f"strided {tuple(x.stride())}"


def _is_channels_last(x: Tensor, channels: Sequence[int] = (1, 2)) -> bool:
    """True if tokens, images or volumes, ``[B, C, ...]`` or ``[T, B, C, ...]``, have their channels innermost in
    memory.
    """
    return any(x.ndim - dim in (2, 3, 4) and x.movedim(dim, -1).is_contiguous() for dim in channels)


def copies(call: Call) -> List[str]:
    """Sentences, without a full stop, on what a call of a layer copied of its inputs, and why."""
    inputs = [x for x in call.inputs if x.layout is torch.strided and x.numel()]
    if not inputs or len(inputs) < len(call.inputs):
        return []
    if neuron_of(call.layer) is not None:
        return list(_of_neuron(call, inputs))
    cause = _of_layer(call, inputs[0])
    return [f"copies its input, which lies {memory_layout(inputs[0])}: {cause}"] if cause else []


def _of_neuron(call: Call, inputs: Sequence[Tensor]) -> Iterator[str]:
    """Sentences on inputs that a kernel copies."""
    layer: Any = call.layer
    resolved = neuron_of(layer).bound.get(inputs[0].device.type)
    is_apart = isinstance(layer, Recurrent) or bool(isinstance(layer, NormNeuron) and layer.reason)
    if is_apart or resolved is None or not isinstance(resolved.backend, KernelBackend):
        return
    steps = [x.unsqueeze(0) for x in inputs] if call.step == "single" else [*inputs]
    first = steps[0]
    layout = layout_of(first, resolved.backend.rows)
    if not layout.holds_steps(first):
        yield f"copies its input, which lies {memory_layout(inputs[0])}: a kernel reads steps without gaps"
    for number, x in enumerate(steps[1:], 1):
        if x.shape == first.shape and not layout.holds_steps(x):
            name = "its shortcut" if isinstance(layer, NormNeuron) else f"input {number}"
            lies = memory_layout(inputs[number])
            yield f"copies {name}, which lies {lies}: a kernel reads all in the order of the first input"


def _of_layer(call: Call, x: Tensor) -> str:
    """Why a layer without state copies its input; "" if it does not."""
    layer, last = call.layer, not x.is_contiguous()
    if isinstance(layer, TimeBatched) and layer.step == "multi":
        return "" if _is_view(x, *x.shape[2:]) else "time and batch are one dimension where they follow each other"
    if isinstance(layer, nn.Linear):
        return "" if _is_view(x, x.shape[-1]) else "a product reads rows at one distance"
    if type(layer) in (nn.Conv1d, nn.BatchNorm1d) and x.ndim == 3:
        return f"torch's {type(layer).__name__} computes what is contiguous" if last else ""
    if isinstance(layer, CONVOLUTIONS) and x.ndim == layer.weight.ndim:
        is_last = isinstance(layer, ChannelsLastConv1d) or memory_layout(layer.weight) == "channels-last"
        is_first = x.is_contiguous() and not x.movedim(1, -1).is_contiguous()
        return "it computes channels-last" if is_last and is_first else ""
    return ""


def _is_view(x: Tensor, *sizes: int) -> bool:
    """True if a tensor has so many rows of these sizes without a copy."""
    try:
        x.view(-1, *sizes)
    except RuntimeError:
        return False
    return True
