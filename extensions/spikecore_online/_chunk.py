"""A chunk as it was computed: the calls of its neurons and layers, cut apart so that each is differentiated alone.

While a chunk is recorded, what a neuron gives goes on as a leaf of autograd. So a graph ends behind every neuron, and
:meth:`Chunk.back` goes through a neuron and what lies before it, up to the neurons below.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore.backend import Unsupported
from spikecore.core import checks
from spikecore.core.observe import keeps_graph
from spikecore.core.state import Stateful, carried, put_back
from spikecore.graph import is_parametrised
from spikecore.inspect.record import Call, neuron_of, record
from spikecore.neurons import FEEDBACK, Recurrent
from spikecore_online._rules import Rule

#: Gradients beside what they are of; None where there is no path.
Gradients = Sequence[Optional[Tensor]]
#: Way out for a module that is called twice.
ONE_CALL = (
    "give the network whole chunks [C, B, ...] in the place of a loop over steps, make a module for each place, or "
    "take rule='bptt'"
)


def gradients(of: Sequence[Tensor], by: Sequence[Tensor], cotangents: Gradients) -> List[Optional[Tensor]]:
    """The vector-Jacobian product, which keeps the graph."""
    pairs = [(value, g) for value, g in zip(of, cotangents) if g is not None and value.requires_grad]
    if not pairs or not by:
        return [None] * len(by)
    values, grads = zip(*pairs)
    return list(torch.autograd.grad(values, list(by), grads, retain_graph=True, allow_unused=True))


def accumulate(parameter: Tensor, gradient: Tensor, is_new: bool = False) -> None:
    """Add to ``parameter.grad``; ``is_new``: nothing else has the tensor ``gradient``, which then may become it."""
    gradient = gradient.detach().to(parameter.dtype)
    if parameter.grad is None:
        parameter.grad = gradient if is_new else gradient.clone()
    else:
        parameter.grad.add_(gradient)


def at_first(g: Tensor, x: Tensor) -> Tensor:
    """A gradient of the first step, as one of all steps."""
    whole = torch.zeros_like(x)
    whole[0] = g
    return whole


def learnt(module: nn.Module) -> Dict[str, List[nn.Parameter]]:
    """The tensors that a module itself learns, each with the parameters that it is computed from: itself, or those of
    its parametrisation.
    """
    sources = {name: [p] for name, p in module._parameters.items() if p is not None and p.requires_grad}
    if "parametrizations" in module._modules and is_parametrised(module):
        chains: Any = module.parametrizations
        sources.update({name: [p for p in chain.parameters() if p.requires_grad] for name, chain in chains.items()})
    return {name: of for name, of in sources.items() if of}


def learn(module: nn.Module, name: str, gradient: Tensor, is_new: bool = False) -> None:
    """Add the gradient of a tensor that a module learns to those of what it is computed from."""
    parameter = module._parameters.get(name)
    if parameter is not None:
        accumulate(parameter, gradient, is_new)
        return
    with torch.enable_grad():
        value, sources = getattr(module, name), learnt(module)[name]
    for source, g in zip(sources, gradients([value], sources, [gradient.to(value.dtype)])):
        if g is not None:
            accumulate(source, g)


@dataclass(eq=False)
class LayerCall:
    """A call of a layer with weights."""

    name: str
    layer: nn.Module
    #: Input of the layer, ``[C, B, ...]``, or ``[C * B, ...]`` within ``TimeBatched``.
    inputs: Tensor
    output: Tensor


@dataclass(eq=False)
class NeuronCall:
    """A call of a neuron or of ``Recurrent``, from its state before the chunk to that behind it."""

    name: str
    module: Any
    #: The inputs ``[C, B, ...]``, with their graph.
    inputs: Tuple[Tensor, ...]
    #: The states before, as leaves; none at rest.
    start: Dict[str, Tensor]
    outputs: Tuple[Tensor, ...]
    #: The outputs as they went on, as leaves.
    leaves: Tuple[Tensor, ...]
    end: Dict[str, Tensor]

    @property
    def neuron(self) -> Any:
        """The neuron, within ``Recurrent`` the inner one."""
        return neuron_of(self.module)

    @property
    def states(self) -> Tuple[str, ...]:
        """The names of its neuron's states."""
        return tuple(self.neuron.states)

    @property
    def starts(self) -> Dict[str, Tensor]:
        """The states of its neuron before."""
        return {name: self.start[name] for name in self.neuron.states if name in self.start}

    @property
    def ends(self) -> Tuple[int, int]:
        """Of ``Recurrent``, the numbers of the input that is added to, and of the output that comes back."""
        into, output = self.module.into, self.module.output
        return 0 if into is None else self.neuron.inputs.index(into), output or 0

    def back(self, of: Sequence[Tensor], cotangents: Gradients) -> Tuple[Gradients, Dict[str, Tensor]]:
        """Gradients of the inputs, and of the states before, for those of results of the call."""
        starts, count = self.starts, len(self.inputs)
        results = gradients(of, [*self.inputs, *starts.values()], cotangents)
        return results[:count], {name: g for name, g in zip(starts, results[count:]) if g is not None}

    def transition(self, state: str) -> Tuple[Gradients, Dict[str, Tensor]]:
        """The derivatives of the final value of a state by the inputs of each step, and by the states before."""
        end = self.end[state]
        return self.back([end], [torch.ones_like(end)])

    def fed_back(self) -> Tensor:
        """Fed-back outputs of ``Recurrent`` at each step: those of one step before."""
        y = self.outputs[self.ends[1]].detach()
        first = self.start[FEEDBACK].detach() if self.start else torch.zeros_like(y[0])
        return torch.cat([first.to(y.dtype).unsqueeze(0), y[:-1]])


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

    def back(
        self,
        of: Sequence[Tensor],
        cotangents: Gradients,
        before: int,
        weights: Sequence[Tensor] = (),
        others: Sequence[Tensor] = (),
    ) -> Tuple[Dict[Tensor, Tensor], Dict[LayerCall, Tensor], Gradients]:
        """Backward from ``of`` to the next cuts: the gradients of the outputs of neurons, those of the outputs of
        layers, and those of ``others``.

        ``before``: how many calls there were. Those of ``weights`` on the way get theirs.
        """
        earlier = self.calls[:before]
        layers = [call for call in earlier if isinstance(call, LayerCall) and call.output.requires_grad]
        leaves = [leaf for call in earlier if isinstance(call, NeuronCall) for leaf in call.leaves]
        by = [*leaves, *[call.output for call in layers], *others, *weights]
        results = iter(gradients(of, by, cotangents))
        below = {leaf: gradient for leaf, gradient in zip(leaves, results) if gradient is not None}
        at_layers = {call: gradient for call, gradient in zip(layers, results) if gradient is not None}
        rest = [gradient for _, gradient in zip(others, results)]
        for weight, gradient in zip(weights, results):
            if gradient is not None:
                accumulate(weight, gradient)
        return below, at_layers, rest


class ContinuedStates:
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


@contextmanager
def recording(
    net: nn.Module,
    neurons: Mapping[str, Stateful],
    others: Sequence[Stateful],
    layers: Mapping[str, nn.Module],
    rule: Rule,
) -> Iterator[Chunk]:
    """A block in which calls are recorded and cut, too, and neurons compute by the programs of a rule."""
    chunk = Chunk()

    def begins(call: Call) -> Any:
        """Inputs that each have a gradient of their own, for each neuron and step where they broadcast.

        That of the input of ``Recurrent`` is that of what comes back, too. Of several inputs each is a view, since one
        may be computed from another, or be the same tensor.
        """
        module: Any = call.layer
        if call.name not in neurons or not (isinstance(module, Recurrent) or len(module.inputs) > 1):
            return None
        names = neuron_of(module).inputs[: len(call.inputs)]
        whole = checks.inputs(type(module).__name__, names, call.inputs)
        inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in whole]
        return inputs if len(inputs) == 1 else [x.view_as(x) for x in inputs]

    def ends(call: Call) -> Any:
        if call.name not in neurons:
            if call.inputs and isinstance(call.output, Tensor):
                chunk.calls.append(LayerCall(call.name, call.layer, call.inputs[0].detach(), call.output))
            return None
        if call.number > 1:
            raise Unsupported(
                f"rule={rule.name!r}: {call.name!r} is called twice for a chunk, and goes on from one state; {ONE_CALL}"
            )
        module: Any = call.layer
        outputs = tuple(call.outputs)
        leaves = tuple([y.detach().requires_grad_() for y in outputs])
        start = starts[module]
        chunk.calls.append(NeuronCall(call.name, module, call.inputs, start, outputs, leaves, module.state))
        return leaves if isinstance(call.output, tuple) else leaves[0]

    for name, layer in neurons.items():
        if keeps_graph(layer):
            raise Unsupported(
                f"rule={rule.name!r}: sc.record or sc.monitor(grad=True) records {name!r} for a loss, and the rule has "
                "no traces of recorded values; make the loss of outputs, or take rule='bptt'"
            )
    with ExitStack() as stack:
        if rule.keep is not None:
            for module in neurons.values():
                neuron = neuron_of(module)
                stack.enter_context(neuron.under(rule.keep(neuron)))
        named = [*neurons.items(), *layers.items()]
        stack.enter_context(record(net, layers=named, begins=begins, ends=ends, edits=True))
        stack.enter_context(ContinuedStates([*neurons.values(), *others]))
        starts = {module: module.state or {} for module in neurons.values()}
        yield chunk
