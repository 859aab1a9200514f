"""Layers and nodes of NIR: a row of :data:`KINDS` writes a node from a layer, and reads a layer from a node."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor, nn

from spikecore.core.modules import pair
from spikecore.layers import ChannelsLastConv1d, PackedConv1d, PackedConv2d, PackedLinear, SumPool2d
from spikecore.words import a_kind
from spikecore_nir._file import Refused, content_of, metadata_of, metadata_of_neuron, package, rebuilt
from spikecore_nir._neuron_nodes import Reading, Writing, unsaid_surrogate
from spikecore_nir.modules import DelaySteps, Scale, Threshold

#: Fields that a convolution and a pooling have under the same name as their nodes.
_OF_CONV = ("stride", "padding", "dilation", "groups")
_OF_POOL = ("kernel_size", "stride", "padding")


class Place(NamedTuple):
    """Place of a layer that is written."""

    name: str
    #: Layer in messages.
    owner: str
    #: The shape of one sample of its input.
    shape: Tuple[int, ...]
    #: Leading dimensions of its input that are no part of a sample: batch, or time and batch.
    leading: int
    to: Writing

    def refused(self, why: str) -> ValueError:
        """The error of a layer here."""
        return ValueError(f"{self.owner}: {why}")


# numbers, in both directions


def _numbers(value: Tensor, place: Place) -> Any:
    return value.detach().cpu().to(torch.float64).numpy().astype(place.to.dtype)


def _tensor(array: Any) -> Tensor:
    array = np.asarray(array)
    # in the machine's order of bytes, which torch asks for; whole numbers as float32
    kind = array.dtype.newbyteorder("=") if array.dtype.kind == "f" else np.float32
    return torch.from_numpy(np.array(array, dtype=kind))


def _whole(node: Any, key: str) -> Any:
    """A number, pair or word of a node as torch takes it."""
    value = getattr(node, key)
    if isinstance(value, (str, bytes)):
        return value if isinstance(value, str) else value.decode()
    array = np.asarray(value)
    if not np.all(np.isfinite(array)) or np.any(array != np.rint(array)):
        raise TypeError(f"{key}={value} must be whole numbers")
    return int(array) if array.ndim == 0 else tuple(int(each) for each in array)


def _weight(node: Any) -> Tensor:
    """The weight, in the dtype that it was saved from if that holds all of its numbers."""
    weight, content = _tensor(node.weight), content_of(node.metadata)
    dtype = getattr(torch, str((content or {}).get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        return weight
    narrow = weight.to(dtype)
    return narrow if torch.equal(narrow.to(weight.dtype), weight) else weight


def _filled(layer: Any, node: Any, weight: Tensor) -> nn.Module:
    layer.weight = nn.Parameter(weight)
    if layer.bias is not None:
        layer.bias = nn.Parameter(_tensor(node.bias).to(weight.dtype))
    return layer  # type: ignore[no-any-return]  # a module


# each kind: to its node, and back


def _write_linear(layer: Any, place: Place) -> Any:
    if len(place.shape) != 1:
        raise place.refused(f"its input has samples of shape {list(place.shape)}, NIR's Affine takes [N]; flatten them")
    metadata = metadata_of({"class": "Linear", "dtype": str(layer.weight.dtype)[6:]})
    weight = _numbers(layer.weight, place)
    if layer.bias is None:
        return package().Linear(weight=weight, metadata=metadata)
    return package().Affine(weight=weight, bias=_numbers(layer.bias, place), metadata=metadata)


def _read_linear(name: str, node: Any, how: Reading) -> nn.Module:
    weight = _weight(node)
    if weight.ndim != 2:
        raise Refused(f"node {name!r} has a weight of shape {list(weight.shape)}, wanted is [out, in]")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=hasattr(node, "bias"), dtype=weight.dtype)
    return _filled(layer, node, weight)


def _write_conv(layer: Any, place: Place) -> Any:
    if layer.padding_mode != "zeros":
        raise place.refused(f"padding_mode={layer.padding_mode!r}, NIR pads with zeros")
    dims = layer.weight.ndim - 2
    options = {key: getattr(layer, key) for key in _OF_CONV}
    if dims == 1:
        options = {key: value[0] if isinstance(value, tuple) else value for key, value in options.items()}
    return getattr(package(), f"Conv{dims}d")(
        input_shape=place.shape[-1] if dims == 1 else place.shape[-2:],
        weight=_numbers(layer.weight, place),
        bias=_numbers(torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias, place),
        metadata=metadata_of({"bias": layer.bias is not None, "dtype": str(layer.weight.dtype)[6:]}),
        **options,
    )


def _read_conv(name: str, node: Any, how: Reading) -> nn.Module:
    weight, content, options = _weight(node), content_of(node.metadata), {key: _whole(node, key) for key in _OF_CONV}
    # torch's own layer without a bias, unless someone gave it one since
    biased = content is None or content.get("bias", True) or bool((_tensor(node.bias) != 0).any())
    channels = weight.shape[1] * options["groups"], weight.shape[0]
    kind: Any = getattr(nn, type(node).__name__)
    return _filled(kind(*channels, tuple(weight.shape[2:]), bias=biased, dtype=weight.dtype, **options), node, weight)


def _write_pool(layer: Any, place: Place) -> Any:
    window = {"kernel_size": layer.kernel_size, "stride": layer.stride or layer.kernel_size, "padding": layer.padding}
    pairs = {name: pair(value) for name, value in window.items()}
    if isinstance(layer, nn.AvgPool2d):
        ways = zip(place.shape[-2:], *pairs.values())
        rest = any((size + 2 * padding - kernel) % stride for size, kernel, stride, padding in ways)
        odd = (layer.ceil_mode and rest) or layer.divisor_override is not None
        if odd or (any(pairs["padding"]) and not layer.count_include_pad):
            raise place.refused(
                "ceil_mode for a size that is not divided, divisor_override and count_include_pad=False are not in "
                "NIR's AvgPool2d; use the defaults"
            )
    kind = "AvgPool2d" if isinstance(layer, nn.AvgPool2d) else "SumPool2d"
    return getattr(package(), kind)(**{name: np.array(pair) for name, pair in pairs.items()})


def _read_pool(name: str, node: Any, how: Reading) -> nn.Module:
    kind: Any = nn.AvgPool2d if type(node).__name__ == "AvgPool2d" else SumPool2d
    pool: nn.Module = kind(*[_whole(node, key) for key in _OF_POOL])
    return pool


def flatten_node(start: int, end: int, place: Place) -> Any:
    """NIR's Flatten, which knows the dimensions of a sample alone, for a module or a call of torch.flatten."""
    dims = place.leading + len(place.shape)
    first, last = (start % dims if start < 0 else start), (end % dims if end < 0 else end)
    if first < place.leading:
        raise place.refused(
            f"start_dim={start} flattens time or batch of an input with {place.leading} such "
            f"dimension{'s' if place.leading > 1 else ''}; give start_dim={place.leading}, or place it in TimeBatched"
        )
    return package().Flatten(
        input_type={"input": np.array(place.shape)}, start_dim=first - place.leading, end_dim=last - place.leading
    )


def _read_flatten(name: str, node: Any, how: Reading) -> nn.Module:
    start, end = _whole(node, "start_dim"), _whole(node, "end_dim")
    shape = node.input_type.get("input")
    if shape is not None:
        # from the last dimension on, so that time before the batch changes nothing, and sc.set_step takes it
        start, end = [each - len(shape) if each >= 0 else each for each in (start, end)]
    return nn.Flatten(start + 1 if start >= 0 else start, end + 1 if end >= 0 else end)


def _write_scale(layer: Scale, place: Place) -> Any:
    if list(layer.scale.shape) != list(place.shape):
        raise place.refused(f"scale has shape {list(layer.scale.shape)}, samples have {list(place.shape)}")
    return package().Scale(scale=_numbers(layer.scale, place))


def _write_threshold(layer: Threshold, place: Place) -> Any:
    place.to.unsaid += [(place.name, each) for each in unsaid_surrogate(layer)]
    thresholds = _thresholds(layer, place.shape, place.to.dtype)
    return package().Threshold(threshold=thresholds, metadata=metadata_of_neuron(place.owner, layer))


def _thresholds(layer: Threshold, shape: Sequence[int], dtype: str) -> Any:
    value = torch.as_tensor(layer.threshold, dtype=torch.float64).detach().cpu()
    if value.ndim == 1 and len(shape) > 1:
        value = value.view(-1, *[1] * (len(shape) - 1))
    return np.ascontiguousarray(np.broadcast_to(value.numpy(), tuple(shape))).astype(dtype)


def _read_threshold(name: str, node: Any, how: Reading) -> nn.Module:
    value, content = _tensor(node.threshold), content_of(node.metadata)
    array = value.numpy()
    built: Any = None if content is None else rebuilt(content, (Threshold,))[0]
    if built is not None and np.array_equal(_thresholds(built, array.shape, str(array.dtype)), array):
        return built  # type: ignore[no-any-return]  # a Threshold
    same = value.numel() and bool((value == value.reshape(-1)[0]).all())
    return Threshold(threshold=float(value.reshape(-1)[0]) if same else value, **how.options)


def _write_delay(layer: DelaySteps, place: Place) -> Any:
    # in float64: a whole number of steps must be found again, however long
    return package().Delay(delay=layer.steps.cpu().numpy().astype(np.float64) * place.to.dt)


def steps_of(name: str, node: Any, how: Reading) -> Tensor:
    """A delay in whole steps. Refused where it is none, and where the past of one sample is larger than the limit."""
    _, dt = how.needed(name, node)
    seconds = np.asarray(node.delay, np.float64)
    steps = np.rint(seconds / dt)
    apart = np.abs(seconds / dt - steps)
    if not np.all((apart <= 1e-4) & (steps >= 0)):
        worst = seconds.flat[int(np.argmax(~(apart <= 1e-4) | (steps < 0)))]
        raise Refused(
            f"node {name!r} delays by {worst:g}, which is no whole number of steps of dt={dt:g}; give a "
            "dt that divides every delay"
        )
    check_past(name, node, float(steps.max()) if steps.size else 0, how)
    return torch.from_numpy(np.array(steps, dtype=np.int64))


def check_past(name: str, node: Any, longest: float, how: Reading) -> None:
    """Refuse a delay that keeps so many steps of one sample that they are larger than the limit."""
    if 4 * longest * np.size(node.delay) > how.max_bytes:
        raise Refused(
            f"node {name!r}, {a_kind(node)}, has a delay of {longest:g} steps, which keep more than "
            f"max_bytes={how.max_bytes} of one sample; give the dt of its writer, or a larger max_bytes"
        )


class Kind(NamedTuple):
    """Layers that NIR can say, by their exact classes, and the nodes for them. What a layer keeps for backward is not
    said.
    """

    modules: Tuple[Type[nn.Module], ...]
    nodes: Tuple[str, ...]
    write: Callable[[Any, Place], Any]
    read: Callable[[str, Any, Reading], nn.Module]


KINDS = (
    Kind((nn.Linear, PackedLinear), ("Affine", "Linear"), _write_linear, _read_linear),
    Kind(
        (nn.Conv1d, ChannelsLastConv1d, PackedConv1d, nn.Conv2d, PackedConv2d),
        ("Conv1d", "Conv2d"),
        _write_conv,
        _read_conv,
    ),
    Kind((nn.AvgPool2d, SumPool2d), ("AvgPool2d", "SumPool2d"), _write_pool, _read_pool),
    Kind(
        (nn.Flatten,),
        ("Flatten",),
        lambda layer, place: flatten_node(layer.start_dim, layer.end_dim, place),
        _read_flatten,
    ),
    Kind((Scale,), ("Scale",), _write_scale, lambda name, node, how: Scale(_tensor(node.scale))),
    Kind((Threshold,), ("Threshold",), _write_threshold, _read_threshold),
    Kind((DelaySteps,), ("Delay",), _write_delay, lambda name, node, how: DelaySteps(steps_of(name, node, how))),
)
WRITERS = {module: kind.write for kind in KINDS for module in kind.modules}
LAYER_NODES: Dict[str, Callable[[str, Any, Reading], nn.Module]] = {
    node: kind.read for kind in KINDS for node in kind.nodes
}
