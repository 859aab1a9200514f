"""Weights of a network scaled so that each layer of neurons fires at a rate.

The network is read (:func:`spikecore.graph.read`). Each layer of neurons has *sources*: the layers with weights whose
values reach its input with no other neuron or weights between. From the first neurons to the last, the sources of a
layer are multiplied by one number, found by bisection: each trial computes what lies between these sources and the
neurons, and counts spikes. Where no factor within bounds reaches the rate, the sources stay.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore.batches import tree_map
from spikecore.core import checks
from spikecore.core.modules import unwrapped
from spikecore.core.neuron import Neuron
from spikecore.core.state import Stateful, keep
from spikecore.graph import CONVOLUTIONS, NORMS, Call, Graph, NotFollowed, is_parametrised, read, value_of
from spikecore.lang.node import spiking_output
from spikecore.layers import TEBN, Between, Delay, NormNeuron
from spikecore.losses import Steps
from spikecore.words import a_kind, shown

__all__ = ["Calibration", "Row", "calibrate"]

#: Layers whose output is proportional to their weight and bias together.
_PROPORTIONAL = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    *CONVOLUTIONS,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    *NORMS,
    nn.GroupNorm,
    nn.LayerNorm,
)
#: A rate this near ends the search, as a part of it; numbers of doublings, halvings and bisections, at most. Of 8
#: neurons or more all seeds reach about the rate with it; where a few must fire whose input is hardly ever positive,
#: it takes thousands, and then nothing trains.
_NEAR, _DOUBLINGS, _HALVINGS, _BISECTIONS = 0.05, 7, 24, 16
#: A factor of weights beside which the steps of an optimiser are small; a time constant that makes an input small.
_LARGE, _LONG = 10.0, 5.0


class Row(NamedTuple):
    """A layer of neurons: its name and class, its rates before and after, the share of its neurons that never fire
    afterwards, the factor, the names of the layers that were multiplied by it, and a remark, "" where there is none:
    what kept it from the rate, or what a large factor asks of training.
    """

    name: str
    kind: str
    before: float
    after: float
    silent: float
    factor: float
    sources: Tuple[str, ...]
    remark: str


@dataclass(frozen=True)
class Calibration:
    """Report of :func:`calibrate`. Printed, it is a table.

    rate: the rate that was asked for. rows: one for each layer of neurons that fires, in the order of their calls.
    """

    rate: float
    rows: Tuple[Row, ...]
    _originals: Dict[nn.Parameter, Tensor] = field(repr=False)

    @property
    def rates(self) -> Dict[str, float]:
        """The rate of each layer, by name."""
        return {row.name: row.after for row in self.rows}

    def undo(self) -> None:
        """Put the values back that the parameters had before, whatever they are now."""
        with torch.no_grad():
            for parameter, value in self._originals.items():
                parameter.copy_(value)

    def __str__(self) -> str:
        cells = [("layer", "kind", "before", "after", "never", "factor", "layers that were scaled")]
        for row in self.rows:
            numbers = (f"{row.before:.4f}", f"{row.after:.4f}", f"{row.silent:.0%}", f"{row.factor:.4g}")
            cells.append((row.name or "(net)", row.kind, *numbers, ", ".join(row.sources)))
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = []
        for line, remark in zip(cells, ("", *(row.remark for row in self.rows))):
            lines.append("  ".join(map(str.ljust, line, widths)).rstrip())
            lines += [f"    {remark}"] if remark else []
        title = f"spikes for each neuron and step; asked for: {self.rate:g}; never: neurons that did not fire"
        return "\n".join([title, *lines])


def calibrate(
    net: nn.Module,
    x: Union[Tensor, Sequence[Tensor]],
    rate: float = 0.1,
    *,
    leave: Sequence[str] = (),
    mask: Optional[Tensor] = None,
) -> Calibration:
    """Scale the weights of a network in place, so that each layer of neurons fires at a rate on a batch.

    ::

        print(sc.functional.calibrate(net, x, leave=("3",)))  # x: a batch as in training, [T, B, ...]

    Networks of default weights often do not fire: the input of a neuron is far below its threshold, and less of it
    reaches the next layer. Here each layer of neurons, from the first to the last, is given the rate::

        rate = sum over t, b, i of z[t, b, i] / (T * B * N)

    of its spikes ``z``, by one factor that weight and bias of its sources are multiplied by. Sources are the linear
    layers, convolutions and normalisations whose values reach its input with no other weights between: the nearest
    normalisation before a layer behind it; both branches of a residual sum, but for what an earlier layer of neurons
    was calibrated by. The weights of feedback (:class:`spikecore.Recurrent`) stay, and are part of what is counted.
    Read-outs without spikes stay as they are.

    The rate is a mean: of four neurons one may fire at 0.4 and three never, and the report says how many never fire.
    So leave out a layer whose spikes are counted for each class. Large factors ask for more of training, too: an
    optimiser such as Adam moves every weight by about its learning rate, which is little beside weights that are 30
    times as large. Raise it with the factor, or make the factor small: by ``decay_input=False`` where a neuron divides
    its input by a large ``tau``.

    net: a network whose ``forward`` :func:`spikecore.graph.read` follows. It computes in the mode that it is in: call
        it in ``train()`` where normalisations are to be those of training. States, running statistics and torch's
        own generators are as before afterwards, and after an error weights, too.
    x: a batch; a sequence of tensors for a network of several inputs. The larger, the nearer are the rates of others.
    rate: spikes for each neuron and step, above 0 and below the largest number in a step, which is 1 but for neurons
        that count.
    leave: names of layers of neurons whose sources stay as they are, as in ``net.named_modules()``.
    mask: bool ``[T, B]``, True at the real steps of padded sequences (:func:`spikecore.functional.mask_of`), over which
        rates then are. Every layer must have these steps and samples.

    Returns the rates before and after, the share of neurons that never fire, and the factors; ``undo()`` of it puts the
    weights back. Weights stay, and the layer gets a remark, where no factor up to 128 brings half to twice the rate
    (its input is hardly ever positive), where its sources were set for an earlier layer, and where it has none. An
    optimiser that has taken steps already should be made anew.

    Raises ValueError for a rate out of range, a batch that is empty or not finite, a network without neurons that fire,
    a name or a mask that does not fit, and a network that cannot be followed, with the place
    (:class:`spikecore.graph.NotFollowed`: calibrate its parts); TypeError for what is no module, no tensor or no name.

    Source: Mishkin, Matas: All you need is a good init. ICLR 2016 (layer-sequential scaling on a batch, there for the
    variance).
    """
    inputs, net = _checked(net, x, rate), unwrapped(net)
    try:
        graph = read(net, inputs=inputs)
    except NotFollowed as error:
        raise NotFollowed(
            f"calibrate: {error}; calibrate the parts that can be followed, one after the other"
        ) from error
    layers = [layer for layer in dict.fromkeys(call.module for call in graph.calls) if _output_of(layer) is not None]
    if not layers:
        raise ValueError(f"calibrate: net={shown(net)} has no layer of neurons that fires, and nothing to scale")
    most = min(spiking_output(_neuron(layer).program.outputs)[2] for layer in layers)  # type: ignore[union-attr]
    if rate >= most:
        raise ValueError(f"calibrate: rate={rate} must be below {most}, the most spikes of a neuron in a step")
    names = {module: name for name, module in net.named_modules()}
    left = _left(leave, [names[layer] for layer in layers])
    run = _Run(graph, inputs, mask)
    originals: Dict[nn.Parameter, Tensor] = {}
    settled: Set[Call] = set()
    outcomes: Dict[nn.Module, Tuple[float, Tuple[str, ...], str]] = {}
    with torch.no_grad(), _put_back(net, originals):
        before = run.rates(layers)
        for layer in layers:
            sources, remark = _sources(graph, layer, settled)
            tensors = [tensor for _, each in sources for tensor in each]
            if names[layer] in left:
                outcomes[layer] = 1.0, (), "left as it was"
            elif not sources:
                outcomes[layer] = 1.0, (), remark
            else:
                originals.update({tensor: tensor.clone() for tensor in tensors})
                factor, nearest = _search(run.trial(layer, sources), tensors, rate)
                remark = _remark(_neuron(layer), factor, nearest, rate)
                outcomes[layer] = factor, tuple(name for name, _ in sources), remark
            first = graph.calls_of(layer)[0]
            settled.update(call for call in _needed(graph, [first]) if call.position < first.position)
            settled.update(call for tensor in tensors for call in graph.uses(tensor))
        after = run.rates(layers)
    rows = tuple(
        Row(names[a], type(a).__name__, before[a].rate, after[a].rate, after[a].silent, *outcomes[a]) for a in layers
    )
    return Calibration(rate, rows, originals)


def _left(leave: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """The names of layers that are left out, checked."""
    if isinstance(leave, str) or not isinstance(leave, (tuple, list)):
        raise TypeError(f"calibrate: leave={shown(leave)} must be a tuple of names, such as leave=({names[-1]!r},)")
    for name in leave:
        if name not in names:
            listed = ", ".join(map(repr, names))
            raise ValueError(
                f"calibrate: leave={list(leave)!r}: {name!r} is no layer of neurons that fires; of {listed}"
            )
    return leave


def _checked(net: nn.Module, x: Union[Tensor, Sequence[Tensor]], rate: float) -> Tuple[Tensor, ...]:
    """The inputs of the network."""
    checks.check_network("calibrate", net)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise TypeError(
            f"calibrate: rate={shown(rate)} is {a_kind(rate)}; give a number of spikes for a neuron and step"
        )
    if not 0.0 < rate < math.inf:
        raise ValueError(f"calibrate: rate={rate} must be above 0; usual rates are 0.05 to 0.4")
    inputs = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    for value in inputs:
        if not isinstance(value, Tensor):
            raise TypeError(f"calibrate: x={shown(value)} is {a_kind(value)}; give a batch, a tensor [T, B, ...]")
        if not value.numel():
            raise ValueError(f"calibrate: x of shape {list(value.shape)} is empty; give a batch of the training data")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError("calibrate: x has values that are not finite; give a batch without them")
    return inputs


def _neuron(module: Optional[nn.Module]) -> Optional[Neuron]:
    """The neuron that a layer is, or has: of ``NormNeuron`` and ``Recurrent`` the part ``neuron``, of ``Between`` the
    part ``fire``.
    """
    inner = getattr(module, "neuron", module) if isinstance(module, (NormNeuron, Stateful)) else None
    inner = module.fire if isinstance(module, Between) else inner
    return inner if isinstance(inner, Neuron) else None


def _step_of(layer: nn.Module) -> str:
    """The step mode of a layer of neurons."""
    return str((layer.neuron if isinstance(layer, NormNeuron) else layer).step)


def _output_of(module: Optional[nn.Module]) -> Optional[int]:
    """The number of the output of a layer of neurons that is spikes; None of any other layer."""
    neuron = _neuron(module)
    return None if neuron is None else spiking_output(neuron.program.outputs)[0]


def _tensors(module: nn.Module) -> List[nn.Parameter]:
    """The parameters that a layer's output is proportional to, all together; none where it is another kind."""
    if isinstance(module, Delay):
        module = module.linear
    if isinstance(module, (NormNeuron, TEBN)):
        module = module.norm
    if isinstance(module, Between):
        module = module.module
    if is_parametrised(module) or not isinstance(module, _PROPORTIONAL):
        return []
    return [value for value in (module.weight, getattr(module, "bias", None)) if isinstance(value, nn.Parameter)]


Sources = List[Tuple[str, List[nn.Parameter]]]


def _sources(graph: Graph, layer: nn.Module, settled: Set[Call]) -> Tuple[Sources, str]:
    """The sources of a layer of neurons, and a remark on why it has none.

    settled: the calls that earlier layers of neurons need.
    """
    calls, sources, remarks, visited = graph.calls_of(layer), {}, [], set()
    inside = _tensors(layer) if isinstance(layer, (NormNeuron, Between)) else []
    if inside or isinstance(layer, NormNeuron):  # the normalisation undoes any scale before it
        sources[calls[0]] = inside
    waiting = [] if sources else [value for call in calls for value in _read(call)]
    while waiting:
        call = waiting.pop()
        if call in visited or call.kind == "input" or _neuron(call.module) is not None:
            continue
        visited.add(call)
        own = [] if call.module is None else [*call.module.parameters()]
        if not own:
            waiting += _read(call)
            continue
        tensors = _tensors(call.module)
        if any(use in settled for tensor in own for use in graph.uses(tensor)):
            remarks.append(f"{call.title} is a source of an earlier layer")
        elif not tensors:
            remarks.append(f"{call.title} has no weights that scale what it gives")
        else:
            sources[call] = tensors
    named = {call.name: tensors for call, tensors in sorted(sources.items(), key=_position) if tensors}
    return [*named.items()], "; ".join(dict.fromkeys(remarks)) or "no weights lie before it"


def _read(call: Call) -> List[Call]:
    """The calls whose numbers a call reads, not those whose shape alone."""
    return [value for value in call.inputs if call in value.readers]


def _position(item: Tuple[Call, List[nn.Parameter]]) -> int:
    return item[0].position


def _search(trial: Callable[[], float], tensors: Sequence[nn.Parameter], rate: float) -> Tuple[float, float]:
    """The factor of these tensors whose rate is nearest, which they have then, and that rate. They stay, and the factor
    is 1, where it is not half to twice the rate.
    """
    originals = [tensor.clone() for tensor in tensors]
    rates: Dict[float, float] = {}

    def rate_at(exponent: float) -> float:
        for tensor, original in zip(tensors, originals):
            tensor.copy_(original * 2.0**exponent)
        rates[exponent] = trial()
        return rates[exponent]

    def nearest() -> float:
        return min(rates, key=lambda exponent: (abs(rates[exponent] - rate), abs(exponent)))

    step, most = (1.0, _DOUBLINGS) if rate_at(0.0) < rate else (-1.0, _HALVINGS)
    ends = [0.0]
    while (rates[ends[-1]] < rate) == (step > 0.0) and len(ends) <= most:
        ends.append(ends[-1] + step)
        rate_at(ends[-1])
    low, high = sorted(ends[-2:])
    for _ in range(_BISECTIONS if (rates[low] < rate) != (rates[high] < rate) else 0):
        if abs(rates[nearest()] - rate) <= _NEAR * rate:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if rate_at(middle) < rate else (low, middle)
    best = nearest()
    factor = 2.0**best if _is_near(rates[best], rate) else 1.0
    for tensor, original in zip(tensors, originals):
        tensor.copy_(original * factor)
    return factor, rates[best]


def _is_near(reached: float, rate: float) -> bool:
    return rate / 2 <= reached <= 2 * rate


def _remark(neuron: Optional[Neuron], factor: float, nearest: float, rate: float) -> str:
    """A remark on a factor that was not found, or is large."""
    tau = getattr(neuron, "tau", None)
    divides = getattr(neuron, "decay_input", False) is True and isinstance(tau, float) and tau >= _LONG
    undivided = [f"decay_input=False, which does not divide the input by tau={tau:g}"] if divides else []
    if not _is_near(nearest, rate):
        ways = [*undivided, "a higher bias before it"] if nearest < rate else ["a lower bias before it"]
        return (
            f"its weights stay: no factor up to {2**_DOUBLINGS} brings half to twice the rate, and the nearest is "
            f"{nearest:.3g}. What helps: {'; or '.join(ways)}"
        )
    if factor < _LARGE:
        return ""
    ways = ["raise the learning rate with the factor", *undivided]
    return f"weights {factor:.3g} times as large learn slowly: {'; or '.join(ways)}"


@contextmanager
def _put_back(net: nn.Module, weights: Dict[nn.Parameter, Tensor]) -> Iterator[None]:
    """Within the block neurons run from any state; after it states and buffers are as before, after an error these
    weights, too.
    """
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
    stateful = [(module, module.state) for module in net.modules() if isinstance(module, Stateful)]
    try:
        yield
    except BaseException:
        for weight, value in weights.items():
            weight.copy_(value)
        raise
    finally:
        for buffer, value in buffers:
            buffer.copy_(value)
        for module, state in stateful:
            keep(module, state)


class _Rate(NamedTuple):
    """Spikes for each neuron and step of a layer, and the share of its neurons that never fired."""

    rate: float
    silent: float


class _Run:
    """Evaluation of parts of a graph for a batch; ``mask`` is True at the steps that count."""

    def __init__(self, graph: Graph, inputs: Sequence[Tensor], mask: Optional[Tensor]) -> None:
        self.graph, self.inputs, self._mask = graph, dict(zip(graph.inputs, inputs)), mask
        self._stateful = [module for module in graph.net.modules() if isinstance(module, Stateful)]
        self._devices = {value.device for value in inputs if value.is_cuda}

    def _evaluate(self, calls: Sequence[Call], known: Dict[Call, Any]) -> None:
        """Compute calls in order, from rest, with the random numbers that the last evaluation had."""
        for module in self._stateful:
            keep(module, None)
        with torch.random.fork_rng([*self._devices]):
            for call in calls:
                known[call] = self.inputs[call] if call.kind == "input" else self._value(call, known)

    def _value(self, call: Call, known: Dict[Call, Any]) -> Any:
        if not call.is_in_place:
            return value_of(self.graph, call, known)
        copies = {source: tree_map(torch.clone, known[source]) for source in call.inputs}  # the value is needed again
        return value_of(self.graph, call, copies)

    def rates(self, layers: Sequence[nn.Module]) -> Dict[nn.Module, _Rate]:
        """The rates of all layers."""
        known: Dict[Call, Any] = {}
        self._evaluate(self.graph.calls, known)
        return {layer: self._rate(layer, known) for layer in layers}

    def _rate(self, layer: nn.Module, known: Dict[Call, Any]) -> _Rate:
        """The rate over steps that count. Calls with as many neurons are those of the same neurons."""
        index, outputs = _output_of(layer) or 0, []
        for call in self.graph.calls_of(layer):
            value = known[call]
            z: Tensor = value[index] if isinstance(value, tuple) else value
            if isinstance(layer, NormNeuron) and layer.shortcut == "after" and len(call.inputs) > 1:
                z = z - known[call.inputs[1]]
            outputs.append(z)
        if _step_of(layer) == "single":  # each call is a time step
            alike = len({z.shape for z in outputs}) == 1
            outputs = [torch.stack(outputs)] if alike else [z.unsqueeze(0) for z in outputs]
        spikes, count = 0.0, 0
        fired: Dict[torch.Size, Tensor] = {}
        for z in outputs:
            if self._mask is None:
                real = z.flatten(0, 1) if z.ndim > 1 else z
            else:
                Steps(f"the output of {type(layer).__name__}", z, self._mask)  # raises where it does not fit
                real = z[self._mask.to(z.device)]
            spikes, count = spikes + float(real.abs().float().mean()) * real.numel(), count + real.numel()
            fires = real.any(0)
            fired[fires.shape] = fires | fired.get(fires.shape, fires)
        never = sum([int((~fires).sum()) for fires in fired.values()])
        return _Rate(spikes / max(1, count), never / max(1, sum([fires.numel() for fires in fired.values()])))

    def trial(self, layer: nn.Module, sources: Sources) -> Callable[[], float]:
        """A function that computes the rate of a layer with the weights as they are now.

        What lies before the sources is computed once, unless a neuron is called more than once.
        """
        calls = self.graph.calls_of(layer)
        needed = _needed(self.graph, calls)
        changed = {call for _, tensors in sources for tensor in tensors for call in self.graph.uses(tensor)}
        for call in needed:
            if not changed.isdisjoint(call.inputs):
                changed.add(call)
        again = any(len(self.graph.calls_of(call.module)) > 1 for call in needed if _neuron(call.module) is not None)
        known: Dict[Call, Any] = {}
        self._evaluate(needed, known)

        def rate() -> float:
            self._evaluate(needed if again else [call for call in needed if call in changed], known)
            return self._rate(layer, known).rate

        return rate


def _needed(graph: Graph, ends: Sequence[Call]) -> List[Call]:
    """The calls that some calls need, these included, in order: through values, and through the state of a module."""
    needed: Set[Call] = set()
    waiting = [*ends]
    while waiting:
        call = waiting.pop()
        if call not in needed:
            needed.add(call)
            waiting += call.inputs
            if isinstance(call.module, (Stateful, NormNeuron)):
                waiting += [other for other in graph.calls_of(call.module) if other.position < call.position]
    return sorted(needed, key=lambda call: call.position)
