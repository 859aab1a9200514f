"""``sc.explain``: what a network does with its tensors, layer by layer, and what would make it faster.

A copy of the network runs once, and :mod:`spikecore.inspect.record` records it. Where neurons never fire, or always,
another copy runs once more, for their states.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Type

import torch
from torch import Tensor, nn

from spikecore.batches import device_of, flattened, run_network, to_device, tree_map
from spikecore.core.dispatch import ask, request, told_of_refusals
from spikecore.core.modules import copy_of, makes_time, outside, unwrapped
from spikecore.core.state import Stateful, carry
from spikecore.functional import stateful_modules, to_rest
from spikecore.graph import CONVOLUTIONS, NOTHING, layer_of
from spikecore.inspect._advice import Row, advice, is_extreme
from spikecore.inspect._facts import Described, Facts, Layers, moved_words
from spikecore.inspect._monitor import monitor
from spikecore.inspect._not_finite import NotFinite
from spikecore.inspect._report import Explanation, Layer, dimension_of_time, input_as_read
from spikecore.inspect.errors import explained, of_network
from spikecore.inspect.record import Call, Run, neuron_of, record, stateful_of
from spikecore.kernels import KernelBackend
from spikecore.layers import (
    CompactAvgPool2d,
    CompactMaxPool2d,
    Delay,
    NormNeuron,
    NormPlace,
    PackedConv1d,
    PackedConv2d,
    PackedConv3d,
    PackedLinear,
)
from spikecore.neurons import Recurrent
from spikecore.plugins.selection import REFERENCE
from spikecore.words import a_kind, shown

#: From outputs to the number to go backward from; None for their sum.
Loss = Optional[Callable[[Any], Tensor]]

#: Remarks on tensors that layers keep for backward, and on the shortcut of a normalising neuron.
_KEEPS: Mapping[Type[nn.Module], str] = {
    CompactMaxPool2d: "keeps a byte for each maximum",
    CompactAvgPool2d: "keeps nothing",
    **dict.fromkeys((PackedLinear, PackedConv1d, PackedConv2d, PackedConv3d), "keeps its input as bits"),
}
_ADDS = {"": "", "before": ", and adds a shortcut before it", "after": ", and adds a shortcut to its spikes"}
#: Layers that give numbers of their input, and compute none.
_PASSING = (*NOTHING, NormPlace, nn.Flatten, nn.Unflatten)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def explain(
    net: nn.Module,
    x: Any,
    *,
    loss: Loss = None,
    backend: Optional[str] = None,
    training: bool = True,
) -> Explanation:
    """Run a copy of ``net`` on ``x``, and say layer by layer what was done with the tensors, and what is faster.

    ::

        print(sc.explain(net, images))

    ``net``: a network or a neuron. What wraps it, ``torch.compile`` or ``DistributedDataParallel``, is left out: the
    network in it runs eagerly. One of ``sc.checkpoint`` runs with its groups: what they keep, their inputs, is in the
    row of the whole. ``x``: a batch as for ``training_model``: a tensor, a tuple or list for ``net(*x)``, a
    dict for ``net(**x)``; it goes to the device of the network. ``loss``: a function of the outputs alone that gives
    the number from which the run goes backward; None for the sum of the outputs. ``backend``: the backend of every
    neuron in this run; None for the one that each neuron has or would get. ``training``: in train mode and backward,
    too; False for a forward pass in eval mode without gradients. An enclosing ``torch.autocast`` holds.

    Advice begins with what is wrong: where NaN and infinities begin, and which layers of neurons never fire, or always.
    For the first such layer it says its settings, the ranges of its input and of its states, and what changes its rate.
    Once that layer fires as it should, explain the network again for the others. The states are those of a second copy,
    which runs forward, where there is such a layer.

    Neurons begin at rest. The network itself is left as it was, and so are torch's random streams: a
    ``copy.deepcopy`` of it runs, and takes the memory of one. The words of a neuron are computed: the least of compiled
    kernels, and those of each operation of a step on the reference backend. What runs in threads of a network's own is
    not seen.

    Raises TypeError or ValueError, naming the argument, for a ``net`` that is no module, an ``x`` without tensors, a
    ``training`` that is no bool, a ``loss`` that is no function or gives no number with a gradient, and outputs without
    gradients while ``training``; BackendError for a backend that cannot be had; and what the network raises.
    """
    user_net = net
    net, inputs, tensors = _prepared(net, x, backend, training)
    if loss is not None and not callable(loss):
        raise TypeError(f"loss={shown(loss)} must be a function of the outputs of net alone, or None for their sum")
    if training and not any(parameter.requires_grad for parameter in net.parameters()):
        inputs = tree_map(lambda each: each.detach().requires_grad_() if each.is_floating_point() else each, inputs)
        tensors = flattened(inputs)
    layers, finite, devices = Layers(net), NotFinite(), cuda_devices([*net.parameters(), *tensors])
    finite.look_at_data(net, inputs)
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.set_grad_enabled(training))
        run = stack.enter_context(_noting(net, layers, finite))
        with explained(lambda error: of_network(unwrapped(net), inputs, error)):
            outputs = run_network(net, inputs)
        layers.note_saved(run, [*flattened(inputs), *net.parameters(), *net.buffers()])
        gradients = _gradients(net, tensors, outputs, loss) if training else []
    rows = [*layers.facts.values()]
    extreme = [facts for facts in rows if facts.rate is not None and is_extreme(facts.rate)]
    if extreme and finite.origin is None:
        with torch.random.fork_rng(devices):  # with the random numbers of the first run
            _look_at_states(extreme, finite, *_prepared(user_net, x, backend, training)[:2])
    finite.look_at_gradients(gradients)
    return _explanation(net, rows, finite, tensors[0], training)


@contextmanager
def _noting(net: nn.Module, layers: Layers, finite: NotFinite) -> Iterator[Run]:
    """A block in which the facts of every call are noted, refusals of backends among them."""

    @torch.no_grad()
    def begins(call: Call) -> None:
        layers.note_inputs(call)
        finite.look_at_inputs(call)

    @torch.no_grad()
    def ends(call: Call) -> None:
        finite.look_at_results(call)
        layers.note_results(call)

    def refused(refusing: str, computing: str, error: Exception) -> None:
        if run.current is not None:  # None in the backward pass
            layers.facts[run.current.layer].refusals.append((refusing, computing, str(error)))

    # what a neuron holds, such as the layer of Recurrent, is part of it
    every = [*outside(net, (Stateful, NormNeuron))]
    neurons = [pair for pair in every if neuron_of(pair[1]) is not None]
    recording = record(net, saved=True, layers=every, neurons=neurons, begins=begins, ends=ends)
    with recording as run, told_of_refusals(refused):
        yield run


def _look_at_states(rows: Sequence[Facts], finite: NotFinite, net: nn.Module, inputs: Any) -> None:
    """Note what inputs and states of some layers reach, in a run of another copy of the network.

    A neuron may hardly fire, or nearly always, because its states are not finite.
    """
    states = sorted({name for facts in rows for name in neuron_of(facts.module).states})
    with torch.no_grad(), monitor(net, states, layers=[facts.name for facts in rows]) as seen:
        run_network(net, inputs)
    for facts in rows:
        for number, call in enumerate(seen[facts.name].calls, 1):
            for name, values in call.states.items():
                facts.note_range(name, values)
                finite.look_at_state(facts.title, name, values, number)


def _prepared(net: nn.Module, x: Any, backend: Optional[str], training: bool) -> Tuple[nn.Module, Any, List[Tensor]]:
    """A copy of the network that is ready to run, and its inputs."""
    net, inputs, tensors = copied(net, x, checkpointed=True)
    if not isinstance(training, bool):
        raise TypeError(f"training={shown(training)} must be True, or False for a forward pass in eval mode")
    if backend is not None:
        ask(net.modules(), request(backend, "explain()"))
    net.train(training)
    return net, inputs, tensors


def copied(net: nn.Module, x: Any, checkpointed: bool = False) -> Tuple[nn.Module, Any, List[Tensor]]:
    """A copy of a network whose neurons are at rest, and inputs on its device, with the tensors among them.

    ``checkpointed``: with the groups of ``sc.checkpoint``.

    Raises TypeError or ValueError, naming the argument.
    """
    modules = stateful_modules(net)
    net = unwrapped(net, checkpointed)
    inputs = to_device(x, device_of(net))
    tensors = flattened(inputs)
    if not tensors:
        raise TypeError(f"x={shown(x)} has no tensor; give the network's input, or a tuple or dict of inputs")
    other = copy_of(net)
    copies = stateful_modules(other)
    to_rest(copies)
    for before, after in zip(modules, copies):
        if before.carrying:
            carry(after)
    return other, inputs, tensors


def cuda_devices(tensors: Sequence[Tensor]) -> List[int]:
    """The GPUs on which these are."""
    return sorted({tensor.get_device() for tensor in tensors if tensor.is_cuda})


def _gradients(net: nn.Module, inputs: Sequence[Tensor], outputs: Any, loss: Loss) -> List[Tuple[str, Tensor]]:
    """The gradients of the backward pass, by the names of parameters; none is kept in them."""
    if loss is None:
        ends = [output for output in flattened(outputs) if output.requires_grad]
        if not ends:
            raise ValueError(
                "no output of net has a gradient to go back from; training=False explains the forward pass alone"
            )
    else:
        value = loss(outputs)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else a_kind(value)
            raise ValueError(f"loss must give one number with a gradient from the outputs of net, got {what}")
        ends = [value]
    named = [pair for pair in (*net.named_parameters(), *[("x", x) for x in inputs]) if pair[1].requires_grad]
    ones = [torch.ones_like(end) for end in ends]
    gradients = torch.autograd.grad(ends, [tensor for _, tensor in named], ones, allow_unused=True)
    return [(name, gradient) for (name, _), gradient in zip(named, gradients) if gradient is not None]


# -- rows


def _explanation(net: nn.Module, facts: Sequence[Facts], finite: NotFinite, x: Tensor, training: bool) -> Explanation:
    times = {each.steps for each in facts if each.step == "multi" and each.steps}
    times |= {each.calls for each in facts if each.step == "single" and each.calls > 1}
    # a container has a row where it keeps or copies something itself
    shown = [each for each in facts if _computes(each.module) or each.saved or each.copies]
    rows = [Row(_layer(each, times, training), each) for each in shown]
    net, steps = unwrapped(net), max(times, default=0)
    sentences = advice(net, rows, x.device.type, finite.in_words(times))
    as_read = input_as_read(x.shape, steps, None if makes_time(net) else dimension_of_time(x.shape, steps))
    return Explanation(tuple([row.layer for row in rows]), sentences, str(x.device), training, as_read)


def _computes(module: nn.Module) -> bool:
    """True if a module computes something itself, and does not only call its children."""
    has_parameters = any(True for _ in module.parameters(recurse=False))
    return stateful_of(module) is not None or has_parameters or not any(True for _ in module.children())


def _layer(facts: Facts, times: Set[int], training: bool) -> Layer:
    first, last, module = (*facts.inputs, Described())[0], facts.output, facts.module
    resolved = _resolved(facts)
    name = "" if resolved is None else facts.refusals[-1][1] if facts.refusals else resolved.backend.name
    has_kernels = resolved is not None and isinstance(resolved.backend, KernelBackend)
    moved, floor = moved_words(facts, name, has_kernels, training)
    return Layer(
        name=facts.name,
        kind=type(module).__name__,
        calls=facts.calls,
        shape=last.shape,
        dtype=last.dtype,
        layout_in=first.layout,
        layout_out=last.layout,
        backend=name,
        reason=_reason(facts),
        words=moved,
        floor=floor,
        steps=facts.steps if facts.steps in times else 0,
        repeated=facts.repeated and facts.steps in times and _computes_numbers(module),
        products=_products(facts),
        saved=facts.saved,
        saved_spikes=facts.saved_spikes,
        rate=facts.rate,
        silent=facts.silent,
        saturated=facts.saturated,
        ranges=facts.ranges if facts.rate is not None and is_extreme(facts.rate) else {},
        notes=_notes(facts),
    )


def _computes_numbers(module: nn.Module) -> bool:
    """True if a layer without state changes its numbers."""
    return _computes(module) and stateful_of(module) is None and layer_of(module) not in _PASSING


def _resolved(facts: Facts) -> Any:
    """The backend that a neuron has, and why; None for any other layer."""
    neuron = neuron_of(facts.module)
    return neuron.bound.get(facts.inputs[0].device_type) if neuron is not None and facts.inputs else None


def _reason(facts: Facts) -> str:
    """Reason why that backend computed a neuron, and how it did."""
    resolved = _resolved(facts)
    if resolved is None:
        return ""
    if facts.refusals:
        refusing, _, why = facts.refusals[-1]
        return f"instead of {refusing}, which was chosen automatically: {why}"
    reason = resolved.reason
    if isinstance(facts.module, NormNeuron):
        apart = f"normalised before it: {facts.module.reason}" if facts.module.reason else ""
        reason += "; " + (apart or "normalises its input in the same kernel")
    looped = getattr(facts.module, "looped", None)
    if looped is not None and facts.step == "multi":
        # the reference runs step by step however it is called
        one = "" if resolved.backend.name == REFERENCE else "; all steps in one call"
        reason += f"; a loop over the steps: {looped}" if looped else one
    return str(reason)


def _notes(facts: Facts) -> Tuple[str, ...]:
    """Sentences without a full stop, for the lines under the row of a layer."""
    looped = getattr(facts.module, "looped", None) if neuron_of(facts.module) is None else None
    notes: List[str] = [f"a loop over the steps: {looped}"] if looped and facts.step == "multi" else []
    if isinstance(facts.module, NormNeuron):
        adds = _ADDS[facts.module.shortcut or ""] if len(facts.inputs) > 1 else ""
        apart = f"; not in one kernel: {facts.module.reason}" if facts.module.reason else ""
        both = " and its shortcut" if len(facts.module.norms) > 1 else ""
        notes.append(f"normalises its input{both}{adds}{apart}")
    notes += [text for kind, text in _KEEPS.items() if isinstance(facts.module, kind)]
    if isinstance(facts.module, Delay):
        notes.append(facts.module.in_words())
    back = [way.module for way in facts.module.ways] if isinstance(facts.module, Recurrent) else ()
    notes += [f"feeds back through {module.in_words()}" for module in back if isinstance(module, Delay)]
    if facts.once:
        notes.append("computed once for all time steps")
    notes += facts.copies
    refusals = [f"{refusing} refused, {computing} computes: {why}" for refusing, computing, why in facts.refusals]
    return (*notes, *dict.fromkeys(refusals))


def _products(facts: Facts) -> int:
    """Multiplications of a layer with weights, in all calls."""
    numbers = facts.numbers_out
    if isinstance(facts.module, Recurrent):
        # what comes back to each input has the numbers of a step
        return sum(_products_of(way.module, numbers, numbers * len(way.into)) for way in facts.module.ways)
    return _products_of(facts.module, facts.numbers_in, numbers)


def _products_of(module: Any, numbers_in: int, numbers_out: int) -> int:
    """Multiplications of a layer that makes so many numbers of so many."""
    if isinstance(module, Delay):
        weight = getattr(module.linear, "weight", None)
        if weight is None:
            return 0
        lags = module.max_delay + 1 if module.delay.ndim == weight.ndim else 1
        return int(numbers_out * (weight.numel() // weight.shape[0]) * lags)
    if isinstance(module, nn.Linear):
        return int(numbers_out * module.weight.shape[1])
    if isinstance(module, (*CONVOLUTIONS, *_TRANSPOSED)):
        # each number of the output is made of so many, or each of the input goes to so many
        numbers = numbers_in if isinstance(module, _TRANSPOSED) else numbers_out
        return int(numbers * (module.weight.numel() // module.weight.shape[0]))
    return 0
