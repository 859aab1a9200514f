"""Where time is, as layers, neurons, the loss and the targets see it: mistakes of a first script, told in words.

- A loss of torch knows no time. Given outputs ``[T, B, C]`` it ends with an error about sizes.
- Layers of torch but those of each number take ``[B, ...]``. Given ``[T, B, ...]`` most end with an error about sizes;
  ``nn.BatchNorm1d`` takes the batch for its channels, and goes on where there are as many.
- A batch ``[B, ...]`` without time, in front of which an encoder was forgotten: neurons take the batch for time, and a
  loss of torch compares each "step" with the target of one sample, so that training goes on with wrong numbers.

What is said is certain for networks that call known layers one after the other; of others nothing is said.
"""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Tuple

from torch import Tensor, nn

from spikecore._norm_neuron import NormNeuron
from spikecore._shell.in_turn import in_turn
from spikecore._shell.processes import unwrapped
from spikecore._shell.replicas import makes_time
from spikecore._shell.state import Stateful
from spikecore.layers._time_batched import TimeBatched

_PLACE = "torch.nn.modules."
#: Modules of torch.nn with layers that take ``[B, ...]``, and no further dimension in front.
_OF_SAMPLES = frozenset(_PLACE + name for name in ("batchnorm", "conv", "instancenorm", "pooling"))
#: The same, and those of each number, or of the last dimensions: all leave dimension 0 where it is.
_KEEP = _OF_SAMPLES | {_PLACE + name for name in ("activation", "dropout", "linear", "normalization", "padding")}
#: Layers that take three dimensions for ``[B, C, L]``.
_OF_CHANNELS = (nn.BatchNorm1d, nn.InstanceNorm1d, nn.Conv1d, nn.GroupNorm)
#: How torch says that an input has other dimensions or sizes than its layer wants.
_SIZES = re.compile(r"\b[2-5]D\b|shapes cannot be multiplied|running_mean should contain|number of channels")
#: The losses of torch on classes ``[B, C]`` and their indices ``[B]``, as modules and as functions.
_OF_CLASSES = frozenset("CrossEntropyLoss MultiMarginLoss NLLLoss cross_entropy multi_margin_loss nll_loss".split())


@contextmanager
def telling(told: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise in place of an error what ``told`` makes of it, with the error as its cause."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        better = told(error)
        if better is error:
            raise
        raise better from error


def of_loss(loss: Any, outputs: Any, targets: Any, error: Exception) -> Exception:
    """The error of a loss of torch that got outputs with time, with the way out; any other error as it is."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim == 3 and targets.ndim == 1):
        return error
    name = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "")
    if name not in _OF_CLASSES or outputs.shape[1] != targets.shape[0]:
        return error
    return ValueError(
        f"loss={name} knows no time, and got outputs [T, B, C] = {list(outputs.shape)} for targets [B] = "
        f"{list(targets.shape)}; use a loss over time, such as spikecore.losses.ce_count for spikes or ce_max_membrane "
        "for a membrane, or a mean over time: loss=lambda outputs, targets: F.cross_entropy(outputs.mean(0), targets)"
    )


def of_layers(net: nn.Module, error: Exception) -> Exception:
    """The error of a layer of torch that may have got ``[T, B, ...]``, with the way out; any other error as it is."""
    if type(error) not in (RuntimeError, ValueError) or not _SIZES.search(str(error)):
        return error
    found = [f"{name} ({type(layer).__name__})" for name, layer in _without_time(net)]
    if not found:
        return error
    return ValueError(
        f"{error}. Beside neurons over time, {', '.join(found)} take inputs [B, ...], and [T, B, ...] only within "
        "sc.layers.TimeBatched: write sc.layers.TimeBatched(layer, ...) around them"
    )


def warn_of_time(net: nn.Module, inputs: Any, outputs: Any, targets: Any) -> None:
    """Warn of a step that went well with certainly wrong numbers: of neurons, then of layers."""
    if not all(isinstance(one, Tensor) for one in (inputs, outputs, targets)) or not targets.ndim:
        return
    size = targets.shape[0]
    if _is_batch_as_time(net, inputs, outputs, targets):
        warnings.warn(
            f"the network takes dimension 0 of inputs {list(inputs.shape)} for time, and each of the {size} targets "
            "is compared with one time step of one sample. If it is the batch, the numbers are wrong: put "
            "sc.encode.Constant(T) in front of the network, or give inputs [T, B, ...], with a loss over time, such as "
            "spikecore.losses.ce_count. For one sequence with a target for each step, this is right",
            UserWarning,
            stacklevel=3,
        )
    if outputs.ndim == 3 and outputs.shape[1] == size:
        for name, layer in _without_time(net):
            if isinstance(layer, _OF_CHANNELS):
                kind = type(layer).__name__
                warnings.warn(
                    f"{name} ({kind}) takes dimension 1 of [T, B, C], which is the batch, for channels, so that the "
                    f"numbers are wrong: write sc.layers.TimeBatched(nn.{kind}(...))",
                    UserWarning,
                    stacklevel=3,
                )


def _is_batch_as_time(net: nn.Module, inputs: Tensor, outputs: Tensor, targets: Tensor) -> bool:
    """Whether neurons certainly take dimension 0 for time, and the loss pairs it with one class of each sample.

    That is right for one thing alone, a single sequence with a target for each step; so it is no error.
    """
    if outputs.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
        return False
    size = targets.shape[0]
    if size < 2 or inputs.ndim < 2 or not size == inputs.shape[0] == outputs.shape[0]:
        return False
    for _, layer in _chain(unwrapped(net)):
        if _is_neuron(layer):
            return _is_over_time(layer)
        if not (type(layer).__module__ in _KEEP or isinstance(layer, TimeBatched) or _flattens_samples(layer)):
            return False
    return False


def _without_time(net: nn.Module) -> List[Tuple[str, nn.Module]]:
    """Layers of torch that take ``[B, ...]`` and stand beside neurons over time, where time has been made."""
    layers = list(_chain(unwrapped(net)))
    if not any(_is_over_time(layer) for _, layer in layers):
        return []
    behind = max((k + 1 for k, (_, layer) in enumerate(layers) if makes_time(layer)), default=0)
    return [
        (name, layer)
        for name, layer in layers[behind:]
        if type(layer).__module__ in _OF_SAMPLES or type(layer) is nn.GroupNorm or _flattens_samples(layer)
    ]


def _chain(net: nn.Module, prefix: str = "") -> Iterator[Tuple[str, nn.Module]]:
    """The layers that are called one after the other, with their names."""
    if in_turn(net):
        for name, part in net.named_children():
            yield from _chain(part, f"{prefix}{name}.")
    else:
        yield prefix[:-1] or "the network", net


def _is_neuron(layer: nn.Module) -> bool:
    return isinstance(layer, (Stateful, NormNeuron))


def _is_over_time(layer: nn.Module) -> bool:
    """Whether this is a neuron whose calls are sequences, each from rest."""
    neuron = layer.neuron if isinstance(layer, NormNeuron) else layer
    return isinstance(neuron, Stateful) and neuron.step == "multi" and not neuron.carrying


def _flattens_samples(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and layer.start_dim >= 1
