"""A chunk as it was computed: the calls of its neurons and layers, cut apart so that each is differentiated alone.

While a chunk is recorded, a neuron gets its input as a leaf of autograd, and what it gives goes on as another one. So a
graph ends at every neuron, at both sides, and what lies between neurons (:meth:`Chunk.spread`) is space without time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor, nn

from spikecore._shell.state import Stateful, carried, put_back
from spikecore.backend import Unsupported
from spikecore.neurons import Recurrent
from spikecore.neurons._recurrent import FEEDBACK
from spikecore.training._online._rules import Dispatches

#: Gradients beside what they are of; None where there is no path.
Gradients = Sequence[Optional[Tensor]]


def gradients(of: Sequence[Tensor], by: Sequence[Tensor], cotangents: Gradients) -> List[Optional[Tensor]]:
    """The vector-Jacobian product, which keeps the graph."""
    pairs = [(value, g) for value, g in zip(of, cotangents) if g is not None and value.requires_grad]
    if not pairs or not by:
        return [None] * len(by)
    values, grads = zip(*pairs)
    return list(torch.autograd.grad(values, list(by), grads, retain_graph=True, allow_unused=True))


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Add to ``parameter.grad``."""
    gradient = gradient.detach().to(parameter.dtype)
    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)


def at_first(g: Tensor, x: Tensor) -> Tensor:
    """A gradient of the first step, as one of all steps."""
    whole = torch.zeros_like(x)
    whole[0] = g
    return whole


def learnt(module: nn.Module) -> Dict[str, nn.Parameter]:
    """The parameters that a module itself has and learns."""
    return {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}


@dataclass(eq=False)
class LayerCall:
    """A call of a layer with weights."""

    name: str
    layer: nn.Module
    #: What it read, ``[C, B, ...]``, or ``[C * B, ...]`` within ``TimeBatched``.
    inputs: Tensor
    output: Tensor


@dataclass(eq=False)
class NeuronCall:
    """A call of a neuron or of ``Recurrent``, from its state before the chunk to that behind it."""

    name: str
    module: Any
    #: The inputs ``[C, B, ...]`` with their graph, and as leaves.
    inputs: Tuple[Tensor, ...]
    cut: Tuple[Tensor, ...]
    #: The states before, as leaves; none at rest.
    start: Dict[str, Tensor]
    outputs: Tuple[Tensor, ...] = ()
    #: The outputs as they went on, as leaves.
    leaves: Tuple[Tensor, ...] = ()
    end: Dict[str, Tensor] = field(default_factory=dict)

    @property
    def neuron(self) -> Any:
        """The neuron, within ``Recurrent`` the inner one."""
        return self.module.neuron if isinstance(self.module, Recurrent) else self.module

    @property
    def states(self) -> Tuple[str, ...]:
        """The names of its neuron's states."""
        return tuple(self.neuron.states)

    @property
    def ends(self) -> Tuple[int, int]:
        """Of ``Recurrent``, the numbers of the input that is added to, and of the output that comes back."""
        into, output = self.module.into, self.module.output
        return 0 if into is None else self.neuron.inputs.index(into), output or 0

    def back(self, outputs: Gradients, more: Sequence[Tensor] = ()) -> Tuple[Gradients, Dict[str, Tensor], Gradients]:
        """Gradients of the inputs, of the states before, and of other tensors, for those of the outputs."""
        return self._back(self.outputs, outputs, more)

    def transition(self, state: str) -> Tuple[Gradients, Dict[str, Tensor]]:
        """The derivatives of the final value of a state by the inputs of each step, and by the states before."""
        end = self.end[state]
        return self._back([end], [torch.ones_like(end)])[:2]

    def fed_back(self) -> Tensor:
        """What came back at each step, of ``Recurrent``: the outputs one step before."""
        y = self.outputs[self.ends[1]].detach()
        first = self.start[FEEDBACK].detach() if self.start else torch.zeros_like(y[0])
        return torch.cat([first.to(y.dtype).unsqueeze(0), y[:-1]])

    def _back(
        self, of: Sequence[Tensor], cotangents: Gradients, more: Sequence[Tensor] = ()
    ) -> Tuple[Gradients, Dict[str, Tensor], Gradients]:
        names = [name for name in self.states if name in self.start]
        results = gradients(of, [*self.cut, *(self.start[name] for name in names), *more], cotangents)
        first, behind = len(self.cut), len(self.cut) + len(names)
        starts = {name: value for name, value in zip(names, results[first:behind]) if value is not None}
        return results[:first], starts, results[behind:]


class Chunk:
    """The calls of a chunk, in order."""

    def __init__(self) -> None:
        self.calls: List[Any] = []

    @property
    def last_layer(self) -> Optional[LayerCall]:
        """The last layer with weights, other than a normalisation."""
        layers = [call for call in self.calls if isinstance(call, LayerCall)]
        weights = [call for call in layers if not isinstance(call.layer, nn.modules.batchnorm._BatchNorm)]
        return next(reversed(weights or layers), None)

    def spread(
        self, of: Sequence[Tensor], cotangents: Gradients, before: int, weights: Sequence[nn.Parameter]
    ) -> Tuple[Dict[Tensor, Tensor], Dict[LayerCall, Tensor]]:
        """Backward from ``of`` to the next cuts: the gradients of the outputs of neurons, and of those of layers.

        ``before``: how many calls there were. Those of ``weights`` on the way get theirs.
        """
        earlier = self.calls[:before]
        layers = [call for call in earlier if isinstance(call, LayerCall) and call.output.requires_grad]
        leaves = [leaf for call in earlier if isinstance(call, NeuronCall) for leaf in call.leaves]
        results = gradients(of, [*leaves, *(call.output for call in layers), *weights], cotangents)
        outputs, rest = results[: len(leaves)], results[len(leaves) :]
        for weight, gradient in zip(weights, rest[len(layers) :]):
            if gradient is not None:
                accumulate(weight, gradient)
        return (
            {leaf: gradient for leaf, gradient in zip(leaves, outputs) if gradient is not None},
            {call: gradient for call, gradient in zip(layers, rest) if gradient is not None},
        )


class GoingOn:
    """Within the block modules go on from their states, as leaves. Afterwards they have their new ones, without a
    graph, or those of before if something was raised.
    """

    def __init__(self, modules: Sequence[Stateful]) -> None:
        self.modules = modules

    def __enter__(self) -> None:
        self._before = [carried(module) for module in self.modules]
        for module, before in zip(self.modules, self._before):
            put_back(module, {**before, "_carrying": before["_carrying"] + 1}, _leaves(before["_state"]))

    def __exit__(self, kind: Any, *_: Any) -> None:
        for module, before in zip(self.modules, self._before):
            state = module.state
            after = state and {name: value.detach() for name, value in state.items()}
            put_back(module, before, after if kind is None else before["_state"])


def _leaves(state: Optional[Mapping[str, Tensor]]) -> Optional[Dict[str, Tensor]]:
    return state and {name: value.detach().requires_grad_() for name, value in state.items()}  # type: ignore[return-value]  # None


class Recording(GoingOn):
    """Within the block calls are recorded and cut, too, and neurons compute by the programs of a rule."""

    def __init__(
        self,
        neurons: Mapping[str, Stateful],
        others: Sequence[Stateful],
        layers: Mapping[str, nn.Module],
        dispatches: Dispatches,
    ) -> None:
        super().__init__([*neurons.values(), *others])
        self.chunk = Chunk()
        self._neurons, self._layers, self._dispatches = neurons, layers, dispatches
        self._open: Dict[nn.Module, NeuronCall] = {}
        self._called: Set[str] = set()

    def __enter__(self) -> Chunk:  # type: ignore[override]  # it gives what it records
        self._programs = []
        for module in self._neurons.values():
            neuron = module.neuron if isinstance(module, Recurrent) else module
            dispatch = self._dispatches.of(neuron)
            self._programs.append((neuron, neuron.__dict__["_dispatch"]))
            neuron.__dict__["_dispatch"] = dispatch
        self._hooks: List[Any] = []
        for name, module in self._neurons.items():
            self._hooks.append(module.register_forward_pre_hook(partial(self._begin, name)))
            self._hooks.append(module.register_forward_hook(self._end))
        for name, layer in self._layers.items():
            self._hooks.append(layer.register_forward_hook(partial(self._layer, name)))
        super().__enter__()
        return self.chunk

    def __exit__(self, kind: Any, *_: Any) -> None:
        super().__exit__(kind)
        for hook in self._hooks:
            hook.remove()
        for neuron, dispatch in self._programs:
            neuron.__dict__["_dispatch"] = dispatch

    def _begin(self, name: str, module: Any, args: Any) -> Any:
        self._count(name)
        cut = tuple([x.detach().requires_grad_() for x in args])
        self._open[module] = NeuronCall(name, module, args, cut, module.state or {})
        return cut

    def _end(self, module: Any, args: Any, result: Any) -> Any:
        call = self._open.pop(module)
        call.outputs = result if isinstance(result, tuple) else (result,)
        call.leaves = tuple([y.detach().requires_grad_() for y in call.outputs])
        call.end = module.state
        self.chunk.calls.append(call)
        return call.leaves if isinstance(result, tuple) else call.leaves[0]

    def _layer(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if self._dispatches.rule.trace and learnt(module):
            self._count(name)
        if args and isinstance(output, Tensor):
            self.chunk.calls.append(LayerCall(name, module, args[0].detach(), output))

    def _count(self, name: str) -> None:
        if name in self._called:
            raise Unsupported(
                f"rule={self._dispatches.rule.name!r}: {name!r} is called twice for a chunk, and a trace is that of "
                "one call a step; give the network whole chunks [C, B, ...] in the place of a loop over steps, make a "
                "module for each place, or take rule='bptt'"
            )
        self._called.add(name)
