"""The spiking network of a network of ReLUs: which layers are taken, and what stands in their place.

The mean over time of a value here, times its scale, is the value there. The scale of spikes is the threshold of their
neuron. Weights are multiplied by the scale of what they read, so that theirs is 1; averages and maxima keep it; a sum
of values of different scales multiplies each by its own.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Tuple

import torch
from torch import fx, nn
from torch.nn import functional as F

from spikecore.core.neuron import Neuron
from spikecore.graph import CONVOLUTIONS, NORMS, NOTHING, Call, Graph, Refused, computed, folded, norm_source
from spikecore.layers import TimeBatched
from spikecore.neurons import IF

#: Layers of weights, which are multiplied by the scale of what they read.
_WEIGHTED = (nn.Linear, *CONVOLUTIONS)
#: Layers to which the mean over time is as the value: linear, without weights and without a bias.
_LINEAR = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.Flatten, nn.Unflatten, nn.ZeroPad2d, nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample),
)
_MAXIMA = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
#: Activations that become neurons. A neuron fires once a step at most, which limits its rate as ReLU6 does, at the
#: threshold.
RELUS = (nn.ReLU, nn.ReLU6)
_TAKEN = (*_WEIGHTED, *_LINEAR, *_MAXIMA, *RELUS, *NORMS, *NOTHING)


def _max_pool(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The module of a function of maximum pooling, whose arguments have another order."""

    def make(
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> nn.Module:
        return kind(kernel_size, stride or None, padding, dilation, return_indices, ceil_mode)

    return make


#: Functions and methods of tensors in a ``forward`` -> the module that computes the same.
_FUNCTIONS: Mapping[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((F.relu, torch.relu, "relu"), lambda inplace=False: nn.ReLU()),
    **dict.fromkeys((torch.flatten, "flatten"), lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim)),
    F.relu6: lambda inplace=False: nn.ReLU6(),
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.max_pool1d: _max_pool(nn.MaxPool1d),
    F.max_pool2d: _max_pool(nn.MaxPool2d),
    F.max_pool3d: _max_pool(nn.MaxPool3d),
    F.adaptive_max_pool2d: nn.AdaptiveMaxPool2d,
    F.dropout: lambda p=0.5, training=True, inplace=False: nn.Dropout(p if training else 0.0),
}
#: Frequent layers that are not taken, and the way out.
_NOT_TAKEN = (
    ("Softmax LogSoftmax softmax log_softmax", "leave it out, and apply it to the mean over time, snn(x).mean(0)"),
    (
        "Sigmoid Tanh GELU SiLU LeakyReLU ELU PReLU sigmoid tanh gelu silu leaky_relu",
        "only ReLU and ReLU6 become firing rates: put nn.ReLU there, and train again",
    ),
    ("view reshape size getattr", "to flatten a batch, write x.flatten(1) or nn.Flatten()"),
    ("mean", "for the mean over positions, write nn.AdaptiveAvgPool2d(1) and x.flatten(1)"),
    ("mul sub cat matmul", "values of a network are added, and not combined in another way"),
    ("output", "forward must return the output of the last layer, and nothing else"),
)
_WAYS_OUT = {kind: way_out for kinds, way_out in _NOT_TAKEN for kind in kinds.split()}


def refuse(name: str, kind: str, way_out: str) -> NoReturn:
    """Raise the error for a place that cannot be converted."""
    raise ValueError(f"ann2snn cannot take {name!r} ({kind}): {_WAYS_OUT.get(kind, way_out)}")


# -- what is taken


class Layer:
    """A call of a network that is taken: its name, and a module that computes it; None where it adds two values."""

    def __init__(self, name: str, module: Optional[nn.Module]) -> None:
        self.name, self.module = name, module
        #: Its class; of a parametrised module that of what it was.
        self.kind = None if module is None else next(kind for kind in _TAKEN if isinstance(module, kind))


def layers_of(graph: Graph) -> Dict[Call, Layer]:
    """The calls between input and output. ValueError for one that firing rates do not stand for, by its name."""
    if len(graph.inputs) != 1:
        raise ValueError(f"ann2snn: {type(graph.net).__name__} has {len(graph.inputs)} inputs; give a network of one")
    layers: Dict[Call, Layer] = {}
    for call in graph.calls:
        if call.kind == "output":
            if graph.result not in layers or call.args != (graph.result,):
                refuse(call.name, "output", "")
        elif call.kind != "input":
            times = len([earlier for earlier in layers if earlier.name == call.name])
            name = call.name + (f", call {times + 1}" if times else "")
            layers[call] = Layer(name, _module(graph, call, name))
    if not any(layer.kind in RELUS for layer in layers.values()):
        kind = type(graph.net).__name__
        raise ValueError(f"ann2snn: {kind} has no ReLU, so there is nothing that becomes a neuron")
    return layers


def _module(graph: Graph, call: Call, name: str) -> Optional[nn.Module]:
    """A module that computes a call; None for the sum of two values."""
    if call.summands and all(value.kind != "attribute" for value in call.summands):
        return None
    module, kind = call.module, call.kind if call.kind == "attribute" else call.function
    if module is None:
        make = _FUNCTIONS.get(call.target)
        if make is None or call.inputs != [call.source]:
            refuse(name, kind, "put a layer of torch.nn in its place, or the sum of two layers")
        module = make(*call.args[1:], **call.kwargs)
        if isinstance(module, nn.Dropout) and module.p:
            refuse(name, kind, "it drops in eval(), too: write training=self.training")
    else:
        kind = type(module).__name__
        if call.inputs != [call.source]:
            refuse(name, kind, "it must take one value")
        if call.is_hooked or (call.layer is None and isinstance(module, _TAKEN)):
            kinds = tuple(known for known in _TAKEN if isinstance(module, known)) or (type(module),)
            graph.check_plain(call, kinds, "firing rates would not stand for it")
    if not isinstance(module, _TAKEN):
        refuse(name, kind, "put one of the layers there that help(sc.ann2snn) lists")
    if isinstance(module, NORMS) and module.running_mean is None:
        refuse(name, kind, "it normalises by the statistics of a batch: set track_running_stats=True, and train again")
    if getattr(module, "return_indices", False):
        refuse(name, kind, "set return_indices=False")
    return module


# -- the maximum of rates


class RunningSum(Neuron):
    """The sum of the input over the steps so far: ``s' = s + x``."""

    states = {"s": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        total = s.s + x
        return total, {"s": total}


class Increment(Neuron):
    """The change of the input since the step before: ``x - before``."""

    states = {"before": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        return x - s.before, {"before": x}


def maximum_of_rates(pool: nn.Module) -> nn.Module:
    """Maximum pooling of spike trains: of the numbers of spikes so far, and of these the increments.

    After every step as many spikes left it as the neuron of most spikes in the window has fired. Each number of spikes
    grows by 0 or 1 a step, and so does the largest: increments are spikes.
    """
    return nn.Sequential(RunningSum(), TimeBatched(pool), Increment())


# -- the spiking network


@dataclass(eq=False)
class _Step:
    """One step of the spiking network.

    does: a module, a number that it multiplies by, or None where it adds two values.
    reads: the steps that it reads.
    scale: the mean over time of its value, times this, is the value in the network of ReLUs.
    has_time: whether its value has time; that of the input has none, and is the same at every step.
    """

    name: str
    does: Any
    reads: Tuple[_Step, ...]
    scale: float
    has_time: bool

    @property
    def is_layer(self) -> bool:
        """Tell whether it is a module without state."""
        return isinstance(self.does, _TAKEN)

    def unscaled(self) -> _Step:
        """Its value times its scale."""
        return self if self.scale == 1.0 else _Step(self.name, self.scale, (self,), 1.0, self.has_time)


def folds(graph: Graph, layers: Mapping[Call, Layer], shapes: Mapping[Call, Tuple[int, ...]]) -> Dict[Call, Call]:
    """The normalisations that can be folded into the layer before them, and the calls of that layer."""
    sources: Dict[Call, Call] = {}
    for call, layer in layers.items():
        if layer.kind in NORMS:
            try:
                sources[call] = norm_source(graph, call, shapes, _WEIGHTED)
            except Refused:
                continue  # it stays a layer
    return sources


@torch.no_grad()
def spiking(
    graph: Graph,
    layers: Mapping[Call, Layer],
    folded_into: Mapping[Call, Call],
    shapes: Mapping[Call, Tuple[int, ...]],
    thresholds: Mapping[str, float],
    steps: int,
) -> Tuple[nn.Module, float]:
    """The spiking network, in ``eval()``, and the scale of its output."""
    norms = {source: norm.module for norm, source in folded_into.items()}
    known = {graph.inputs[0]: _Step("x", None, (), 1.0, False)}
    for call, layer in layers.items():
        if layer.module is None:
            known[call] = _sum(layer.name, [(known[value], len(shapes[value])) for value in call.summands])
            continue
        read: _Step = known[call.source]  # type: ignore[index]  # layers read one value
        name, does, scale = layer.name, computed(layer.module), read.scale
        if layer.kind in NOTHING or call in folded_into:
            known[call] = read
            continue
        if layer.kind in _WEIGHTED:
            does = folded(does, norms[call]) if call in norms else does
            does.weight.mul_(scale)  # type: ignore[operator]  # a tensor
            scale = 1.0
        elif layer.kind in NORMS:
            read, scale = read.unscaled(), 1.0
        elif layer.kind in _MAXIMA and read.has_time:
            does = maximum_of_rates(does)
        elif layer.kind in RELUS:
            read, scale = read.unscaled(), thresholds[name]
            does = IF(threshold=scale, reset="soft", v_reset=scale / 2, repeat=None if read.has_time else steps)
        known[call] = _Step(name, does, (read,), scale, read.has_time or layer.kind in RELUS)
    result = known[graph.result]  # type: ignore[index]  # checked
    if not result.has_time:
        raise ValueError(f"ann2snn: the output of {type(graph.net).__name__} does not depend on a ReLU")
    return _network(_in_order(result)).eval(), result.scale


def _sum(name: str, values: List[Tuple[_Step, int]]) -> _Step:
    """The step that adds two values of so many dimensions."""
    (a, dims), (b, others) = values
    if dims != others:
        refuse(name, "sum", f"it adds values of {dims} and of {others} dimensions: give both as many")
    if a.scale != b.scale:
        a, b = a.unscaled(), b.unscaled()
    return _Step(name, None, (a, b), a.scale, a.has_time or b.has_time)


def _in_order(result: _Step) -> List[_Step]:
    """The steps that a result depends on, each behind those that it reads."""
    order: List[_Step] = []
    waiting = [result]
    while waiting:
        step = waiting[-1]
        missing = [read for read in step.reads if read not in order]
        if missing:
            waiting += missing[:1]
        else:
            waiting.pop()
            order += [] if step in order else [step]
    return order


def _network(steps: List[_Step]) -> nn.Module:
    """A module of these steps: a chain is an ``nn.Sequential``, others have a graph of torch.fx."""
    readers = {step: sum(other.reads.count(step) for other in steps) for step in steps}
    groups: List[List[_Step]] = []
    for step in steps[1:]:
        before = groups[-1][-1] if groups else steps[0]
        joins = step.is_layer and before.is_layer and step.reads == (before,) and readers[before] == 1
        if joins and step.has_time == before.has_time:
            groups[-1].append(step)
        else:
            groups.append([step])
    last = [steps[0], *(group[-1] for group in groups)]
    modules = [_made(group) for group in groups]
    if all(module is not None and group[0].reads == (read,) for module, group, read in zip(modules, groups, last)):
        return nn.Sequential(*modules)  # type: ignore[arg-type]  # none is None
    graph, root = fx.Graph(), nn.Module()
    nodes = {steps[0]: graph.placeholder("x")}
    for number, (group, module) in enumerate(zip(groups, modules)):
        args = tuple(nodes[read] for read in group[0].reads)
        if module is not None:
            # a number in front: it is no name of Python, and no attribute of a module
            name = f"{number}_" + re.sub(r"[^A-Za-z0-9]+", "_", group[-1].name)
            root.add_module(name, module)
            nodes[group[-1]] = graph.call_module(name, args)
        elif len(args) == 2:
            nodes[group[-1]] = graph.call_function(operator.add, args)
        else:
            nodes[group[-1]] = graph.call_function(operator.mul, (*args, group[-1].does))
    graph.output(nodes[steps[-1]])
    return fx.GraphModule(root, graph, "Spiking")


def _made(group: List[_Step]) -> Optional[nn.Module]:
    """The module of some layers, or of a neuron; None of a factor or a sum."""
    modules: List[Any] = [step.does for step in group]
    if not isinstance(modules[0], nn.Module):
        return None
    if not group[0].is_layer:
        return modules[0]
    if group[0].has_time:
        return TimeBatched(*modules)
    return nn.Sequential(*modules) if len(modules) > 1 else modules[0]
