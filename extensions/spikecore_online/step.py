"""The online step: a sequence in chunks, an iterator of chunks, or a stream of single steps."""

from __future__ import annotations

import copy
import warnings
from itertools import repeat
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.backend import Unsupported
from spikecore.batches import beside, device_of, flattened, run_network, to_device, tree_map
from spikecore.core.modules import named_as
from spikecore.core.state import CALL_COUNT, keep
from spikecore.functional import after_update, stateful_modules
from spikecore.inspect.errors import explained, of_network
from spikecore.training import (
    Loss,
    Updates,
    all_or_nothing,
    check_loss,
    check_optimizer,
    check_parts,
    gpu_of,
    load_optimizer,
    step_of,
)
from spikecore.words import shown
from spikecore_online._backward import Backward
from spikecore_online._captured import CapturedChunks
from spikecore_online._chunk import ContinuedStates, recording
from spikecore_online._network import Network
from spikecore_online._options import OnlineOptions
from spikecore_online._plasticity import Plasticity
from spikecore_online._rules import RULES
from spikecore_online._saved import check_online

#: Parts of the state of a step.
_PARTS = ("net", "optimizer", "online")


class OnlineTraining:
    """A step that trains online, made by ``sc.training_model(net, loss, optimizer, options=sc.OnlineOptions(...))``.

    ``step(inputs, targets)`` runs a sequence ``[T, B, ...]`` in chunks, from rest, and leaves the network at rest, as
    every step of training does; within ``sc.carry_state(net)`` it goes on from the call before, and leaves its states
    and traces to the next one. It gives the outputs, detached, and the loss. ``inputs`` may be an iterator of chunks
    ``[C, B, ...]`` of any lengths, which are read one by one; the outputs then are those of the last chunk. With
    ``time_targets`` the targets are cut as the inputs are, ``[T, B, ...]``, or an iterator beside that of the inputs;
    without, each chunk gets them whole.

    The loss of a sequence is the sum of ``loss(outputs, targets)`` of its chunks. So the gradient is that of a loss
    that is a sum over steps; one that takes a mean over the steps that it gets weighs a chunk of any length equally.

    ``step.feed(x_t, y_t)`` is a chunk of one step, ``[B, ...]``, whatever ``chunk`` is, and goes on from the one before
    until :func:`spikecore.reset` or :meth:`reset`. With ``update="sequence"`` gradients add up until :meth:`update`.

    States of neurons are in the network, and traces in the step: ``sc.reset(net)`` puts both to rest, after which the
    batch may have another size. A step holds the graph of one chunk, and the traces: memory does not grow with time.
    Gradients are in ``parameter.grad`` after a step, as ever, until the next one begins. On a GPU, where a step of a
    small network is mostly the host's work, ``graph=True`` replays it.

    Raises :class:`~spikecore.backend.Unsupported` for a network that the rule cannot train, naming the module and a
    rule that can: batch normalisation by statistics of the batch; a learnt parameter with a use that the rule does not
    train it by, such as a layer with a ``forward`` or hooks of its own, one that is called twice or reaches two
    neurons, and a weight that ``forward`` reads itself, where a neuron stands behind; a ``forward`` that cannot be
    read, as one that loops over steps; a convolution under ``"d_rtrl"`` and ``"eprop"``, and what lies between layer
    and neuron there and is not element-wise; ``Recurrent`` without ``detach=True``; delays and ``PSN``; under
    ``"ottt"`` a neuron whose leak depends on its state.
    """

    def __init__(self, net: nn.Module, loss: Loss, optimizer: Any, options: OnlineOptions) -> None:
        check_optimizer(optimizer, net)
        self.net, self.loss, self.optimizer, self.options = net, loss, optimizer, options
        self._stateful = stateful_modules(net)
        if not self._stateful:
            warnings.warn(
                f"OnlineOptions: net={shown(net)} has no spikecore neuron, so that nothing goes on from step to step, "
                "and each chunk is trained alone; give the network that holds the neurons",
                UserWarning,
                stacklevel=5,  # the line that calls sc.training_model
            )
        self._updates = Updates(net, options.clip_norm, None)
        #: The last chunk, for the words of an error.
        self._last: Dict[str, Any] = {}
        #: True if gradients were used, so that the next chunk begins with none.
        self._is_updated = True
        plasticity = options.plasticity
        self._takes_rows = plasticity is not None and plasticity.reward
        self._rule = RULES.get("stdp" if plasticity else options.rule)  # type: ignore[arg-type]  # a name
        if self._rule is not None:
            self._network = Network(net, self._rule)
            self._backward: Any = Plasticity(plasticity) if plasticity else Backward(self._network, options)
        self._captured = self._chunks_of_graphs() if options.graph else None

    @property
    def traces(self) -> Mapping[Tuple[str, ...], Tensor]:
        """Traces that are carried from chunk to chunk beside the states. Keys are tuples: the name of the neuron,
        ``"layer"`` or ``"parameter"``, the name of that, and more; {} at rest.
        """
        return {} if self._rule is None else self._backward.traces

    # -- calls

    def __call__(self, inputs: Any, targets: Any = None) -> Tuple[Any, Tensor]:
        """Train on a sequence; the outputs and the loss, detached, are those from before the updates."""
        carries = any(module.carrying for module in self._stateful)
        if not carries:
            self.reset()
        self._is_updated = True
        total: Optional[Tensor] = None
        collected: List[Any] = []
        is_stream = hasattr(inputs, "__next__")
        try:
            for chunk, target in self._chunks(inputs, targets):
                outputs, loss = self._learn(chunk, target)
                total = loss if total is None else total + loss
                collected = [outputs] if is_stream else [*collected, outputs]
                if self.options.update == "chunk":
                    self.update()
            if total is None:
                raise ValueError("inputs have no steps; give [T, B, ...] with T of 1 or more, or chunks of such")
            if self.options.update == "sequence":
                self.update()
        finally:
            if not carries:
                self.reset()
        return _joined(collected), total

    def feed(self, x: Any, y: Any = None) -> Tuple[Any, Tensor]:
        """Train on one time step ``[B, ...]``, which goes on from the one before; gives its output and loss.

        A whole sequence ``[T, B, ...]`` cannot be told from a step, and would be one: give it to a call of the step.

        With ``time_targets`` ``y`` is the target of the step, ``[B, ...]``, which the loss gets as ``[1, B, ...]``.
        """
        target = tree_map(lambda value: value.unsqueeze(0), y) if self.options.time_targets else y
        with explained(lambda error: _of_sequence(x, y)):
            outputs, loss = self._learn(tree_map(lambda value: value.unsqueeze(0), x), target)
        if self.options.update == "chunk":
            self.update()
        return tree_map(lambda value: value.squeeze(0), outputs), loss

    def update(self) -> None:
        """Step the optimiser with the gradients that added up since the last update."""
        self._updates.make(self.optimizer, lambda optimizer: optimizer.step(), False, self._last)
        after_update(self._stateful)
        self._is_updated = True

    def reset(self) -> None:
        """Put the neurons to rest, and drop the traces."""
        for module in self._stateful:
            keep(module, None)
        self._forget_at_rest()

    # -- a chunk

    def _run(self, inputs: Any) -> Any:
        with explained(lambda error: of_network(self.net, inputs, error)):
            return run_network(self.net, inputs)

    def _chunks(self, inputs: Any, targets: Any) -> Iterator[Tuple[Any, Any]]:
        if hasattr(inputs, "__next__"):
            beside_inputs = targets if self.options.time_targets and hasattr(targets, "__next__") else None
            if beside_inputs is None and self.options.time_targets:
                raise TypeError(
                    "inputs is an iterator of chunks, and time_targets=True: give targets as an iterator beside it"
                )
            yield from zip(inputs, repeat(targets) if beside_inputs is None else beside_inputs)
            return
        steps = {len(value) for value in flattened(inputs)}
        if len(steps) != 1:
            raise ValueError(f"inputs have {sorted(steps)} steps; give tensors [T, B, ...] of one T")
        (count,) = steps
        if self.options.time_targets and any(len(value) != count for value in flattened(targets)):
            raise ValueError(
                f"targets have {[len(value) for value in flattened(targets)]} steps and inputs {count}; with "
                "time_targets=True both are [T, B, ...]"
            )
        for begin in range(0, count, self.options.chunk):
            part = slice(begin, begin + self.options.chunk)
            yield _part(inputs, part), _part(targets, part) if self.options.time_targets else targets

    def _learn(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Run a chunk, and add its gradients."""
        device = device_of(self.net)
        inputs, targets = to_device(inputs, device), to_device(targets, device)
        if self._is_updated:
            self.optimizer.zero_grad()
            self._is_updated = False
        if self._rule is None:
            outputs, loss = self._truncated(inputs, targets)
        else:
            self._forget_at_rest()
            for tensors in (self._backward.traces, self._backward.matrices):
                tensors.update({key: value.to(device) for key, value in tensors.items() if value.device != device})
            if all(module.state is None for module in self._network.neurons.values()):
                # a stream begins
                self._network.check(len(inputs) if isinstance(inputs, (dict, tuple, list)) else 1)
            outputs, loss = (self._captured or self._online)(inputs, targets)
        if self.options.clip_norm is not None:
            self._last = {"inputs": inputs, "targets": targets, "outputs": outputs, "loss": loss}
        return outputs, loss

    def _chunks_of_graphs(self) -> CapturedChunks:
        carrying = [*self._network.neurons.values(), *self._network.others]
        return CapturedChunks(self.net, self._online, carrying, self._backward.traces, gpu_of(self.net))

    def _online(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        of = self._network
        with recording(self.net, of.neurons, of.others, of.layers, of.rule) as chunk:
            outputs = self._run(inputs)
            loss = self._loss_of(outputs, targets)
        self._backward(chunk, loss)
        loss = loss.detach()
        return tree_map(Tensor.detach, outputs), loss.mean() if loss.ndim else loss

    def _truncated(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        before = {module: vars(module)[CALL_COUNT] for module in self._stateful if module.step == "multi"}
        with ContinuedStates(self._stateful):
            outputs = self._run(inputs)
            for module, count in before.items():
                if vars(module)[CALL_COUNT] > count + 1 and not module.may_rest:
                    raise Unsupported(
                        f"rule='bptt': {type(module).__name__} is called twice for a chunk, and would go on from the "
                        "other call's state; make a neuron for each place"
                    )
            loss = self._loss_of(outputs, targets)
        loss.backward()
        return tree_map(Tensor.detach, outputs), loss.detach()

    def _loss_of(self, outputs: Any, targets: Any) -> Tensor:
        loss = self.loss(outputs, beside(outputs, targets))
        if not (self._takes_rows and isinstance(loss, Tensor) and loss.ndim == 1):
            check_loss(loss)
        return loss

    def _forget_at_rest(self) -> None:
        """Drop the traces of neurons that are at rest: somebody reset them."""
        if self._rule is not None:
            resting = {name for name, module in self._network.neurons.items() if module.state is None}
            for key in [key for key in self._backward.traces if key[0] in resting]:
                del self._backward.traces[key]

    # -- saving

    def state_dict(self) -> Dict[str, Any]:
        """Weights, optimiser, and under ``"online"`` the rule, states, traces, random feedback, and gradients not yet
        used.
        """
        names = {id(p): name for name, p in self.net.named_parameters()}
        pending = {} if self._is_updated else {p: p.grad for p in self.net.parameters() if p.grad is not None}
        states = {name: module.state for name, module in self.net.named_modules() if module in self._stateful}
        online = {
            "rule": self.options.name,
            "states": {name: _copied(state) for name, state in states.items() if state},
            "traces": _copied(self.traces),
            "feedback": {} if self._rule is None else _copied(self._backward.matrices),
            "gradients": {names[id(p)]: gradient.clone() for p, gradient in pending.items()},
        }
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "online": online}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, as a whole or not at all; errors as of every training step, and
        ValueError for the state of another rule or of another network.
        """
        check_parts(state, _PARTS)
        modules = {name: module for name, module in self.net.named_modules() if module in self._stateful}
        parameters = dict(self.net.named_parameters())
        check_online(self.net, state["online"], self.options.name)
        device, online = device_of(self.net), copy.deepcopy(dict(state["online"]))
        for name, gradient in online["gradients"].items():
            online["gradients"][name] = gradient.to(parameters[name].device)
        states, traces, feedback = (to_device(online[name], device) for name in ("states", "traces", "feedback"))
        net = named_as(self.net, state["net"])
        with all_or_nothing(net, [self.optimizer]):
            load_optimizer(self.optimizer, state["optimizer"])
            net.load_state_dict(state["net"])
        for name, module in modules.items():
            keep(module, states.get(name))
        self.optimizer.zero_grad(set_to_none=True)
        for name, gradient in online["gradients"].items():
            parameters[name].grad = gradient
        self._is_updated = not online["gradients"]
        if self._rule is not None:
            for ours, saved in ((self._backward.traces, traces), (self._backward.matrices, feedback)):
                ours.clear()
                ours.update(saved)


def _of_sequence(x: Any, y: Any) -> str:
    """Advice for an error of ``feed`` if there are as many targets as a sequence ``[T, B, ...]`` has samples."""
    tensors = isinstance(x, Tensor) and isinstance(y, Tensor)
    if not tensors or x.ndim < 3 or not y.ndim or not x.shape[1] == len(y) != len(x):
        return ""
    return (
        f"feed takes one step [B, ...], and got x {list(x.shape)} for {len(y)} targets: it seems to be a sequence "
        "[T, B, ...]; give that to step(x, y), or its steps one by one: for x_t in x: step.feed(x_t, y)"
    )


def _part(structure: Any, part: slice) -> Any:
    """Some steps of tensors ``[T, ...]``."""
    return tree_map(lambda value: value[part], structure)


def _copied(tensors: Mapping[Any, Tensor]) -> Dict[Any, Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}


def _joined(outputs: List[Any]) -> Any:
    """The outputs of chunks, one behind the other."""
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(outputs)
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in outputs]) for key in first}
    return tuple([_joined(list(parts)) for parts in zip(*outputs)])


@step_of.register(OnlineOptions)
def _(options: OnlineOptions, net: nn.Module, loss: Loss, optimizer: Any) -> OnlineTraining:
    return OnlineTraining(net, loss, optimizer, options)
