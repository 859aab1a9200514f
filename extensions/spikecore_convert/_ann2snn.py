"""``sc.ann2snn``: a trained network of ReLUs as a spiking network, whose firing rates are the activations."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NoReturn, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikecore.core.checks import whole
from spikecore.core.modules import copy_of, unwrapped
from spikecore.graph import (
    CONVOLUTIONS,
    DROPOUTS,
    NORMS,
    Call,
    Graph,
    NotFollowed,
    Refused,
    check_outputs,
    computed,
    folded,
    norm_source,
    read,
    run,
)
from spikecore.lang.render import on_one_line
from spikecore.layers import TimeBatched
from spikecore.neurons import IF
from spikecore.words import shown

#: Layers of weights: spikes of the neuron before come in here, so its threshold is multiplied into the weight.
_WEIGHTED = (nn.Linear, *CONVOLUTIONS)
#: Layers to which the mean over time is as the value: linear, without weights and without a bias.
_LINEAR = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.Flatten, nn.Unflatten, nn.ZeroPad2d, nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample),
)
#: Activations that become neurons. A neuron fires once a step at most, which limits its rate as ReLU6 does, at the
#: threshold.
_RELU = (nn.ReLU, nn.ReLU6)
_TAKEN = (*_WEIGHTED, *_LINEAR, *_RELU, *NORMS, nn.Identity, *DROPOUTS)
#: Functions and methods of tensors in a ``forward`` -> the module that computes the same.
_FUNCTIONS: Mapping[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((F.relu, torch.relu, "relu"), lambda inplace=False: nn.ReLU()),
    **dict.fromkeys((torch.flatten, "flatten"), lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim)),
    F.relu6: lambda inplace=False: nn.ReLU6(),
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.dropout: lambda p=0.5, training=True, inplace=False: nn.Dropout(p if training else 0.0),
}
#: Frequent layers that are not taken, and the way out.
_NOT_TAKEN = (
    ("MaxPool1d MaxPool2d MaxPool3d AdaptiveMaxPool2d max_pool2d", "put average pooling there, and train again"),
    ("Softmax LogSoftmax softmax log_softmax", "leave it out, and apply it to the mean over time, snn(x).mean(0)"),
    (
        "Sigmoid Tanh GELU SiLU LeakyReLU ELU PReLU sigmoid tanh gelu silu leaky_relu",
        "only ReLU and ReLU6 become firing rates: put nn.ReLU there, and train again",
    ),
    ("view reshape size getattr", "to flatten a batch, write x.flatten(1) or nn.Flatten()"),
    ("output", "forward must return the output of the last layer, and nothing else"),
)
_WAYS_OUT = {kind: way_out for kinds, way_out in _NOT_TAKEN for kind in kinds.split()}
#: Its name, its call, and a module that computes it.
_Layer = Tuple[str, Call, nn.Module]
#: Activations of a layer that are kept from each batch, and in all, to choose the threshold by.
_OF_BATCH, _OF_ALL = 2**15, 2**17


@dataclass(frozen=True)
class Report:
    """Report of :func:`spikecore.ann2snn`. Printed, it is one line for each neuron.

    steps: the number of time steps.
    thresholds: name of a ReLU in the network -> the threshold of its neuron, which is the largest activation that its
        rate can stand for.
    above: name of a ReLU -> the share of its activations above 0 that is above the threshold, from 0 to 1.
    folded: name of a batch normalisation -> the layer whose weights have it now.
    scale: ``out.mean(0) * scale`` stands for the output of the network. 1, unless no weights follow the last ReLU.
    """

    steps: int
    thresholds: Dict[str, float] = field(default_factory=dict)
    above: Dict[str, float] = field(default_factory=dict)
    folded: Dict[str, str] = field(default_factory=dict)
    scale: float = 1.0

    def __str__(self) -> str:
        lines = [f"neurons: {len(self.thresholds)}, steps: {self.steps}"]
        lines += [
            f"  {name}: IF, threshold {threshold:.4g}, {100 * self.above[name]:.2g} % of its activations above it"
            for name, threshold in self.thresholds.items()
        ]
        lines += [f"  {name}: folded into {layer}" for name, layer in self.folded.items()]
        return "\n".join(map(on_one_line, lines))


def ann2snn(
    net: nn.Module, data: Union[Tensor, Iterable[Any]], *, steps: int, quantile: Optional[float] = None
) -> Tuple[nn.Sequential, Report]:
    """A trained network of ReLUs as a spiking network: firing rates stand for activations. Nothing is trained.

    ::

        snn, report = sc.ann2snn(net, loader, steps=4)
        print(report)  # the threshold of each layer
        logits = snn(images).mean(0)  # [B, ...] -> [T, B, classes] -> [B, classes], near net(images)

    Each ReLU becomes ``sc.IF(threshold=theta, reset="soft", v_reset=theta / 2)``, where ``theta`` is taken from the
    activations over ``data``. For a constant input ``a`` it fires, within T steps, so often that::

        theta * spikes / T = theta / T * clip(floor(a T / theta + 1/2), 0, T)

    which is ``a``, rounded to ``theta / T`` and limited to ``theta``. Rounding instead of flooring is what the start at
    half the threshold does. Spikes are 0 and 1; ``theta`` is multiplied into the next layer's weights. Inputs are the
    same at every step, so layers before the first neuron compute once (``repeat=T``). Layers further behind get spikes
    that are not evenly spread over time: their error is larger, and falls with T.

    net: an ``nn.Sequential``, or a module whose ``forward`` calls one layer after the other (``torch.fx`` follows it).
        Layers: ``nn.Linear``, ``nn.Conv1d`` to ``3d``, average pooling, flattening, zero padding, upsampling, ReLU,
        ReLU6, dropout, and batch normalisation right behind a layer of weights, which is folded into these. ``net``
        stays as it is; its weights are copied, and taken as in ``eval()``.
    data: batches for the thresholds: an iterable of tensors, or of tuples that begin with one, such as a DataLoader;
        or one tensor, which is a batch. Some hundreds of samples of the training data are enough.
    steps: T, the number of time steps.
    quantile: the threshold as a quantile of a layer's activations above 0, such as 0.999; 1.0 is their maximum. None
        takes the threshold that makes the squared error of the formula above smallest: at few steps a lower threshold
        is finer, and cuts more off.

    Returns the network, an ``nn.Sequential`` in ``eval()`` that can be trained on, and a report with thresholds.

    Raises ValueError for a network that it cannot take, which names the module, its type and the way out (residual
    connections, maximum pooling, activations other than ReLU, a network without ReLU), for ``data`` without batches, a
    layer whose activations are all 0 or not finite, and a ``quantile`` that is not above 0 and at most 1; TypeError for
    what is no module, and ``steps`` that are no whole number.

    Sources: Rueckauer, Lungu, Hu, Pfeiffer, Liu: Conversion of Continuous-Valued Deep Networks to Efficient
    Event-Driven Networks for Image Classification. Frontiers in Neuroscience 11, 2017 (soft reset, quantiles). Bu,
    Fang, Ding, Dai, Yu, Huang: Optimal ANN-SNN Conversion for High-accuracy and Ultra-low-latency Spiking Neural
    Networks. ICLR 2022 (the formula, and the start at half the threshold).
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"ann2snn: net={shown(net)} must be a network (an nn.Module)")
    if whole("ann2snn", "steps", steps) < 1:
        raise ValueError(f"ann2snn: steps={steps!r} must be 1 or more")
    if quantile is not None and not 0 < quantile <= 1:
        raise ValueError(f"ann2snn: quantile={quantile!r} must be above 0 and at most 1, the maximum; or None")
    report = Report(steps)
    try:
        graph = read(copy_of(unwrapped(net)).eval())
        layers = _chain(graph)
        batches = _batches(data, next((parameter.device for parameter in net.parameters()), torch.device("cpu")))
        first = next(batches, None)
        if first is None:
            raise ValueError("ann2snn: data has no batches; give a tensor, a list of tensors or a DataLoader")
        with torch.no_grad():
            output, shapes = run(graph, first.clone())
        stages, relus = _stages(graph, layers, shapes, report)
        check_outputs(graph, [first], [output])
    except NotFollowed as error:
        raise ValueError(
            f"ann2snn: {error}\nGive the network as an nn.Sequential, or write a forward that calls one layer after "
            "the other, without conditions on values"
        ) from error
    except Refused as error:
        raise ValueError(f"ann2snn: {error}") from error
    samples, maxima = _activations(stages, [*relus.values()], itertools.chain([first], batches))
    for name, values, maximum in zip(relus, samples, maxima):
        if not 0 < maximum < math.inf:
            what = "0 for all of data" if maximum == 0 else f"not finite ({maximum})"
            raise ValueError(
                f"ann2snn: activations of {name!r} are {what}, and give no threshold; give the data that the network "
                "was trained on, scaled in the same way"
            )
        if quantile is None:
            threshold = _least_error(values, maximum, steps)
        else:
            last = math.ceil(quantile * len(values)) - 1
            threshold = values.sort().values[last].item() if quantile < 1 else maximum
        report.thresholds[name] = threshold
        report.above[name] = (values > threshold).double().mean().item()
    return _spiking(stages, report)


# -- the layers of a network, one after the other


def _chain(graph: Graph) -> List[_Layer]:
    """The layers in order, each of which reads the one before and nothing else."""
    if len(graph.inputs) != 1:
        raise ValueError(f"ann2snn: {type(graph.net).__name__} has {len(graph.inputs)} inputs; give a network of one")
    layers: List[_Layer] = []
    before, *calls = graph.calls
    for call in calls:
        if call.kind == "output" and call.args == (before,):
            break
        name, module, kind = call.name, call.module, call.kind if call.kind == "output" else call.function
        if module is not None:
            kind, times = type(module).__name__, sum(earlier.module is module for _, earlier, _ in layers)
            name += f", call {times + 1}" if times else ""
        if kind not in _WAYS_OUT and (call.inputs != [before] or call.source is not before or len(before.readers) > 1):
            users = " and ".join(repr(reader.name) for reader in before.readers)
            way_out = (
                "each layer must take the output of the one before and nothing else (no residual connections, no "
                f"branches), and that of {before.name!r} goes to {users}"
            )
            _refuse(name, kind, way_out)
        if module is None:
            make = _FUNCTIONS.get(call.target)
            if make is None:
                _refuse(name, kind, "put a layer of torch.nn in its place")
            module = make(*call.args[1:], **call.kwargs)
            if isinstance(module, nn.Dropout) and module.p:
                _refuse(name, kind, "it drops in eval(), too: write training=self.training")
        elif call.is_hooked or (call.layer is None and isinstance(module, _TAKEN)):
            kinds = tuple(known for known in _TAKEN if isinstance(module, known)) or (type(module),)
            graph.check_plain(call, kinds, "firing rates would not stand for it")
        if not isinstance(module, _TAKEN):
            _refuse(name, kind, "put one of the layers there that help(sc.ann2snn) lists")
        layers.append((name, call, module))
        before = call
    if not any(isinstance(module, _RELU) for *_, module in layers):
        kind = type(graph.net).__name__
        raise ValueError(f"ann2snn: {kind} has no ReLU, so there is nothing that becomes a neuron")
    return layers


def _stages(
    graph: Graph, layers: List[_Layer], shapes: Mapping[Call, Tuple[int, ...]], report: Report
) -> Tuple[List[List[nn.Module]], Dict[str, nn.Module]]:
    """Copies of the layers before each ReLU and behind the last, and the ReLUs by name; normalisations folded."""
    stages: List[List[nn.Module]] = [[]]
    relus: Dict[str, nn.Module] = {}
    places: Dict[Call, int] = {}
    for name, call, module in layers:
        stage, kind = stages[-1], type(module) if call.layer is None else call.layer
        if isinstance(module, (nn.Identity, *DROPOUTS)):
            continue
        if kind in _RELU:
            if not any(isinstance(layer, _WEIGHTED) for layer in stage):
                _refuse(name, kind.__name__, "no weights stand before it: put a linear layer or a convolution there")
            relus[name] = kind()
            stages.append([])
        elif kind in NORMS:
            source = norm_source(graph, call, shapes, _WEIGHTED)
            stage[places[source]] = folded(stage[places[source]], module)
            report.folded[name] = source.name
        else:
            places[call] = len(stage)
            stage.append(computed(module))
    return stages, relus


def _refuse(name: str, kind: str, way_out: str) -> NoReturn:
    raise ValueError(f"ann2snn cannot take {name!r} ({kind}): {_WAYS_OUT.get(kind, way_out)}")


# -- thresholds


def _batches(data: Union[Tensor, Iterable[Any]], device: torch.device) -> Iterator[Tensor]:
    if not isinstance(data, Iterable):
        raise TypeError(f"ann2snn: data={shown(data)} must be a tensor, a list of tensors or a DataLoader")
    for batch in [data] if isinstance(data, Tensor) else data:
        x = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        if not isinstance(x, Tensor):
            raise TypeError(f"ann2snn: a batch of data must be a tensor or begin with one, got {shown(x)}")
        if not x.numel():
            raise ValueError(f"ann2snn: a batch of data has no samples, its shape is {list(x.shape)}; leave it out")
        yield x.to(device)


@torch.no_grad()
def _activations(
    stages: List[List[nn.Module]], relus: List[nn.Module], batches: Iterable[Tensor]
) -> Tuple[List[Tensor], List[float]]:
    """For each ReLU its activations above 0 over the data, a random part of many, and their maximum."""
    generator = torch.Generator().manual_seed(0)
    samples: List[List[Tensor]] = [[] for _ in relus]
    maxima: List[List[Tensor]] = [[] for _ in relus]
    for x in batches:
        for place, (stage, relu) in enumerate(zip(stages, relus)):
            for layer in stage:
                x = layer(x)
            x = relu(x)
            maxima[place].append(x.max().cpu())
            samples[place].append(_part(x[x > 0].cpu(), _OF_BATCH, generator))
    parts = [_part(torch.cat(values), _OF_ALL, generator) for values in samples]
    return parts, [torch.stack(values).max().item() for values in maxima]


def _part(values: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """All of them, or so many drawn at random."""
    return values if len(values) <= most else values[torch.randint(len(values), (most,), generator=generator)]


def _least_error(values: Tensor, maximum: float, steps: int) -> float:
    """The threshold, in hundredths of the maximum, whose rates differ least from the activations."""

    def error(threshold: float) -> float:
        level = threshold / steps
        rates = (values / level + 0.5).floor().clamp(max=steps) * level
        return (rates - values).square().sum().item()

    return min((maximum * part / 100 for part in range(100, 0, -1)), key=error)


# -- the spiking network


@torch.no_grad()
def _spiking(stages: List[List[nn.Module]], report: Report) -> Tuple[nn.Sequential, Report]:
    layers: List[nn.Module] = []
    scale = 1.0  # what a spike of the neuron before stands for
    for stage, threshold in zip(stages, [*report.thresholds.values(), None]):
        weighted: Any = next((layer for layer in stage if isinstance(layer, _WEIGHTED)), None)
        if weighted is not None:
            weighted.weight.mul_(scale)
            scale = 1.0
        if stage:
            # the input has no time: the first neuron makes it
            layers.append(TimeBatched(*stage) if layers else nn.Sequential(*stage) if len(stage) > 1 else stage[0])
        if threshold is not None:
            repeat = None if len(layers) > 1 else report.steps
            layers.append(IF(threshold=threshold, reset="soft", v_reset=threshold / 2, repeat=repeat))
            scale = threshold
    return nn.Sequential(*layers).eval(), replace(report, scale=scale)
