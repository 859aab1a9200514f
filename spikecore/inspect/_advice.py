"""Advice that makes a network learn, and makes it faster or smaller, the most valuable first."""

from __future__ import annotations

from math import prod
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikecore._plugins.selection import REFERENCE, automatic_order
from spikecore.core.modules import calls_as, foreign_neurons, has_own_hooks
from spikecore.core.neuron import Neuron
from spikecore.core.state import Stepped
from spikecore.encode import Constant
from spikecore.graph import DROPOUTS, Call, Graph, computed_by
from spikecore.inspect._monitor import neuron_of, stateful_of
from spikecore.inspect._report import Layer, size
from spikecore.layers._batch_norm_stats import is_plain_norm
from spikecore.layers._fusable import fusable
from spikecore.layers._norm_neuron import NormNeuron, NormPlace
from spikecore.layers._packed import PackedLinear
from spikecore.layers._packing import packable
from spikecore.layers._stateless import Voting
from spikecore.neurons import Recurrent

#: Bytes that are fewer than this part of what the layers keep are not worth a sentence.
_SMALL = 0.01
_IMAGES = (nn.Conv2d, nn.ConvTranspose2d)

#: A rate that is next to nothing.
_HARDLY = 0.001


class Row(NamedTuple):
    """A layer, its module, and the module that computed its first input.

    ``ranges``: of neurons the least and the largest number of the input; of those that never fire, or always, also of
    each state.
    """

    layer: Layer
    module: nn.Module
    source: Optional[nn.Module]
    ranges: Mapping[str, Tuple[float, float]]


class Run(NamedTuple):
    """Facts of a run: the network, its graph if it can be read, the rows in the order of their calls, and the place
    where numbers stop being finite, "" if nowhere.
    """

    net: nn.Module
    graph: Optional[Graph]
    rows: Sequence[Row]
    device_type: str
    training: bool
    autocast: bool
    spoilt: str

    def where(self, has: Callable[[Layer, Any], Any]) -> List[Row]:
        """The rows for which ``has(layer, module)`` holds."""
        return [row for row in self.rows if has(row.layer, row.module)]


def advice(run: Run) -> Tuple[str, ...]:
    """Sentences, the most valuable first: what is wrong, then what is slow."""
    rules = (
        _not_converted,
        _batch_as_time,
        _silent,
        _reference,
        _repeated,
        _single_steps,
        _recurrent,
        _channels_last,
    )
    later = (_autocast, _fused, _whole_steps, _packed, _learnt)
    return tuple(text for text in (run.spoilt, *[rule(run) for rule in (*rules, *later)]) if text)


# -- what is wrong


def _batch_as_time(run: Run) -> str:
    """Neurons that may be called in a loop over time, and take the batch for time."""

    def may_loop(layer: Layer, module: Any) -> bool:
        stateful = stateful_of(module)
        whole = stateful is not None and stateful.step == "multi" and not stateful.carrying
        return whole and layer.calls > 1 and layer.shape[:1] != (1,)

    rows = run.where(may_loop)
    if not rows:
        return ""
    return (
        f"{_named(rows)} {_verb(rows, 'was', 'were')} called {rows[0].layer.calls} times, each time with dimension "
        f"0, of size {rows[0].layer.shape[0]}, as time. If these calls are the time steps, that is the batch, and "
        "the numbers are wrong: give all steps in one call, [T, B, ...], or take one step a call, after "
        "sc.set_step(net, 'single')"
    )


def _silent(run: Run) -> str:
    """Layers that never fire, or always: the network learns nothing there, at whatever speed."""
    rows = [] if run.spoilt else run.where(lambda layer, module: layer.rate is not None and is_extreme(layer.rate))
    if not rows:
        return ""
    texts = []
    # the kind of the first layer comes first
    for silent in dict.fromkeys([_is_silent(row) for row in rows]):
        who = _listed([f"{_named([row])} {_how_often(row)}" for row in rows if _is_silent(row) is silent])
        means = "next to nothing comes out" if silent else "the spikes say nothing about the input"
        texts.append(f"{who} on this batch, so that {means}")
    texts.append(_way_out(rows[0]))
    if len(rows) > 1:
        texts.append("Then explain the network again: the layers behind it get other spikes")
    return ". ".join(texts)


def is_extreme(rate: float) -> bool:
    """True if a layer hardly ever fires, or at nearly every step."""
    return not _HARDLY <= rate <= 1.0 - _HARDLY


def _is_silent(row: Row) -> bool:
    return (row.layer.rate or 0.0) < 0.5


def _how_often(row: Row) -> str:
    rate = row.layer.rate or 0.0
    return {0.0: "never fired", 1.0: "fired at every step"}.get(rate) or f"fired at {100 * rate:.3g} % of all steps"


def _way_out(row: Row) -> str:
    """Sentences on a layer's input, the range of its states, and settings that change its rate."""
    name, silent, neuron = _named([row]), _is_silent(row), neuron_of(row.module)
    if row.ranges.get("its input") == (0.0, 0.0):
        return f"The input of {name} is 0 at every step, so that no setting helps: look at what lies in front of it"
    before = "the layer before"
    looked_at = ["its input", "v"]
    if isinstance(row.module, NormNeuron):  # it fires by what its normalisation gives
        before = "its normalisation"
        looked_at = ["v"]
    never = [what for what in looked_at if silent and row.ranges.get(what, (0.0, 1.0))[1] <= 0.0]
    if never:
        ways = [f"a higher bias of {before}, because {never[0]} was never positive"]
    else:
        ways = ["a larger input" if silent else "a smaller input"]
        if "threshold" in neuron.params:
            ways.append("a lower threshold" if silent else "a higher threshold")
        if silent and getattr(neuron, "decay_input", False):
            ways.append("decay_input=False, which does not divide the input by the time constant")
    ranges = " and ".join([f"{what} was {low:.3g} to {high:.3g}" for what, (low, high) in row.ranges.items()])
    raises = "raises" if silent else "lowers"
    changes = "" if never else f" The input changes with the weights and the bias of {before}."
    return (
        f"Of {name}, {neuron!r}, {ranges}. What {raises} the rate: {'; '.join(ways)}.{changes} Usual rates are 0.05 to "
        "0.4"
    )


# -- what is slow


def _reference(run: Run) -> str:
    """Neurons that run as operations of torch, though a kernel could compute them."""
    rows = run.where(lambda layer, module: layer.backend == REFERENCE)
    faster = next((name for name in automatic_order(run.device_type) if name != REFERENCE), "")
    plugin = {"cpu": "the plugin spikecore-numba", "cuda": "spikecore[cuda12] or spikecore[cuda13]"}
    if not rows or not (faster or run.device_type in plugin):
        return ""
    words = max((row.layer.words / row.layer.floor for row in rows if row.layer.words and row.layer.floor), default=0)
    moved = f", where {words:.0f} times the least possible is moved" if words > 2 else ""
    way = (
        f"backend {faster!r}, which is installed, computes all steps in one kernel"
        if faster
        else f"{plugin[run.device_type]} has kernels that compute all steps at once"
    )
    return f"{_named(rows)} ran step by step on the reference backend {REFERENCE!r}{moved}: {way}"


def _repeated(run: Run) -> str:
    rows = run.where(lambda layer, module: layer.repeated)
    if not rows:
        return ""
    steps, products = rows[0].layer.steps, sum(row.layer.products for row in run.rows)
    share = sum(row.layer.products for row in rows) / max(1, products)
    part = f", {100 * share:.0f} % of the multiplications of linear layers and convolutions" if share else ""
    way_out = _computed_once(run.graph, steps, run.training) if run.graph else ""
    generic = (
        f"give them one step, [B, ...], and the neuron behind them repeat={steps}, where nothing in between sees time, "
        "as dropout does"
    )
    return f"{_named(rows)} computed the same {steps} times{part}: {way_out or generic}"


def _computed_once(graph: Graph, steps: int, training: bool) -> str:
    """Code with which layers compute one step where all are the same; "" if that is not plain."""
    encoders = [call for call in graph.calls if call.layer is Constant]
    same: Set[Call] = {*(encoders or graph.inputs[:1])}
    layers: List[Call] = []
    neurons: List[Call] = []
    stops: List[Call] = []
    for call in graph.calls:
        if call in same or call.describes or same.isdisjoint(call.inputs):
            continue
        if _can_repeat(call, graph):
            neurons.append(call)
        elif same.issuperset(call.inputs) and _sees_no_time(call):
            same.add(call)
            layers += [call] if call.module is not None else []
        elif not call.summands:  # a sum repeats what has no time
            stops.append(call)
    encoder = f"sc.encode.Constant({steps})"
    if neurons and not stops:
        way = f"leave out {encoder}" if encoders else "give the network x without time, [B, ...],"
        kind = type(neurons[0].module if isinstance(neurons[0].module, Recurrent) else neuron_of(neurons[0].module))
        make = f"make {_called(neurons[0])} {kind.__name__}(repeat={steps})"
        if len(neurons) > 1:
            make = f"give each of {_listed([*map(_called, neurons)])} repeat={steps}"
        return f"{way} and {make}. {_of_one_step(layers, training)}"
    last = computed_by(stops[0].source) if len(stops) == 1 and not neurons else None
    if last in layers:
        way = "move" if encoders else "give the network x without time, [B, ...], and put"
        return f"{way} {encoder} behind {_called(last)}. {_of_one_step(layers, training)}"
    return ""


def _can_repeat(call: Call, graph: Graph) -> bool:
    """Tell whether a neuron can take one step of its only input."""
    module, neuron = call.module, neuron_of(call.module)
    alone = len(call.inputs) == 1 == len(graph.calls_of(module)) and not call.is_hooked
    return neuron is not None and alone and any(calls_as(module, kind) for kind in (Neuron, NormNeuron, Recurrent))


def _sees_no_time(call: Call) -> bool:
    """Tell whether a call gives for one step what it gives for each of many, in training, too."""
    layer, module = call.layer, call.module
    if call.is_hooked or call.is_in_place or module is None or layer is None:
        return not call.is_in_place and (call.function in ("folded", "unfolded_as") or bool(call.summands))
    if isinstance(module, (nn.Flatten, nn.Unflatten)):
        first = module.start_dim if isinstance(module, nn.Flatten) else module.dim
        return isinstance(first, int) and first > (0 if call.is_folded else 1)
    if isinstance(module, (*DROPOUTS, nn.RReLU, Stepped)):
        return False
    of_each = layer in (nn.Linear, nn.LayerNorm, nn.Identity, PackedLinear, NormPlace, Voting)
    of_numbers = layer.__module__ == nn.ReLU.__module__ and not hasattr(module, "dim") and not [*module.parameters()]
    return call.is_folded or of_each or of_numbers


def _of_one_step(layers: Sequence[Call], training: bool) -> str:
    """Code of layers that see no time."""
    text = "The layers in front of it then see one step, [B, ...]"
    if any(call.is_folded for call in layers):
        text += ", without sc.layers.TimeBatched"
    if any(isinstance(call.module, nn.Flatten) and not call.is_folded for call in layers):
        text += ", and nn.Flatten(2) is nn.Flatten(1)"
    if training and any(isinstance(call.module, _BatchNorm) for call in layers):
        text += "; batch normalisation in training takes its running variance from B samples, not from T * B"
    return text


def _called(call: Call) -> str:
    return f"{call.name} ({type(call.module).__name__})" if call.name else type(call.module).__name__


def _single_steps(run: Run) -> str:
    rows = run.where(
        lambda layer, module: (
            stateful_of(module) is not None
            # a module that sc.convert replaced gives its neuron all steps, though that carries its state
            and (
                (stateful_of(module).step == "single" and layer.steps < 2)
                or (layer.calls > 1 and layer.shape[:1] == (1,))
            )
        )
    )
    if not rows:
        return ""
    calls = max(row.layer.calls for row in rows)
    often = f", {calls} times in this run" if calls > 1 else ""
    way_out = (
        "with step='multi' and input [T, B, ...] all steps are one kernel, and sc.layers.TimeBatched takes all of them "
        "through the other layers at once"
    )
    holder = run.net.get_submodule(rows[0].layer.name.rpartition(".")[0])
    if getattr(holder, "is_converted", False):
        steps = hasattr(holder, "step_mode")
        way_out = (
            "functional.set_step_mode(net, 'm') of SpikingJelly gives them all steps in one call"
            if steps
            else "a neuron of snnTorch takes no more; neurons of spikecore take all steps, [T, B, ...]"
        )
    return (
        f"{_named(rows)} {_verb(rows, 'was', 'were')} called for one time step at a time{often}, each with the cost "
        f"of a call: {way_out}"
    )


def _not_converted(run: Run) -> str:
    names = foreign_neurons(run.net)
    if not names:
        return ""
    return (
        f"{_listed(names)} {_verb(names, 'is a neuron', 'are neurons')} of another library, of which no backend, rate "
        "or state is known here: sc.convert(net) has spikecore compute them"
    )


def _recurrent(run: Run) -> str:
    """Loops over time that nothing can take away, but whose launches a graph can."""
    rows = run.where(
        lambda layer, module: isinstance(module, Recurrent) and module.looped and run.device_type == "cuda"
    )
    if not rows:
        return ""
    return (
        f"{_named(rows)} {_verb(rows, 'runs its', 'run their')} steps one after the other, several kernels each, "
        "which the host launches: sc.training_model with sc.CudaOptions(graph=True) records the step once and replays "
        "it"
    )


def _channels_last(run: Run) -> str:
    """Convolutions of images on a GPU that are not given channels-last images."""
    rows = run.where(lambda layer, module: isinstance(module, _IMAGES) and layer.layout_in != "empty")
    rows = [row for row in rows if "channels-last" not in row.layer.layout_in]
    if not rows or run.device_type != "cuda":
        return ""
    return (
        f"{_named(rows)} got images that are not channels-last, which the convolutions of a GPU are made for: "
        "net.to(memory_format=torch.channels_last), and the images as well; neurons take either without a copy"
    )


def _autocast(run: Run) -> str:
    rows = run.where(lambda layer, module: layer.products and layer.dtype == "float32")
    if not rows or run.autocast or run.device_type != "cuda":
        return ""
    return (
        f"{_named(rows)} computed in float32: sc.TrainingOptions(autocast=torch.bfloat16), or torch.autocast, halves "
        "what is moved and uses the tensor cores; states of neurons stay float32"
    )


def _fused(run: Run) -> str:
    """Batch normalisation that a neuron's kernel can compute: by :func:`spikecore.fuse`, or by hand where that cannot
    see it, in a ``forward`` of one's own.
    """
    layers = {row.module: row.layer for row in run.rows}
    pairs = {(pair.norm.module, pair.neuron.module) for pair in fusable(run.net).pairs}
    rows = [row for row in run.rows if run.training and row.source in layers and _normalises_in_kernel(row, run)]
    whole = [row for row in rows if (row.source, row.module) in pairs]
    chosen = whole or [row for row in rows if _follows(row, layers[row.source])]  # type: ignore[index]  # it is one
    if not chosen:
        return ""
    way = "sc.layers.NormNeuron(norm, neuron) in the place of both, where a forward of your own calls them"
    brings = " (on a CPU that saves memory, and no time)" if run.device_type == "cpu" else ""
    return (
        f"{_named(chosen)} {_verb(chosen, 'follows', 'follow')} a batch normalisation, which one kernel can compute as "
        f"well, so that nothing normalised is kept for backward{brings}: {'sc.fuse(net)' if whole else way}"
    )


def _normalises_in_kernel(row: Row, run: Run) -> bool:
    """True if a row is a neuron whose backend has one kernel for it and a normalisation, and uses it: one step repeated
    is normalised once.
    """
    neuron = row.module
    if row.layer.layout_in.startswith("one step repeated") or not isinstance(neuron, Neuron) or len(neuron.inputs) != 1:
        return False
    resolved = neuron.bound.get(run.device_type)
    if resolved is None or resolved.backend.name == REFERENCE:
        return False
    return resolved.backend.capabilities_on(run.device_type).normalisation


def _follows(row: Row, before: Layer) -> bool:
    """True if a neuron gets the output of a plain normalisation of its channels, and nothing stands between them."""
    norm: Any = row.source
    behind = 1 if row.module.step == "single" else 2  # the channels are behind time and batch
    return (
        is_plain_norm(norm)
        and calls_as(row.module, Neuron)
        and not has_own_hooks(row.module)
        # one of them that is called more often stands beside something else, too
        and before.calls == row.layer.calls
        and prod(before.shape) == prod(row.layer.shape)
        and row.layer.shape[behind : behind + 1] == (norm.num_features,)
    )


def _whole_steps(run: Run) -> str:
    """Advice on ``torch.compile`` and CUDA graphs on a GPU."""
    if run.device_type != "cuda" or not run.training or len(run.rows) < 3:
        return ""
    return (
        "sc.training_model with sc.CudaOptions(fast=True) compiles the network, which makes normalisation, pooling and "
        "what lies between the layers cheap, and captures the step, which takes the host out of it; it is "
        "channels-last, too, and its attribute form says what could not be"
    )


def _packed(run: Run) -> str:
    spikes = sum(row.layer.saved_spikes for row in run.rows if type(row.module) in (nn.Linear, nn.Conv2d))
    saved = sum(row.layer.saved for row in run.rows)
    if not spikes or spikes < _SMALL * saved:
        return ""
    way = "sc.layers.PackedLinear and sc.layers.PackedConv2d in the place of torch's"
    if packable(run.net):
        way = "sc.layers.pack(net), or sc.TrainingOptions(pack_spikes=True)"
    return f"{size(spikes)} of the {size(saved)} kept for backward are spikes, for which a bit each is enough: {way}"


def _learnt(run: Run) -> str:
    names: List[str] = []
    for row in run.where(lambda layer, module: run.training and neuron_of(module) is not None):
        learnt = [name for name, value in neuron_of(row.module).named_parameters(recurse=False) if value.numel() > 1]
        names += [f"{name} of {_named([row])}" for name in learnt]
    if not names:
        return ""
    return (
        f"{_listed(names)} {_verb(names, 'is', 'are')} learnt for each channel or neuron, so that backward adds up "
        "gradients over all steps and the batch; one number for all (as PLIF has) costs less where it will do"
    )


def _named(rows: Sequence[Row]) -> str:
    return _listed([f"{row.layer.name} ({row.layer.kind})" if row.layer.name else row.layer.kind for row in rows])


def _verb(subjects: Sequence[Any], singular: str, plural: str) -> str:
    return singular if len(subjects) == 1 else plural


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
