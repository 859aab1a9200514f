"""Backward through one chunk: neuron by neuron, from the loss to the input, with the traces of a rule."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from spikecore.neurons import Recurrent
from spikecore_online._chunk import (
    Chunk,
    Gradients,
    LayerCall,
    NeuronCall,
    at_first,
    gradients,
    learnt,
)
from spikecore_online._network import Network
from spikecore_online._options import OnlineOptions
from spikecore_online._rules import is_leaky_read_out
from spikecore_online._sensitivities import learn_parameters
from spikecore_online._traces import KINDS, Connection, Filtered, Traces

#: The name of the memory of a read-out among the states of a neuron below it.
READ_OUT = "read-out"


class ReadOut(NamedTuple):
    """The memory of a leaky read-out, as the neurons below see it: ``r' = decay r + sum_t share[t] y[t]``.

    An output y of a neuron below is in the read-out's state, times the weight between, as r is (Bellec et al., 2020,
    where the filtered eligibility trace is that of r). So r is one more state of that neuron. Where the neurons of the
    read-out have parameters of their own, each has a memory.
    """

    share: Tensor
    #: None where the chunk began at rest.
    decay: Optional[Tensor]
    #: The gradient of the read-out's state before the chunk, and of r by the leaf of an output that reaches it.
    error: Tensor
    below: Mapping[Tensor, Tensor]


class Backward:
    """Adds the gradients of a chunk to those of the parameters, and moves the traces over it."""

    def __init__(self, network: Network, options: OnlineOptions) -> None:
        self.network, self.rule, self.options = network, network.rule, options
        #: Traces that the rule carries from chunk to chunk.
        self.traces: Traces = {}
        #: The matrices of random feedback, by neuron and output.
        self.matrices: Dict[str, Tensor] = {}
        #: The traces of weights; None for a rule without.
        self._of_weights: Any = KINDS[self.rule.trace](self.traces) if self.rule.trace else None
        #: The memories of the read-out of the chunk under way.
        self._memories: List[ReadOut] = []

    def __call__(self, chunk: Chunk, loss: Tensor) -> None:
        """Backward of the chunk's loss."""
        calls, last = chunk.calls, None if self.options.feedback == "exact" else chunk.last_layer
        # a loss may be of the parameters of neurons, too
        learning = [p for p in self.network.net.parameters() if p.requires_grad]
        arrived, at_layers, _ = chunk.back([loss], [torch.ones_like(loss)], len(calls), learning)
        self._memories = []
        for position in reversed(range(len(calls))):
            call = calls[position]
            if isinstance(call, LayerCall):
                continue
            errors: Gradients = [arrived.get(leaf) for leaf in call.leaves]
            if last is not None and position < calls.index(last):
                if self.options.feedback == "none":
                    continue
                errors = [
                    self._sent(call, k, at_layers[last].reshape(*y.shape[:2], -1)) if last in at_layers else None
                    for k, y in enumerate(call.outputs)
                ]
            errors = [torch.zeros_like(y) if g is None else g for g, y in zip(errors, call.outputs)]
            below, of_layers = self._through(chunk, position, call, errors)
            at_layers.update(of_layers)
            for leaf, gradient in below.items():
                arrived[leaf] = arrived[leaf] + gradient if leaf in arrived else gradient

    def _through(
        self, chunk: Chunk, position: int, call: NeuronCall, errors: Gradients
    ) -> Tuple[Dict[Tensor, Tensor], Dict[LayerCall, Tensor]]:
        """Backward through a neuron and to the next cuts below it."""
        recurrent = call.module.linear if isinstance(call.module, Recurrent) else None
        inner = [] if recurrent is None else [p for p in recurrent.parameters() if p.requires_grad]
        # each once: a layer may share its weights with what feeds back
        weights = [] if self.rule.trace == "input" else [*dict.fromkeys([*self.network.weights, *inner])]
        before, into = call.starts, [] if recurrent is None else [call.inputs[call.ends[0]]]
        others = [*before.values(), *into, *[x for x in call.inputs if x.requires_grad]]
        below, at_layers, rest = chunk.back(call.outputs, errors, position, weights, others)
        starts = {name: g for name, g in zip(before, rest) if g is not None}
        if self._of_weights is not None:
            if any(gradient is None for gradient in rest[len(before) + len(into) :]):
                # a layer that reaches a state, and no output of the chunk, has a trace, too
                ends = [call.end[name] for name in call.states]
                _, at_states, _ = chunk.back(ends, list(map(torch.zeros_like, ends)), position)
                at_layers = {**at_states, **at_layers}
            connections = [
                Connection(of.name, of.layer, of.inputs, call, of)
                for of in at_layers
                if of.layer in self.network.traced and learnt(of.layer)
            ]
            if recurrent is not None and learnt(recurrent):
                connections.append(Connection(f"{call.name}.linear", recurrent, call.fed_back(), call, None))
            self._learn(call, connections, starts, at_layers, rest[len(before)] if into else None)
        learn_parameters(call, errors, self.traces)
        last = chunk.last_layer if self.rule.has_read_out else None
        if last in at_layers and is_leaky_read_out(call.neuron.program):
            self._memories = self._memories_of(chunk, call, last, starts)
        return below, at_layers

    def _learn(
        self,
        call: NeuronCall,
        connections: List[Connection],
        starts: Dict[str, Tensor],
        at_layers: Mapping[LayerCall, Tensor],
        at_feedback: Optional[Tensor],
    ) -> None:
        """Add the gradients of weights from earlier steps, and move their traces.

        ``at_layers``, ``at_feedback``: the gradients of the outputs of layers, and of what comes back.
        """
        traces = self._of_weights
        if isinstance(traces, Filtered):
            for of in connections:
                output = at_feedback if of.call is None else at_layers[of.call]
                if output is not None:
                    traces.learn(of, output)
        elif connections:
            memory = self._memory_errors(call)
            owed = {**starts, **{f"{READ_OUT}/{k}/{n}": error for (k, n), error in memory.items()}}
            for of in connections:
                traces.owe(of, owed)
            transition = {name: call.transition(name) for name in call.states}
            traces.advance(connections, {**transition, **self._memory(call, memory)})

    def _memories_of(
        self, chunk: Chunk, call: NeuronCall, last: LayerCall, starts: Mapping[str, Tensor]
    ) -> List[ReadOut]:
        (state,), (x,) = call.states, call.inputs
        by_input, by_state = call.transition(state)
        share: Any = by_input[0]
        error, decay = starts.get(state, torch.zeros_like(call.end[state])), by_state.get(state)
        earlier = chunk.calls[: chunk.calls.index(last)]
        leaves = [leaf for other in earlier if isinstance(other, NeuronCall) for leaf in other.leaves]
        values = call.neuron.named_values().values()
        alike = all(value.numel() == 1 for value in values if isinstance(value, Tensor))
        each = torch.eye(error[0].numel(), dtype=error.dtype, device=error.device).view(-1, 1, *error.shape[1:])
        parts = [error] if alike else [*each * error]
        memories = []
        for n, part in enumerate(parts):
            by_leaf = gradients([x], leaves, [at_first(part, x)])
            below = {leaf: gradient[0] for leaf, gradient in zip(leaves, by_leaf) if gradient is not None}
            of_n = None if decay is None else decay[0].reshape(-1)[n]
            memories.append(ReadOut(share[:, 0].reshape(len(share), -1)[:, n], of_n, part, below))
        return memories

    def _memory_errors(self, call: NeuronCall) -> Dict[Tuple[int, int], Tensor]:
        """The gradients of the read-out's memories of this neuron's outputs before the chunk, by the numbers of the
        output and of the memory.
        """
        errors = {}
        for n, read_out in enumerate(self._memories):
            sent = read_out.error.flatten(1).unsqueeze(0)
            for k, leaf in enumerate(call.leaves):
                if self.options.feedback == "random":
                    errors[k, n] = self._sent(call, k, sent)[0]
                elif leaf in read_out.below:
                    errors[k, n] = read_out.below[leaf]
        return errors

    def _memory(self, call: NeuronCall, errors: Iterable[Tuple[int, int]]) -> Dict[str, Any]:
        """The read-out's memories of the outputs of a neuron, as states of it: see :class:`ReadOut`."""
        memory: Dict[str, Any] = {}
        for k, n in errors:
            y, name, read_out = call.outputs[k], f"{READ_OUT}/{k}/{n}", self._memories[n]
            cotangent = read_out.share.to(y.dtype).view(-1, *[1] * (y.ndim - 1)).expand(y.shape)
            by_input, by_state = call.back([y], [cotangent])
            if read_out.decay is not None:
                by_state = {**by_state, name: read_out.decay.expand(y.shape[1:])}
            memory[name] = by_input, by_state
        return memory

    def _sent(self, call: NeuronCall, k: int, error: Tensor) -> Tensor:
        """An error ``[C, B, K]`` behind the last layer at output k of a neuron, by its fixed random matrix."""
        y = call.outputs[k]
        key = f"{call.name}/{k}"
        matrix = self.matrices.get(key)
        if matrix is None:
            size = (error.shape[-1], y[0, 0].numel())
            matrix = torch.randn(size, generator=self.options.generator) / size[0] ** 0.5
        matrix = self.matrices[key] = matrix.to(error.device, error.dtype)
        return (error @ matrix).view(-1, *y.shape[1:]).to(y.dtype)
