"""What a monitor saw: layers, and calls of each."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.caches import Lock
from spikecore._looking._logged import log
from spikecore._looking._table import as_html, as_text
from spikecore._shell.prologued import prologue_of
from spikecore._shell.state import Stateful
from spikecore._shell.watchers import Watcher
from spikecore.backend import Tensors
from spikecore.dtypes import has_float64
from spikecore.lang import Node, Program
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent

#: Operations of whole numbers that give whole numbers, and those whose first argument only chooses.
_WHOLE = frozenset(("add", "sub", "mul", "neg", "abs", "minimum", "maximum", "detach"))
_CHOICES = frozenset(("select", "where"))


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
    #: Whether it was a call of one time step.
    single: bool = False

    @property
    def rate(self) -> Optional[float]:
        """Spikes per time step and neuron of this call."""
        return None if self.total is None or not self.outputs else float(self.total) / self.outputs


class Layer(Watcher):
    """What was seen of one layer of neurons.

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
        self._keeps, self._grad = spikes, grad
        self._lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Forget every call."""
        with self._lock:
            self._calls: List[Call] = []
            #: Whether every call continues from the one before it, unless that was reset.
            self._continued = True
            #: Sums over time and batch, by the device and the shape of a sample.
            self._sums: Dict[Tuple[torch.device, Tuple[int, ...]], Tensor] = {}
            self._samples = 0
            #: Whether all outputs that could be other numbers were whole ones, for each device.
            self._whole: Dict[torch.device, Tensor] = {}

    def take(
        self, module: nn.Module, inputs: Tensors, outputs: Tensors, trace: Mapping[str, Tensor], single: bool
    ) -> None:
        """Note a call."""
        neuron: Any = module.neuron if isinstance(module, Recurrent) else module
        carries = isinstance(module, Stateful) and module.carrying
        prologue = prologue_of(neuron) if isinstance(neuron, Neuron) else None
        # an optional one is not given to a neuron that is watched
        added = prologue is not None and prologue.shortcut == "after" and not prologue.optional
        index = _spiking(neuron.program)
        y = outputs[index or 0]
        if not self._grad:
            y, trace = y.detach(), {name: value.detach() for name, value in trace.items()}
        with torch.set_grad_enabled(self._grad and torch.is_grad_enabled()):
            total = None if index is None else self._sum(y, added or not _binary(neuron.program, index))
        steps, batch = y.shape[0], y.shape[1] if y.ndim > 1 else 1
        count = None if total is None else total.detach().sum()
        sizes = tuple([_sizes(x.detach()) for x in inputs if x.numel() and x.is_floating_point()])
        call = Call(steps, batch, y if self._keeps else None, dict(trace), count, y.numel(), sizes, single)
        whole = (y == y.detach().round()).all() if added and total is not None else None
        with self._lock:
            self._continued = self._continued and (single or carries)
            self._calls.append(call)
            if total is not None:
                key = (y.device, tuple(y.shape[2:]))
                before = self._sums.get(key)
                self._sums[key] = total if before is None else before + total
                self._samples += steps * batch
            if whole is not None:
                self._whole[y.device] = whole & self._whole.get(y.device, whole)

    def _sum(self, y: Tensor, graded: bool) -> Tensor:
        # float32 counts no further than 2**24, which an epoch can pass; not all devices have float64
        dtype = torch.float64 if has_float64(y.device.type) else torch.float32
        return (y.abs() if graded else y).sum((0, 1) if y.ndim > 1 else 0, dtype=dtype)

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
        """Whether what came out were spikes: of a shortcut that was added, whether all sums were whole numbers."""
        return bool(self._sums) and all(map(bool, self._whole.values()))

    @property
    def rate(self) -> Optional[float]:
        """Spikes per time step and neuron."""
        if not self.fires:
            return None
        outputs = sum(call.outputs for call in self._calls)
        return sum(float(value.detach().sum()) for value in self._sums.values()) / outputs if outputs else None

    @property
    def rates(self) -> Tensor:
        """Spikes per time step of each neuron, ``[...]``. ValueError where there is no rate for each neuron."""
        if not self.fires:
            what = "its output is no spike" if self._calls else "it was not called in the block"
            raise ValueError(f"layer {self.name!r} ({self.kind}) has no rates: {what}")
        shapes = {shape for _, shape in self._sums}
        if len(shapes) > 1:
            told = ", ".join(str(list(shape)) for shape in sorted(shapes))
            raise ValueError(
                f"layer {self.name!r} ({self.kind}) had neurons of shapes {told}; see its calls one by one"
            )
        first, *others = self._sums.values()
        for value in others:
            first = first + value.to(first.device)
        return (first / self._samples).float()

    @property
    def not_finite(self) -> str:
        """What its input has, NaN or an infinity, and since which call and time step; "" where it is finite."""
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
        """How many neurons it has: the numbers of one sample of one step in the last call."""
        last = self._calls[-1] if self._calls else None
        return last.outputs // max(1, last.steps * last.batch) if last else 0

    @property
    def silent(self) -> int:
        """How many neurons never fired."""
        return int((self.rates.detach() == 0).sum())

    @property
    def saturated(self) -> int:
        """How many neurons fired at every step of every sample."""
        return int((self.rates.detach() >= 1).sum())

    @property
    def spikes(self) -> Tensor:
        """The outputs, ``[T, B, ...]``. ValueError where they were not kept, or where several calls have one each."""
        return self._over_time("spikes", [call.spikes for call in self._calls])

    @property
    def states(self) -> Dict[str, Tensor]:
        """The recorded states after every step, ``[T, B, ...]``. ValueError where several calls have them each."""
        names = self._calls[0].states if self._calls else ()
        return {name: self._over_time(name, [call.states.get(name) for call in self._calls]) for name in names}

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in self.record:
            raise AttributeError(
                f"layer has no {name!r}; states are there that sc.monitor(net, record=({name!r},)) was to record"
            )
        return self._over_time(name, [call.states.get(name) for call in self._calls])

    def _over_time(self, what: str, values: List[Optional[Tensor]]) -> Tensor:
        kept = [value for value in values if value is not None]
        if not kept:
            why = (
                f"monitor was not asked to keep it ({_ASK.get(what, 'record')})" if self._calls else "it was not called"
            )
            if what in self.record and self._calls:
                why = f"{self.kind} has no such state"
            raise ValueError(f"layer {self.name!r} ({self.kind}) has no {what}: {why}")
        if len(kept) == 1:
            return kept[0]
        if self._continued:
            kinds = Counter([(tuple(value.shape[1:]), value.device) for value in kept])
            if len(kinds) == 1:
                return torch.cat(kept)
            told = ", ".join(f"{list(shape)} on {device} in {count}" for (shape, device), count in kinds.items())
            raise ValueError(
                f"layer {self.name!r} ({self.kind}): {what} of {len(kept)} calls are no one sequence: a step is "
                f"{told}; see seen[{self.name!r}].calls, or read it and call seen.clear() where a sequence ends"
            )
        raise ValueError(
            f"layer {self.name!r} ({self.kind}) was called {len(kept)} times, and each call has its own {what}: see "
            f"seen[{self.name!r}].calls, or call seen.clear() between them"
        )


_ASK = {"spikes": "spikes=True"}


class Seen:
    """What :func:`spikecore.monitor` saw. ``str()`` gives a table; notebooks show the same.

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
        found = {layer.name: layer.rate for layer in self.layers}
        return {name: rate for name, rate in found.items() if rate is not None}

    def __getitem__(self, name: str) -> Layer:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(
            f"{name!r} is no watched layer; there are {', '.join(repr(layer.name) for layer in self.layers)}"
        )

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

        Raises TypeError for a writer that lacks ``add_scalar``, ``add_histogram`` or ``add_figure``.
        """
        log(self, writer, step, figures)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def _sizes(x: Tensor) -> Tensor:
    """The largest absolute value at each time step."""
    dtype = torch.promote_types(x.dtype, torch.float32)  # torch 2.0 has no norm of float16 on a CPU
    return torch.linalg.vector_norm(x, math.inf, tuple(range(1, x.ndim)), dtype=dtype) if x.ndim > 1 else x


@lru_cache(maxsize=512)
def _spiking(program: Program) -> Optional[int]:
    """The first output that is spikes, 0 or 1 or a whole number made of such ones; None without one."""
    return next((index for index, node in enumerate(program.outputs) if _is_whole(node)), None)


@lru_cache(maxsize=512)
def _binary(program: Program, index: int) -> bool:
    return bool(program.outputs[index].op == "spike")


def _is_whole(node: Node) -> bool:
    if node.op == "spike":
        return True
    if node.op == "const":
        return float(node.attr).is_integer()  # type: ignore[arg-type]  # a number
    if node.op in _CHOICES:
        return all(map(_is_whole, node.args[1:]))
    return node.op in _WHOLE and all(map(_is_whole, node.args))
