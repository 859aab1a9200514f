"""What would make a network faster or smaller, from what was seen, in the order of what it is worth."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from torch import nn

from spikecore._explain._layers import OWN, REPEATED, Layer
from spikecore._explain._normalised import behind_norms
from spikecore._explain._shown import size
from spikecore._explain._trials import USABLE, Calls, is_saturated, is_silent, tried
from spikecore._plugins.selection import REFERENCE, automatic_order
from spikecore._shell.state import Stateful
from spikecore.layers._packed import packable
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent

#: Copies of fewer bytes than this part of what the network's layers give are not worth a sentence.
_SMALL = 0.01
_IMAGES = (nn.Conv2d, nn.ConvTranspose2d)


class Setting(NamedTuple):
    """What a run was like, beside its layers."""

    device_type: str
    training: bool
    autocast: bool
    net: nn.Module
    #: The module of each layer, and what computed its first input, if a module did.
    modules: Tuple[nn.Module, ...]
    sources: Tuple[Optional[nn.Module], ...]
    #: What each was given, of a layer of neurons that fires at no step, or at each.
    samples: Tuple[Optional[Calls], ...]
    #: Where numbers stop being finite, and what to do; "" where they are finite.
    not_finite: str


def advice(layers: Sequence[Layer], setting: Setting) -> Tuple[str, ...]:
    """Sentences, the most valuable first."""
    return tuple(text for rule in _RULES for text in rule(layers, setting))


def _reference(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Neurons that run as operations of torch, though a kernel could compute them."""
    slow = [layer for layer in layers if layer.backend == REFERENCE]
    order = automatic_order(setting.device_type)
    if not slow:
        return []
    faster = next((name for name in order if name != REFERENCE), "")
    words = max((layer.words / layer.floor for layer in slow if layer.words and layer.floor), default=0.0)
    moved = f", where {words:.0f} times the least possible was moved" if words > 2 else ""
    what = f"{_named(slow)} ran step by step on the reference backend {REFERENCE!r}{moved}"
    if faster:
        return [f"{what}: backend {faster!r}, which is installed, computes all steps in one kernel"]
    plugin = {"cpu": "the plugin spikecore-numba", "cuda": "spikecore[cuda12] or spikecore[cuda13]"}
    if setting.device_type in plugin:
        return [f"{what}: {plugin[setting.device_type]} has kernels that compute all steps at once"]
    return []


def _repeated(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Layers that compute the same for every time step."""
    found = [layer for layer in layers if layer.repeated]
    if not found:
        return []
    steps, products = found[0].steps, sum(layer.products for layer in layers)
    share = sum(layer.products for layer in found) / products if products else 0.0
    part = f", {100 * share:.0f} % of the multiplications of linear layers and convolutions" if share else ""
    return [
        f"{_named(found)} computed the same {steps} times{part}: sc.hoist(net) moves sc.encode.Constant({steps}) "
        "behind layers that see no time; elsewhere give them x without time, and the neuron behind them "
        f"repeat={steps}"
    ]


def _single_steps(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Neurons that are called for each step."""
    found = []
    for layer, module in zip(layers, setting.modules):
        if isinstance(module, Stateful) and (module.step == "single" or (layer.calls > 1 and layer.shape[:1] == (1,))):
            found.append(layer)
    if not found:
        return []
    calls = max(layer.calls for layer in found)
    often = f", {calls} times in this run" if calls > 1 else ""
    return [
        f"{_named(found)} {_verb(found, 'was', 'were')} called for one time step at a time{often}, each with the cost "
        "of a call: with step='multi' and input [T, B, ...] all steps are one kernel, and sc.layers.TimeBatched takes "
        "all of them through the other layers at once"
    ]


def _batch_as_time(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Neurons that may be called in a loop over time, and take the batch for time."""
    found = []
    for layer, module in zip(layers, setting.modules):
        multi = isinstance(module, Stateful) and module.step == "multi" and not module.carrying
        if multi and layer.calls > 1 and layer.shape[:1] != (1,):
            found.append(layer)
    if not found:
        return []
    first = found[0]
    return [
        f"{_named(found)} {_verb(found, 'was', 'were')} called {first.calls} times, each time with dimension "
        f"0, of size {first.shape[0]}, as time. If these calls are the time steps, that is the batch, and "
        "the numbers are wrong: give all steps in one call, [T, B, ...], or take one step a call, after "
        "sc.set_step(net, 'single')"
    ]


def _recurrent(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Loops over time that nothing can take away, but whose launches a graph can."""
    found = [layer for layer, module in zip(layers, setting.modules) if isinstance(module, Recurrent)]
    if not found or setting.device_type != "cuda":
        return []
    return [
        f"{_named(found)} {_verb(found, 'runs its', 'run their')} steps one after the other, several kernels each, "
        "which the host launches: sc.training_model with sc.CudaOptions(graph=True) records the step once and replays "
        "it"
    ]


def _copied(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Copies of whole activations, but those that another advice takes away."""
    largest = max((_numbers(layer) for layer in layers), default=0)
    found: List[Tuple[int, str]] = []
    for layer in layers:
        found += [
            (one.bytes, f"{layer.name or layer.kind} ({one.when}): {one.reason}")
            for one in layer.copies
            if one.bytes > _SMALL * largest > 0 and not (one.converts or REPEATED in one.reason or OWN in one.reason)
        ]
    if not found:
        return []
    found.sort(reverse=True)
    text = "; ".join(said for _, said in found[:3]) + ("; ..." if len(found) > 3 else "")
    return [
        f"{size(sum(count for count, _ in found))} were copied to lay them out anew: {text}. Make the data lie as "
        "[T, B, ...] once, before the network, and let all layers keep one memory format"
    ]


def _channels_last(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Convolutions of images on a GPU that are not given channels-last images."""
    found = [
        layer
        for layer, module in zip(layers, setting.modules)
        if isinstance(module, _IMAGES) and "channels-last" not in layer.layout_in
    ]
    # one channel, or one pixel, lies in both ways at once
    found = [layer for layer in found if not layer.layout_in.startswith("empty")]
    if not found or setting.device_type != "cuda":
        return []
    return [
        f"{_named(found)} got images that are not channels-last, which the convolutions of a GPU are made for: "
        "net.to(memory_format=torch.channels_last), and the images as well; neurons take either without a copy"
    ]


def _autocast(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Products in float32 on a GPU."""
    found = [layer for layer in layers if layer.products and layer.dtype == "float32"]
    if not found or setting.autocast or setting.device_type != "cuda":
        return []
    return [
        f"{_named(found)} computed in float32: sc.TrainingOptions(autocast=torch.bfloat16), or torch.autocast, halves "
        "what is moved and uses the tensor cores; states of neurons stay float32"
    ]


def _whole_steps(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """What a compiler and a graph can do on a GPU."""
    if setting.device_type != "cuda" or not setting.training or len(layers) < 3:
        return []
    return [
        "sc.training_model with sc.CudaOptions(fast=True) compiles the network, which makes normalisation, pooling and "
        "what lies between the layers cheap, and captures the step, which takes the host out of it; it is "
        "channels-last, too, and its attribute form says what could not be"
    ]


def _packed(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Spikes that layers keep for the gradients of their weights."""
    placed = zip(layers, setting.modules)
    spikes = sum(layer.saved_spikes for layer, module in placed if type(module) in (nn.Linear, nn.Conv2d))
    saved = sum(layer.saved for layer in layers)
    if not spikes or spikes < _SMALL * saved:
        return []
    way = "sc.pack(net), or sc.TrainingOptions(pack_spikes=True)"
    if not packable(setting.net):
        way = "sc.layers.PackedLinear and sc.layers.PackedConv2d in the place of torch's"
    return [f"{size(spikes)} of the {size(saved)} kept for backward are spikes, for which a bit each is enough: {way}"]


def _apart(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Batch normalisation that a neuron's kernel could compute, too."""
    if not setting.training:
        return []
    placed = list(zip(layers, setting.modules, setting.sources))
    fused, by_hand = behind_norms(setting.net, placed, setting.device_type)
    ways = [
        (fused, "sc.fuse(net)"),
        (by_hand, "sc.layers.NormNeuron(norm, neuron) in the place of both, where a forward of your own calls them"),
    ]
    brings = " (on a CPU that saves memory, and no time)" if setting.device_type == "cpu" else ""
    return [
        f"{_named(found)} {_verb(found, 'follows', 'follow')} a batch normalisation, which one kernel can compute as "
        f"well, so that nothing normalised is kept for backward{brings}: {way}"
        for found, way in ways
        if found
    ]


def _learnt(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Parameters of neurons that are learnt for each channel or neuron."""
    named: List[str] = []
    for layer, module in zip(layers, setting.modules):
        if setting.training and isinstance(module, Neuron):
            own = [name for name, value in module.named_parameters(recurse=False) if value.numel() > 1]
            named += [f"{name} of {layer.name or layer.kind}" for name in own]
    if not named:
        return []
    return [
        f"{_listed(named)} {_verb(named, 'is', 'are')} learnt for each channel or neuron, so that backward adds up "
        "gradients over all steps and the batch; one number for all (as PLIF has) costs less where it will do"
    ]


def _not_finite(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """NaN and infinities: the network learns nothing, and its rates say nothing."""
    return [setting.not_finite] if setting.not_finite else []


def _silent(layers: Sequence[Layer], setting: Setting) -> List[str]:
    """Layers that never fire, or always: the network learns nothing there, at whatever speed."""
    if setting.not_finite:
        return []
    kinds = []
    for is_extreme, meaning in (
        (is_silent, "next to nothing comes out"),
        (is_saturated, "the spikes say nothing about the input"),
    ):
        found = [i for i, layer in enumerate(layers) if layer.rate is not None and is_extreme(layer.rate)]
        if found:
            kinds.append((found, meaning))
    if not kinds:
        return []
    kinds.sort()  # the kind of the first layer comes first
    texts = []
    for found, meaning in kinds:
        who = _listed([f"{_named([layers[i]])} {_how_often(layers[i].rate or 0.0)}" for i in found])
        texts.append(f"{who} on this batch, so that {meaning}")
    texts.append(_way_out(kinds[0][0][0], layers, setting))
    if sum(len(found) for found, _ in kinds) > 1:
        texts.append("Then explain the network again: the layers behind it get other spikes")
    return [". ".join(texts)]


def _how_often(rate: float) -> str:
    exact = {0.0: "never fired", 1.0: "fired at every step"}
    return exact.get(rate) or f"fired at {100 * rate:.3g} % of all steps"


def _way_out(index: int, layers: Sequence[Layer], setting: Setting) -> str:
    """What brings the rate of a layer into a usable range, as it was tried."""
    module, sample = setting.modules[index], setting.samples[index]
    name = _named([layers[index]])
    if not sample or not isinstance(module, Stateful):
        return f"Nothing was tried for {name}, because its calls do not begin at rest"
    low, high = USABLE
    trials = tried(module, sample, silent=is_silent(layers[index].rate or 0.0))
    if trials:
        told = [f"{trial.setting} gives a rate of {trial.rate:.2f}" for trial in trials]
        return f"Tried for {name}, one at a time, on the input that it had: {'; '.join(told)}"
    x = sample[0][0].float()
    if not bool(x.any()):
        return f"The input of {name} is 0 at every step, so that no setting helps: look at what lies in front of it"
    return (
        f"None of the parameters and settings of {name}, and no larger or smaller input, changed alone, gives a rate "
        f"of {low:g} to {high:g}; its input lies between {float(x.min()):.3g} and {float(x.max()):.3g}, and is "
        f"{float(x.mean()):.3g} on average"
    )


_RULES: Tuple[Callable[[Sequence[Layer], Setting], List[str]], ...] = (
    # first what is wrong, then what is slow
    _not_finite,
    _batch_as_time,
    _silent,
    _reference,
    _repeated,
    _single_steps,
    _recurrent,
    _copied,
    _channels_last,
    _autocast,
    _apart,
    _whole_steps,
    _packed,
    _learnt,
)


def _named(layers: Sequence[Layer]) -> str:
    return _listed([f"{layer.name} ({layer.kind})" if layer.name else layer.kind for layer in layers])


def _verb(subjects: Sequence[Any], one: str, several: str) -> str:
    return one if len(subjects) == 1 else several


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown, more = ", ".join(names[:3]), len(names) - 3
    return f"{shown} and {more} more" if more > 0 else shown


def _numbers(layer: Layer) -> int:
    count = 1
    for length in layer.shape:
        count *= length
    return 4 * count
