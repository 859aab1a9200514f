"""Errors of a network's call for inputs that do not fit, said in words of time and dtypes."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Tuple

from torch import nn

from spikecore.batches import flattened
from spikecore.core.modules import makes_time, outside, unwrapped
from spikecore.core.state import Stateful, Stepped
from spikecore.graph import NotFollowed, read
from spikecore.inspect.record import stateful_of
from spikecore.words import no_tensor

__all__ = ["explained", "layers_of", "of_network", "step_of", "without_time"]

#: Modules of torch.nn with layers that take ``[B, ...]``, and no further dimension in front.
_OF_SAMPLES = [f"torch.nn.modules.{name}" for name in ("batchnorm", "conv", "flatten", "instancenorm", "pooling")]
#: Torch's words for an input with other dimensions or sizes than its layer wants.
_SIZES = re.compile(r"\b[2-5]D\b|shapes cannot be multiplied|running_mean should contain|number of channels")
#: Torch's words for an input with another dtype than the weights of its layer.
_DTYPES = re.compile(r"same dtype|should be the same|expected scalar type")


@contextmanager
def explained(way_out: Callable[[Exception], str]) -> Iterator[None]:
    """Raise ValueError (or TypeError) with the text of ``way_out`` in place of an error; without a text, the error."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        text = way_out(error)
        if not text:
            raise
        raise (TypeError if isinstance(error, TypeError) else ValueError)(text) from error


def of_network(net: nn.Module, inputs: Any, error: Exception) -> str:
    """Advice for an error of sizes or dtypes in a layer of torch; "" for another error.

    It may have got ``[T, B, ...]``, inputs of another dtype than its weights, or no tensor.
    """
    if type(error) is TypeError and (not flattened(inputs) or type(inputs).__name__ == "PackedSequence"):
        return no_tensor("inputs", inputs)
    if type(error) is TypeError and isinstance(inputs, (list, tuple)) and "positional argument" in str(error):
        return (
            f"{error}. inputs is a {type(inputs).__name__} of {len(inputs)}, each an argument of the network; give one "
            "tensor [T, B, ...]: of sequences torch.nn.utils.rnn.pad_sequence(inputs), and a mask to losses and "
            "metrics, sc.functional.mask_of(lengths, T)"
        )
    if type(error) not in (RuntimeError, ValueError):
        return ""
    if _DTYPES.search(str(error)):
        weights = next((value.dtype for value in net.parameters() if value.is_floating_point()), None)
        other = next((value.dtype for value in flattened(inputs) if value.dtype != weights), None)
        if weights is None or other is None:
            return ""
        name = str(weights).partition(".")[2]
        return f"{error}. Inputs are {other}, and weights {weights}: give inputs.to(torch.{name})"
    names = without_time(net) if _SIZES.search(str(error)) else ""
    return names and (
        f"{error}. Beside neurons over time, {names} take inputs [B, ...], and [T, B, ...] only within "
        "sc.layers.TimeBatched: write sc.layers.TimeBatched(layer, ...) around those that get time"
    )


def layers_of(net: nn.Module) -> List[Tuple[str, nn.Module]]:
    """The layers that the network calls, with their names, but for those of samples; itself where that is not known."""
    net = unwrapped(net)
    try:
        calls = [call for call in read(net).calls if call.module is not None and not call.is_folded]
    except NotFollowed:
        calls = []
    return [(call.name or "the network", call.module) for call in calls] or [("the network", net)]


def without_time(net: nn.Module) -> str:
    """Names of the layers that take ``[B, ...]`` and stand beside neurons over time, behind what makes time."""
    layers = layers_of(net)
    if [layer for _, layer in layers] == [unwrapped(net)]:  # its forward is not followed: all layers that it has
        layers = list(outside(unwrapped(net), (Stateful, Stepped)))
    if not any(getattr(stateful_of(layer), "step", "") == "multi" for _, layer in layers):
        return ""
    first = max((place + 1 for place, (_, layer) in enumerate(layers) if makes_time(layer)), default=0)
    names = [
        f"{name} ({type(layer).__name__})" for name, layer in layers[first:] if type(layer).__module__ in _OF_SAMPLES
    ]
    return ", ".join(names)


def step_of(module: nn.Module) -> str:
    """The step mode of a neuron, or of another module with state over time; "" of other modules, and where it carries
    its state from call to call by ``carry_state``.
    """
    stateful = stateful_of(module)
    return "" if stateful is None or stateful.carrying else str(stateful.step)
