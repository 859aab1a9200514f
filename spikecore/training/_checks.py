"""Checks of every training step: its loss, its optimiser, and where its batch has time."""

from __future__ import annotations

import functools
import inspect
import re
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore._base.batches import flattened
from spikecore._base.context import is_plain
from spikecore._shell.checks import shown
from spikecore._shell.modules import in_turn, makes_time, observing, unwrapped
from spikecore._shell.state import Stateful
from spikecore.lang import topological
from spikecore.layers import NormNeuron
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent

#: Modules of torch.nn with layers that take ``[B, ...]``, and no further dimension in front.
_OF_SAMPLES = [f"torch.nn.modules.{name}" for name in ("batchnorm", "conv", "flatten", "instancenorm", "pooling")]
#: How torch says that an input has other dimensions or sizes than its layer wants.
_SIZES = re.compile(r"\b[2-5]D\b|shapes cannot be multiplied|running_mean should contain|number of channels")
#: How torch says that an input has another dtype than the weights of its layer.
_DTYPES = re.compile(r"same dtype|should be the same|expected scalar type")
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
    """Raise the text of ``way_out`` in place of an error of sizes, as ValueError, or of types; without a text, the
    error.
    """
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        text = way_out(error)
        if not text:
            raise
        raise (TypeError if isinstance(error, TypeError) else ValueError)(text) from error


def of_loss(net: nn.Module, loss: Any, inputs: Any, outputs: Any, targets: Any, error: Exception) -> str:
    """What to write where a loss raised an error, and sizes say why; "" for another error."""
    if isinstance(error, TypeError) or not (
        isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim > 1 and targets.ndim == 1
    ):
        return ""
    batch, steps = len(targets), {_step(module) for module in net.modules()}
    if isinstance(inputs, Tensor) and inputs.ndim > 2 and "multi" in steps:
        length = outputs.shape[0 if outputs.ndim == 2 else 1]
        if inputs.shape[0] == batch != inputs.shape[1] == length:
            return (
                f"there are {batch} targets, and neurons take dimension 0 of inputs {list(inputs.shape)} for time: "
                "they seem to be [B, T, ...]; give inputs.transpose(0, 1), or sc.DataLoader(..., time_first=True)"
            )
    if outputs.ndim != 3 or not _is_of_classes(loss) or outputs.shape[1] != batch:
        return ""
    name = type(loss).__name__ if isinstance(loss, nn.Module) else _function(loss).__name__
    text = (
        f"loss={name} takes outputs [B, C], without time, and got [T, B, C] = {list(outputs.shape)} for targets [B] = "
        f"{list(targets.shape)}; use a loss over time, such as spikecore.losses.ce_count for spikes or ce_max_membrane "
        "for a membrane, or give it a mean over time: loss=lambda outputs, targets: your_loss(outputs.mean(0), targets)"
    )
    return f"{text}. {_SINGLE}" if "single" in steps and "multi" not in steps else text


def of_network(net: nn.Module, inputs: Any, error: Exception) -> str:
    """What to write where a layer of torch raised an error of sizes or dtypes; "" for another error.

    It may have got ``[T, B, ...]``, or inputs of another dtype than its weights.
    """
    if isinstance(error, TypeError) and isinstance(inputs, np.ndarray):
        return f"inputs are a NumPy array, and the network takes tensors: give torch.from_numpy(inputs) ({error})"
    if type(error) not in (RuntimeError, ValueError):
        return ""
    if _DTYPES.search(str(error)):
        return _of_dtypes(net, inputs, error)
    names = _without_time(list(_layers(net))) if _SIZES.search(str(error)) else ""
    return names and (
        f"{error}. Beside neurons over time, {names} take inputs [B, ...], and [T, B, ...] only within "
        "sc.layers.TimeBatched: write sc.layers.TimeBatched(layer, ...) around them"
    )


def _of_dtypes(net: nn.Module, inputs: Any, error: Exception) -> str:
    weights = next((value.dtype for value in net.parameters() if value.is_floating_point()), None)
    other = next((value.dtype for value in flattened(inputs) if value.dtype != weights), None)
    if weights is None or other is None:
        return ""
    name = str(weights).partition(".")[2]
    return f"{error}. Inputs are {other}, and weights {weights}: give inputs.to(torch.{name})"


#: A module with a step mode that was called, and the shape of its input.
Call = Tuple[nn.Module, Tuple[int, ...]]


class Watched(NamedTuple):
    """What the neurons of a network did in a step."""

    calls: List[Call]
    #: By the name of a layer: for each of its calls, whether anything but 0 came out, ``[]``.
    fired: Dict[str, List[Tensor]]


@contextmanager
def watched_neurons(net: nn.Module) -> Iterator[Watched]:
    """What neurons do in the block; nothing of a network that is compiled, which a hook would compile once more."""
    watched = Watched([], {})

    def note(module: nn.Module, inputs: Tuple[Any, ...]) -> None:
        watched.calls.extend((module, tuple(x.shape)) for x in inputs[:1] if isinstance(x, Tensor))

    def note_output(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and is_plain(output):
            watched.fired.setdefault(name, []).append(output.detach().any())

    named = list(net.named_modules())
    if any(getattr(m, "_compiled_call_impl", None) or type(m).__name__ == "OptimizedModule" for _, m in named):
        named = []
    hooks = []
    for name, module in named:
        if _step(module) and not getattr(module, "makes_time", False):
            hooks.append(module.register_forward_pre_hook(observing(note)))
        if _step(module) and isinstance(module, (Neuron, NormNeuron, Recurrent)):
            hooks.append(module.register_forward_hook(observing(functools.partial(note_output, name))))
    try:
        yield watched
    finally:
        for hook in hooks:
            hook.remove()


def silent_layers(net: nn.Module, watched: Watched) -> List[str]:
    """The layers of spiking neurons that gave no spike. It waits for the device."""
    modules = dict(net.named_modules())
    return [
        f"{name or 'the network'} ({type(modules[name]).__name__})"
        for name, fired in watched.fired.items()
        if _spikes(modules[name]) and not any(map(bool, fired))
    ]


def _spikes(layer: nn.Module) -> bool:
    """Whether a layer of neurons fires, as one that integrates only does not."""
    neuron: Any = layer.neuron if isinstance(layer, (NormNeuron, Recurrent)) else layer
    return any(node.op == "spike" for node in topological(neuron.program.outputs))


def time_as_taken(net: nn.Module, calls: List[Call], inputs: Any, outputs: Any, targets: Any) -> str:
    """What is to be said where sizes prove that neurons took something else for time than ``[T, B, ...]``; "" if not.

    Targets ``[B]`` say how many samples there are.
    """
    if not all(isinstance(value, Tensor) for value in (inputs, outputs, targets)) or targets.is_floating_point():
        return ""
    if targets.ndim != 1 or len(targets) < 2 or not calls:
        return ""
    steps, shapes, batch = {_step(module) for module, _ in calls}, [shape for _, shape in calls], len(targets)
    if steps == {"multi"} and outputs.ndim == 2 and len(outputs) == batch:
        # a neuron that got [T, B, ...] with T = B is no proof
        is_batch = all(shape[:1] == (batch,) != shape[1:2] or shape == (batch, batch) for shape in shapes)
        return _batch_as_time(net, inputs, batch) if is_batch else ""
    if steps == {"single"} and inputs.ndim > 2 and len(inputs) != batch:
        is_called_once = len(calls) == len({module for module, _ in calls})
        takes_all = is_called_once and all(shape[:2] == (len(inputs), batch) for shape in shapes)
        return f"inputs {list(inputs.shape)} for {batch} targets are [T, B, ...]. {_SINGLE}" if takes_all else ""
    return ""


_SINGLE = (
    "The neurons have step='single': a call is one time step, and they take all of inputs for it. For calls of all "
    "steps write sc.set_step(net, 'multi'); else call the network once for each step"
)


def _batch_as_time(net: nn.Module, inputs: Tensor, batch: int) -> str:
    """So it is for inputs ``[B, ...]`` without an encoder. It is right for one sequence with a target for each step."""
    names = _without_time(list(_layers(net)))
    within = f" and {names} into sc.layers.TimeBatched" if names else ""
    return (
        f"the network takes dimension 0 of inputs {list(inputs.shape)} for time, and each of the {batch} "
        "targets is compared with one time step of one sample. If it is the batch, the numbers are wrong: put "
        f"sc.encode.Constant(T) in front of the network{within}, and use a loss over time, such as "
        "spikecore.losses.ce_count. For one sequence with a target for each step this is right, and inputs "
        "[T, 1, ...], with outputs.squeeze(1) in the loss, say so without this warning"
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
    return _step(layer) == "multi"


def _step(module: nn.Module) -> str:
    """The step mode of a neuron, or of another module with state over time; "" of other modules, and where it carries
    its state from call to call by ``carry_state``.
    """
    neuron = module.neuron if isinstance(module, NormNeuron) else module
    return neuron.step if isinstance(neuron, Stateful) and not neuron.carrying else ""
