"""Nodes of NIR as layers."""

from __future__ import annotations

from typing import Any, Callable, Dict, Type

import numpy as np
import torch
from torch import Tensor, nn

from spikecore.nir import _kept
from spikecore.nir._layer_nodes import thresholds
from spikecore.nir._layers import DelaySteps, Scale, SumPool2d, Threshold
from spikecore.nir._neuron_nodes import Reading


def _tensor(array: Any) -> Tensor:
    # a tensor of a writer that gave tensors, or NumPy's
    value = array.detach().cpu() if isinstance(array, Tensor) else torch.from_numpy(np.array(array))
    return value if value.is_floating_point() else value.float()


def _read_linear(name: str, node: Any, how: Reading) -> nn.Module:
    weight = _weight(node)
    if weight.ndim != 2:
        raise ValueError(f"sc.nir.load: node {name!r} has a weight of shape {list(weight.shape)}, wanted is [out, in]")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=hasattr(node, "bias"), dtype=weight.dtype)
    return _filled(layer, node, weight)


def _weight(node: Any) -> Tensor:
    """The weight, in the dtype that it was saved from if that holds all of its numbers."""
    weight, kept = _tensor(node.weight), _kept.read(node.metadata)
    dtype = getattr(torch, str((kept or {}).get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        return weight
    narrow = weight.to(dtype)
    return narrow if torch.equal(narrow.to(weight.dtype), weight) else weight


def _filled(layer: Any, node: Any, weight: Tensor) -> nn.Module:
    layer.weight = nn.Parameter(weight)
    if layer.bias is not None:
        layer.bias = nn.Parameter(_tensor(node.bias).to(weight.dtype))
    return layer  # type: ignore[no-any-return]  # a module


def _ints(value: Any) -> Any:
    """A number, pair or word of a node as torch takes it."""
    if isinstance(value, (str, bytes)):
        return value if isinstance(value, str) else value.decode()
    array = np.asarray(value)
    return int(array) if array.ndim == 0 else tuple(int(each) for each in array)


def _read_conv(kind: Type[nn.Module]) -> Callable[[str, Any, Reading], nn.Module]:
    def read(name: str, node: Any, how: Reading) -> nn.Module:
        weight, groups = _weight(node), _ints(node.groups)
        kept = _kept.read(node.metadata)
        # torch's own layer without a bias, unless someone gave it one since
        biased = kept is None or kept.get("bias", True) or bool((_tensor(node.bias) != 0).any())
        make: Any = kind
        layer = make(
            weight.shape[1] * groups,
            weight.shape[0],
            tuple(weight.shape[2:]),
            stride=_ints(node.stride),
            padding=_ints(node.padding),
            dilation=_ints(node.dilation),
            groups=groups,
            bias=biased,
            dtype=weight.dtype,
        )
        return _filled(layer, node, weight)

    return read


def _read_pool(kind: Type[nn.Module]) -> Callable[[str, Any, Reading], nn.Module]:
    def read(name: str, node: Any, how: Reading) -> nn.Module:
        make: Any = kind
        pool: nn.Module = make(_ints(node.kernel_size), _ints(node.stride), _ints(node.padding))
        return pool

    return read


def _read_flatten(name: str, node: Any, how: Reading) -> nn.Module:
    start, end = _ints(node.start_dim), _ints(node.end_dim)
    shape = node.input_type.get("input")
    if shape is not None:
        # from the last dimension on, so that time before the batch changes nothing, and sc.set_step takes it
        start, end = [each - len(shape) if each >= 0 else each for each in (start, end)]
    return nn.Flatten(start + 1 if start >= 0 else start, end + 1 if end >= 0 else end)


def _read_scale(name: str, node: Any, how: Reading) -> nn.Module:
    return Scale(_tensor(node.scale))


def _read_threshold(name: str, node: Any, how: Reading) -> nn.Module:
    kept, held = _kept.read(node.metadata), np.asarray(_tensor(node.threshold))
    built: Any = None if kept is None else _kept.rebuilt(kept)[0]
    if built is not None and np.array_equal(thresholds(built, held.shape, str(held.dtype)), held):
        return built  # type: ignore[no-any-return]  # a Threshold
    value = _tensor(node.threshold)
    same = value.numel() and bool((value == value.reshape(-1)[0]).all())
    return Threshold(threshold=float(value.reshape(-1)[0]) if same else value, **how.options)


def steps_of(name: str, node: Any, how: Reading) -> Tensor:
    """A delay in whole steps. ValueError where it is none."""
    _, dt = how.needed(name, node)
    seconds = np.asarray(_tensor(node.delay), np.float64)
    steps = np.rint(seconds / dt)
    if np.any(np.abs(seconds / dt - steps) > 1e-4) or np.any(steps < 0):
        worst = seconds.flat[int(np.argmax(np.abs(seconds / dt - steps)))]
        raise ValueError(
            f"sc.nir.load: node {name!r} delays by {worst:g}, which is no whole number of steps of dt={dt:g}; give a "
            "dt that divides every delay"
        )
    return torch.from_numpy(steps.astype(np.int64))


def _read_delay(name: str, node: Any, how: Reading) -> nn.Module:
    return DelaySteps(steps_of(name, node, how))


#: Nodes that are layers -> how each is read.
LAYER_NODES: Dict[str, Callable[[str, Any, Reading], nn.Module]] = {
    "Affine": _read_linear,
    "Linear": _read_linear,
    "Conv1d": _read_conv(nn.Conv1d),
    "Conv2d": _read_conv(nn.Conv2d),
    "AvgPool2d": _read_pool(nn.AvgPool2d),
    "SumPool2d": _read_pool(SumPool2d),
    "Flatten": _read_flatten,
    "Scale": _read_scale,
    "Threshold": _read_threshold,
    "Delay": _read_delay,
}
