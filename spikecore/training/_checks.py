"""Checks of a training step: its loss, its optimiser, and mistakes that the recorded run of the first step proves."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Iterator, List

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore import losses
from spikecore.batches import flattened
from spikecore.context import is_plain
from spikecore.core.modules import is_compiled, unwrapped
from spikecore.core.neuron import Neuron
from spikecore.encode import Latency, Poisson
from spikecore.graph import layer_of
from spikecore.inspect.errors import layers_of, step_of, without_time
from spikecore.inspect.record import Call, neuron_of, record, spiking_outputs
from spikecore.layers import Delay
from spikecore.words import listed, shown

#: The steps in which layers that were silent in the first one are looked at again.
LOOKS = (30, 100)
#: The part of the inputs of an encoder that may be outside of its range without a word.
_OUTSIDE = 0.1
#: Losses of torch that repeat targets ``[B, C]`` for outputs ``[T, B, C]``.
_BY_ELEMENT = (
    *(nn.HuberLoss, nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss),
    *(F.huber_loss, F.l1_loss, F.mse_loss, F.smooth_l1_loss),
)
#: Losses of torch on outputs ``[B, C]`` and classes ``[B]``.
_OF_CLASSES = (nn.CrossEntropyLoss, nn.MultiMarginLoss, nn.NLLLoss, F.cross_entropy, F.multi_margin_loss, F.nll_loss)
#: Losses of spikes.
_OF_SPIKES = (losses.ce_count, losses.ce_temporal, losses.first_spike, losses.mse_count, losses.mse_temporal)
#: Words on neurons of single steps that get all of them.
_SINGLE = (
    "The neurons have step='single': a call is one time step, and they take all of inputs for it. For calls of all "
    "steps write sc.set_step(net, 'multi'); else call the network once for each step"
)


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


def of_loss(net: nn.Module, loss: Any, inputs: Any, outputs: Any, targets: Any, error: Exception) -> str:
    """Advice for an error of a loss that sizes explain; "" for another error."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim > 1):
        return ""
    kind = _kind_of(loss)
    takes_classes = kind in _OF_CLASSES or "Expected target size" in str(error)  # torch's, of a loss in a function
    if outputs.ndim == 3 and targets.shape == outputs.shape[:2] and takes_classes:
        return (
            f"targets {list(targets.shape)} are a class for each step of outputs [T, B, C] = {list(outputs.shape)}, "
            "and a loss of torch takes outputs [B, C]; write loss=lambda outputs, targets: F.cross_entropy("
            "outputs.flatten(0, 1), targets.flatten())"
        )
    if targets.ndim != 1:
        return ""
    batch, steps = len(targets), {step_of(module) for module in net.modules()}
    if isinstance(inputs, Tensor) and inputs.ndim > 2 and "multi" in steps:
        length = outputs.shape[0 if outputs.ndim == 2 else 1]
        if inputs.shape[0] == batch != inputs.shape[1] == length:
            return (
                f"there are {batch} targets, and neurons take dimension 0 of inputs {list(inputs.shape)} for time: "
                "they seem to be [B, T, ...]; give inputs.transpose(0, 1), or sc.DataLoader(..., time_first=True)"
            )
    if outputs.ndim != 3 or kind not in _OF_CLASSES or outputs.shape[1] != batch:
        return ""
    text = (
        f"loss={kind.__name__} takes outputs [B, C], without time, and got [T, B, C] = {list(outputs.shape)} for "
        f"targets [B] = {[batch]}; use a loss over time, such as spikecore.losses.ce_count for spikes or "
        "ce_max_membrane for a membrane, or give it a mean over time: loss=lambda outputs, targets: "
        "your_loss(outputs.mean(0), targets)"
    )
    return f"{text}. {_SINGLE}" if "single" in steps and "multi" not in steps else text


def _kind_of(loss: Any) -> Any:
    """The class of torch that says what a loss computes, None for another module; else its function."""
    if isinstance(loss, nn.Module):
        return layer_of(loss)
    return loss.func if isinstance(loss, functools.partial) else loss


# -- hints of the first step


@contextmanager
def calls_of_neurons(net: nn.Module, looks: bool) -> Iterator[List[Call]]:
    """The calls of neurons in the block, and of other modules with a step mode: without the numbers of the first input,
    and with ``looks``, of a layer that spikes, with a flag for any spike in the place of the output.

    There is none of a network with a part that is compiled, which a hook would compile once more.
    """
    calls: List[Call] = []

    def note(call: Call) -> None:
        spiking = spiking_outputs(call.layer) if looks else ()
        spikes = [output for number, output in enumerate(call.outputs) if number in spiking]
        looked_at = bool(spikes) and all(map(is_plain, spikes))
        fired = torch.stack([output.detach().any() for output in spikes]).any() if looked_at else None
        step = _step(call.layer)
        for x in call.inputs[:1]:
            sizes = torch.empty(x.shape, device="meta", requires_grad=x.requires_grad)
            calls.append(replace(call, inputs=(sizes,), output=fired, step=step))

    every = () if is_compiled(net) else net.named_modules()
    layers = [(name, module) for name, module in every if _step(module) or spiking_outputs(module)]
    with record(net, layers=layers, ends=note):
        yield calls


def _title(call: Call) -> str:
    return call.title if call.name else f"the network ({call.title})"


def _step(module: nn.Module) -> str:
    """The step mode of a module; "" of one that makes time, or carries its state."""
    return "" if getattr(module, "makes_time", False) else step_of(module)


def silent_layers(calls: List[Call]) -> List[str]:
    """The layers of spiking neurons that gave no spike in these calls. It waits for the device."""
    fired = [(_title(call), bool(call.output)) for call in calls if call.output is not None]
    return [title for title in dict.fromkeys(title for title, _ in fired) if (title, True) not in fired]


def still_silent(before: List[str], calls: List[Call], step: int) -> List[str]:
    """Warnings after a step of :data:`LOOKS`: the layers that gave no spike in the first step, either.

    In the first step silence is usual: weights of torch's defaults are small, and surrogates raise them. Behind a layer
    that fires, the next one may wake up in the last look; where none fires before it, something is wrong.
    """
    if step < LOOKS[-1] and any(bool(call.output) for call in calls if call.output is not None):
        return []
    now = silent_layers(calls)
    names = ", ".join(name for name in before if name in now)
    text = (
        f"{names} gave no spike in the batches of steps 1 and {step}: nothing of the input passes, and the network may "
        "never learn. print(sc.explain(net, x)) says how often each layer fires, and why. decay_input=False where tau "
        "is large, and sc.functional.calibrate(net, x) make layers fire; where factors are large, the learning rate "
        "must grow with them"
    )
    return [text] if names else []


def of_first_step(
    net: nn.Module, loss: Any, optimizer: Any, calls: List[Call], inputs: Any, outputs: Any, targets: Any
) -> List[str]:
    """Warnings after the first step."""
    calls = [call for call in calls if call.step]
    texts = (
        _of_parameters(net, optimizer),
        _of_decay(net, optimizer),
        _of_time(net, calls, inputs, outputs, targets),
        _of_places(calls),
        _of_gradients(calls),
        _of_sizes(net, calls),
        _of_encoder(net, inputs),
        _of_values(loss, outputs, targets),
    )
    return [text for text in texts if text]


def _of_parameters(net: nn.Module, optimizer: Any) -> str:
    """Parameters of the network that the optimiser lacks, where it holds others that the network has not."""
    in_optimizer = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = dict(unwrapped(net).named_parameters())
    left_out = [
        name for name, parameter in named.items() if parameter.requires_grad and id(parameter) not in in_optimizer
    ]
    others = len(in_optimizer - set(map(id, named.values())))
    if not (left_out and others):
        return ""
    return (
        f"{type(optimizer).__name__} does not hold {listed(left_out)}, and holds {others} parameters that the "
        "network has not: was it made before a layer was replaced? The former are not trained. Make it "
        "after all layers are there. If they shall stay, set requires_grad=False on them"
    )


def _of_decay(net: nn.Module, optimizer: Any) -> str:
    """Learnt parameters of neurons and delays that the optimiser decays."""
    groups = [group for group in optimizer.param_groups if group.get("weight_decay")]
    decays = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    decayed = {
        f"{place}.{name}".lstrip("."): decays[id(parameter)]
        for place, module in unwrapped(net).named_modules()
        if isinstance(module, (Neuron, Delay))
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad and id(parameter) in decays
    }
    if not decayed:
        return ""
    decay = next(iter(decayed.values()))
    return (
        f"{type(optimizer).__name__} decays {listed([*decayed])}: weight_decay={decay:g} pulls these towards 0, most "
        "of all where a layer is silent and has no gradient. Give the optimiser sc.functional.parameter_groups(net, "
        "weight_decay=...), which leaves out what is no weight. If they shall decay, this is right"
    )


def _of_time(net: nn.Module, calls: List[Call], inputs: Any, outputs: Any, targets: Any) -> str:
    """Sizes that prove that neurons took something else for time than ``[T, B, ...]``. Targets ``[B]`` say how many
    samples there are.
    """
    outputs = next(iter(flattened(outputs)), None)  # the spikes of (spikes, membrane)
    if not all(isinstance(value, Tensor) for value in (inputs, outputs, targets)) or targets.is_floating_point():
        return ""
    if targets.ndim != 1 or len(targets) < 2 or not calls:
        return ""
    steps, shapes, batch = {call.step for call in calls}, [call.inputs[0].shape for call in calls], len(targets)
    counts = Counter(map(_title, calls))
    if steps == {"multi"} and outputs.shape[0 if outputs.ndim == 2 else 1 :][:1] == (batch,):
        # a neuron that got [T, B, ...] with T = B is no proof
        if not all(shape[:1] == (batch,) != shape[1:2] or shape == (batch, batch) for shape in shapes):
            return ""
        title, count = next(((title, count) for title, count in counts.items() if count > 1), ("", 0))
        if title:
            return (
                f"{title} was called {count} times in this step, each time with dimension 0, of size {batch}, as time, "
                f"and there are {batch} targets. If the calls are the time steps, that is the batch, and the numbers "
                "are wrong: give all steps in one call, [T, B, ...], which sc.encode.Constant(T) makes of one step, or "
                "take one step a call, after sc.set_step(net, 'single')"
            )
        return _batch_as_time(net, inputs, batch) if outputs.ndim == 2 else ""
    if steps == {"single"} and inputs.ndim > 2 and len(inputs) != batch:
        takes_all = len(calls) == len(counts) and all(shape[:2] == (len(inputs), batch) for shape in shapes)
        return f"inputs {list(inputs.shape)} for {batch} targets are [T, B, ...]. {_SINGLE}" if takes_all else ""
    return ""


def _of_places(calls: List[Call]) -> str:
    """A neuron that carries its state and is called several times as often as another one."""
    counts = Counter(_title(call) for call in calls if call.step == "single")
    fewest = min(counts.values(), default=1)
    for title, count in counts.items():
        if count > fewest and count % fewest == 0:
            return (
                f"{title} carries its state and was called {count} times in this step, and other neurons {fewest} "
                "times. If it is called at several places of the network, each call goes on from the state of another "
                "place, and the numbers are wrong: make a neuron for each place. If it takes several time steps for "
                "one of the others, this is right"
            )
    return ""


def _batch_as_time(net: nn.Module, inputs: Tensor, batch: int) -> str:
    """Inputs ``[B, ...]`` without an encoder. They are right for one sequence with a target for each step."""
    names = without_time(net)
    within = f" and {names} into sc.layers.TimeBatched" if names else ""
    return (
        f"the network takes dimension 0 of inputs {list(inputs.shape)} for time, and each of the {batch} "
        "targets is compared with one time step of one sample. If it is the batch, the numbers are wrong: put "
        f"sc.encode.Constant(T) in front of the network{within}, and use a loss over time, such as "
        "spikecore.losses.ce_count. For one sequence with a target for each step this is right, and inputs "
        "[T, 1, ...], with outputs.squeeze(1) in the loss, say so without this warning"
    )


def _of_gradients(calls: List[Call]) -> str:
    """Neurons of the user's own whose output has no gradient, although their input has one."""
    for call in calls:
        neuron = neuron_of(call.layer) if call.inputs[0].requires_grad else None
        program = None if neuron is None else neuron.program
        leaves = program.reach([True] * len(program.outputs), (), False).leaves if program else ()
        if program and all(leaf.op != "input" for leaf in leaves):
            return (
                f"{_title(call)} passes no gradient from its output to its input, so that nothing before it learns: "
                "sc.ops.where(h >= 1.0, 1.0, 0.0) and sc.ops.detach are numbers without a gradient; write "
                "self.spike(h - 1.0) for a spike"
            )
    return ""


def _of_sizes(net: nn.Module, calls: List[Call]) -> str:
    """Time constants that are the numbers of channels, of every neuron with one: they were meant as sizes."""
    with_tau = [call for call in calls if isinstance(getattr(neuron_of(call.layer), "tau", None), float)]
    if not with_tau or not all(map(_is_size, with_tau)):
        return ""
    neuron, names = neuron_of(with_tau[0].layer), {module: name for name, module in net.named_modules()}
    size, kind = f"{neuron.tau:g}", type(neuron).__name__
    return (
        f"{names.get(neuron) or 'the network'} ({kind}) has tau={size}, and its input has {size} channels. Neurons "
        f"have no size: if {size} was meant as one, write sc.{kind}(), since with a time constant of {size} steps it "
        "hardly fires. If it is the time constant, this is right"
    )


def _is_size(call: Call) -> bool:
    """True if ``tau`` is the number of channels, and none of the small numbers that time constants usually are."""
    neuron, shape = neuron_of(call.layer), call.inputs[0].shape[1 if call.step == "multi" else 0 :]
    return len(shape) > neuron.channel_dim and bool(neuron.tau == shape[neuron.channel_dim] >= 8)


def _of_encoder(net: nn.Module, inputs: Any) -> str:
    """Inputs of a first layer ``Poisson`` or ``Latency`` that it clamps: images of bytes, or normalised ones."""
    if not any(isinstance(part, (Poisson, Latency)) for part in net.modules()):
        return ""  # reading a network runs its forward: not in each first step
    (name, first), *_ = layers_of(net)
    is_encoder = isinstance(first, (Poisson, Latency))
    if not (is_encoder and isinstance(inputs, Tensor) and inputs.numel() and _is_readable(inputs)):
        return ""
    x = inputs.detach().float() * getattr(first, "gain", 1.0) + getattr(first, "offset", 0.0)
    outside = ((x < 0) | (x > 1)).float().mean().item()
    if outside <= _OUTSIDE:
        return ""
    return (
        f"{name} ({type(first).__name__}) is for values from 0 to 1, and {100 * outside:.0f} % of its input are "
        f"outside, from {x.min():g} to {x.max():g}: they count as 0 or 1. Scale the inputs, x / 255 for images of "
        "bytes, or leave out what makes their mean 0; sc.encode.Constant takes any values"
    )


def _is_readable(x: Tensor) -> bool:
    """True if numbers can be read on the host, as they cannot while a CUDA graph is captured."""
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _of_values(loss: Any, outputs: Any, targets: Any) -> str:
    """A loss that computes something else than its name says."""
    kind = _kind_of(loss)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return ""
    if kind in (losses.ce_max_membrane, losses.mse_membrane) and _is_readable(outputs):
        spikes = outputs.detach() == 1
        if bool((spikes | (outputs == 0)).all()) and bool(spikes.any()):
            return (
                f"loss={kind.__name__} is one of membrane potentials, and all outputs are 0 or 1, as spikes are. A "
                "membrane is the output of sc.LI() as the last layer, or trace['v'] of spk, state, trace = "
                "lif.run(x, record=('v',)); a loss of spikes is spikecore.losses.ce_count"
            )
    # whole numbers below 0 are spikes of sc.TernaryLIF
    if kind in _OF_SPIKES and _is_readable(outputs) and bool(((outputs < 0) & (outputs != outputs.round())).any()):
        return (
            f"loss={kind.__name__} is one of spikes, and outputs are negative, as membrane potentials are. Losses of "
            "potentials, such as those of sc.LI(), are spikecore.losses.ce_max_membrane, ce_rate and mse_membrane. If "
            "potentials shall count as spikes do, this is right"
        )
    if kind not in _BY_ELEMENT or outputs.ndim != targets.ndim + 1:
        return ""
    return (
        f"loss={kind.__name__} got outputs {list(outputs.shape)} and targets {list(targets.shape)}, which torch "
        "repeats along dimension 0: each time step is compared with them. For the mean over time write loss=lambda "
        "outputs, targets: your_loss(outputs.mean(0), targets); to mean each step, give targets.expand_as(outputs)"
    )
