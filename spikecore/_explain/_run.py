"""One run of a network under watch, and the rows made from it."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.autograd import profiler

from spikecore._base.batches import device_of, flattened, run_network, to_device, tree_map
from spikecore._explain._advice import Setting, advice
from spikecore._explain._backward import Loss, check_loss, go_backward
from spikecore._explain._finite import in_words
from spikecore._explain._floor import words_of_call
from spikecore._explain._layers import Explanation, Layer
from spikecore._explain._notes import notes
from spikecore._explain._preserved import preserved
from spikecore._explain._reasons import copies
from spikecore._explain._traffic import Traffic, traffic
from spikecore._explain._trials import run_again
from spikecore._explain._watching import Seen, Watching
from spikecore._shell.automatic import told_of_refusals
from spikecore._shell.binding import chosen_anew, request
from spikecore._shell.checks import shown
from spikecore._shell.misplaced import guided
from spikecore._shell.processes import unwrapped
from spikecore._shell.prologue import Prologue
from spikecore._shell.prologued import prologue_of
from spikecore._shell.state import Stateful
from spikecore.functional import stateful_modules, to_rest
from spikecore.kernels import KernelBackend
from spikecore.layers import Delay
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent


def _around(unknown: Mapping[str, Any]) -> str:
    """What to write in place of an option of training."""
    ways = {"autocast": "with torch.autocast(...): sc.explain(net, x)", "pack_spikes": "sc.explain(sc.pack(net), x)"}
    found = [way for name, way in ways.items() if name in unknown]
    if found:
        return f"write {found[0]}"
    options = ("options", "channels_last", "compile", "fast", "graph")
    return "it explains the network as it runs eagerly, without options" if any(n in unknown for n in options) else ""


@guided("sc.explain", _around)
def explain(
    net: nn.Module,
    x: Any,
    *,
    loss: Loss = None,
    backend: Optional[str] = None,
    training: bool = True,
) -> Explanation:
    """Run ``net`` once on ``x``, and say layer by layer what was done with the tensors, and what would be faster.

    ::

        print(sc.explain(net, images))

    ``net``: a network or a neuron. What wraps it, ``torch.compile`` or ``DistributedDataParallel``, is left out: the
    network in it runs eagerly. ``x``: a batch as for ``training_model``: a tensor, a tuple or list for ``net(*x)``, a
    dict for ``net(**x)``; it goes to the device of the network. ``loss``: a function of the outputs that gives the
    number from which the run goes backward; None for the sum of the outputs. ``backend``: the backend of every neuron
    in this run; None for the one that each neuron has or would get. ``training``: in train mode and backward, too;
    False for a forward pass in eval mode without gradients. An enclosing ``torch.autocast`` holds.

    Advice begins with what is wrong: where NaN and infinities begin, and which layers of neurons never fire, or always.
    For the first such layer each setting that is named was tried, by a copy of the layer on the input that it had, and
    stands with the rate that it gave. Once that layer fires as it should, explain the network again for the others. The
    ``bounds`` of a neuron limit what is tried: without them a parameter may be given any value, such as a time
    constant below one step.

    Neurons begin at rest. Afterwards the network is as it was: parameters, gradients, buffers (running statistics),
    modes, states of neurons, torch's random streams. The copies and words are those of operations of torch, and of
    compiled kernels the least they move; what runs in threads of a network's own is not seen.

    Raises TypeError or ValueError, naming the argument, for a ``net`` that is no module, an ``x`` without tensors, the
    meta device, a ``training`` that is no bool, a ``loss`` that is no function of the outputs alone or gives no number
    with a gradient, and outputs without gradients while ``training``; RuntimeError while torch's profiler is running,
    which this uses; BackendError for a backend that cannot be had; and what the network raises.
    """
    modules = stateful_modules(net)
    net = unwrapped(net)
    inputs = to_device(x, device_of(net))
    given = flattened(inputs)
    if not given:
        raise TypeError(f"x={shown(x)} has no tensor; give the network's input, or a tuple or dict of inputs")
    if any(one.is_meta for one in (*net.parameters(), *net.buffers(), *given)):
        raise ValueError(
            "net and x are on the meta device, which holds no numbers to run on; give both on another device"
        )
    if not isinstance(training, bool):
        raise TypeError(f"training={shown(training)} must be True, or False for a forward pass in eval mode")
    check_loss(loss)
    asked = None if backend is None else request(backend, "explain()")
    if torch._C._autograd._profiler_enabled():
        raise RuntimeError("explain uses torch's profiler, which is running; call it outside of the profiled block")
    with ExitStack() as stack:
        stack.enter_context(preserved(net, [one.device for one in (*net.parameters(), *given)]))
        watching = Watching(net)
        stack.enter_context(chosen_anew(modules, asked))
        stack.enter_context(told_of_refusals(lambda *said: _note_refusal(watching, *said)))
        stack.enter_context(torch.set_grad_enabled(training))
        net.train(training)
        to_rest(modules, carried=True)
        if training and not any(parameter.requires_grad for parameter in net.parameters()):
            inputs = tree_map(lambda one: one.detach().requires_grad_() if one.is_floating_point() else one, inputs)
            given = flattened(inputs)
        gradients: List[Tuple[str, Tensor]] = []
        with _silent_profiler(), profiler.profile(record_shapes=True) as profile:
            with watching.on(inputs):
                outputs = run_network(net, inputs)
            if training:
                gradients = go_backward(net, given, outputs, loss)
        for seen in watching.order:
            _note_backend(seen)
        to_rest(modules, carried=True)  # layers that fire at no step, or at each, run again
        _look_at_states(watching)
        watching.finite.note_backward(gradients)
        return _explanation(net, watching, traffic(profile.function_events or ()), given[0].device, training)


@contextmanager
def _silent_profiler() -> Iterator[None]:
    """Without the lines that torch's profiler writes to stderr when it starts and stops.

    It reads the variable when it is used for the first time in a process.
    """
    given = "KINETO_LOG_LEVEL" in os.environ
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        yield
    finally:
        if not given:
            del os.environ["KINETO_LOG_LEVEL"]


def _note_refusal(watching: Watching, refusing: str, computing: str, error: Exception) -> None:
    seen = watching.top
    if seen is None:  # the backward pass, in which no hook says where it is
        return
    seen.refusals.append((refusing, computing, str(error)))


def _note_backend(seen: Seen) -> None:
    """What computed a neuron, while it still knows."""
    neuron = _neuron(seen.module)
    if neuron is None or not seen.inputs:
        return
    resolved = neuron.bound.get(seen.inputs[0].device.type)
    if resolved is not None:
        seen.backend, seen.reason = resolved.backend.name, resolved.reason
        seen.compiles = isinstance(resolved.backend, KernelBackend)
        prologue = prologue_of(neuron)
        if prologue is not None:
            apart = f"normalised before it: {prologue.reason}"
            seen.reason += "; " + (apart if prologue.reason else "normalises its input in the same kernel")
        if isinstance(seen.module, Recurrent) and seen.module.looped is not None:
            looped = seen.module.looped
            seen.reason += f"; a loop over the steps: {looped}" if looped else "; all steps in one call"
    for refusing, computing, why in seen.refusals:
        seen.backend, seen.reason = computing, f"instead of {refusing}, which was chosen automatically: {why}"


def _neuron(module: nn.Module) -> Optional[Neuron]:
    """The neuron whose backend computes a layer."""
    if isinstance(module, Recurrent):
        return module.neuron
    return module if isinstance(module, Neuron) else None


def _explanation(
    net: nn.Module, watching: Watching, moved: Dict[int, Traffic], device: torch.device, training: bool
) -> Explanation:
    times = {
        seen.steps
        for seen in watching.order
        if isinstance(seen.module, Stateful) and seen.module.step == "multi" and seen.steps
    }
    found = [(seen, _layer(seen, moved.get(seen.number, Traffic()), times, training)) for seen in watching.order]
    found = [(seen, layer) for seen, layer in found if _is_shown(seen, layer)]
    layers = [layer for _, layer in found]
    spoilt = in_words(watching.finite, times)
    setting = Setting(
        device_type=device.type,
        training=training,
        autocast=torch.is_autocast_enabled(),
        net=net,
        modules=tuple(seen.module for seen, _ in found),
        sources=tuple(seen.source for seen, _ in found),
        samples=tuple(seen.sample for seen, _ in found),
        not_finite=spoilt,
    )
    return Explanation(tuple(layers), advice(layers, setting), str(device), training)


def _look_at_states(watching: Watching) -> None:
    """Whether a layer of neurons that fires at no step, or at each, does so because its state is not finite."""
    for seen in watching.order:
        if watching.finite.origin is None and seen.sample and isinstance(seen.module, Stateful):
            outcome = run_again(seen.module, seen.sample, record=True)
            if outcome.spoilt:
                watching.finite.note_state(seen, outcome.spoilt, outcome.step)


def _is_shown(seen: Seen, layer: Layer) -> bool:
    """Whether a module is a layer, or holds others and has something to say of its own."""
    return _is_layer(seen) or bool(layer.copies or layer.saved)


def _is_layer(seen: Seen) -> bool:
    """Whether a module computes by itself, and not by the modules that it holds alone."""
    parts, own = seen.module.children(), seen.module.parameters(recurse=False)
    return isinstance(seen.module, Stateful) or not any(True for _ in parts) or any(True for _ in own)


def _layer(seen: Seen, moved: Traffic, times: Iterable[int], training: bool) -> Layer:
    first, last = seen.inputs[0] if seen.inputs else None, seen.output
    stateful = isinstance(seen.module, Stateful)
    return Layer(
        name=seen.name,
        kind=type(seen.module).__name__,
        calls=seen.calls,
        shape=last.shape if last is not None else (),
        dtype=str(last.dtype).replace("torch.", "") if last is not None else "",
        layout_in=first.layout if first is not None else "",
        layout_out=last.layout if last is not None else "",
        backend=seen.backend,
        reason=seen.reason,
        copies=copies(seen, moved),
        **_moved_words(seen, moved, training),
        steps=seen.steps if seen.steps in times else 0,
        repeated=_is_layer(seen) and not stateful and seen.repeated and seen.steps in times and moved.words > 0,
        products=_products(seen),
        saved=seen.saved,
        saved_spikes=seen.saved_spikes,
        rate=seen.spikes / seen.outputs if stateful and seen.only_spikes and seen.outputs else None,
        notes=notes(seen),
    )


def _moved_words(seen: Seen, moved: Traffic, training: bool) -> Dict[str, Optional[float]]:
    neuron = seen.module
    if not isinstance(neuron, Neuron) or not seen.elements or not seen.inputs:
        return {"words": None, "floor": None}
    steps = neuron.repeat if neuron.repeat is not None and neuron.step == "multi" else 1
    elements = seen.elements * steps
    reads = [1.0 / (one.shape[0] if one.layout.startswith("one step repeated") else steps) for one in seen.inputs]
    wanted = [one.requires_grad for one in seen.inputs]
    learns = any(parameter.requires_grad for parameter in neuron.parameters())
    backward = training and (learns or any(wanted))
    prologue = prologue_of(neuron)
    # a shortcut is no input of the neuron
    count = len(neuron.program.inputs)
    floor = by_kernels = words_of_call(neuron, reads[:count], wanted[:count], backward)
    if prologue is not None:
        statistics, beside = _words_of_prologue(prologue, reads, wanted, backward)
        floor += statistics + beside
        by_kernels += 0.0 if prologue.reason else beside
    words = moved.words / elements
    if seen.compiles or words < floor:  # its kernels are no operations of torch
        words += by_kernels + 2 * seen.checkpoints / elements
    if prologue is not None and not prologue.reason:
        # statistics are an operation of torch, or of kernels, which nobody saw
        words = max(words, floor)
    return {"words": words, "floor": floor}


def _words_of_prologue(
    prologue: Prologue, reads: List[float], wanted: List[bool], backward: bool
) -> Tuple[float, float]:
    """What batch normalisation and a shortcut move beside the neuron behind them: for statistics, and for the rest.

    Statistics read the input. So does the backward pass once more, with the cotangent, for the sums that its gradient
    needs. Where the input is one step repeated, the cotangent summed over time takes as little as the input: it is
    written and read instead. A shortcut is read, and the gradient of one before the neuron written.
    """
    norm = prologue.norm
    takes = norm.training or getattr(norm, "running_mean", None) is None
    words = min(1 + reads[0], 3 * reads[0]) if takes and backward else 0.0
    for read, wants in zip(reads[1:], wanted[1:]):
        words += read + read * (backward and wants and prologue.shortcut == "before")
    return reads[0] if takes else 0.0, words


def _products(seen: Seen) -> int:
    """Multiplications of a layer with weights, in all calls."""
    module = seen.module.linear if isinstance(seen.module, Recurrent) else seen.module
    if isinstance(module, Delay):
        return seen.given * module.linear.in_features * (module.max_delay + 1 if module.delay.ndim == 2 else 1)
    if isinstance(module, nn.Linear):
        return seen.given * module.in_features
    for kinds, numbers in ((_CONVOLUTIONS, seen.given), (_TRANSPOSED, seen.taken)):
        # each number of the output is made of so many, or each of the input goes to so many
        if isinstance(module, kinds):
            return numbers * (module.weight.numel() // module.weight.shape[0])
    return 0


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
