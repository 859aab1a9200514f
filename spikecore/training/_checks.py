"""Checks of every training step: its loss, its optimiser, and where its batch has time."""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore import losses
from spikecore.batches import flattened
from spikecore.context import is_plain
from spikecore.core.modules import makes_time, observing, unwrapped
from spikecore.core.neuron import Neuron
from spikecore.core.state import Stateful
from spikecore.encode import Latency, Poisson
from spikecore.graph import NotFollowed, read
from spikecore.lang import topological
from spikecore.layers import NormNeuron
from spikecore.neurons import Recurrent
from spikecore.words import no_tensor, shown

#: The step in which layers that were silent in the first one are looked at again.
SECOND_LOOK = 100

#: Modules of torch.nn with layers that take ``[B, ...]``, and no further dimension in front.
_OF_SAMPLES = [f"torch.nn.modules.{name}" for name in ("batchnorm", "conv", "flatten", "instancenorm", "pooling")]
#: Torch's words for an input with other dimensions or sizes than its layer wants.
_SIZES = re.compile(r"\b[2-5]D\b|shapes cannot be multiplied|running_mean should contain|number of channels")
#: Torch's words for an input with another dtype than the weights of its layer.
_DTYPES = re.compile(r"same dtype|should be the same|expected scalar type")
#: Losses of torch on outputs ``[B, C]`` and classes ``[B]``.
_OF_CLASSES = (nn.CrossEntropyLoss, nn.MultiMarginLoss, nn.NLLLoss)
_FUNCTIONS_OF_CLASSES = (F.cross_entropy, F.multi_margin_loss, F.nll_loss)
#: Losses of torch that repeat targets ``[B, C]`` for outputs ``[T, B, C]``.
_BY_ELEMENT = (nn.HuberLoss, nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss)
_FUNCTIONS_BY_ELEMENT = (F.huber_loss, F.l1_loss, F.mse_loss, F.smooth_l1_loss)


def check_loss(loss: Any) -> Tensor:
    """Checked result of a loss: a tensor with one number. ValueError for another one."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        way_out = "leave .item() out" if isinstance(loss, (int, float)) else "reduce it with .mean() or .sum()"
        raise ValueError(f"loss must give a tensor with one number, got {got}; {way_out}")
    return loss


def of_backward(loss: Tensor) -> str:
    """Advice for an error of the backward pass if the loss has no gradient; "" for another error."""
    if loss.requires_grad:
        return ""
    return (
        "loss has no gradient: it is made of argmax, comparisons, .detach() or under torch.no_grad(), or no parameter "
        "of the network has requires_grad; make it of the outputs themselves, as spikecore.losses.ce_count does"
    )


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
    """Raise ValueError (or TypeError) with the text of ``way_out`` in place of an error; without a text, the error."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        text = way_out(error)
        if not text:
            raise
        raise (TypeError if isinstance(error, TypeError) else ValueError)(text) from error


def of_loss(net: nn.Module, loss: Any, inputs: Any, outputs: Any, targets: Any) -> str:
    """Advice for an error of a loss that sizes explain; "" for another error."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim > 1 and targets.ndim == 1):
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
    """Advice for an error of sizes or dtypes in a layer of torch; "" for another error.

    It may have got ``[T, B, ...]``, inputs of another dtype than its weights, or no tensor.
    """
    if type(error) is TypeError and not flattened(inputs):
        return no_tensor("inputs", inputs)
    if type(error) not in (RuntimeError, ValueError):
        return ""
    if _DTYPES.search(str(error)):
        return _of_dtypes(net, inputs, error)
    names = _without_time(_layers(net)) if _SIZES.search(str(error)) else ""
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


class Call(NamedTuple):
    """A module with a step mode, or a layer of neurons, that was called: its input's shape, and whether that learns."""

    module: nn.Module
    shape: Tuple[int, ...]
    learns: bool
    #: True if a layer of spiking neurons gave a spike, on the device; None if nobody asked, and for other modules.
    fired: Optional[Tensor]


@contextmanager
def calls_of_neurons(net: nn.Module, looks: bool) -> Iterator[List[Call]]:
    """The calls of neurons in the block; ``looks``: with whether they fired.

    There is none of a network with a part that is compiled, which a hook would compile once more.
    """
    calls: List[Call] = []

    def note(module: nn.Module, inputs: Tuple[Any, ...], output: Any) -> None:
        is_looked_at = looks and isinstance(output, Tensor) and is_plain(output) and _spikes(module)
        fired = output.detach().any() if is_looked_at else None
        calls.extend(Call(module, tuple(x.shape), x.requires_grad, fired) for x in inputs[:1] if isinstance(x, Tensor))

    modules = list(net.modules())
    compiled = any(getattr(m, "_compiled_call_impl", None) or type(m).__name__ == "OptimizedModule" for m in modules)
    watched = [] if compiled else [module for module in modules if _has_steps(module) or _spikes(module)]
    hooks = [module.register_forward_hook(observing(note)) for module in watched]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def silent_layers(net: nn.Module, calls: List[Call]) -> List[str]:
    """The layers of spiking neurons that gave no spike in these calls. It waits for the device."""
    fired: Dict[nn.Module, bool] = {}
    for call in calls:
        if call.fired is not None:
            fired[call.module] = fired.get(call.module, False) or bool(call.fired)
    names = {module: name for name, module in net.named_modules()}
    return [f"{names[module] or 'the network'} ({type(module).__name__})" for module in fired if not fired[module]]


def _has_steps(module: nn.Module) -> bool:
    """True if a module has a step mode, and an input with time if that is "multi"."""
    return bool(_step(module)) and not getattr(module, "makes_time", False)


def _spikes(module: nn.Module) -> bool:
    """True if a module is a layer of neurons that fire, and not of integrators."""
    if not isinstance(module, (Neuron, NormNeuron, Recurrent)):
        return False
    return any(node.op == "spike" for node in topological(_neuron(module).program.outputs))


def still_silent(before: List[str], now: List[str]) -> List[str]:
    """Warnings after :data:`SECOND_LOOK` steps: the layers that gave no spike in the first step, either.

    In the first step alone silence is usual: weights of torch's defaults are small, and surrogates raise them.
    """
    names = [name for name in before if name in now]
    if not names:
        return []
    return [
        f"{', '.join(names)} gave no spike in the batches of steps 1 and {SECOND_LOOK}: nothing of the input passes, "
        "and the network may never learn. print(sc.explain(net, x)) says how often each layer fires, and what "
        "raises its rate"
    ]


def of_first_step(net: nn.Module, loss: Any, calls: List[Call], inputs: Any, outputs: Any, targets: Any) -> List[str]:
    """Warnings after the first step."""
    calls = [call for call in calls if _has_steps(call.module)]
    texts = (
        _of_time(net, calls, inputs, outputs, targets),
        _of_gradients(net, calls),
        _of_sizes(net, calls),
        _of_encoder(net, inputs),
        _of_values(loss, outputs, targets),
    )
    return [text for text in texts if text]


def _of_gradients(net: nn.Module, calls: List[Call]) -> str:
    """Neurons of the user's own whose output has no gradient, although their input has one."""
    names = {module: name or "the network" for name, module in net.named_modules()}
    for module, _, learns, _ in calls:
        neuron = _neuron(module)
        program = neuron._dispatch.program if isinstance(neuron, Neuron) and learns else None
        leaves = program.reach([True] * len(program.outputs), (), False).leaves if program else ()
        if program and all(leaf.op != "input" for leaf in leaves):
            return (
                f"{names[module]} ({type(module).__name__}) passes no gradient from its output to its input, so that "
                "nothing before it learns: sc.ops.where(h >= 1.0, 1.0, 0.0) and sc.ops.detach are numbers without a "
                "gradient; write self.spike(h - 1.0) for a spike"
            )
    return ""


def _of_sizes(net: nn.Module, calls: List[Call]) -> str:
    """Time constants that are the numbers of channels, of every neuron with one: they were meant as sizes."""
    with_tau = [call for call in calls if isinstance(getattr(_neuron(call.module), "tau", None), float)]
    if not with_tau or not all(map(_is_size, with_tau)):
        return ""
    neuron, names = _neuron(with_tau[0].module), {module: name for name, module in net.named_modules()}
    size, kind = f"{neuron.tau:g}", type(neuron).__name__
    return (
        f"{names.get(neuron) or 'the network'} ({kind}) has tau={size}, and its input has {size} channels. Neurons "
        f"have no size: if {size} was meant as one, write sc.{kind}(), since with a time constant of {size} steps it "
        "hardly fires. If it is the time constant, this is right"
    )


def _is_size(call: Call) -> bool:
    """True if ``tau`` is the number of channels, and none of the small numbers that time constants usually are."""
    neuron, step = _neuron(call.module), call.shape[1:] if _step(call.module) == "multi" else call.shape
    return len(step) > neuron.channel_dim and bool(neuron.tau == step[neuron.channel_dim] >= 8)


#: The part of the inputs of an encoder that may be outside of its range without a word.
_OUTSIDE = 0.1


def _of_encoder(net: nn.Module, inputs: Any) -> str:
    """Inputs of a first layer ``Poisson`` or ``Latency`` that it clamps: images of bytes, or normalised ones."""
    if not any(isinstance(part, (Poisson, Latency)) for part in net.modules()):
        return ""  # reading a network runs its forward: not in each first step
    (name, first), *_ = _layers(net)
    is_encoder = isinstance(first, (Poisson, Latency))
    if not (is_encoder and isinstance(inputs, Tensor) and inputs.numel() and _is_readable(inputs)):
        return ""
    x = inputs.detach().float() * getattr(first, "gain", 1.0) + getattr(first, "offset", 0.0)
    outside = ((x < 0) | (x > 1)).float().mean().item()
    if outside <= _OUTSIDE:
        return ""
    kind = type(first).__name__
    return (
        f"{name} ({kind}) is for values from 0 to 1, and {100 * outside:.0f} % of its input are outside, from "
        f"{x.min():g} to {x.max():g}: they count as 0 or 1. Scale the inputs, x / 255 for images of bytes, or leave "
        "out what makes their mean 0; sc.encode.Constant takes any values"
    )


def _is_readable(x: Tensor) -> bool:
    """True if numbers can be read on the host, as they cannot while a CUDA graph is captured."""
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _neuron(module: Any) -> Any:
    """The neuron of a Recurrent or a NormNeuron; any other module itself."""
    return getattr(module, "neuron", module)


def _of_time(net: nn.Module, calls: List[Call], inputs: Any, outputs: Any, targets: Any) -> str:
    """Warning if sizes prove that neurons took something else for time than ``[T, B, ...]``; "" if not.

    Targets ``[B]`` say how many samples there are.
    """
    outputs = next(iter(flattened(outputs)), None)  # the spikes of (spikes, membrane)
    if not all(isinstance(value, Tensor) for value in (inputs, outputs, targets)) or targets.is_floating_point():
        return ""
    if targets.ndim != 1 or len(targets) < 2 or not calls:
        return ""
    steps, shapes, batch = {_step(call.module) for call in calls}, [call.shape for call in calls], len(targets)
    if steps == {"multi"} and outputs.shape[0 if outputs.ndim == 2 else 1 :][:1] == (batch,):
        # a neuron that got [T, B, ...] with T = B is no proof
        is_batch = all(shape[:1] == (batch,) != shape[1:2] or shape == (batch, batch) for shape in shapes)
        looped = [module for module, count in Counter(call.module for call in calls).items() if count > 1]
        if is_batch and looped:
            return _loop_over_batch(net, calls, looped, batch)
        return _batch_as_time(net, inputs, batch) if is_batch and outputs.ndim == 2 else ""
    if steps == {"single"} and inputs.ndim > 2 and len(inputs) != batch:
        is_called_once = len(calls) == len({call.module for call in calls})
        takes_all = is_called_once and all(shape[:2] == (len(inputs), batch) for shape in shapes)
        return f"inputs {list(inputs.shape)} for {batch} targets are [T, B, ...]. {_SINGLE}" if takes_all else ""
    return ""


def _loop_over_batch(net: nn.Module, calls: List[Call], looped: List[nn.Module], batch: int) -> str:
    """Neurons over time in a loop over the steps, each of which gives them the batch."""
    name = next(name for name, module in net.named_modules() if module is looped[0])
    count = sum(call.module is looped[0] for call in calls)
    return (
        f"{name} ({type(looped[0]).__name__}) was called {count} times in this step, each time with dimension 0, of "
        f"size {batch}, as time, and there are {batch} targets. If the calls are the time steps, that is the batch, "
        "and the numbers are wrong: give all steps in one call, [T, B, ...], which sc.encode.Constant(T) makes of one "
        "step, or take one step a call, after sc.set_step(net, 'single')"
    )


def _of_values(loss: Any, outputs: Any, targets: Any) -> str:
    """Warning about a loss that computes something else than its name says; "" if there is none."""
    outputs = outputs if isinstance(outputs, Tensor) else None
    function = _function(loss)
    if outputs is None or not isinstance(targets, Tensor):
        return ""
    if function in (losses.ce_max_membrane, losses.mse_membrane) and _is_readable(outputs):
        spikes = outputs.detach() == 1
        if bool((spikes | (outputs == 0)).all()) and bool(spikes.any()):
            return (
                f"loss={function.__name__} is one of membrane potentials, and all outputs are 0 or 1, as spikes are. A "
                "membrane is the output of sc.LI() as the last layer, or trace['v'] of spk, state, trace = "
                "lif.run(x, record=('v',)); a loss of spikes is spikecore.losses.ce_count"
            )
    is_by_element = type(loss) in _BY_ELEMENT or function in _FUNCTIONS_BY_ELEMENT
    if is_by_element and outputs.ndim == targets.ndim + 1:
        name = type(loss).__name__ if isinstance(loss, nn.Module) else function.__name__
        return (
            f"loss={name} got outputs {list(outputs.shape)} and targets {list(targets.shape)}, which torch repeats "
            "along dimension 0: each time step is compared with them. For the mean over time write loss=lambda "
            "outputs, targets: your_loss(outputs.mean(0), targets); to mean each step, give targets.expand_as(outputs)"
        )
    return ""


_SINGLE = (
    "The neurons have step='single': a call is one time step, and they take all of inputs for it. For calls of all "
    "steps write sc.set_step(net, 'multi'); else call the network once for each step"
)


def _batch_as_time(net: nn.Module, inputs: Tensor, batch: int) -> str:
    """So it is for inputs ``[B, ...]`` without an encoder. It is right for one sequence with a target for each step."""
    names = _without_time(_layers(net))
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


def _layers(net: nn.Module) -> List[Tuple[str, nn.Module]]:
    """The layers that the network calls, with their names, but for those of samples; itself where that is not known."""
    net = unwrapped(net)
    try:
        calls = [call for call in read(net).calls if call.module is not None and not call.is_folded]
    except NotFollowed:
        calls = []
    return [(call.name or "the network", call.module) for call in calls] or [("the network", net)]


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
    """True for a neuron whose calls are sequences from rest."""
    return _step(layer) == "multi"


def _step(module: nn.Module) -> str:
    """The step mode of a neuron, or of another module with state over time; "" of other modules, and where it carries
    its state from call to call by ``carry_state``.
    """
    neuron = _neuron(module) if isinstance(module, NormNeuron) else module
    return neuron.step if isinstance(neuron, Stateful) and not neuron.carrying else ""
