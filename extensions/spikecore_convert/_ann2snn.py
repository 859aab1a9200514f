"""``sc.ann2snn``: a trained network of ReLUs as a spiking network, whose firing rates are the activations."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore.core.checks import check_network, whole
from spikecore.core.modules import copy_of, unwrapped
from spikecore.graph import Call, Graph, NotFollowed, Refused, check_outputs, read, run
from spikecore.graph import values as values_of
from spikecore.lang.render import on_one_line
from spikecore.words import shown
from spikecore_convert._spiking import RELUS, folds, layers_of, spiking

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
) -> Tuple[nn.Module, Report]:
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

    Both summands of a sum have a scale: 1 behind weights, ``theta`` behind a neuron. Where these differ each is
    multiplied by its own. Maximum pooling of spikes passes, at every step, the increment of the largest number of
    spikes so far in its window. That is 0 or 1, and its rate is exactly the largest rate. It is the pooling by
    accumulated spikes of Rueckauer et al., whose gate passes the spikes of the neuron ahead; increments do not count
    twice when another one gets ahead. The maximum of rates that are only near the activations is above these on average
    where inputs are nearly equal; the excess falls with T. It needs the spikes of the steps before, two more states for
    each input of a window.

    net: a module whose ``forward`` :func:`spikecore.graph.read` follows, such as an ``nn.Sequential`` or a ResNet. It
        consists of ``nn.Linear``, ``nn.Conv1d`` to ``3d``, batch normalisation, ReLU, ReLU6, average and maximum
        pooling, flattening, zero padding, upsampling, dropout, and sums of two values. A batch normalisation is folded
        into the weights before it, or stays a layer where another layer reads these, or none are there. ``net`` stays
        as it is; its weights are copied, and taken as in ``eval()``.
    data: batches for the thresholds: an iterable of tensors, or of tuples that begin with one, such as a DataLoader;
        or one tensor, which is a batch. Some hundreds of samples of the training data are enough.
    steps: T, the number of time steps.
    quantile: the threshold as a quantile of a layer's activations above 0, such as 0.999; 1.0 is their maximum. None
        takes the threshold that makes the squared error of the formula above smallest: at few steps a lower threshold
        is finer, and cuts more off.

    Returns the network in ``eval()``, which can be trained on, and a report with thresholds. The network of a chain of
    layers is an ``nn.Sequential``, of others a ``torch.fx.GraphModule``, whose ``code`` can be read.

    Raises ValueError for a network that it cannot take, which names the place, its type and the way out (activations
    other than ReLU, products of values, a network without ReLU), for ``data`` without batches, a layer whose
    activations are all 0 or not finite, and a ``quantile`` that is not above 0 and at most 1; TypeError for what is no
    module, and ``steps`` that are no whole number.

    Sources: Rueckauer, Lungu, Hu, Pfeiffer, Liu: Conversion of Continuous-Valued Deep Networks to Efficient
    Event-Driven Networks for Image Classification. Frontiers in Neuroscience 11, 2017 (soft reset, quantiles, pooling).
    Bu, Fang, Ding, Dai, Yu, Huang: Optimal ANN-SNN Conversion for High-accuracy and Ultra-low-latency Spiking Neural
    Networks. ICLR 2022 (the formula, and the start at half the threshold). Hu, Tang, Pan: Spiking Deep Residual
    Networks. IEEE Transactions on Neural Networks and Learning Systems 34, 2023 (scales of both branches of a sum).
    """
    check_network("ann2snn", net)
    if whole("ann2snn", "steps", steps) < 1:
        raise ValueError(f"ann2snn: steps={steps!r} must be 1 or more")
    if quantile is not None and not 0 < quantile <= 1:
        raise ValueError(f"ann2snn: quantile={quantile!r} must be above 0 and at most 1, the maximum; or None")
    try:
        graph = read(copy_of(unwrapped(net)).eval())
        layers = layers_of(graph)
        batches = _batches(data, next((parameter.device for parameter in net.parameters()), torch.device("cpu")))
        first = next(batches, None)
        if first is None:
            raise ValueError("ann2snn: data has no batches; give a tensor, a list of tensors or a DataLoader")
        with torch.no_grad():
            output, shapes = run(graph, first.clone())
        folded_into = folds(graph, layers, shapes)
        check_outputs(graph, [first], [output])
    except NotFollowed as error:
        raise ValueError(
            f"ann2snn: {error}\nGive the network as an nn.Sequential, or write a forward that calls layers without "
            "conditions on values"
        ) from error
    except Refused as error:
        raise ValueError(f"ann2snn: {error}") from error
    relus = {call: layer.name for call, layer in layers.items() if layer.kind in RELUS}
    report = Report(steps, folded={layers[norm].name: source.name for norm, source in folded_into.items()})
    for name, sample, maximum in _activations(graph, relus, itertools.chain([first], batches)):
        if not 0 < maximum < math.inf:
            what = "0 for all of data" if maximum == 0 else f"not finite ({maximum})"
            raise ValueError(
                f"ann2snn: activations of {name!r} are {what}, and give no threshold; give the data that the network "
                "was trained on, scaled in the same way"
            )
        if quantile is None:
            threshold = _least_error(sample, maximum, steps)
        else:
            last = math.ceil(quantile * len(sample)) - 1
            threshold = sample.sort().values[last].item() if quantile < 1 else maximum
        report.thresholds[name] = threshold
        report.above[name] = (sample > threshold).double().mean().item()
    network, scale = spiking(graph, layers, folded_into, shapes, report.thresholds, steps)
    return network, replace(report, scale=scale)


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
    graph: Graph, relus: Mapping[Call, str], batches: Iterable[Tensor]
) -> Iterator[Tuple[str, Tensor, float]]:
    """The name of each ReLU, its activations above 0 over the data, a random part of many, and their maximum."""
    generator = torch.Generator().manual_seed(0)
    samples: Dict[Call, List[Tensor]] = {relu: [] for relu in relus}
    maxima: Dict[Call, List[Tensor]] = {relu: [] for relu in relus}
    for x in batches:
        for call, value in values_of(graph, x.clone()):
            if call in relus:
                maxima[call].append(value.max().cpu())
                samples[call].append(_part(value[value > 0].cpu(), _OF_BATCH, generator))
    for call, name in relus.items():
        yield name, _part(torch.cat(samples[call]), _OF_ALL, generator), torch.stack(maxima[call]).max().item()


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
