"""Layers as nodes of NIR."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor, nn

from spikecore.layers import PackedConv2d, PackedLinear
from spikecore.nir import _kept
from spikecore.nir._forms import Unsaid
from spikecore.nir._layers import DelaySteps, Scale, SumPool2d, Threshold
from spikecore.nir._neuron_nodes import Writing
from spikecore.nir._package import package
from spikecore.surrogate import ATan


class Place(NamedTuple):
    """Where a layer stands that is written."""

    name: str
    #: Who refuses, for messages.
    owner: str
    #: The shape of one sample of its input.
    shape: Tuple[int, ...]
    #: Leading dimensions of its input that are no part of a sample: batch, or time and batch.
    leading: int
    to: Writing


def _numbers(value: Tensor, place: Place) -> Any:
    return value.detach().cpu().to(torch.float64).numpy().astype(place.to.dtype)


def _pair(value: Any) -> Tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _refuse(place: Place, why: str) -> ValueError:
    return ValueError(f"{place.owner}: {why}")


def _write_linear(layer: Any, place: Place) -> Any:
    if len(place.shape) != 1:
        raise _refuse(
            place, f"its input has samples of shape {list(place.shape)}, NIR's Affine takes [N]; flatten them"
        )
    weight, kept = (
        _numbers(layer.weight, place),
        _kept.written({"class": "Linear", "dtype": str(layer.weight.dtype)[6:]}),
    )
    if layer.bias is None:
        return package().Linear(weight=weight, metadata=kept)
    return package().Affine(weight=weight, bias=_numbers(layer.bias, place), metadata=kept)


def _convolution(layer: Any, place: Place) -> Dict[str, Any]:
    if layer.padding_mode != "zeros":
        raise _refuse(place, f"padding_mode={layer.padding_mode!r}, NIR pads with zeros")
    bias = torch.zeros(layer.out_channels) if layer.bias is None else layer.bias
    return {
        "weight": _numbers(layer.weight, place),
        "bias": _numbers(bias, place),
        "groups": layer.groups,
        "metadata": _kept.written(
            {
                "class": f"Conv{layer.weight.ndim - 2}d",
                "bias": layer.bias is not None,
                "dtype": str(layer.weight.dtype)[6:],
            }
        ),
    }


def _write_conv1d(layer: nn.Conv1d, place: Place) -> Any:
    padding: Any = layer.padding
    return package().Conv1d(
        input_shape=place.shape[-1],
        stride=layer.stride[0],
        padding=padding if isinstance(padding, str) else padding[0],
        dilation=layer.dilation[0],
        **_convolution(layer, place),
    )


def _write_conv2d(layer: nn.Conv2d, place: Place) -> Any:
    padding: Any = layer.padding
    return package().Conv2d(
        input_shape=place.shape[-2:],
        stride=_pair(layer.stride),
        padding=padding if isinstance(padding, str) else _pair(padding),
        dilation=_pair(layer.dilation),
        **_convolution(layer, place),
    )


def _window(layer: Any) -> Dict[str, Any]:
    stride = layer.kernel_size if layer.stride is None else layer.stride
    of = {"kernel_size": layer.kernel_size, "stride": stride, "padding": layer.padding}
    return {name: np.array(_pair(value)) for name, value in of.items()}


def _write_avg_pool(layer: nn.AvgPool2d, place: Place) -> Any:
    padded = any(_pair(layer.padding))
    if (
        (layer.ceil_mode and _rounds(layer, place.shape))
        or layer.divisor_override is not None
        or (padded and not layer.count_include_pad)
    ):
        raise _refuse(
            place,
            "ceil_mode for a size that is not divided, divisor_override and count_include_pad=False are not in NIR's "
            "AvgPool2d; use the defaults",
        )
    return package().AvgPool2d(**_window(layer))


def _rounds(layer: nn.AvgPool2d, shape: Tuple[int, ...]) -> bool:
    """Whether windows of so large an image leave a rest."""
    stride = layer.kernel_size if layer.stride is None else layer.stride
    ways = zip(shape[-2:], _pair(layer.padding), _pair(layer.kernel_size), _pair(stride))
    return any((size + 2 * padding - window) % step for size, padding, window, step in ways)


def _write_sum_pool(layer: SumPool2d, place: Place) -> Any:
    return package().SumPool2d(**_window(layer))


def flattened_dims(start: int, end: int, place: Place) -> Tuple[int, int]:
    """The dimensions of a sample that are flattened, of which NIR's Flatten knows no others."""
    dims = place.leading + len(place.shape)
    first, last = (start % dims if start < 0 else start), (end % dims if end < 0 else end)
    if first < place.leading:
        raise _refuse(
            place,
            f"start_dim={start} flattens time or batch of an input with {place.leading} such "
            f"dimension{'s' if place.leading > 1 else ''}; give start_dim={place.leading}, or place it in TimeBatched",
        )
    return first - place.leading, last - place.leading


def flatten_node(start: int, end: int, place: Place) -> Any:
    """NIR's Flatten, for a module or a call of torch.flatten."""
    first, last = flattened_dims(start, end, place)
    return package().Flatten(input_type={"input": np.array(place.shape)}, start_dim=first, end_dim=last)


def _write_flatten(layer: nn.Flatten, place: Place) -> Any:
    return flatten_node(layer.start_dim, layer.end_dim, place)


def _write_scale(layer: Scale, place: Place) -> Any:
    if list(layer.scale.shape) != list(place.shape):
        raise _refuse(place, f"scale has shape {list(layer.scale.shape)}, samples have {list(place.shape)}")
    return package().Scale(scale=_numbers(layer.scale, place))


def _write_threshold(layer: Threshold, place: Place) -> Any:
    if layer.surrogate != ATan():
        sentence = f"has surrogate={layer.surrogate!r}, which NIR has no word for"
        place.to.unsaid.append((place.name, Unsaid("surrogate", sentence)))
    try:
        kept = _kept.of_neuron(layer)
    except ValueError as error:
        raise _refuse(place, str(error)) from None
    return package().Threshold(threshold=thresholds(layer, place.shape, place.to.dtype), metadata=kept)


def thresholds(layer: Threshold, shape: Sequence[int], dtype: str) -> Any:
    """A threshold for each element of a sample."""
    value: Any = layer.threshold
    if isinstance(value, Tensor) and value.ndim == 1 and len(shape) > 1:
        value = value.view(-1, *[1] * (len(shape) - 1))
    held = value.detach().cpu().double().numpy() if isinstance(value, Tensor) else np.float64(value)
    return np.ascontiguousarray(np.broadcast_to(held, tuple(shape))).astype(dtype)


def _write_delay(layer: DelaySteps, place: Place) -> Any:
    # in float64: a whole number of steps must be found again, however long
    return package().Delay(delay=layer.steps.cpu().numpy().astype(np.float64) * place.to.dt)


#: The layers that NIR can say, by their exact class. What a layer keeps for backward is not said.
WRITERS: Dict[Type[nn.Module], Callable[[Any, Place], Any]] = {
    nn.Linear: _write_linear,
    PackedLinear: _write_linear,
    nn.Conv1d: _write_conv1d,
    nn.Conv2d: _write_conv2d,
    PackedConv2d: _write_conv2d,
    nn.AvgPool2d: _write_avg_pool,
    SumPool2d: _write_sum_pool,
    nn.Flatten: _write_flatten,
    Scale: _write_scale,
    Threshold: _write_threshold,
    DelaySteps: _write_delay,
}
