"""Warnings and errors for mistakes about the time dimension, as a first script has them.

- A loss of torch takes ``[B, C]``. Given outputs ``[T, B, C]`` it ends with an error about sizes.
- Layers of torch but those of each number take ``[B, ...]``. Given ``[T, B, ...]`` most end with an error about sizes;
  ``nn.BatchNorm1d`` takes the batch for its channels, and goes on where there are as many.
- Without an encoder, neurons take the batch of inputs ``[B, ...]`` for time. A loss of torch then compares what it
  takes for a time step with the target of one sample, so that training goes on with wrong numbers.

A warning is certain: it comes only for networks that call layers of torch and neurons one after the other, without
hooks and without a ``forward`` of their own. Of other networks nothing is said.
"""

from __future__ import annotations

import functools
import re
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Tuple

import torch.nn.functional as F
from torch import Tensor, nn

from spikecore._shell.hooks import is_watched
from spikecore._shell.in_turn import calls_as, in_turn, makes_time
from spikecore._shell.outside import outside
from spikecore._shell.processes import unwrapped
from spikecore._shell.state import Stateful
from spikecore.layers import NormNeuron
from spikecore.layers._time_batched import TimeBatched
from spikecore.neuron import Neuron
from spikecore.neurons._recurrent import Recurrent

_PLACE = "torch.nn.modules."
#: Modules of torch.nn with layers that take ``[B, ...]``, and no further dimension in front.
_OF_SAMPLES = frozenset(_PLACE + name for name in ("batchnorm", "conv", "instancenorm", "pooling"))
#: The same, and those of each number, or of the last dimensions: all leave dimension 0 where it is.
_KEEP = _OF_SAMPLES | {_PLACE + name for name in ("activation", "dropout", "linear", "normalization", "padding")}
#: Layers that take three dimensions for ``[B, C, L]``.
_OF_CHANNELS = (nn.BatchNorm1d, nn.InstanceNorm1d, nn.Conv1d, nn.GroupNorm)
#: How torch says that an input has other dimensions or sizes than its layer wants.
_SIZES = re.compile(r"\b[2-5]D\b|shapes cannot be multiplied|running_mean should contain|number of channels")
#: The losses of torch on outputs ``[B, C]`` and classes ``[B]``.
_OF_CLASSES = (nn.CrossEntropyLoss, nn.MultiMarginLoss, nn.NLLLoss)
_FUNCTIONS_OF_CLASSES = (F.cross_entropy, F.multi_margin_loss, F.nll_loss)


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
    """For the error of a loss of torch that got outputs with time, one that says what to write; else the error."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim == 3 and targets.ndim == 1):
        return error
    if not _is_of_classes(loss) or outputs.shape[1] != targets.shape[0]:
        return error
    name = type(loss).__name__ if isinstance(loss, nn.Module) else _function(loss).__name__
    return ValueError(
        f"loss={name} takes outputs [B, C], without time, and got [T, B, C] = {list(outputs.shape)} for targets [B] = "
        f"{list(targets.shape)}; use a loss over time, such as spikecore.losses.ce_count for spikes or ce_max_membrane "
        "for a membrane, or give it a mean over time: loss=lambda outputs, targets: your_loss(outputs.mean(0), targets)"
    )


def of_layers(net: nn.Module, error: Exception) -> Exception:
    """For the error of a layer that may have got ``[T, B, ...]``, one that says what to write; else the error."""
    if type(error) not in (RuntimeError, ValueError) or not _SIZES.search(str(error)):
        return error
    found = _without_time(_layers(net))
    if not found:
        return error
    return ValueError(
        f"{error}. Beside neurons over time, {_named(found)} take inputs [B, ...], and [T, B, ...] only within "
        "sc.layers.TimeBatched: write sc.layers.TimeBatched(layer, ...) around them"
    )


def warn_of_time(net: nn.Module, loss: Any, inputs: Any, outputs: Any, targets: Any) -> bool:
    """Warn of a step that ended without an error and whose numbers are certainly wrong.

    Whether the batch could be judged: one of several samples, all tensors, outside of ``sc.carry_state``.
    """
    if not all(isinstance(one, Tensor) for one in (inputs, outputs, targets)) or not targets.ndim:
        return False
    layers = _layers(net)
    if targets.shape[0] < 2 or any(getattr(layer, "carrying", False) for _, layer in layers):
        return False
    if not all(_is_known(layer) for _, layer in layers):
        return True
    if _is_batch_as_time(layers, loss, targets):
        beside = _without_time(layers)
        within = f" and {_named(beside)} into sc.layers.TimeBatched" if beside else ""
        warnings.warn(
            f"the network takes dimension 0 of inputs {list(inputs.shape)} for time, and each of the "
            f"{targets.shape[0]} targets is compared with one time step of one sample. If it is the batch, the numbers "
            f"are wrong: put sc.encode.Constant(T) in front of the network{within}, and use a loss over time, such as "
            "spikecore.losses.ce_count. For one sequence with a target for each step this is right, and inputs "
            "[T, 1, ...], with outputs.squeeze(1) in the loss, say so without this warning",
            UserWarning,
            stacklevel=outside(),
        )
    if outputs.ndim == 3 and outputs.shape[1] == targets.shape[0]:
        for name, layer in _without_time(layers):
            if isinstance(layer, _OF_CHANNELS):
                kind = type(layer).__name__
                warnings.warn(
                    f"{name} ({kind}) takes dimension 1 of [T, B, C], which is the batch, for channels, so that the "
                    f"numbers are wrong: write sc.layers.TimeBatched(nn.{kind}(...))",
                    UserWarning,
                    stacklevel=outside(),
                )
    return True


def _is_batch_as_time(layers: List[Tuple[str, nn.Module]], loss: Any, targets: Tensor) -> bool:
    """Whether a neuron takes dimension 0 of the inputs for time, and the loss compares entry k with the class of k.

    Known layers leave dimension 0 in place, and these losses took as many outputs ``[N, C]`` as there are targets. That
    is right for one thing alone, a single sequence with a target for each step; so it is no error.
    """
    return targets.ndim == 1 and _is_of_classes(loss) and any(_is_over_time(layer) for _, layer in layers)


def _is_of_classes(loss: Any) -> bool:
    return type(loss) in _OF_CLASSES or _function(loss) in _FUNCTIONS_OF_CLASSES


def _function(loss: Any) -> Any:
    return loss.func if isinstance(loss, functools.partial) else loss


def _without_time(layers: List[Tuple[str, nn.Module]]) -> List[Tuple[str, nn.Module]]:
    """Layers of torch that take ``[B, ...]`` and stand beside neurons over time, behind what makes time."""
    if not any(_is_over_time(layer) for _, layer in layers):
        return []
    behind = max((k + 1 for k, (_, layer) in enumerate(layers) if makes_time(layer)), default=0)
    return [
        (name, layer)
        for name, layer in layers[behind:]
        if type(layer).__module__ in _OF_SAMPLES or type(layer) is nn.GroupNorm or _flattens_samples(layer)
    ]


def _named(layers: List[Tuple[str, nn.Module]]) -> str:
    return ", ".join(f"{name} ({type(layer).__name__})" for name, layer in layers)


def _layers(net: nn.Module) -> List[Tuple[str, nn.Module]]:
    """The layers that the network calls one after the other, with their names; itself where that is not known."""
    return list(_called(net, ""))


def _called(net: nn.Module, prefix: str) -> Iterator[Tuple[str, nn.Module]]:
    net = unwrapped(net)
    if in_turn(net) and not is_watched(net):
        for name, part in net.named_children():
            yield from _called(part, f"{prefix}{name}.")
    else:
        yield prefix[:-1] or "the network", net


def _is_known(layer: nn.Module) -> bool:
    """Whether this is a neuron over time, an encoder, ``TimeBatched``, or a layer that leaves dimension 0 in place."""
    if is_watched(layer):
        return False
    plain = type(layer).__module__ in _KEEP or isinstance(layer, TimeBatched) or makes_time(layer)
    return plain or _flattens_samples(layer) or _is_over_time(layer)


def _is_over_time(layer: nn.Module) -> bool:
    """Whether this is a neuron whose calls are sequences, each from rest, as spikecore computes them."""
    if isinstance(layer, NormNeuron):
        return calls_as(layer, NormNeuron) and _is_over_time(layer.neuron)
    plain = calls_as(layer, Neuron) or calls_as(layer, Recurrent)
    return plain and isinstance(layer, Stateful) and layer.step == "multi" and not layer.carrying


def _flattens_samples(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and layer.start_dim >= 1
