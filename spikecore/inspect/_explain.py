"""``sc.explain``: what a network does with its tensors, layer by layer, and what would make it faster.

A copy of the network runs once. What is said was seen in that run, by hooks of modules and of saved tensors. Where
neurons never fire, or always, another copy runs once more, for their states. Words are computed, as the bench computes
them.
"""

from __future__ import annotations

from contextlib import ExitStack
from inspect import signature
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type

import torch
from torch import Tensor, nn

from spikecore._plugins.selection import REFERENCE
from spikecore.batches import device_of, flattened, to_device, tree_map
from spikecore.core.automatic import told_of_refusals
from spikecore.core.dispatch import ask, request
from spikecore.core.modules import copy_of, makes_time, unwrapped
from spikecore.core.neuron import Neuron
from spikecore.core.state import carry
from spikecore.functional import stateful_modules, to_rest
from spikecore.graph import CONVOLUTIONS, NOTHING, Graph, NotFollowed, computed_by, layer_of, read
from spikecore.inspect._advice import Row, Run, advice
from spikecore.inspect._monitor import neuron_of, stateful_of
from spikecore.inspect._report import Explanation, Layer, dimension_of_time, input_as_read
from spikecore.inspect._watching import Described, Seen, Watching
from spikecore.kernels import KernelBackend
from spikecore.lang import Node, topological
from spikecore.layers import Delay, NormNeuron, PackedConv2d, PackedLinear
from spikecore.layers._norm_neuron import NormPlace
from spikecore.layers._pooling import CompactAvgPool2d, CompactMaxPool2d
from spikecore.neurons import Recurrent
from spikecore.training._checks import explained, of_network
from spikecore.words import a_kind, shown

#: From outputs to the number to go backward from; None for their sum.
Loss = Optional[Callable[[Any], Tensor]]

#: Remarks on tensors that layers keep for backward, and on the shortcut of a normalising neuron.
_KEEPS: Mapping[Type[nn.Module], str] = {
    CompactMaxPool2d: "keeps a byte for each maximum",
    CompactAvgPool2d: "keeps nothing",
    PackedLinear: "keeps its input as bits",
    PackedConv2d: "keeps its input as bits",
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
    _check_loss(loss)
    if training and not any(parameter.requires_grad for parameter in net.parameters()):
        inputs = tree_map(
            lambda tensor: tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor, inputs
        )
        tensors = flattened(inputs)
    watching, devices = Watching(net), cuda_devices([*net.parameters(), *tensors])
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(told_of_refusals(watching.note_refusal))
        stack.enter_context(torch.set_grad_enabled(training))
        with explained(lambda error: of_network(unwrapped(net), inputs, error)):
            outputs = watching.run(inputs)
        gradients = _gradients(net, tensors, outputs, loss) if training else []
    watching.let_go()
    extreme = watching.extreme()
    if extreme:
        with torch.random.fork_rng(devices):  # with the random numbers of the first run
            watching.note_states(extreme, *_prepared(user_net, x, backend, training)[:2])
    watching.note_gradients(gradients)
    return _explanation(net, watching, tensors[0], training)


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


def _check_loss(loss: Loss) -> None:
    if loss is None:
        return
    if not callable(loss):
        raise TypeError(f"loss={shown(loss)} must be a function of the outputs of net, or None for their sum")
    try:
        signature(loss.forward if isinstance(loss, nn.Module) else loss).bind(None)
    except ValueError:
        return  # some functions that are written in C have no signature
    except TypeError as error:
        name = getattr(loss, "__name__", type(loss).__name__)
        inner = name if name.isidentifier() else "criterion"
        raise TypeError(
            f"loss={name} must be a function of the outputs of net alone ({error}); write one that knows the targets, "
            f"as in loss=lambda outputs: {inner}(outputs, targets)"
        ) from error


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


def _explanation(net: nn.Module, watching: Watching, x: Tensor, training: bool) -> Explanation:
    times = {seen.steps for seen in watching.order if seen.step == "multi" and seen.steps}
    graph = _graph(unwrapped(net))
    sources = {} if graph is None else _sources(graph)
    rows: List[Row] = []
    for seen in watching.order:
        layer = _layer(seen, times, training)
        # a container has a row where it keeps something itself
        if _computes(seen.module) or layer.saved:
            rows.append(Row(layer, seen.module, sources.get(seen.module), seen.ranges))
    net, steps = unwrapped(net), max(times, default=0)
    run = Run(net, graph, rows, x.device.type, training, torch.is_autocast_enabled(), watching.spoilt_in_words(times))
    as_read = input_as_read(x.shape, steps, None if makes_time(net) else dimension_of_time(x.shape, steps))
    return Explanation(tuple([row.layer for row in rows]), advice(run), str(x.device), training, as_read)


def _graph(net: nn.Module) -> Optional[Graph]:
    """The calls of a network; None where forward is not followed."""
    try:
        return read(net)
    except NotFollowed:
        return None


def _sources(graph: Graph) -> Dict[nn.Module, nn.Module]:
    """Of each layer that is called once, the one that computes its first input."""
    sources = {call.module: computed_by(call.source) for call in graph.calls if len(graph.calls_of(call.module)) == 1}
    return {module: source.module for module, source in sources.items() if source is not None and source.module}


def _computes(module: nn.Module) -> bool:
    """True if a module computes something itself, and does not only call its children."""
    has_parameters = any(True for _ in module.parameters(recurse=False))
    return stateful_of(module) is not None or has_parameters or not any(True for _ in module.children())


def _layer(seen: Seen, times: Set[int], training: bool) -> Layer:
    first, last, module = (*seen.inputs, Described())[0], seen.output, seen.module
    moved, floor = _words(seen, training)
    stateful = seen.stateful is not None
    return Layer(
        name=seen.name,
        kind=type(module).__name__,
        calls=seen.calls,
        shape=last.shape,
        dtype=last.dtype,
        layout_in=first.layout,
        layout_out=last.layout,
        backend=_backend_name(seen),
        reason=_reason(seen),
        words=moved,
        floor=floor,
        steps=seen.steps if seen.steps in times else 0,
        repeated=seen.repeated and seen.steps in times and _computes_numbers(module),
        products=_products(seen),
        saved=seen.saved,
        saved_spikes=seen.saved_spikes,
        rate=seen.spikes / seen.outputs if stateful and seen.only_spikes and seen.outputs else None,
        notes=_notes(seen),
    )


def _computes_numbers(module: nn.Module) -> bool:
    """True if a layer without state changes its numbers."""
    return _computes(module) and stateful_of(module) is None and layer_of(module) not in _PASSING


def _resolved(seen: Seen) -> Any:
    """The backend that a neuron has, and why; None for any other layer."""
    neuron = neuron_of(seen.module)
    return neuron.bound.get(seen.inputs[0].device_type) if neuron is not None and seen.inputs else None


def _backend_name(seen: Seen) -> str:
    resolved = _resolved(seen)
    return "" if resolved is None else seen.refusals[-1][1] if seen.refusals else resolved.backend.name


def _reason(seen: Seen) -> str:
    """Reason why that backend computed a neuron, and how it did."""
    resolved = _resolved(seen)
    if resolved is None:
        return ""
    if seen.refusals:
        refusing, _, why = seen.refusals[-1]
        return f"instead of {refusing}, which was chosen automatically: {why}"
    reason = resolved.reason
    if isinstance(seen.module, NormNeuron):
        apart = f"normalised before it: {seen.module.reason}" if seen.module.reason else ""
        reason += "; " + (apart or "normalises its input in the same kernel")
    looped = getattr(seen.module, "looped", None)
    if looped is not None:
        reason += f"; a loop over the steps: {looped}" if looped else "; all steps in one call"
    return str(reason)


def _notes(seen: Seen) -> Tuple[str, ...]:
    """Sentences without a full stop, for the lines under the row of a layer."""
    notes: List[str] = []
    if isinstance(seen.module, NormNeuron):
        adds = _ADDS[seen.module.shortcut or ""] if len(seen.inputs) > 1 else ""
        apart = f"; not in one kernel: {seen.module.reason}" if seen.module.reason else ""
        both = " and its shortcut" if len(seen.module.norms) > 1 else ""
        notes.append(f"normalises its input{both}{adds}{apart}")
    notes += [text for kind, text in _KEEPS.items() if isinstance(seen.module, kind)]
    if isinstance(seen.module, Delay):
        notes.append(seen.module.in_words())
    if isinstance(seen.module, Recurrent) and isinstance(seen.module.linear, Delay):
        notes.append(f"feeds back through {seen.module.linear.in_words()}")
    if seen.once:
        notes.append("computed once for all time steps")
    refusals = [f"{refusing} refused, {computing} computes: {why}" for refusing, computing, why in seen.refusals]
    return (*notes, *dict.fromkeys(refusals))


def _products(seen: Seen) -> int:
    """Multiplications of a layer with weights, in all calls."""
    module = seen.module.linear if isinstance(seen.module, Recurrent) else seen.module
    if isinstance(module, Delay):
        return seen.numbers_out * module.linear.in_features * (module.max_delay + 1 if module.delay.ndim == 2 else 1)
    if isinstance(module, nn.Linear):
        return seen.numbers_out * module.weight.shape[1]
    if isinstance(module, (*CONVOLUTIONS, *_TRANSPOSED)):
        # each number of the output is made of so many, or each of the input goes to so many
        numbers = seen.numbers_in if isinstance(module, _TRANSPOSED) else seen.numbers_out
        return numbers * (module.weight.numel() // module.weight.shape[0])
    return 0


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


def _words(seen: Seen, training: bool) -> Tuple[Optional[float], Optional[float]]:
    """Numbers that the calls of a neuron moved per time step and neuron, and the least possible.

    Each input is read at one word per time step and neuron, or 1/T where it is one step repeated; its gradient, where
    one is asked for, takes as many. Kernels move that, the reference the words of each operation.
    """
    neuron = neuron_of(seen.module)
    if neuron is None or isinstance(seen.module, Recurrent) or not seen.numbers_in:
        return None, None
    steps = neuron.repeat if neuron.repeat is not None and neuron.step == "multi" else 1
    reads = [1.0 / (x.shape[0] if x.layout.startswith("one step repeated") else steps) for x in seen.inputs]
    gradients = [read if x.requires_grad else 0.0 for read, x in zip(reads, seen.inputs)]
    backward = training and (any(gradients) or any(parameter.requires_grad for parameter in seen.module.parameters()))
    inputs, outputs = len(neuron.program.inputs), len(neuron.program.outputs)  # a shortcut is no input of the neuron
    floor = sum(reads[:inputs]) + outputs
    if backward:
        least = floor_words(neuron)
        reads_again = least.training - least.forward > outputs + inputs
        floor += outputs + sum(gradients[:inputs]) + (sum(reads[:inputs]) if reads_again else 0.0)
    is_reference = _backend_name(seen) == REFERENCE
    moved = float(_words_of_operations(neuron, backward)) if is_reference else floor
    if isinstance(seen.module, NormNeuron):
        beside = sum(reads[1:])
        if backward and seen.module.shortcut == "before":
            beside += sum(gradients[1:])
        # Statistics read their input. So does the backward pass once more, with the cotangent, for the sums that its
        # gradient needs; of one step repeated the cotangent summed over time is written and read instead.
        again = sum(read for norm, read in zip(seen.module.norms, reads) if norm.training or norm.running_mean is None)
        beside += again + (min(1 + again, 3 * again) if backward and again else 0.0)
        floor, moved = floor + beside, moved + beside
    known = is_reference or isinstance(_resolved(seen).backend, KernelBackend)
    return moved if known else None, floor
