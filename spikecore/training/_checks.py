"""Checks of every training step: its loss, its optimiser, and where its batch has time."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore._shell.checks import shown
from spikecore._shell.modules import in_turn, makes_time, unwrapped
from spikecore.layers import TimeBatched

#: Modules of torch.nn with layers that take ``[B, ...]``, and no further dimension in front.
_OF_SAMPLES = [f"torch.nn.modules.{name}" for name in ("batchnorm", "conv", "flatten", "instancenorm", "pooling")]
#: The same, and those of each number, or of the last dimensions: all leave dimension 0 where it is.
_KEEP = [f"torch.nn.modules.{name}" for name in ("activation", "dropout", "linear", "normalization", "padding")]
_KEEP += _OF_SAMPLES
#: How torch says that an input has other dimensions or sizes than its layer wants.
_SIZES = re.compile(r"\b[2-5]D\b|shapes cannot be multiplied|running_mean should contain|number of channels")
#: Losses of torch on outputs ``[B, C]`` and classes ``[B]``.
_OF_CLASSES = (nn.CrossEntropyLoss, nn.MultiMarginLoss, nn.NLLLoss)
_FUNCTIONS_OF_CLASSES = (F.cross_entropy, F.multi_margin_loss, F.nll_loss)


def check_loss(loss: Any) -> Tensor:
    """What a loss gave, if it is a tensor with one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(f"loss must give a tensor with one number, got {got}; reduce it with .mean() or .sum()")
    return loss


def check_optimizer(optimizer: Any, net: nn.Module) -> None:
    """Raise unless ``optimizer`` is one, holds parameters of this network, and needs no closure, as LBFGS does."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={shown(optimizer)} must be a torch.optim.Optimizer of this network's parameters")
    parameters = set(map(id, net.parameters()))
    if not any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError("optimizer holds no parameter of this network; make it from net.parameters()")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"optimizer={type(optimizer).__name__} runs the network several times in a step, by a closure, and a "
            "training step runs it once; use another optimiser, or call optimizer.step(closure) in a loop of your own"
        )


@contextmanager
def explained(way_out: Callable[[Exception], str]) -> Iterator[None]:
    """Raise ValueError with the text of ``way_out`` in place of an error of sizes; without a text, the error."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        text = way_out(error)
        if not text:
            raise
        raise ValueError(text) from error


def loss_without_time(loss: Any, outputs: Any, targets: Any) -> str:
    """What to write where a loss of torch got outputs with time; "" for another error."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim == 3 and targets.ndim == 1):
        return ""
    if not _is_of_classes(loss) or outputs.shape[1] != targets.shape[0]:
        return ""
    name = type(loss).__name__ if isinstance(loss, nn.Module) else _function(loss).__name__
    return (
        f"loss={name} takes outputs [B, C], without time, and got [T, B, C] = {list(outputs.shape)} for targets [B] = "
        f"{list(targets.shape)}; use a loss over time, such as spikecore.losses.ce_count for spikes or ce_max_membrane "
        "for a membrane, or give it a mean over time: loss=lambda outputs, targets: your_loss(outputs.mean(0), targets)"
    )


def layers_without_time(net: nn.Module, error: Exception) -> str:
    """What to write where a layer of torch may have got ``[T, B, ...]``; "" for another error."""
    if type(error) not in (RuntimeError, ValueError) or not _SIZES.search(str(error)):
        return ""
    names = _without_time(list(_layers(net)))
    return names and (
        f"{error}. Beside neurons over time, {names} take inputs [B, ...], and [T, B, ...] only within "
        "sc.layers.TimeBatched: write sc.layers.TimeBatched(layer, ...) around them"
    )


def warn_of_batch_as_time(net: nn.Module, loss: Any, inputs: Any, outputs: Any, targets: Any) -> None:
    """Warn where neurons take the batch for time, and the loss compares entry k with the class of k.

    Without an encoder, that is so for inputs ``[B, ...]``. It is right for one sequence with a target for each step.
    Networks of known layers, called one after the other, are looked at; of others nothing is said.
    """
    if not all(isinstance(value, Tensor) for value in (inputs, outputs, targets)) or not _is_of_classes(loss):
        return
    layers = list(_layers(net))
    if targets.ndim != 1 or len(targets) < 2 or not any(_is_over_time(layer) for _, layer in layers):
        return
    if not all(_is_known(layer) for _, layer in layers):
        return
    names = _without_time(layers)
    within = f" and {names} into sc.layers.TimeBatched" if names else ""
    warnings.warn(
        f"the network takes dimension 0 of inputs {list(inputs.shape)} for time, and each of the {len(targets)} "
        "targets is compared with one time step of one sample. If it is the batch, the numbers are wrong: put "
        f"sc.encode.Constant(T) in front of the network{within}, and use a loss over time, such as "
        "spikecore.losses.ce_count. For one sequence with a target for each step this is right, and inputs "
        "[T, 1, ...], with outputs.squeeze(1) in the loss, say so without this warning",
        UserWarning,
        stacklevel=3,
    )


def _is_of_classes(loss: Any) -> bool:
    return type(loss) in _OF_CLASSES or _function(loss) in _FUNCTIONS_OF_CLASSES


def _function(loss: Any) -> Any:
    return loss.func if isinstance(loss, functools.partial) else loss


def _layers(net: nn.Module, prefix: str = "") -> Iterator[Tuple[str, nn.Module]]:
    """The layers that the network calls one after the other, with their names; itself where that is not known."""
    net = unwrapped(net)
    if in_turn(net):
        for name, part in net.named_children():
            yield from _layers(part, f"{prefix}{name}.")
    else:
        yield prefix[:-1] or "the network", net


def _without_time(layers: List[Tuple[str, nn.Module]]) -> str:
    """Names of the layers that take ``[B, ...]`` and stand beside neurons over time, behind what makes time."""
    if not any(_is_over_time(layer) for _, layer in layers):
        return ""
    first = max((place + 1 for place, (_, layer) in enumerate(layers) if makes_time(layer)), default=0)
    names = [
        f"{name} ({type(layer).__name__})" for name, layer in layers[first:] if type(layer).__module__ in _OF_SAMPLES
    ]
    return ", ".join(names)


def _is_over_time(layer: nn.Module) -> bool:
    """Whether this is a neuron whose calls are sequences from rest."""
    neuron = layer if hasattr(layer, "step") else getattr(layer, "neuron", None)  # that of NormNeuron
    return getattr(neuron, "step", None) == "multi" and not getattr(neuron, "carrying", False)


def _is_known(layer: nn.Module) -> bool:
    """Whether dimension 0 of the output is that of the input, or time that the layer makes."""
    return (
        type(layer).__module__ in _KEEP or isinstance(layer, TimeBatched) or makes_time(layer) or _is_over_time(layer)
    )
