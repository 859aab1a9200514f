"""Hooks on a network that note what each layer is given, gives, and keeps for backward, and where NaN begins."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor, nn

from spikecore._base import finite
from spikecore.batches import flattened, run_network
from spikecore.context import AGAIN, region
from spikecore.core.modules import observing, outside, time_makers
from spikecore.core.neuron import Neuron
from spikecore.core.state import Stateful
from spikecore.inspect._advice import is_extreme
from spikecore.inspect._monitor import adds_behind, monitor, neuron_of, stateful_of
from spikecore.layers import Delay, NormNeuron, TimeBatched
from spikecore.neurons import Recurrent

#: Layers that have a form which keeps spikes as bits.
_PACKABLE = (nn.Linear, nn.Conv2d)
_DATA = "Leave such samples out, or put a number in their place by torch.nan_to_num"
_WEIGHT = "Go on from a checkpoint with finite weights, or make the network anew"
_LAYER = "Look for a division by 0, a logarithm or root of 0 or less, or numbers too large for their dtype there"
_BACKWARD = "torch.autograd.set_detect_anomaly(True) around the step names the operation"


class Described(NamedTuple):
    """A tensor of a layer's first call; with the defaults there is none."""

    shape: Tuple[int, ...] = ()
    dtype: str = ""
    device_type: str = ""
    layout: str = ""
    requires_grad: bool = False


@dataclass(eq=False)
class Seen:
    """Record of one module."""

    name: str
    module: nn.Module
    calls: int = 0
    #: Inputs and output of the first call.
    inputs: Tuple[Described, ...] = ()
    output: Described = field(default_factory=Described)
    #: Numbers of the first input and of the output, of all calls; a step that is repeated counts once.
    numbers_in: int = 0
    numbers_out: int = 0
    #: True if it was called by ``run``, which takes all steps in every mode.
    by_run: bool = False
    #: Time steps at once in the first call, 0 if unknown; whether they held the same; whether one was computed for all.
    steps: int = 0
    repeated: bool = False
    once: bool = False
    #: Spikes and outputs, if all outputs are 0 or 1.
    spikes: int = 0
    outputs: int = 0
    only_spikes: bool = True
    #: Of neurons that hardly fire, or nearly always, the least and the largest number of input and states.
    ranges: Dict[str, Tuple[float, float]] = field(default_factory=dict)
    #: Bytes that it keeps for backward, and spikes among them.
    saved: int = 0
    saved_spikes: int = 0
    #: True if its input had infinities before anything was wrong, as a mask has.
    infinite: bool = False
    #: Which backends refused, and what they said: (refusing, computing, why).
    refusals: List[Tuple[str, str, str]] = field(default_factory=list)

    @property
    def stateful(self) -> Any:
        """Module that has its state; None without state."""
        return stateful_of(self.module)

    @property
    def step(self) -> str:
        """Step mode of its calls, "multi" or "single"; "" without state."""
        return "multi" if self.by_run else getattr(self.stateful, "step", "")

    def note_range(self, name: str, values: Tensor) -> None:
        """Note the ends of what a call had."""
        if values.numel():
            low, high = self.ranges.get(name, (math.inf, -math.inf))
            self.ranges[name] = min(low, float(values.min())), max(high, float(values.max()))

    @property
    def title(self) -> str:
        """Name and class."""
        kind = type(self.module).__name__
        return f"{self.name} ({kind})" if self.name else kind


class Spoilt(NamedTuple):
    """A tensor that is not finite: where it is, what it has, and what to do about it."""

    place: str
    counts: str
    first: Tuple[int, ...] = ()
    shape: Tuple[int, ...] = ()
    #: Steps and samples that are one dimension; the number of the call of a module that takes one step at a time.
    folded: Tuple[int, int] = (0, 0)
    call: int = 0
    way_out: str = ""

    def when(self, times: Collection[int]) -> str:
        """The time step, where one can tell; ``times``: how many steps the neurons of the network take at once."""
        steps, batch = self.folded
        if self.call:
            return f", in call {self.call}"
        if steps and self.shape[:1] == (steps * batch,):
            return f", time step {self.first[0] // batch}"
        return f", time step {self.first[0]}" if len(self.shape) > 1 and self.shape[0] in times else ""


class _Running(NamedTuple):
    """A module that runs now, its inputs, and its sizes of time and batch where they are one dimension."""

    seen: Seen
    inputs: List[Tensor]
    folded: Tuple[int, int]


class Watching:
    """Runs a network, and notes what happens to its modules. The network keeps the hooks until :meth:`let_go`."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        #: Called modules, in order.
        self.order: List[Seen] = []
        #: First place of numbers that are not finite, None while all are; and the neurons that were given such numbers.
        self.origin: Optional[Spoilt] = None
        self.reached: List[Tuple[Seen, Spoilt]] = []
        #: Modules that make time, and a flag for time: layers before the first of these compute once for all steps.
        self._makers = time_makers(net)
        self._timed = not self._makers
        self._stack: List[_Running] = []
        #: Tensors that autograd keeps for layers: (tensor, record of the layer).
        self._saved: List[Tuple[weakref.ReferenceType[Tensor], Seen]] = []
        self._handles: List[Any] = []
        # what a neuron holds, such as the layer of Recurrent, is part of it
        for name, module in outside(net, (Stateful, NormNeuron)):
            self._hook(Seen(name, module))

    def note_refusal(self, refusing: str, computing: str, error: Exception) -> None:
        """A backend that was chosen automatically refused; in the backward pass no hook says for which layer."""
        if self._stack:
            self._stack[-1].seen.refusals.append((refusing, computing, str(error)))

    def run(self, inputs: Any) -> Any:
        """The outputs of the network."""
        with torch.no_grad():
            self._look("the input:", finite.named_leaves("x", inputs), _DATA, nan=True)
            self._look_at_weights()
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda saved: saved):
            outputs = run_network(self.net, inputs)
        with torch.no_grad():
            known = (*flattened(inputs), *self.net.parameters(), *self.net.buffers())
            self._note_kept({storage_of(tensor) for tensor in known})
        return outputs

    def let_go(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        for seen in self.order:
            vars(seen.module).pop("run", None)

    def _hook(self, seen: Seen) -> None:
        """Tell :meth:`_begin` and :meth:`_end` of every call of a module."""

        def begins(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._begin(seen, [*flattened(args), *flattened(kwargs)])

        def ends(module: nn.Module, args: Any, output: Any) -> None:
            self._end(seen, flattened(output))

        self._handles.append(seen.module.register_forward_pre_hook(observing(begins), with_kwargs=True))
        self._handles.append(seen.module.register_forward_hook(observing(ends)))
        if isinstance(seen.module, (Neuron, NormNeuron, Recurrent, Delay)):
            vars(seen.module)["run"] = self._watched(seen, seen.module.run)  # which no hook sees

    def _watched(self, seen: Seen, run: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._stack and self._stack[-1].seen is seen:  # Recurrent.forward, or an override of forward
                return run(*args, **kwargs)
            seen.by_run = True
            self._begin(seen, flattened(args))
            results = run(*args, **kwargs)
            self._end(seen, flattened(results[0]))
            return results

        return watched

    def _begin(self, seen: Seen, inputs: List[Tensor]) -> None:
        """A call begins. One in a region of activation checkpointing that runs again, in backward, was noted before."""
        if region() == AGAIN:
            self._stack.append(_Running(seen, inputs, (0, 0)))
            return
        folded = self._stack[-1].folded if self._stack else (0, 0)
        x = inputs[0] if inputs else None
        seen.calls += 1
        with torch.no_grad():
            if x is not None:
                seen.numbers_in += _computed(x)
            if seen.calls == 1:
                self.order.append(seen)
                seen.inputs = tuple(map(_described, inputs))
                if x is not None and x.ndim:
                    self._note_steps(seen, x, folded)
            if isinstance(seen.module, TimeBatched) and x is not None and x.ndim > 1:
                folded = x.shape[0], x.shape[1]
            named = [("it", tensor) for tensor in inputs]
            self._look(f"the input of {seen.title}, which no layer gave:", named, _LAYER, True, seen)
            if seen.stateful is not None and all(other is not seen for other, _ in self.reached):
                spoilt = finite.first(named)
                if spoilt is not None and self.origin is None:
                    seen.infinite = True
                elif spoilt is not None:
                    self.reached.append((seen, self._spoilt("its input has", spoilt[1], seen)))
        self._stack.append(_Running(seen, inputs, folded))

    def _end(self, seen: Seen, results: List[Tensor]) -> None:
        running = self._stack.pop()
        if region() == AGAIN:
            return
        with torch.no_grad():
            self._look_at_results(seen, running.inputs, results)
            for value in results[:1]:
                seen.numbers_out += _computed(value)
                seen.output = seen.output if seen.output.dtype else _described(value)
                if neuron_of(seen.module) is not None:
                    self._note_spikes(seen, value, running.inputs)

    def _note_steps(self, seen: Seen, x: Tensor, folded: Tuple[int, int]) -> None:
        """Note the number of time steps of the first input, and whether all steps are the same."""
        steps, batch = folded
        if seen.module in self._makers or seen.stateful in self._makers:
            self._timed = True
            seen.steps = getattr(seen.stateful, "repeat", None) or 0
        elif not self._timed:
            seen.once = not any(True for _ in seen.module.children())
        elif steps and x.shape[0] == steps * batch:
            seen.steps, seen.repeated = steps, _is_repeated(x.unflatten(0, folded))
        elif seen.step != "single":
            seen.steps, seen.repeated = x.shape[0], _is_repeated(x)

    def _note_spikes(self, seen: Seen, value: Tensor, inputs: List[Tensor]) -> None:
        added = adds_behind(seen.module, inputs)
        spikes = value - inputs[1] if added else value  # of whole numbers the difference is exact
        fires = spikes == 1
        if not bool((fires | (spikes == 0)).all()):
            seen.only_spikes = False
            return
        seen.spikes += int(fires.sum())
        seen.outputs += value.numel()
        seen.note_range("its input", inputs[0])

    # -- what autograd keeps

    def _keep(self, value: Tensor) -> Tensor:
        """The hook of tensors that are saved for backward."""
        # a result that its own node saves would keep that node alive, which keeps the result
        saved = value.detach()
        if self._stack and value.layout is torch.strided:
            self._saved.append((weakref.ref(saved), self._stack[-1].seen))
        return saved

    def _note_kept(self, known: Set[int]) -> None:
        """Add up what autograd keeps, now that the forward pass is over: a part whose outputs nobody took is gone, and
        other numbers may have got its memory, or that of spikes. ``known``: the memory of inputs and parameters.
        """
        for saved, seen in self._saved:
            value = saved()
            if value is not None and storage_of(value) not in known:
                known.add(storage_of(value))
                count = value.untyped_storage().nbytes()
                seen.saved += count
                spikes = type(seen.module) in _PACKABLE and bool(((value == 1) | (value == 0)).all())
                seen.saved_spikes += count if spikes else 0
        self._saved.clear()

    # -- where numbers stop being finite

    def extreme(self) -> List[Seen]:
        """The neurons that hardly fire, or nearly always, while all numbers are finite."""
        firing = [seen for seen in self.order if seen.only_spikes and seen.outputs]
        return [seen for seen in firing if is_extreme(seen.spikes / seen.outputs)] if self.origin is None else []

    def note_states(self, layers: Sequence[Seen], net: nn.Module, inputs: Any) -> None:
        """Note what inputs and states of some layers reach, in a run of another copy of the network.

        A neuron may hardly fire, or nearly always, because its states are not finite.
        """
        states = sorted({name for seen in layers for name in neuron_of(seen.module).states})
        with torch.no_grad(), monitor(net, states, layers=[seen.name for seen in layers]) as watched:
            run_network(net, inputs)
        for seen in layers:
            for number, call in enumerate(watched[seen.name].calls, 1):
                for name, values in call.states.items():
                    seen.note_range(name, values)
                    self._look_at_state(seen, name, values, number)

    def _look_at_state(self, seen: Seen, name: str, values: Tensor, call: int) -> None:
        step = finite.first_index(values) if self.origin is None else None
        if step is not None and not (seen.infinite and not finite.has_nan(values)):
            place = f"{seen.title}, whose input {_kind(seen.infinite)}: its state {name!r} has"
            when = f"time step {step[0]} of call {call}"
            self.origin = Spoilt(place, f"{finite.in_words(values)}, {when}", way_out=_LAYER)

    def note_gradients(self, gradients: Sequence[Tuple[str, Tensor]]) -> None:
        """Gradients of parameters, after a forward pass in which nothing was wrong."""
        named = [(f"the gradient of {name}", gradient) for name, gradient in gradients]
        self._look("the backward pass:", named, _BACKWARD)

    def _look_at_results(self, seen: Seen, inputs: List[Tensor], results: List[Tensor]) -> None:
        """Results of a layer; an infinity begins there if its inputs had none."""
        if self.origin is None and not all(map(finite.is_finite, results)):
            infinite = not all(map(finite.is_finite, inputs))
            place = f"the output of {seen.title}, whose input {_kind(infinite)}:"
            self._look(place, [("it", result) for result in results], _LAYER, infinite, seen)

    def _look_at_weights(self) -> None:
        """An infinity is meant in a neuron, such as in a threshold, and in a mask that is not learnt."""
        named = dict(self.net.named_parameters())
        meant = {p for part in self.net.modules() if isinstance(part, Neuron) for p in part.parameters()}
        weights = {name: p for name, p in named.items() if p.requires_grad and p not in meant}
        self._look("a parameter:", weights.items(), _WEIGHT)
        self._look("a parameter:", named.items(), _WEIGHT, nan=True)
        self._look("a buffer:", self.net.named_buffers(), _WEIGHT, nan=True)

    def _look(
        self, place: str, named: Iterable[Tuple[str, Tensor]], way_out: str, nan: bool = False, seen: Any = None
    ) -> None:
        """Note the first tensor that is not finite, or that has NaN, as the origin."""
        spoilt = None if self.origin is not None else (finite.first_nan if nan else finite.first)(named)
        if spoilt is not None:
            origin = self._spoilt(f"{place} {spoilt[0]} has", spoilt[1], seen)
            has_time = way_out in (_DATA, _LAYER)
            self.origin = origin._replace(way_out=way_out, shape=origin.shape if has_time else ())

    def _spoilt(self, place: str, x: Tensor, seen: Optional[Seen]) -> Spoilt:
        folded = self._stack[-1].folded if self._stack else (0, 0)
        call = seen.calls if seen is not None and seen.step == "single" else 0
        return Spoilt(place, finite.in_words(x), finite.first_index(x) or (), tuple(x.shape), folded, call)

    def spoilt_in_words(self, times: Collection[int]) -> str:
        """Advice on numbers that are not finite: their origin and the neurons that they reach; "" if all are finite."""
        origin = self.origin
        if origin is None:
            return ""
        what = "NaN" if "NaN" in origin.counts else "an infinity"
        names = [seen.title + spoilt.when(times) for seen, spoilt in self.reached[:3]]
        more = f" and {len(self.reached) - 3} more" if len(self.reached) > 3 else ""
        reached = f" It reaches {'; '.join(names)}{more}." if names else ""
        return (
            f"Numbers are not finite: {what} begins in {origin.place} {origin.counts}{origin.when(times)}.{reached} A "
            "neuron whose potential is NaN never fires again, and gradients behind it are NaN, so that no other "
            f"advice on rates is given. {origin.way_out}"
        )


def _kind(infinite: bool) -> str:
    return "has infinities and no NaN" if infinite else "is finite"


def storage_of(tensor: Tensor) -> int:
    """Key of a tensor's storage while the tensor is alive: sparse and other tensors have no storage of their own."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def _computed(x: Tensor) -> int:
    """Number of elements of a tensor; a step that is repeated counts once."""
    repeated = x.layout is torch.strided and x.ndim > 0 and x.stride(0) == 0 and x.shape[0] > 1
    return x.numel() // x.shape[0] if repeated else x.numel()


def _is_repeated(x: Tensor) -> bool:
    """True if ``x [T, ...]`` is one step repeated: by its stride, or because its steps hold the same numbers.

    A step that is one number everywhere, such as the zeros of a layer that is silent, does not count: it says nothing
    about other inputs.
    """
    if x.shape[0] < 2 or not x.numel() or x.stride(0) == 0:
        return x.shape[0] > 1 and x.numel() > 0
    if not torch.equal(x[0], x[1]) or bool((x[0] == x[0].reshape(-1)[0]).all()):
        return False
    return all(torch.equal(x[0], step) for step in x[2:])


def _described(x: Tensor) -> Described:
    dtype = str(x.dtype).replace("torch.", "")
    return Described(tuple(x.shape), dtype, x.device.type, memory_layout(x), x.requires_grad)


def memory_layout(x: Tensor) -> str:
    """Order of a tensor's numbers in memory, in a word or two."""
    if x.layout is not torch.strided:
        return str(x.layout).replace("torch.", "")
    if x.numel() == 0:
        return "empty"
    if x.ndim and x.stride(0) == 0 and x.shape[0] > 1:
        return f"one step repeated, {memory_layout(x[0])}"
    if x.is_contiguous():
        return "contiguous"
    if _is_channels_last(x):
        return "channels-last"
    if x.ndim > 1 and x.transpose(0, 1).is_contiguous():
        return "batch before time"
    if x.ndim > 1 and _is_channels_last(x.transpose(0, 1), (2,)):
        return "batch before time, channels-last"
    order = sorted(range(x.ndim), key=lambda dim: (-x.stride()[dim], dim))
    dense = x.permute(order).is_contiguous()
    return f"dimensions in the order {', '.join(map(str, order))}" if dense else f"strided {tuple(x.stride())}"


def _is_channels_last(x: Tensor, channels: Sequence[int] = (1, 2)) -> bool:
    """True if images or volumes, ``[B, C, ...]`` or ``[T, B, C, ...]``, have their channels innermost in memory."""
    return any(x.ndim - dim in (3, 4) and x.movedim(dim, -1).is_contiguous() for dim in channels)
