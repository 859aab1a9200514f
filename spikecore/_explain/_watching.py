"""Hooks that note, while a network runs, what each of its layers is given, gives, and keeps for backward."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function

from spikecore._base.batches import flattened
from spikecore._explain._described import is_channels_last, is_repeated, memory_layout
from spikecore._explain._finite import Finite
from spikecore._explain._held import Held, storage_of
from spikecore._explain._results import Results
from spikecore._explain._traffic import ASIDE, RANGE
from spikecore._explain._trials import is_saturated, is_silent
from spikecore._shell.hooks import observing
from spikecore._shell.in_turn import time_makers
from spikecore._shell.prologued import prologue_of
from spikecore._shell.state import Stateful
from spikecore.layers import Delay, TimeBatched
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent


class Given(NamedTuple):
    """A tensor of a layer's first call."""

    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    layout: str
    channels_last: bool
    requires_grad: bool


class Seen:
    """What was seen of one module."""

    def __init__(self, number: int, name: str, module: nn.Module) -> None:
        self.number, self.name, self.module = number, name, module
        self.calls = 0
        #: What computed the first input of the first call, if a module of the network did.
        self.source: Optional[nn.Module] = None
        #: Inputs and output of the first call.
        self.inputs: Tuple[Given, ...] = ()
        self.output: Optional[Given] = None
        #: Numbers of the first input, of all calls; and those of it and of the output, a step that is repeated once.
        self.elements = 0
        self.taken = self.given = 0
        #: Time steps at once in the first call, 0 if unknown, and whether they held the same.
        self.steps = 0
        self.repeated = False
        #: Whether the module was given one step for all, and computed it once.
        self.once = False
        #: Spikes and outputs, if all outputs are 0 or 1.
        self.spikes = self.outputs = 0
        self.only_spikes = True
        #: Copies of the inputs of each call, of a layer that hardly fires, or nearly always; None of any other.
        self.sample: Optional[List[List[Tensor]]] = []
        self.saved = 0
        #: Numbers that it keeps and that are not its inputs: states at checkpoints.
        self.checkpoints = 0
        #: Bytes of spikes among what it keeps.
        self.saved_spikes = 0
        #: Which backends refused, and what they said: (refusing, computing, why).
        self.refusals: List[Tuple[str, str, str]] = []
        #: Backend that computes and why, of a neuron.
        self.backend, self.reason = "", ""
        #: Whether that backend launches kernels, which are no operations of torch.
        self.compiles = False


class Watching:
    """Notes what happens to the modules of a network while it runs."""

    def __init__(self, net: nn.Module) -> None:
        self.seen: Dict[nn.Module, Seen] = {}
        within: Set[nn.Module] = set()
        for name, module in net.named_modules():
            if module not in within:
                self.seen[module] = Seen(len(self.seen), name, module)
            if isinstance(module, Stateful):
                # what it holds, such as the neuron and the layer of Recurrent, is part of it
                within.update(part for part in module.modules() if part is not module)
        self.order: List[Seen] = []
        #: What makes time, and whether there is time yet: layers before the first of these compute once for all steps.
        self._makers = time_makers(net)
        self._timed = not self._makers
        #: Storages of what the modules that run now were given, and of their parameters.
        self._given: List[Set[int]] = []
        self._stack: List[Tuple[Seen, record_function, Tuple[int, int]]] = []
        #: Of each of these what it was given.
        self._inputs: List[List[Tensor]] = []
        self._kept: Set[int] = {storage_of(tensor) for tensor in (*net.parameters(), *net.buffers())}
        self._spikes: Dict[int, int] = {}
        self._results = Results()
        self.finite = Finite()
        #: What layers had autograd keep: (it, by whom, whether it is none of what the layer got, whether spikes).
        self._held: List[Tuple[weakref.ReferenceType[Held], Seen, bool, bool]] = []

    @property
    def top(self) -> Optional[Seen]:
        """What runs now."""
        return self._stack[-1][0] if self._stack else None

    @contextmanager
    def on(self, inputs: Any) -> Iterator[None]:
        """Within the block the network is watched; ``inputs`` are its inputs, which the caller keeps anyway."""
        self._kept.update(map(storage_of, flattened(inputs)))
        with record_function(ASIDE), torch.no_grad():
            self.finite.look_at_inputs(inputs)
        handles: List[Any] = []
        wrapped: List[nn.Module] = []
        try:
            for module, seen in self.seen.items():
                handles.append(module.register_forward_pre_hook(self._begins(seen), with_kwargs=True))
                handles.append(module.register_forward_hook(self._ends(seen), with_kwargs=True))
                if isinstance(module, (Neuron, Recurrent, Delay)):
                    vars(module)["run"] = self._run(seen, module.run)  # which no hook sees
                    wrapped.append(module)
            with cast(ContextManager[Any], torch.autograd.graph.saved_tensors_hooks(self._keep, Held.tensor)):
                yield
            self._note_kept()
        finally:
            self._held.clear()
            self._inputs.clear()
            while self._stack:  # where a layer raised
                self._stack.pop()[1].__exit__(None, None, None)
            for module in wrapped:
                vars(module).pop("run", None)
            for handle in handles:
                handle.remove()

    def _begins(self, seen: Seen) -> Callable[..., None]:
        def begins(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._begin(seen, [*flattened(args), *flattened(kwargs)])

        return observing(begins)

    def _ends(self, seen: Seen) -> Callable[..., None]:
        return observing(lambda module, args, kwargs, output: self._end(seen, flattened(output)))

    def _run(self, seen: Seen, run: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.top is seen:  # Recurrent.forward, or an override of forward
                return run(*args, **kwargs)
            if kwargs.get("state") is not None:
                seen.sample = None  # it does not begin at rest, as a layer that runs again does
            self._begin(seen, flattened(args))
            found = run(*args, **kwargs)
            self._end(seen, flattened(found[0]))
            return found

        return watched

    def _begin(self, seen: Seen, given: List[Tensor]) -> None:
        if not seen.calls:
            self.order.append(seen)
        seen.calls += 1
        folded = self._stack[-1][2] if self._stack else (0, 0)
        with record_function(ASIDE), torch.no_grad():
            seen.elements += given[0].numel() if given else 0
            seen.taken += _apart(given[0]) if given else 0
            if seen.calls == 1:
                seen.inputs = tuple(map(_described, given))
                seen.source = self._results.source(given[0]) if given else None
                if given and given[0].ndim:
                    self._note_steps(seen, given[0], folded)
            if isinstance(seen.module, TimeBatched) and given and given[0].ndim > 1:
                folded = given[0].shape[0], given[0].shape[1]
            self.finite.look_at_given(seen, given, folded)
        entered = record_function(f"{RANGE}{seen.number}")
        entered.__enter__()
        self._stack.append((seen, entered, folded))
        self._inputs.append(given)
        self._given.append({storage_of(one) for one in (*given, *seen.module.parameters(recurse=False))})

    def _note_steps(self, seen: Seen, x: Tensor, folded: Tuple[int, int]) -> None:
        """How many time steps the first input has, and whether they are all the same."""
        steps, batch = folded
        if seen.module in self._makers:
            self._timed = True
            seen.steps = getattr(seen.module, "repeat", None) or 0
        elif not self._timed:
            seen.once = not any(True for _ in seen.module.children())
        elif steps and x.shape[0] == steps * batch:
            seen.steps = steps
            seen.repeated = is_repeated(x.unflatten(0, (steps, batch)), steps)
        elif not (isinstance(seen.module, Stateful) and seen.module.step == "single"):
            seen.steps = x.shape[0]
            seen.repeated = is_repeated(x, seen.steps)

    def _end(self, seen: Seen, results: List[Tensor]) -> None:
        _, entered, _ = self._stack.pop()
        given = self._inputs.pop()
        self._given.pop()
        entered.__exit__(None, None, None)
        with record_function(ASIDE), torch.no_grad():
            self.finite.look_at_output(seen, given, results, self._stack[-1][2] if self._stack else (0, 0))
            for value in results[:1]:
                self._results.note(seen.module, value)
                seen.given += _apart(value)
                if seen.output is None:
                    seen.output = _described(value)
                if _may_fire(seen.module):
                    self._note_spikes(seen, value, given)

    def _note_spikes(self, seen: Seen, value: Tensor, given: List[Tensor]) -> None:
        added = given[1] if len(given) > 1 and _adds_behind(seen.module) else None
        # of whole numbers the difference is exact
        spikes = value if added is None else value - added
        fires = spikes == 1
        if not bool((fires | (spikes == 0)).all()):
            seen.only_spikes, seen.sample = False, None
            return
        seen.spikes += int(fires.sum())
        seen.outputs += value.numel()
        rate = seen.spikes / seen.outputs if seen.outputs else 0.0
        if not (is_silent(rate) or is_saturated(rate)):
            seen.sample = None
        if seen.sample is not None:
            seen.sample.append([x.detach().clone() for x in given])
        if added is None and value.is_floating_point() and value.numel():
            self._spikes[storage_of(value)] = value.element_size() * value.numel()

    def _keep(self, value: Tensor) -> Held:
        """The hook of tensors that are saved for backward."""
        seen = self.top
        with record_function(ASIDE):
            held = Held(value)
        if seen is not None and value.layout is torch.strided:
            storage, size = storage_of(value), value.untyped_storage().nbytes()
            made = storage not in self._given[-1]
            spikes = self._spikes.get(storage) == size and not _may_fire(seen.module)
            self._held.append((weakref.ref(held), seen, made, spikes))
        return held

    def _note_kept(self) -> None:
        """Add up what autograd keeps, now that the forward pass is over: a part whose outputs nobody took is gone, and
        other numbers may have got its memory, or that of spikes.
        """
        with record_function(ASIDE), torch.no_grad():
            for held, seen, made, spikes in self._held:
                one = held()
                if one is None:
                    continue
                storage = storage_of(one.value)
                seen.checkpoints += one.value.numel() if made else 0
                if storage in self._kept:
                    continue
                self._kept.add(storage)
                seen.saved += one.bytes
                if spikes and one.has_spikes():
                    seen.saved_spikes += one.bytes


def _may_fire(module: nn.Module) -> bool:
    """Whether outputs of 0 and 1 are spikes of this module."""
    return isinstance(module, Stateful) and not isinstance(module, Delay)


def _adds_behind(module: nn.Module) -> bool:
    """Whether a neuron adds a shortcut to its spikes."""
    prologue = prologue_of(module)
    return prologue is not None and prologue.shortcut == "after"


def _apart(x: Tensor) -> int:
    """How many numbers a tensor has; a step that is repeated counts once."""
    repeated = x.layout is torch.strided and x.ndim > 0 and x.stride(0) == 0 and x.shape[0] > 1
    return x.numel() // x.shape[0] if repeated else x.numel()


def _described(x: Tensor) -> Given:
    strides = tuple(x.stride()) if x.layout is torch.strided else ()
    return Given(tuple(x.shape), strides, x.dtype, x.device, memory_layout(x), is_channels_last(x), x.requires_grad)
