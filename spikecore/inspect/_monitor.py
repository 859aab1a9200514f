"""``sc.monitor``: rates and states of the neurons of a network, seen while it runs."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Collection, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore import plot
from spikecore._base.misnamed import hint_of_state
from spikecore.backend import Tensors
from spikecore.dtypes import compute_dtype, has_float64
from spikecore.functional import stateful_modules
from spikecore.inspect import record as recorder
from spikecore.inspect._report import Report, Table
from spikecore.inspect.record import neuron_of, neurons_of, stateful_of
from spikecore.inspect.recorded import Block
from spikecore.lang.node import spiking_output
from spikecore.words import shown

#: Numbers of a state that a histogram gets at most: of more, every n-th.
_MOST = 1_000_000

_HEADINGS = ("layer", "kind", "calls", "neurons", "rate", "silent", "saturated")
_LEGEND = (
    "rate: spikes per time step and neuron; silent: neurons that never fired; saturated: neurons that fired at every "
    "step of every sample"
)
_SPOILT = (
    "A neuron whose potential is NaN never fires again, so that the rates of such a layer, and of what is behind it, "
    "say nothing; sc.explain(net, x) names the layer where it began"
)


@dataclass(frozen=True)
class Call:
    """One call of a layer within a block of :func:`spikecore.monitor`.

    ``rate``: spikes per time step and neuron, None where the output is no spike. ``steps``, ``batch``: T and B.
    ``spikes``: the output ``[T, B, ...]`` if asked for, else None. ``states``: recorded states after every step, by
    name, ``[T, B, ...]``.
    """

    steps: int
    batch: int
    spikes: Optional[Tensor] = None
    states: Mapping[str, Tensor] = field(default_factory=dict)
    #: The sum of all outputs, on the device; None where they are no spikes.
    total: Optional[Tensor] = None
    outputs: int = 0
    #: The largest size of a number at each time step of each input, on the device: NaN or infinite where a number is.
    sizes: Tensors = ()
    #: True for a call of one time step.
    single: bool = False

    @property
    def rate(self) -> Optional[float]:
        """Spikes per time step and neuron of this call."""
        return None if self.total is None or not self.outputs else float(self.total) / self.outputs

    @property
    def neurons(self) -> int:
        """Number of neurons: the numbers of one sample of one step."""
        return self.outputs // max(1, self.steps * self.batch)


class Layer:
    """Record of one layer of neurons.

    ``name``: its path in the network, "" for the network itself. ``kind``: its class. ``calls``: a :class:`Call` for
    each. ``rate``: spikes per time step and neuron over all calls, None where the output is no spike or nothing was
    called. ``rates``: the same of each neuron, ``[...]`` as one sample of one step. ``silent``, ``saturated``: how many
    neurons never fired, and how many fired at every step of every sample. ``not_finite``: whether its input has NaN or
    infinities, and since when; "" where it has none. ``spikes``, and each recorded state by its name or in ``states``:
    ``[T, B, ...]`` of the one call; of calls that continue one another, which are those of single-step neurons and
    those within ``carry_state``, all steps in order, a ``sc.reset`` between them or not.
    """

    def __init__(self, name: str, kind: str, record: Tuple[str, ...], spikes: bool, grad: bool) -> None:
        self.name, self.kind, self.record = name, kind, record
        self._spikes, self._grad = spikes, grad
        self.clear()

    def clear(self) -> None:
        """Forget every call."""
        self._calls: List[Call] = []
        #: True if every call continues from the one before it, unless that was reset.
        self._continued = True
        #: Sums over time and batch, by the shape of a sample, and over how many samples.
        self._sums: Dict[torch.Size, Tensor] = {}
        self._samples = 0
        #: Spikes that a neuron can give in a step.
        self.largest = 1

    def _take(self, call: recorder.Call) -> None:
        """Note a call."""
        index, graded, self.largest = spiking_output(neuron_of(call.layer).program.outputs)
        y, trace, single, total = call.outputs[index or 0], call.states, call.step == "single", None
        if not self._grad:
            y, trace = y.detach(), {name: value.detach() for name, value in trace.items()}
        if index is not None:
            dtype = torch.float64 if y.dtype == torch.float64 else torch.float32
            size = y.abs() if graded else y
            total = size.sum((0, 1) if y.ndim > 1 else 0, dtype=dtype)
        steps, batch = y.shape[0], y.shape[1] if y.ndim > 1 else 1
        self._calls.append(
            Call(
                steps,
                batch,
                y if self._spikes else None,
                trace,
                None if total is None else total.detach().sum(),
                y.numel(),
                tuple([_sizes(x.detach()) for x in call.inputs if x.numel() and x.is_floating_point()]),
                single,
            )
        )
        self._continued = self._continued and (single or bool(stateful_of(call.layer).carrying))
        if total is None:
            return
        self._samples += steps * batch
        before = self._sums.get(y.shape[2:])
        # float32 counts no further than 2**24, which all calls together may pass; not all devices have float64
        wide = torch.float64 if has_float64(y.device.type) else torch.float32
        self._sums[y.shape[2:]] = total.to(wide) if before is None else before + total

    @property
    def calls(self) -> Tuple[Call, ...]:
        """Each call, in order."""
        return tuple(self._calls)

    @property
    def steps(self) -> int:
        """Time steps of the longest call; of calls that continue one another those of all of them."""
        steps = [call.steps for call in self._calls]
        return sum(steps) if self._continued else max(steps)

    @property
    def fires(self) -> bool:
        """True if the outputs were spikes."""
        return bool(self._sums)

    @property
    def rate(self) -> Optional[float]:
        """Spikes per time step and neuron."""
        outputs = sum(call.outputs for call in self._calls) if self.fires else 0
        return sum(float(value.detach().sum()) for value in self._sums.values()) / outputs if outputs else None

    @property
    def rates(self) -> Tensor:
        """Spikes per time step of each neuron, ``[...]``. ValueError where there is no rate for each neuron."""
        if not self.fires:
            what = "its output is no spike" if self._calls else "it was not called in the block"
            raise ValueError(f"layer {self.name!r} ({self.kind}) has no rates: {what}")
        if len(self._sums) > 1:
            listed = ", ".join(str(list(shape)) for shape in sorted(self._sums))
            raise ValueError(
                f"layer {self.name!r} ({self.kind}) had neurons of shapes {listed}; see its calls one by one"
            )
        (total,) = self._sums.values()
        return (total / self._samples).float()

    @property
    def not_finite(self) -> str:
        """First value of the input that is not finite, with its call and time step; "" if there is none."""
        for number, call in enumerate(self._calls, 1):
            for sizes in call.sizes:
                spoilt = (~torch.isfinite(sizes)).nonzero().flatten().tolist()
                if spoilt:
                    kind = "NaN" if bool(torch.isnan(sizes[spoilt[0]])) else "an infinity"
                    when = f"call {number}" if call.single else f"time step {spoilt[0]} of call {number}"
                    return f"its input has {kind}, from {when} on"
        return ""

    @property
    def neurons(self) -> int:
        """Number of neurons: the numbers of one sample of one step in the last call."""
        return self._calls[-1].neurons if self._calls else 0

    @property
    def silent(self) -> int:
        """Number of neurons that never fired."""
        return int((self.rates.detach() == 0).sum())

    @property
    def saturated(self) -> int:
        """Number of neurons that fired at every step of every sample, as often as they can."""
        return int((self.rates.detach() >= self.largest).sum())

    @property
    def spikes(self) -> Tensor:
        """The outputs, ``[T, B, ...]``. ValueError where they were not kept, or where several calls have one each."""
        return self._over_time("spikes", [call.spikes for call in self._calls])

    @property
    def states(self) -> Dict[str, Tensor]:
        """The recorded states after every step, ``[T, B, ...]``. ValueError where several calls have them each."""
        names = self._calls[0].states if self._calls else ()
        return {name: getattr(self, name) for name in names}

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in self.record:
            raise AttributeError(
                f"layer has no {name!r}; states are there that sc.monitor(net, record=({name!r},)) was to record"
            )
        return self._over_time(name, [call.states.get(name) for call in self._calls])

    def _over_time(self, what: str, values: Sequence[Optional[Tensor]]) -> Tensor:
        where = f"layer {self.name!r} ({self.kind})"
        tensors = [value for value in values if value is not None]
        if not tensors:
            lacks = "monitor was not asked to keep it (spikes=True)" if what == "spikes" else "it has no such state"
            raise ValueError(f"{where} has no {what}: {lacks if self._calls else 'it was not called'}")
        if len(tensors) > 1 and not self._continued:
            raise ValueError(
                f"{where} was called {len(tensors)} times, and each call has its own {what}: see "
                f"seen[{self.name!r}].calls, or call seen.clear() between them"
            )
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class Seen(Report):
    """Record of :func:`spikecore.monitor`. ``str()`` gives a table; notebooks show the same.

    ``rates``: name of the layer -> spikes per time step and neuron. ``seen[name]``: the :class:`Layer` of a name, with
    the rate of each neuron, calls, spikes and states. ``layers``: all of them, in the order of the network.
    """

    def __init__(self, layers: Tuple[Layer, ...]) -> None:
        self.layers = layers

    @property
    def rates(self) -> Dict[str, float]:
        """Spikes per time step and neuron of each layer that fires and was called. It waits for the device.

        Raises RuntimeError if no layer was called.
        """
        if not any(layer.calls for layer in self.layers):
            raise RuntimeError(
                "no neuron was called in the block of sc.monitor; call the network that was given, or one that wraps "
                "it, within the block. What torch exported or captured calls no module"
            )
        rates = {layer.name: layer.rate for layer in self.layers}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def __getitem__(self, name: str) -> Layer:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"{name!r} is no watched layer; there are {', '.join(map(repr, self))}")

    def __iter__(self) -> Iterator[str]:
        return iter([layer.name for layer in self.layers])

    def __len__(self) -> int:
        return len(self.layers)

    def clear(self) -> None:
        """Forget every call so far, and free what was kept of it."""
        for layer in self.layers:
            layer.clear()

    def log(self, writer: Any, step: Optional[int] = None, *, figures: bool = True) -> None:
        """Write what was seen to a TensorBoard log, a ``torch.utils.tensorboard.SummaryWriter``, for ``step``.

        Of each layer ``NAME`` that was called: the scalars ``rate/NAME``, and ``silent/NAME`` and ``saturated/NAME``,
        the shares of such neurons; histograms ``rates of neurons/NAME`` and, of each recorded state in the last call,
        ``STATE/NAME``; with ``figures`` pictures of the first sample of that call, ``raster/NAME`` of spikes that were
        kept and ``traces of STATE/NAME``, which need matplotlib. The network itself is called ``net``.
        """
        for layer in self.layers:
            if layer.calls:
                _log(layer, layer.name or "net", writer, step, figures)

    def _table(self) -> Table:
        spoilt = [(layer, layer.not_finite) for layer in self.layers]
        lines = [f"{layer.name or '(net)'} ({layer.kind}): {text}" for layer, text in spoilt if text]
        return Table(_HEADINGS, list(map(_cells, self.layers)), 2, [_LEGEND, *lines, *([_SPOILT] if lines else [])])


def monitor(
    net: nn.Module,
    record: Sequence[str] = (),
    *,
    spikes: bool = False,
    layers: Optional[Sequence[str]] = None,
    grad: bool = False,
) -> ContextManager[Seen]:
    """Within the block, watch every neuron of ``net``: how often it fires, and its states where asked.

    ::

        with sc.monitor(net, record=("v",)) as seen:
            net(x)  # x [T, B, ...]
        print(seen)  # a table: rates, silent and saturated neurons of each layer
        seen.rates  # {"1": 0.12, "3": 0.04}, spikes per time step, mean over the layer
        seen["1"].rates  # the same of each neuron, [...]
        seen["1"].v  # its potential after every step, [T, B, ...]

    The rate of a layer is ``r = sum over t, b, i of |y[t, b, i]| / (T * B * N)`` of the outputs ``y``: spikes per time
    step and neuron, where a graded spike counts as much as it is. A neuron whose output is no spike (``sc.LI``) has no
    rate. Rates are those of all calls within the block, each time step counting the same; ``seen["1"].calls`` has each.
    A block costs a sum over inputs and outputs for each call, and holds one number for each neuron and some for each
    time step; nothing waits for the device before a rate is read. It adds no hooks: a fused or wrapped network
    computes as without the block.

    ``seen["1"].not_finite`` says whether a layer's input has NaN or infinities, and since when.

    net: a network or a neuron. What wraps it (``torch.compile``, ``DistributedDataParallel``) is no part of the names.
    record: names to keep, of states and of values that ``sc.ops.named`` names, ``[T, B, ...]`` of each call, on the
        device; a neuron without one is left out. ``Recurrent`` has those of its neuron. The backend must declare
        ``record``.
    spikes: keep the outputs, too, ``seen["1"].spikes``.
    layers: names of the layers to watch, as in ``net.named_modules()``; None for all.
    grad: keep the graphs of rates, spikes and states, so that a loss can be made of them; else all are detached. They
        are those of all calls so far: after a backward through them call ``seen.clear()``.

    After the block nothing of the network refers to ``seen``, and ``del seen`` frees what it holds; ``seen.clear()``
    forgets the calls so far. Blocks may be nested, and each sees all calls within it. A network compiled by
    ``torch.compile`` runs eagerly within the block, with torch 2.6 or newer. A call that activation
    checkpointing repeats in backward is seen once.

    Raises TypeError or ValueError, naming the argument, for a ``net`` that is no module or has no neuron, and for a
    state or layer that is not there; :class:`spikecore.backend.Unsupported` in a call whose backend does not record;
    RuntimeError in a call that torch captures in a CUDA graph, or PopTorch compiles, in a step with
    ``CudaOptions(graph=True)``, and for a record within activation checkpointing.
    """
    return Block("sc.monitor", _watched(net, record, spikes, layers, grad))


@contextmanager
def _watched(
    net: nn.Module, record: Sequence[str], spikes: bool, layers: Optional[Sequence[str]], grad: bool
) -> Iterator[Seen]:
    stateful_modules(net)  # raises for what is no network
    modules = neurons_of(net)
    if not modules:
        raise ValueError(f"net={shown(net)} has no spikecore neuron to watch; give the network that holds them")
    if layers is not None:
        modules = {name: modules[name] for name in _names("layers", layers, modules, "layer of neurons")}
    there = {state for module in modules.values() for state in neuron_of(module).recordable}
    states = _names("record", record, there, "state of a watched neuron")
    seen = Seen(
        tuple(
            [Layer(name, type(stateful_of(module)).__name__, states, spikes, grad) for name, module in modules.items()]
        )
    )
    takes = {layer.name: layer._take for layer in seen.layers}
    with recorder.record(
        net,
        layers=(),
        neurons=modules.items(),
        states=states,
        ends=lambda call: takes[call.name](call),
        graph=grad,
    ):
        yield seen


def _names(argument: str, value: Any, there: Collection[str], what: str) -> Tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (tuple, list)) or not all(isinstance(n, str) for n in value):
        raise TypeError(f"{argument}={shown(value)} must be a tuple of names, such as {argument}=('v',)")
    for name in value:
        if name not in there:
            listed = ", ".join(map(repr, sorted(there))) or "none"
            raise ValueError(
                f"{argument}={list(value)!r}: {name!r} is no {what}; there are {listed}{hint_of_state([name])}"
            )
    return tuple(dict.fromkeys(value))


def _sizes(x: Tensor) -> Tensor:
    if x.ndim < 2:
        return x
    # torch 2.0 has none of float16
    sizes: Tensor = torch.linalg.vector_norm(x, math.inf, tuple(range(1, x.ndim)), dtype=compute_dtype(x.dtype))
    return sizes


# -- the table


def _cells(layer: Layer) -> Tuple[str, ...]:
    name, rate, sizes = layer.name or "(net)", layer.rate, {call.neurons for call in layer.calls}
    if not sizes:
        return (name, layer.kind, "0", "", "", "", "")
    silent = saturated = ""
    if layer.not_finite:
        silent = saturated = "not finite"
    elif rate is not None and len(sizes) == 1:
        silent, saturated = _part(layer.silent, layer.neurons), _part(layer.saturated, layer.neurons)
    neurons = f"{layer.neurons:,}" if len(sizes) == 1 else "varies"
    return (name, layer.kind, str(len(layer.calls)), neurons, "" if rate is None else f"{rate:.4f}", silent, saturated)


def _part(count: int, neurons: int) -> str:
    return f"{count:,} ({100 * count / max(1, neurons):.1f} %)" if count else "0"


# -- the log


def _log(layer: Layer, name: str, writer: Any, step: Optional[int], figures: bool) -> None:
    if layer.rate is not None:
        writer.add_scalar(f"rate/{name}", layer.rate, step)
    if layer.fires and len({call.neurons for call in layer.calls}) == 1:
        rates = layer.rates.detach().cpu()
        writer.add_scalar(f"silent/{name}", float((rates == 0).double().mean()), step)
        writer.add_scalar(f"saturated/{name}", float((rates >= layer.largest).double().mean()), step)
        writer.add_histogram(f"rates of neurons/{name}", rates, step)
    last = layer.calls[-1]
    for state, values in last.states.items():
        flat = values.detach().flatten()
        writer.add_histogram(f"{state}/{name}", flat[:: max(1, -(-flat.numel() // _MOST))].float().cpu(), step)
    for tag, figure in _figures(last) if figures else ():
        writer.add_figure(f"{tag}/{name}", figure, step)


def _figures(call: Call) -> Iterator[Tuple[str, Any]]:
    """Pictures of the first sample of a call. A figure of its own each, which no global list of pyplot's keeps."""

    def axes() -> Any:
        from matplotlib.figure import Figure  # where there is something to draw, and it need not be installed

        return Figure(figsize=(5.0, 3.0), constrained_layout=True).subplots()

    spikes = None if call.total is None or call.spikes is None or call.spikes.ndim < 2 else call.spikes
    if spikes is not None:
        yield "raster", plot.raster(spikes, ax=axes()).figure
    for state, values in call.states.items():
        if values.ndim > 1:
            beside = spikes if spikes is not None and spikes.shape == values.shape else None
            yield f"traces of {state}", plot.traces(values, spikes=beside, label=state, ax=axes()).figure
