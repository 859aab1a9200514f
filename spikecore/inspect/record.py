"""Recorder of a run: the calls of a network's layers and neurons within a block.

``sc.monitor``, ``sc.explain``, ``sc.energy``, the hints of the first training step and online learning rules read
it. Nothing else puts hooks on modules, watches neurons, or follows what autograd keeps and torch computes.

- A layer is recorded by forward hooks. They are marked as read-only unless ``edits`` is set, so that a fused or
  recurrent layer computes as without them.
- A neuron is watched (:mod:`spikecore.core.observe`): its calls are seen however it is called, by ``run`` too, with its
  states.
- What backward computes again in a region of activation checkpointing was recorded before, and is not recorded again.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from spikecore.backend import Tensors
from spikecore.batches import flattened
from spikecore.context import AGAIN, COMPILES, region, require_compiler
from spikecore.core.modules import observing, outside, unwrapped
from spikecore.core.neuron import Neuron
from spikecore.core.observe import Watcher, watched
from spikecore.core.state import Stateful
from spikecore.lang import topological
from spikecore.lang.node import largest_count
from spikecore.layers import Between, NormNeuron, TimeBatched
from spikecore.neurons import Recurrent

__all__ = ["Call", "Run", "neuron_of", "neurons_of", "record", "spiking_outputs", "stateful_of"]

#: Layers of neurons.
_NEURONS = (Neuron, NormNeuron, Recurrent, Between)
#: Torch 2.1 and newer call a hook where ``forward`` raised, too.
_ALWAYS: Any = (
    {"always_call": True} if "always_call" in inspect.signature(nn.Module.register_forward_hook).parameters else {}
)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer.

    ``name``, ``layer``: its path in the network, "" for the network itself, and the module. ``number``: how often that
    was called so far, 1 in the first call. ``inputs``: the tensors among its arguments. ``output``: its result, None
    while it runs. ``states``: recorded states after every step, ``[T, B, ...]``. ``step``: "multi" for all steps at
    once, "single" for one, "" of a layer without state. ``folded``: T and B, where these are one dimension within
    ``TimeBatched``, else zeros.

    Of a neuron that is watched and no layer with hooks, inputs and outputs are ``[T, B, ...]`` in single steps, too.
    """

    name: str
    layer: nn.Module
    number: int = 1
    inputs: Tensors = ()
    output: Any = None
    states: Mapping[str, Tensor] = field(default_factory=dict)
    step: str = ""
    folded: Tuple[int, int] = (0, 0)

    @property
    def outputs(self) -> List[Tensor]:
        """The tensors of its result."""
        return flattened(self.output)

    @property
    def title(self) -> str:
        """Name and class."""
        kind = type(self.layer).__name__
        return f"{self.name} ({kind})" if self.name else kind


#: A module and its name, as ``named_modules()`` gives them.
Named = Tuple[str, nn.Module]
#: Functions of a call as it begins and ends. With ``edits``, a result takes the place of its inputs or of its output.
Listener = Callable[[Call], Any]
#: Function of an operation of torch: the call that it is part of, function, arguments and result.
Operation = Callable[[Optional[Call], Any, Tuple[Any, ...], Any], None]


class Run:
    """Record of a block of :func:`record`.

    ``calls``: a :class:`Call` for each, in the order in which they ended; empty where a function ``ends`` was given.
    ``saved``: what autograd keeps of the layers for backward, a weak reference to each tensor beside the innermost
    layer that ran. ``current``: the call of that layer now.
    """

    def __init__(self, begins: Optional[Listener], ends: Optional[Listener], edits: bool) -> None:
        self.calls: List[Call] = []
        self.saved: List[Tuple[weakref.ReferenceType[Tensor], nn.Module]] = []
        self._begins, self._ends, self._edits = begins, ends, edits
        #: Of each thread, of which DataParallel has several, the calls that run, from the outside in, each with the
        #: watcher that told of it; None for a hook.
        self._stacks: Dict[int, List[Tuple[Call, Optional[Watcher]]]] = defaultdict(list)
        self._numbers: Dict[nn.Module, int] = Counter()

    @property
    def _running(self) -> List[Tuple[Call, Optional[Watcher]]]:
        return self._stacks[get_ident()]

    @property
    def current(self) -> Optional[Call]:
        """The innermost call that runs."""
        return self._running[-1][0] if self._running else None

    def _begin(self, name: str, layer: nn.Module, inputs: Sequence[Tensor], by: Optional[Watcher] = None) -> Any:
        """A call begins; the inputs in the place of these, None for the same."""
        step = "multi" if by else getattr(stateful_of(layer), "step", "")
        call = Call(name, layer, self._count(layer), tuple(inputs), step=step, folded=self._folded())
        others = None if self._begins is None else self._begins(call)
        others = others if self._edits else None
        self._running.append((call if others is None else replace(call, inputs=tuple(others)), by))
        return others

    def _end(self, layer: nn.Module, output: Any, states: Optional[Mapping[str, Tensor]] = None) -> Any:
        """A call ended; the output in the place of this one, None for the same."""
        call = self._running.pop()[0]
        while call.layer is not layer:  # a layer within it raised an error that the network caught
            call = self._running.pop()[0]
        return self._note(replace(call, output=output, states=call.states if states is None else states))

    def _drop(self, layer: nn.Module) -> None:
        """A call raised an error: it and what ran within it have no end."""
        if any(call.layer is layer for call, _ in self._running):
            while self._running.pop()[0].layer is not layer:
                pass

    def _note(self, call: Call) -> Any:
        if self._ends is None:
            self.calls.append(call)
            return None
        other = self._ends(call)
        return other if self._edits else None

    def _count(self, layer: nn.Module) -> int:
        self._numbers[layer] += 1
        return self._numbers[layer]

    def _folded(self) -> Tuple[int, int]:
        around = self.current
        if around is None:
            return 0, 0
        x = around.inputs[0] if around.inputs else None
        batched = isinstance(around.layer, TimeBatched) and x is not None and x.ndim > 1
        return (x.shape[0], x.shape[1]) if batched else around.folded  # type: ignore[union-attr]  # a tensor

    def _save(self, value: Tensor) -> Tensor:
        """The hook of tensors that are saved for backward."""
        # a result that its own node saves would keep that node alive, which keeps the result
        saved = value.detach()
        current = self.current
        if current is not None and value.layout is torch.strided:
            self.saved.append((weakref.ref(saved), current.layer))
        return saved

    def _hook(self, name: str, layer: nn.Module) -> Iterator[Any]:
        """Hooks that tell of every call of a layer."""

        def begins(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if region() == AGAIN:
                return None
            others = self._begin(name, layer, [*flattened(args), *flattened(kwargs)])
            return None if others is None else (tuple(others), kwargs)

        def ends(module: nn.Module, args: Any, output: Any) -> Any:
            if region() == AGAIN:
                return None
            if output is None and sys.exc_info()[0] is not None:
                return self._drop(layer)
            return self._end(layer, output)

        mark: Callable[[Any], Any] = (lambda hook: hook) if self._edits else observing
        yield layer.register_forward_pre_hook(mark(begins), with_kwargs=True)
        yield layer.register_forward_hook(mark(ends), **_ALWAYS)


class _Watched(Watcher):
    """Watcher of one neuron. Where its layer has hooks, these tell of its calls, but for those of ``run``."""

    def __init__(
        self, run: Run, name: str, layer: nn.Module, states: Tuple[str, ...], hooked: bool, graph: bool
    ) -> None:
        self.run, self.name, self.layer, self.record, self.hooked = run, name, layer, states, hooked
        self.keeps_graph = graph
        self.wants_spikes = not hooked

    def begin(self, inputs: Sequence[Tensor]) -> Optional[Sequence[Tensor]]:
        if self.run._running and self.run._running[-1][1] is self:  # ``run`` raised an error that the network caught
            self.run._running.pop()
        current = self.run.current
        if not self.hooked or (current is not None and current.layer is self.layer):
            return None
        return self.run._begin(self.name, self.layer, inputs, self)  # type: ignore[no-any-return]  # of a listener

    def take(
        self, inputs: Tensors, outputs: Tensors, trace: Mapping[str, Tensor], single: bool
    ) -> Optional[Sequence[Tensor]]:
        run, output = self.run, outputs[0] if len(outputs) == 1 else outputs
        if not self.hooked:
            step, number = "single" if single else "multi", run._count(self.layer)
            run._note(Call(self.name, self.layer, number, inputs, output, trace, step))
        elif run._running[-1][1] is self:
            other = run._end(self.layer, output, trace)
            return None if other is None else flattened(other)
        else:
            run._running[-1] = (replace(run._running[-1][0], states=trace), None)
        return None


class _Operations(TorchDispatchMode):
    """Tells of every operation of torch."""

    def __init__(self, run: Run, operation: Operation) -> None:
        super().__init__()
        self.run, self.operation = run, operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operation(self.run.current, func, (args, kwargs or {}), out)
        return out


@contextmanager
def record(
    net: nn.Module,
    *,
    saved: bool = False,
    layers: Optional[Iterable[Named]] = None,
    neurons: Optional[Iterable[Named]] = None,
    states: Sequence[str] = (),
    begins: Optional[Listener] = None,
    ends: Optional[Listener] = None,
    edits: bool = False,
    graph: bool = False,
    operation: Optional[Operation] = None,
) -> Iterator[Run]:
    """Record the calls of a network within the block.

    ::

        with record(net) as run:
            net(x)
        for call in run.calls:
            print(call.title, call.outputs[0].shape)

    net: a network. What wraps it (``torch.compile``, ``DistributedDataParallel``) is no part of the names; what
        ``sc.checkpoint`` gives is a layer.
    saved: note what autograd keeps of the layers for backward.
    layers: the modules with hooks and their names, as of ``named_modules()``; None for every one but the parts of
        neurons, which these call themselves.
    neurons: the layers with state that are watched; None for the neurons of ``layers`` with ``states``, and else for
        none.
    states: names of the states to record of these; a neuron without such a state records the others.
    begins, ends: functions that are given each call as it begins, without an output, and as it ends, so that ``run``
        need not keep its tensors.
    edits: what ``begins`` returns takes the place of the inputs, what ``ends`` returns that of the output, unless it is
        None; of a neuron that is in ``layers``, by ``run``, too. Hooks then count as those of a user: no kernel
        computes past them.
    graph: whether what is recorded goes into a loss, with its graph.
    operation: a function of each operation of torch, after it: the innermost call, the function, its positional and
        keyword arguments as a pair, its result.

    Within a block with neurons a network that is compiled runs eagerly. A CUDA graph of a watched neuron is refused.
    """
    layers = [*(outside(unwrapped(net, True), (Stateful, NormNeuron)) if layers is None else layers)]
    if neurons is None:
        neurons = [pair for pair in layers if neuron_of(pair[1]) is not None] if states else []
    run = Run(begins, ends, edits)
    with ExitStack() as stack:
        hooked = {layer for _, layer in layers}
        for name, layer in layers:
            for handle in run._hook(name, layer):
                stack.callback(handle.remove)
        for name, layer in neurons:
            watcher = _Watched(run, name, layer, tuple(states), layer in hooked, graph)
            stack.enter_context(watched(stateful_of(layer), watcher))
        if neurons:
            stack.enter_context(_eager(net))
        if saved:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(run._save, lambda saved: saved))
        if operation is not None:
            stack.enter_context(_Operations(run, operation))
        yield run


def neurons_of(net: nn.Module) -> Dict[str, nn.Module]:
    """The layers of neurons of a network by name; what one of them holds, as Recurrent does, is part of it."""
    return {name: module for name, module in outside(unwrapped(net), _NEURONS) if isinstance(module, _NEURONS)}


def neuron_of(layer: Any) -> Any:
    """The neuron of a layer of neurons, itself or that of Recurrent, NormNeuron or Between; None for another module."""
    inner = layer.neuron if isinstance(layer, (NormNeuron, Recurrent)) else layer
    inner = layer.fire if isinstance(layer, Between) else inner
    return inner if isinstance(inner, Neuron) else None


def spiking_outputs(layer: Any) -> List[int]:
    """The numbers of the outputs of a layer of neurons that are spikes; if none is, of those that spikes are part of,
    such as the output of :class:`spikecore.layers.SpikingLSTM`. None of other modules, and of integrators.
    """
    neuron = neuron_of(layer)
    outputs = () if neuron is None else neuron.program.outputs
    spikes = [number for number, output in enumerate(outputs) if largest_count(output)]
    return spikes or [number for number, output in enumerate(outputs) if any(map(largest_count, topological([output])))]


def stateful_of(layer: Any) -> Any:
    """Module that has the state of a layer and its mode ``step``; None for a layer without state."""
    inner = layer.neuron if isinstance(layer, NormNeuron) else layer
    return inner if isinstance(inner, Stateful) else None


def _eager(net: nn.Module) -> Any:
    """A block within which compiled functions run eagerly: their graphs call no module of the network."""
    # without the compiler nothing is compiled, and to import it takes seconds
    if "torch._dynamo.eval_frame" not in sys.modules:
        return ExitStack()
    if any("_orig_mod" in module._modules for module in net.modules()):
        require_compiler("sc.monitor of a compiled network, whose graph calls no module,")
    return torch.compiler.set_stance("force_eager") if COMPILES else ExitStack()
