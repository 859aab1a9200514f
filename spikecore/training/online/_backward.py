"""Backward through one chunk: neuron by neuron, from the loss to the input, with the traces of a rule."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from torch import Tensor

from spikecore.backend import Unsupported
from spikecore.neurons import Recurrent
from spikecore.training.online._chunk import Chunk, Gradients, LayerCall, NeuronCall, accumulate, learnt
from spikecore.training.online._options import OnlineOptions
from spikecore.training.online._rules import Rule
from spikecore.training.online._sensitivities import learn_parameters
from spikecore.training.online._traces import Connection, Filtered, Full, Outer, Traces

_KINDS: Dict[str, Any] = {"full": Full, "outer": Outer, "input": Filtered}


class Backward:
    """Adds the gradients of a chunk to those of the parameters, and moves the traces over it."""

    def __init__(self, rule: Rule, options: OnlineOptions) -> None:
        self.rule, self.options = rule, options
        #: What the rule carries from chunk to chunk.
        self.traces: Traces = {}
        #: The matrices of random feedback, by neuron and output.
        self.matrices: Traces = {}
        self._kept = _KINDS[rule.trace](self.traces) if rule.trace else None

    def __call__(self, chunk: Chunk, loss: Tensor) -> None:
        """Backward of the chunk's loss."""
        calls, last = chunk.calls, chunk.last_layer
        arrived, at_layers = chunk.spread([loss], [torch.ones_like(loss)], len(calls), False)
        reached: Set[str] = set()
        for position in reversed(range(len(calls))):
            call = calls[position]
            if isinstance(call, LayerCall):
                continue
            is_below = last is not None and position < calls.index(last)
            if is_below and self.options.feedback == "none":
                continue
            errors: Gradients = [arrived.get(leaf) for leaf in call.leaves]
            if is_below and self.options.feedback == "random":
                errors = self._sent(call, at_layers.get(last))  # type: ignore[arg-type]  # there is a last one
            errors = [torch.zeros_like(y) if g is None else g for g, y in zip(errors, call.outputs)]
            below, of_layers = self._through(chunk, position, call, errors, reached)
            at_layers.update(of_layers)
            for leaf, gradient in below.items():
                arrived[leaf] = arrived[leaf] + gradient if leaf in arrived else gradient

    def _through(
        self, chunk: Chunk, position: int, call: NeuronCall, errors: Gradients, reached: Set[str]
    ) -> Tuple[Dict[Tensor, Tensor], Dict[LayerCall, Tensor]]:
        """Backward through a neuron and to the next cuts below it."""
        is_filtered = self.rule.trace == "input"
        recurrent = call.module.linear if isinstance(call.module, Recurrent) else None
        own = [] if recurrent is None or is_filtered else [*learnt(recurrent).values()]
        by_input, starts, by_own = call.back(errors, own)
        for weight, gradient in zip(own, by_own):
            if gradient is not None:
                accumulate(weight, gradient)
        below, at_layers = chunk.spread(call.inputs, by_input, position, is_filtered)
        if self._kept is not None:
            connections = [Connection(of.name, of.layer, of.inputs, call, of) for of in at_layers if learnt(of.layer)]
            self._refuse_shared(connections, reached)
            if recurrent is not None and learnt(recurrent):
                connections.append(Connection(f"{call.name}.linear", recurrent, call.fed_back(), call, None))
            self._learn(call, connections, by_input, starts, at_layers)
        learn_parameters(call, errors, self.traces)
        return below, at_layers

    def _learn(
        self,
        call: NeuronCall,
        connections: List[Connection],
        by_input: Gradients,
        starts: Dict[str, Tensor],
        at_layers: Dict[LayerCall, Tensor],
    ) -> None:
        """What the weights of a neuron learn from earlier steps, and their traces."""
        kept: Any = self._kept
        for of in connections:
            if isinstance(kept, Filtered):
                output = of.cotangent(by_input) if of.call is None else at_layers[of.call]
                if output is not None:
                    kept.learn(of, output)
            else:
                kept.owe(of, starts)
        if connections and not isinstance(kept, Filtered):
            ends = [name for name in call.states if call.end[name].requires_grad]
            kept.advance(connections, {name: call.transition(name) for name in ends})

    def _refuse_shared(self, connections: List[Connection], reached: Set[str]) -> None:
        for of in connections:
            if of.name in reached:
                raise Unsupported(
                    f"rule={self.rule.name!r}: {of.name!r} reaches {of.neuron.name!r} and another neuron, and has one "
                    "trace; make a layer for each, or take rule='sltt'"
                )
            reached.add(of.name)

    def _sent(self, call: NeuronCall, error: Optional[Tensor]) -> Gradients:
        """The errors at the outputs of a neuron, by its fixed random matrices."""
        if error is None:
            return [None] * len(call.outputs)
        sent: List[Optional[Tensor]] = []
        for k, y in enumerate(call.outputs):
            steps, batch = y.shape[:2]
            flat = error.reshape(steps, batch, -1)
            key = f"{call.name}/{k}"
            matrix = self.matrices.get(key)
            if matrix is None:
                size = (flat.shape[-1], y[0, 0].numel())
                matrix = torch.randn(size, generator=self.options.generator) / size[0] ** 0.5
            matrix = self.matrices[key] = matrix.to(flat.device, flat.dtype)
            sent.append((flat @ matrix).view(y.shape).to(y.dtype))
        return sent

    def forget(self, neuron: str) -> None:
        """Drop the traces of a neuron."""
        for key in [key for key in self.traces if key.split("/")[0] == neuron]:
            del self.traces[key]
