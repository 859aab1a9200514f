"""Facts of each layer in a run: what it is given, gives, keeps for backward, and moves through memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor, nn

from spikecore.core.modules import time_makers
from spikecore.core.neuron import Neuron
from spikecore.graph import CONVOLUTIONS
from spikecore.inspect._layouts import copies, memory_layout
from spikecore.inspect.record import Call, Run, neuron_of, spiking_outputs, stateful_of
from spikecore.lang import Node, topological
from spikecore.lang.node import largest_count
from spikecore.layers import ChannelsLastConv1d, NormNeuron
from spikecore.neurons import Recurrent
from spikecore.plugins.selection import REFERENCE

#: Layers that have a form which keeps spikes as bits.
_PACKABLE = (nn.Linear, ChannelsLastConv1d, *CONVOLUTIONS)


class Described(NamedTuple):
    """A tensor of a layer's first call; with the defaults there is none."""

    shape: Tuple[int, ...] = ()
    dtype: str = ""
    device_type: str = ""
    layout: str = ""
    requires_grad: bool = False


@dataclass(eq=False)
class Facts:
    """Facts of one layer. Sizes and times are those of its first call."""

    name: str
    module: nn.Module
    title: str
    #: Step mode of its calls, "multi" or "single"; "" without state.
    step: str = ""
    calls: int = 0
    inputs: Tuple[Described, ...] = ()
    output: Described = field(default_factory=Described)
    #: Numbers of the first input and of the output, of all calls; a step that is repeated counts once.
    numbers_in: int = 0
    numbers_out: int = 0
    #: Numbers of the first input other than 0, of linear layers on a CPU.
    fired: int = 0
    #: Time steps at once, 0 if unknown; whether they held the same; whether one was computed for all.
    steps: int = 0
    repeated: bool = False
    once: bool = False
    #: Spikes, and those that the outputs can be, if all outputs are spikes or numbers of them.
    spikes: int = 0
    outputs: int = 0
    only_spikes: bool = True
    #: Of each neuron of a sample, its spikes, and over how many steps of samples; None where calls differ in shape.
    counts: Optional[Tensor] = None
    times: int = 0
    #: The least and the largest number of the input of a neuron that fires, and of states that were looked at.
    ranges: Dict[str, Tuple[float, float]] = field(default_factory=dict)
    #: Bytes that it keeps for backward, and spikes among them.
    saved: int = 0
    saved_spikes: int = 0
    #: What the first call copied of its inputs, and why.
    copies: Sequence[str] = ()
    #: Refusals of backends: (refusing, computing, why).
    refusals: List[Tuple[str, str, str]] = field(default_factory=list)

    @property
    def rate(self) -> Optional[float]:
        """Spikes as a fraction of those that the outputs can be; None for a layer that gives other numbers."""
        return self.spikes / self.outputs if self.only_spikes and self.outputs else None

    @property
    def silent(self) -> Optional[float]:
        """The share of neurons that never fired; None where these are not known."""
        return None if self.rate is None or self.counts is None else float((self.counts == 0).float().mean())

    @property
    def saturated(self) -> Optional[float]:
        """The share of neurons that fired at every step of every sample."""
        return None if self.rate is None or self.counts is None else float((self.counts >= self.times).float().mean())

    def note_counts(self, spikes: Tensor, largest: int) -> None:
        """Note the spikes of a call ``[T, B, ...]``, or ``[B, ...]`` of a single step."""
        dims = 1 if self.step == "single" else 2
        if spikes.ndim <= dims:
            return
        sums = spikes.sum(tuple(range(dims)), dtype=torch.float32)
        if self.times and (self.counts is None or self.counts.shape != sums.shape):
            self.counts = None
        else:
            self.counts = sums if self.counts is None else self.counts + sums
        self.times += largest * math.prod(spikes.shape[:dims])

    def note_range(self, name: str, values: Tensor) -> None:
        """Note the ends of what a call had."""
        if values.numel():
            low, high = self.ranges.get(name, (math.inf, -math.inf))
            self.ranges[name] = min(low, float(values.min())), max(high, float(values.max()))


class Layers:
    """Facts of the layers that are called, in the order of their first calls."""

    def __init__(self, net: nn.Module) -> None:
        self.facts: Dict[nn.Module, Facts] = {}
        #: Modules that make time, and a flag for time: layers before the first of these compute once for all steps.
        self._makers = time_makers(net)
        self._timed = not self._makers
        #: True once neurons gave the same at every step: behind them it is not the input that repeats.
        self._constant = False

    def note_inputs(self, call: Call) -> None:
        """Note a call that begins."""
        facts = self.facts.setdefault(call.layer, Facts(call.name, call.layer, call.title))
        facts.calls, facts.step = call.number, call.step
        x = call.inputs[0] if call.inputs else None
        if x is not None:
            facts.numbers_in += _computed(x)
            if type(call.layer) is nn.Linear and x.device.type == "cpu":
                facts.fired += int((x != 0).sum())
        if call.number == 1:
            facts.inputs = tuple(map(_described, call.inputs))
            if x is not None and x.ndim:
                self._note_steps(facts, x, call.folded)

    def note_results(self, call: Call) -> None:
        """Note a call that ended."""
        facts = self.facts[call.layer]
        facts.copies = copies(call) if call.number == 1 else facts.copies
        for value in call.outputs[:1]:
            facts.numbers_out += _computed(value)
            facts.output = facts.output if facts.output.dtype else _described(value)
            if neuron_of(call.layer) is not None:
                _note_spikes(facts, call.outputs, call.inputs)
                self._constant = (
                    self._constant or facts.rate in (0.0, 1.0) or (call.step == "multi" and _is_repeated(value))
                )

    def note_saved(self, run: Run, known: Sequence[Tensor]) -> None:
        """Add up what autograd keeps, now that the forward pass is over: a part whose outputs nobody took is gone, and
        other numbers may have got its memory, or that of spikes. ``known``: inputs and parameters.
        """
        counted: Set[int] = set(map(_storage_of, known))
        for saved, layer in run.saved:
            value, facts = saved(), self.facts[layer]
            if value is not None and _storage_of(value) not in counted:
                counted.add(_storage_of(value))
                count = value.untyped_storage().nbytes()
                facts.saved += count
                spikes = type(facts.module) in _PACKABLE and bool(((value == 1) | (value == 0)).all())
                facts.saved_spikes += count if spikes else 0

    def _note_steps(self, facts: Facts, x: Tensor, folded: Tuple[int, int]) -> None:
        """Note the number of time steps of the first input, and whether all steps are the same."""
        steps, batch = folded
        stateful = stateful_of(facts.module)
        if facts.module in self._makers or stateful in self._makers:
            self._timed = True
            facts.steps = getattr(stateful, "repeat", None) or 0
        elif not self._timed:
            facts.once = not any(True for _ in facts.module.children())
        elif steps and x.shape[0] == steps * batch:
            facts.steps, facts.repeated = steps, self._is_repeated(x.unflatten(0, folded))
        elif facts.step != "single":
            facts.steps, facts.repeated = x.shape[0], self._is_repeated(x)

    def _is_repeated(self, x: Tensor) -> bool:
        """True if an input ``[T, ...]`` is one step repeated, and no neurons that give the same at each made it so."""
        return not self._constant and _is_repeated(x)


def _note_spikes(facts: Facts, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    number = min(spiking_outputs(facts.module), default=0)
    value = outputs[number]
    added = isinstance(facts.module, NormNeuron) and facts.module.shortcut == "after" and len(inputs) > 1
    spikes = value - inputs[1] if added else value  # of whole numbers the difference is exact
    largest = largest_count(neuron_of(facts.module).program.outputs[number]) or 1
    if not bool(((spikes >= 0) & (spikes <= largest) & (spikes == spikes.round())).all()):
        facts.only_spikes = False
        return
    facts.spikes += int(spikes.sum(dtype=torch.float64))
    facts.outputs += value.numel() * largest
    facts.note_counts(spikes, largest)
    facts.note_range("its input", inputs[0])


def _storage_of(tensor: Tensor) -> int:
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


# -- what moves through memory


class Words(NamedTuple):
    """Words per time step and neuron: read and written by a forward pass, and by a forward and a backward pass."""

    forward: int
    training: int


def floor_words(neuron: Neuron) -> Words:
    """The least that any implementation of a neuron must move, whose states stay in registers.

    Forward reads the inputs and writes the outputs. Backward reads the cotangents of the outputs and writes those of
    the inputs; where the adjoint of a step needs inputs or states, it reads the inputs again. LIF: 2, and 2 + 3.
    """
    inputs, outputs = len(neuron.program.inputs), len(neuron.program.outputs)
    reads_again = any(node.op in ("input", "state") for node in _adjoint(neuron))
    return Words(inputs + outputs, inputs + outputs + outputs + inputs + (inputs if reads_again else 0))


def _adjoint(neuron: Neuron) -> Sequence[Node]:
    program = neuron.program
    adjoint = program.adjoint([name for name, _ in neuron.named_parameters() if name in program.params])
    return topological([*adjoint.inputs, *adjoint.states, *adjoint.params])


def _words_of_operations(neuron: Neuron, backward: bool) -> int:
    """Words that the operations of a step move one by one: each reads its operands and writes its result."""
    step = topological([*neuron.program.outputs, *neuron.program.next])
    nodes = {*step, *_adjoint(neuron)} if backward else set(step)
    return sum(1 + sum(part.op not in ("const", "param") for part in node.args) for node in nodes if node.args)


def moved_words(
    facts: Facts, backend: str, has_kernels: bool, training: bool
) -> Tuple[Optional[float], Optional[float]]:
    """Numbers that the calls of a neuron moved per time step and neuron, and the least possible.

    Each input is read at one word per time step and neuron, or less where it broadcasts, 1/T where it is one step
    repeated; its gradient, where one is asked for, takes as many. Kernels move that, the reference the words of each
    operation; of another backend the words are None.
    """
    neuron = neuron_of(facts.module)
    if neuron is None or isinstance(facts.module, Recurrent) or not facts.numbers_in:
        return None, None
    every = math.prod(facts.output.shape)  # of each step and neuron; a vector has several words for each
    copies = [x.shape[0] if x.layout.startswith("one step repeated") else 1 for x in facts.inputs]
    reads = [math.prod(x.shape) / every / count for x, count in zip(facts.inputs, copies)]
    gradients = [read if x.requires_grad else 0.0 for read, x in zip(reads, facts.inputs)]
    backward = training and (any(gradients) or any(parameter.requires_grad for parameter in facts.module.parameters()))
    inputs, outputs = len(neuron.program.inputs), len(neuron.program.outputs)  # a shortcut is no input of the neuron
    floor = sum(reads[:inputs]) + outputs
    if backward:
        least = floor_words(neuron)
        reads_again = least.training - least.forward > outputs + inputs
        floor += outputs + sum(gradients[:inputs]) + (sum(reads[:inputs]) if reads_again else 0.0)
    moved = float(_words_of_operations(neuron, backward)) if backend == REFERENCE else floor
    if isinstance(facts.module, NormNeuron):
        beside = sum(reads[1:])
        if backward and facts.module.shortcut == "before":
            beside += sum(gradients[1:])
        # Statistics read their input. So does the backward pass once more, with the cotangent, for the sums that its
        # gradient needs; of one step repeated the cotangent summed over time is written and read instead.
        again = sum(read for norm, read in zip(facts.module.norms, reads) if norm.training or norm.running_mean is None)
        beside += again + (min(1 + again, 3 * again) if backward and again else 0.0)
        floor, moved = floor + beside, moved + beside
    return moved if backend == REFERENCE or has_kernels else None, floor
