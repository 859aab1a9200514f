"""``sc.explain``: what a network does with its tensors, layer by layer, and what would make it faster.

A copy of the network runs once. What is said was seen in that run: by hooks of modules, by hooks of saved tensors, and
by torch's profiler, which sees every operation of torch in it. Only the words that a compiled kernel moves are
computed, as the bench computes them.
"""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type

import torch
from torch import Tensor, nn
from torch.autograd import profiler
from torch.nn.parameter import is_lazy

from spikecore._base.batches import device_of, flattened, to_device, tree_map
from spikecore._base.errors import a_kind
from spikecore._shell.automatic import told_of_refusals
from spikecore._shell.binding import ask, request
from spikecore._shell.checks import shown
from spikecore._shell.modules import unwrapped
from spikecore._shell.state import carry
from spikecore.functional import stateful_modules, to_rest
from spikecore.inspect._advice import Row, Run, advice
from spikecore.inspect._monitor import neuron_of, normalisation_of, stateful_of
from spikecore.inspect._report import Explanation, Layer
from spikecore.inspect._watching import ASIDE, RANGE, Seen, Watching
from spikecore.kernels import KernelBackend
from spikecore.lang import topological
from spikecore.layers._delay import Delay
from spikecore.layers._packed import PackedConv2d, PackedLinear
from spikecore.layers._pooling import CompactAvgPool2d, CompactMaxPool2d
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent

#: From outputs to the number to go backward from; None for their sum.
Loss = Optional[Callable[[Any], Tensor]]

#: What layers keep for backward, and what a normalising neuron does with a shortcut.
_KEEPS: Mapping[Type[nn.Module], str] = {
    CompactMaxPool2d: "keeps a byte for each maximum",
    CompactAvgPool2d: "keeps nothing",
    PackedLinear: "keeps its input as bits",
    PackedConv2d: "keeps its input as bits",
}
_ADDS = {"": "", "before": ", and adds a shortcut before it", "after": ", and adds a shortcut to its spikes"}
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def explain(
    net: nn.Module,
    x: Any,
    *,
    loss: Loss = None,
    backend: Optional[str] = None,
    training: bool = True,
) -> Explanation:
    """Run a copy of ``net`` once on ``x``, and say layer by layer what was done with the tensors, and what is faster.

    ::

        print(sc.explain(net, images))

    ``net``: a network or a neuron. What wraps it, ``torch.compile`` or ``DistributedDataParallel``, is left out: the
    network in it runs eagerly. ``x``: a batch as for ``training_model``: a tensor, a tuple or list for ``net(*x)``, a
    dict for ``net(**x)``; it goes to the device of the network. ``loss``: a function of the outputs alone that gives
    the number from which the run goes backward; None for the sum of the outputs. ``backend``: the backend of every
    neuron in this run; None for the one that each neuron has or would get. ``training``: in train mode and backward,
    too; False for a forward pass in eval mode without gradients. An enclosing ``torch.autocast`` holds.

    Advice begins with what is wrong: where NaN and infinities begin, and which layers of neurons never fire, or always.
    For the first such layer each setting that is named was tried, by a copy of the layer on the input that it had, and
    stands with the rate that it gave. Once that layer fires as it should, explain the network again for the others. The
    ``bounds`` of a neuron limit what is tried: without them a parameter may be given any value, such as a time
    constant below one step.

    Neurons begin at rest. The network itself is left as it was, and so are torch's random streams: a
    ``copy.deepcopy`` of it runs, and takes the memory of one. The copies and words are those of operations of torch,
    and of compiled kernels the least they move; what runs in threads of a network's own is not seen.

    Raises TypeError or ValueError, naming the argument, for a ``net`` that is no module, an ``x`` without tensors, the
    meta device, a ``training`` that is no bool, a ``loss`` that is no function or gives no number
    with a gradient, and outputs without gradients while ``training``; RuntimeError while torch's profiler is running,
    which this uses; BackendError for a backend that cannot be had; and what the network raises.
    """
    net, inputs, tensors = copied(net, x)
    if not isinstance(training, bool):
        raise TypeError(f"training={shown(training)} must be True, or False for a forward pass in eval mode")
    _check_loss(loss)
    if torch._C._autograd._profiler_enabled():
        raise RuntimeError("explain uses torch's profiler, which is running; call it outside of the profiled block")
    if backend is not None:
        ask(net.modules(), request(backend, "explain()"))
    net.train(training)
    if training and not any(parameter.requires_grad for parameter in net.parameters()):
        inputs = tree_map(lambda one: one.detach().requires_grad_() if one.is_floating_point() else one, inputs)
        tensors = flattened(inputs)
    watching = Watching(net)
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(cuda_devices([*net.parameters(), *tensors])))
        stack.enter_context(told_of_refusals(lambda *refusal: _note_refusal(watching, *refusal)))
        stack.enter_context(torch.set_grad_enabled(training))
        with _silent_profiler(), profiler.profile(record_shapes=True) as profile:
            outputs = watching.run(inputs)
            gradients = _gradients(net, tensors, outputs, loss) if training else []
        watching.let_go()
        for seen in watching.order:
            watching.note_states(seen)
        watching.note_gradients(gradients)
        return _explanation(net, watching, traffic(profile.function_events or ()), tensors[0].device, training)


def copied(net: nn.Module, x: Any) -> Tuple[nn.Module, Any, List[Tensor]]:
    """A copy of a network whose neurons are at rest, and inputs on its device, with the tensors among them.

    Raises TypeError or ValueError, naming the argument.
    """
    modules = stateful_modules(net)
    net = unwrapped(net)
    inputs = to_device(x, device_of(net))
    tensors = flattened(inputs)
    if not tensors:
        raise TypeError(f"x={shown(x)} has no tensor; give the network's input, or a tuple or dict of inputs")
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f"net: {name!r} has no values before its first call; call net once, and explain it then")
    if any(one.is_meta for one in (*net.parameters(), *net.buffers(), *tensors)):
        raise ValueError(
            "net and x are on the meta device, which holds no numbers to run on; give both on another device"
        )
    # torch copies no tensor that has a graph, such as the weight of nn.utils.weight_norm
    kept = [value for module in net.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    other = copy.deepcopy(net, {id(value): value.detach().clone() for value in kept if not value.is_leaf})
    copies = stateful_modules(other)
    to_rest(copies)
    for before, after in zip(modules, copies):
        if before.carrying:
            carry(after)
    return other, inputs, tensors


def cuda_devices(tensors: Sequence[Tensor]) -> List[int]:
    """The GPUs on which these are."""
    return sorted({tensor.get_device() for tensor in tensors if tensor.is_cuda})


@contextmanager
def _silent_profiler() -> Iterator[None]:
    """Without the lines that torch's profiler writes to stderr; it reads the variable when it is first used."""
    before = dict(os.environ)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        yield
    finally:
        if "KINETO_LOG_LEVEL" not in before:
            del os.environ["KINETO_LOG_LEVEL"]


def _note_refusal(watching: Watching, refusing: str, computing: str, error: Exception) -> None:
    if watching.top is not None:  # in the backward pass no hook says where it is
        watching.top.refusals.append((refusing, computing, str(error)))


def _check_loss(loss: Loss) -> None:
    """Raise TypeError for what is no function of the outputs alone."""
    if loss is None:
        return
    if not callable(loss):
        raise TypeError(f"loss={shown(loss)} must be a function of the outputs of net, or None for their sum")
    try:
        taken = signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):
        return  # some functions that are written in C have none
    try:
        taken.bind(None)
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
        ends = [one for one in flattened(outputs) if one.requires_grad]
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
    ones = [torch.ones_like(one) for one in ends]
    found = torch.autograd.grad(ends, [one for _, one in named], ones, allow_unused=True)
    return [(name, gradient) for (name, _), gradient in zip(named, found) if gradient is not None]


# -- rows


def _explanation(
    net: nn.Module, watching: Watching, moved: Traffic, device: torch.device, training: bool
) -> Explanation:
    neurons = [seen for seen in watching.order if seen.stateful is not None]
    times = {seen.steps for seen in neurons if seen.stateful.step == "multi" and seen.steps}
    rows: List[Row] = []
    for seen in watching.order:
        layer = _layer(seen, moved, times, training)
        # what only holds others has a row where it has something to say of its own
        if _computes(seen.module) or layer.copied or layer.saved:
            rows.append(Row(layer, seen.module, seen.source, seen.sample))
    spoilt = watching.spoilt_in_words(times)
    run = Run(net, rows, device.type, training, torch.is_autocast_enabled(), spoilt)
    return Explanation(tuple([row.layer for row in rows]), advice(run), str(device), training)


def _computes(module: nn.Module) -> bool:
    """Whether a module computes by itself, and not by the modules that it holds alone."""
    own = any(True for _ in module.parameters(recurse=False))
    return stateful_of(module) is not None or own or not any(True for _ in module.children())


def _layer(seen: Seen, moved: Traffic, times: Set[int], training: bool) -> Layer:
    first, last, module = seen.inputs[0] if seen.inputs else None, seen.output, seen.module
    backend, reason, compiles = _backend(seen)
    read_and_written = moved.words.get(seen.number, 0)
    words, floor = _words(seen, read_and_written, compiles, training)
    stateful = seen.stateful is not None
    width = 0 if last is None else torch.empty((), dtype=last.dtype).element_size()
    return Layer(
        name=seen.name,
        kind=type(module).__name__,
        calls=seen.calls,
        shape=last.shape if last is not None else (),
        dtype=str(last.dtype).replace("torch.", "") if last is not None else "",
        layout_in=first.layout if first is not None else "",
        layout_out=last.layout if last is not None else "",
        backend=backend,
        reason=reason,
        copied=width * _copied(seen, moved.copies.get(seen.number, []), compiles),
        words=words,
        floor=floor,
        steps=seen.steps if seen.steps in times else 0,
        repeated=_computes(module) and not stateful and seen.repeated and seen.steps in times and read_and_written > 0,
        products=_products(seen),
        saved=seen.saved,
        saved_spikes=seen.saved_spikes,
        rate=seen.spikes / seen.outputs if stateful and seen.only_spikes and seen.outputs else None,
        notes=_notes(seen),
    )


def _backend(seen: Seen) -> Tuple[str, str, bool]:
    """What computed a neuron, why that, and whether it launches kernels, which are no operations of torch."""
    neuron = neuron_of(seen.module)
    resolved = neuron.bound.get(seen.inputs[0].device_type) if neuron is not None and seen.inputs else None
    if resolved is None:
        return "", "", False
    reason, normalisation = resolved.reason, normalisation_of(seen.module)
    if normalisation is not None:
        apart = f"normalised before it: {normalisation.reason}" if normalisation.reason else ""
        reason += "; " + (apart or "normalises its input in the same kernel")
    looped = getattr(seen.module, "looped", None)
    if looped is not None:
        reason += f"; a loop over the steps: {looped}" if looped else "; all steps in one call"
    name = resolved.backend.name
    if seen.refusals:
        refusing, name, why = seen.refusals[-1]
        reason = f"instead of {refusing}, which was chosen automatically: {why}"
    return name, reason, isinstance(resolved.backend, KernelBackend)


def _copied(seen: Seen, copies: Sequence[int], compiles: bool) -> int:
    """The numbers of the copies that a layout of the data would take away.

    Those of a neuron that runs as operations of torch are among these operations, which its words count. In Recurrent
    those of the weight and of one step's state, and by a Delay all, are its own.
    """
    if isinstance(seen.module, Recurrent):
        whole = [] if isinstance(seen.module.linear, Delay) else [one.numbers for one in seen.inputs]
        copies = [numbers for numbers in copies if numbers in whole]
    return sum(copies) if compiles or seen.stateful is None else 0


def _notes(seen: Seen) -> Tuple[str, ...]:
    """Sentences without a full stop, for the lines under the row of a layer."""
    notes: List[str] = []
    normalisation = normalisation_of(seen.module)
    if normalisation is not None:
        adds = _ADDS[normalisation.shortcut or ""] if len(seen.inputs) > 1 else ""
        apart = f"; not in one kernel: {normalisation.reason}" if normalisation.reason else ""
        notes.append(f"normalises its input{adds}{apart}")
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
        return seen.given * module.linear.in_features * (module.max_delay + 1 if module.delay.ndim == 2 else 1)
    if isinstance(module, nn.Linear):
        return seen.given * module.in_features
    if isinstance(module, (*_CONVOLUTIONS, *_TRANSPOSED)):
        # each number of the output is made of so many, or each of the input goes to so many
        numbers = seen.taken if isinstance(module, _TRANSPOSED) else seen.given
        return numbers * (module.weight.numel() // module.weight.shape[0])
    return 0


# -- what moves through memory


class Words(NamedTuple):
    """Words per time step and neuron: read and written by a forward pass, and by a forward and a backward pass."""

    forward: int
    training: int


def words(neuron: Neuron) -> Words:
    """The least that any implementation of a neuron must move, whose states stay in registers.

    Forward reads the inputs and writes the outputs. Backward reads the cotangents of the outputs and writes those of
    the inputs; where the adjoint of a step needs inputs or states, it reads the inputs again. LIF: 2, and 2 + 3.
    """
    inputs, outputs = len(neuron.program.inputs), len(neuron.program.outputs)
    return Words(inputs + outputs, inputs + outputs + outputs + inputs + (inputs if _reads_again(neuron) else 0))


def _reads_again(neuron: Neuron) -> bool:
    """Whether the backward pass reads the inputs again: not where the derivatives of a step are constant."""
    program = neuron.program
    adjoint = program.adjoint([name for name, _ in neuron.named_parameters() if name in program.params])
    needs = topological([*adjoint.inputs, *adjoint.states, *adjoint.params])
    return any(node.op in ("input", "state") for node in needs)


def _words(seen: Seen, moved: int, compiles: bool, training: bool) -> Tuple[Optional[float], Optional[float]]:
    """Numbers that the calls of a neuron moved per time step and neuron, and the least possible.

    Each input is read at one word per time step and neuron, or 1/T where it is one step repeated; its gradient, where
    one is asked for, takes as many.
    """
    neuron = neuron_of(seen.module)
    if neuron is None or isinstance(seen.module, Recurrent) or not seen.elements:
        return None, None
    steps = neuron.repeat if neuron.repeat is not None and neuron.step == "multi" else 1
    elements = seen.elements * steps
    reads = [1.0 / (one.shape[0] if one.layout.startswith("one step repeated") else steps) for one in seen.inputs]
    gradients = [read if one.requires_grad else 0.0 for read, one in zip(reads, seen.inputs)]
    backward = training and (any(gradients) or any(parameter.requires_grad for parameter in seen.module.parameters()))
    taken, outputs = len(neuron.program.inputs), len(neuron.program.outputs)  # a shortcut is no input of the neuron
    floor = sum(reads[:taken]) + outputs
    if backward:
        floor += outputs + sum(gradients[:taken]) + (sum(reads[:taken]) if _reads_again(neuron) else 0.0)
    by_kernels, normalisation = floor, normalisation_of(seen.module)
    if normalisation is not None:
        norm, beside = normalisation.norm, 0.0
        takes = norm.training or getattr(norm, "running_mean", None) is None
        # Statistics read the input. So does the backward pass once more, with the cotangent, for the sums that its
        # gradient needs; of one step repeated the cotangent summed over time is written and read instead.
        if takes and backward:
            beside = min(1 + reads[0], 3 * reads[0])
        # a shortcut is read, and the gradient of one before the neuron written
        beside += sum(reads[1:]) + (sum(gradients[1:]) if backward and normalisation.shortcut == "before" else 0.0)
        floor += beside + (reads[0] if takes else 0.0)
        by_kernels += 0.0 if normalisation.reason else beside
    per_element = moved / elements
    if compiles or per_element < floor:  # its kernels are no operations of torch
        per_element += by_kernels + 2 * seen.checkpoints / elements
    # statistics are an operation of torch, or of kernels, which nobody saw
    within = normalisation is not None and not normalisation.reason
    return max(per_element, floor) if within else per_element, floor


#: Operations that move no numbers: views, allocations, questions.
_STILL = frozenset(
    f"aten::{name}"
    for name in (
        "_efficientzerotensor _has_compatible_shallow_copy_type _local_scalar_dense _reshape_alias _unsafe_view alias "
        "as_strided as_strided_ broadcast_tensors chunk conj contiguous detach detach_ diagonal dropout empty "
        "empty_like empty_strided equal expand expand_as feature_dropout flatten is_nonzero is_same_size item "
        "lift_fresh movedim narrow new_empty new_empty_strided numpy_T ones_like permute ravel reshape resize_ "
        "resolve_conj resolve_neg result_type select set_ size slice split split_with_sizes squeeze squeeze_ stride "
        "sym_numel sym_size sym_stride t t_ tensor_split to transpose transpose_ type_as unbind unflatten unfold "
        "unsqueeze unsqueeze_ view view_as view_as_complex view_as_real zeros_like"
    ).split()
)
#: Operations that call ``copy_`` to lay numbers out anew, or to convert them; those that write little.
_LAYS_OUT = frozenset(f"aten::{name}" for name in "clone contiguous flatten ravel repeat reshape tile".split())
_CONVERTS = frozenset(("aten::to", "aten::_to_copy"))
_SUMS = frozenset(
    f"aten::{name}"
    for name in (
        "all amax amin any batch_norm_stats batch_norm_update_stats linalg_vector_norm mean norm sum var var_mean"
    ).split()
)
#: What counts for no layer: also packing, one pass of a kernel, which is several operations without one.
_ASIDE = frozenset({ASIDE, "spikecore::pack_spikes", "spikecore::unpack_spikes"})
_BACKWARD = "autograd::engine::evaluate_function: "


class Traffic(NamedTuple):
    """What layers did through operations of torch, by their numbers: words read and written, and numbers of copies."""

    words: Dict[int, int]
    copies: Dict[int, List[int]]


def traffic(events: Sequence[Any]) -> Traffic:
    """What each layer did.

    An operation of the backward pass belongs to the layer whose operation made its node, which has the same number in
    torch's sequence. An operation that makes no node has the number of the next one: the last to begin made it.
    """
    makers: Dict[int, int] = {}
    for event in sorted(events, key=lambda event: event.time_range.start):
        layer = _layer_of(_around(event), {})
        if layer is not None and event.sequence_nr >= 0:
            makers[event.sequence_nr] = layer
    moved = Traffic({}, {})
    for event in events:
        # what an operation is made of counts, and not the operation as well
        if not _moves(event) or any(map(_moves_within, event.cpu_children)):
            continue
        around, sizes = _around(event), _sizes(event.input_shapes)
        layer = _layer_of(around, makers)
        if layer is None or not sizes:
            continue
        moved.words[layer] = moved.words.get(layer, 0) + _words_of(event.name, sizes)
        names = {one.name for one in around}
        if event.name == "aten::copy_" and sizes[0] > 1 and names.isdisjoint(_CONVERTS) and names & _LAYS_OUT:
            moved.copies.setdefault(layer, []).append(sizes[0])
    return moved


def _around(event: Any) -> List[Any]:
    """An event and those around it, from the inside out."""
    events = []
    while event is not None:
        events.append(event)
        event = event.cpu_parent
    return events


def _layer_of(around: Sequence[Any], makers: Mapping[int, int]) -> Optional[int]:
    """The number of the layer that an event belongs to, if it belongs to one."""
    if any(event.name in _ASIDE for event in around):
        return None
    for event in around:
        if event.name.startswith(RANGE):
            return int(event.name[len(RANGE) :])
    return makers.get(around[-1].sequence_nr) if around[-1].name.startswith(_BACKWARD) else None


def _words_of(name: str, sizes: List[int]) -> int:
    """Numbers that an operation reads and writes, from the sizes of what it was given."""
    if name == "aten::copy_":
        return 2 * sizes[0]
    if name == "aten::cat":
        return 2 * sum(sizes)
    if name in _SUMS or name in ("aten::fill_", "aten::zero_"):
        return sizes[0]
    return sum(sizes) + (sizes[0] if name.endswith("_") else max(sizes))


def _sizes(shapes: Any) -> List[int]:
    """How many numbers each tensor argument has; lists of tensors are nested."""
    found: List[int] = []
    for shape in shapes or ():
        if shape and isinstance(shape[0], (list, tuple)):
            found += _sizes(shape)
        elif shape and all(isinstance(length, int) for length in shape):
            found.append(torch.Size(shape).numel())
    return found


def _moves(event: Any) -> bool:
    return event.name.startswith("aten::") and event.name not in _STILL


def _moves_within(event: Any) -> bool:
    return _moves(event) or any(map(_moves_within, event.cpu_children))
