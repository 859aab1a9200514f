"""Chunks replayed from CUDA graphs: a step of a stream then costs the host one launch.

The graph of a chunk reads and writes tensors that stay where they are: the batch, the states, the traces, and the
gradients. What is not as it was when it was captured (shapes, where parameters lie, numbers of neurons, modes) is
another kind of chunk, which gets a graph of its own. A chunk that begins at rest, and the first ones of a kind, are
eager ones. The update is none of it, and is made as ever.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from spikecore.batches import flattened, tree_map
from spikecore.core.neuron import Neuron
from spikecore.core.state import keep
from spikecore.training import Capture
from spikecore_online._traces import Traces

#: Chunks of a kind that go on from others and are eager, before one is captured.
_WARMUP = 2
#: Kinds of chunks that get a graph.
_MOST = 4

#: Function that runs a chunk: its outputs and its loss.
Run = Callable[[Any, Any], Tuple[Any, Tensor]]


class _Graph(NamedTuple):
    """A captured chunk: where its batch, its gradients and what it carries lie, and what replays it."""

    batch: List[Tensor]
    gradients: Dict[nn.Parameter, Tensor]
    states: Dict[Any, Dict[str, Tensor]]
    traces: Traces
    #: None while it is being captured.
    replay: Any = None


class CapturedChunks:
    """Runs chunks, and replays those of a kind that it has captured."""

    def __init__(self, net: nn.Module, run: Run, states: Any, traces: Traces, device: torch.device) -> None:
        self.net, self.traces = net, traces
        self._run, self._stateful, self._capture = run, states, Capture(device)
        self._graphs: Dict[Hashable, _Graph] = {}
        self._runs: Dict[Hashable, int] = {}

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """The outputs and the loss of a chunk; gradients are added, states and traces moved."""
        kind = self._kind(inputs, targets)
        graph = self._graphs.get(kind)
        if graph is None:
            self._runs[kind] = self._runs.get(kind, 0) + 1
            goes_on = all(module.state is not None for module in self._stateful) and len(self._graphs) < _MOST
            if not goes_on or self._runs[kind] <= _WARMUP:
                result: Tuple[Any, Tensor] = self._capture.run(lambda: self._run(inputs, targets))
                return result
            graph = self._graphs[kind] = self._captured(inputs, targets)
        self._load(graph, inputs, targets)
        outputs, loss = graph.replay()
        return tree_map(torch.clone, outputs), loss.clone()

    def _kind(self, inputs: Any, targets: Any) -> Hashable:
        """Key of a graph, found without a wait for the GPU."""
        batch = [(x.shape, x.stride(), x.dtype) for x in flattened((inputs, targets))]
        parameters = [(t.data_ptr(), t.requires_grad) for t in (*self.net.parameters(), *self.net.buffers())]
        numbers = [
            (module.program.key, *[v for v in module.named_values().values() if not isinstance(v, Tensor)])
            for module in self.net.modules()
            if isinstance(module, Neuron)
        ]
        modes = [module.training for module in self.net.modules()]
        states = [[(name, v.shape) for name, v in (module.state or {}).items()] for module in self._stateful]
        carried = [(name, value.shape) for name, value in self.traces.items()]
        return repr((batch, parameters, numbers, modes, states, carried))

    def _captured(self, inputs: Any, targets: Any) -> _Graph:
        batch = tree_map(torch.clone, (inputs, targets))
        gradients = {p: torch.zeros_like(p) for p in self.net.parameters() if p.requires_grad}
        states = {module: {k: v.clone() for k, v in module.state.items()} for module in self._stateful}
        traces = {name: value.clone() for name, value in self.traces.items()}
        graph = _Graph(flattened(batch), gradients, states, traces)

        def work() -> Tuple[Any, Tensor]:
            self._attach(graph)
            outputs, loss = self._run(*batch)
            for module, carried in states.items():
                for name, value in module.state.items():
                    carried[name].copy_(value)
            for name, value in self.traces.items():
                if traces[name] is not value:
                    traces[name].copy_(value)
            self._attach(graph)
            return outputs, loss

        before = {p: p.grad for p in gradients}, {m: m.state for m in states}, dict(self.traces)
        replay = self._capture.record(work, ())
        for p, gradient in before[0].items():
            p.grad = gradient
        for module, state in before[1].items():
            keep(module, state)
        self.traces.update(before[2])
        return graph._replace(replay=replay)

    def _attach(self, graph: _Graph) -> None:
        """Have the network and the traces be the tensors of the graph."""
        for p, gradient in graph.gradients.items():
            p.grad = gradient
        for module, state in graph.states.items():
            keep(module, dict(state))
        self.traces.update(graph.traces)

    def _load(self, graph: _Graph, inputs: Any, targets: Any) -> None:
        """Copy the batch, states, traces and gradients into the graph's static tensors."""
        pairs = list(zip(graph.batch, flattened((inputs, targets))))
        for module, state in graph.states.items():
            pairs += [(value, module.state[name]) for name, value in state.items()]
        pairs += [(value, self.traces[name]) for name, value in graph.traces.items()]
        for p, gradient in graph.gradients.items():
            if p.grad is None:
                gradient.zero_()
            else:
                pairs.append((gradient, p.grad))
        for to, value in pairs:
            if to is not value:
                to.copy_(value)
        self._attach(graph)
