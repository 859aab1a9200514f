"""The reference: one step after the other, one torch operation per node, in source order, under autograd.

It is short and obvious because it defines what every other backend must compute. Speed is not its job.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import Backend, ParamValue, Runner, Spec, Tensors
from spikecore.lang import Node, Program, once, topological
from spikecore.lang.eager import Straight, number
from spikecore_torch import CAPABILITIES


class TorchBackend(Backend):
    """Runs every program on every device, dtype and layout that PyTorch has."""

    name = "torch"
    capabilities = CAPABILITIES

    def compile(self, program: Program, spec: Spec) -> Runner:
        """A walker over the program; any step count, parameter kind and gradient is the same to it."""
        return Walk(program, spec)


class Walk:
    """Straight-line code, once per call for what depends on parameters alone and once per step for the rest."""

    def __init__(self, program: Program, spec: Spec) -> None:
        self.dtype, self.compute, self.final = spec.dtype, spec.compute, spec.final
        self.states = program.states
        n_moving = len(program.inputs) + len(program.states)
        moving, params = program.leaves[:n_moving], program.leaves[n_moving:]
        roots = [*program.outputs, *program.next]
        constants = [node for node in topological([*roots, *program.rest]) if node.op == "const"]
        fixed: Sequence[Node] = [*params, *constants, *once(program.nodes)]
        self.rest = Straight(params, program.rest)
        self.fixed = Straight(params, fixed)
        self.step = Straight([*moving, *fixed], roots)
        self.n_outputs = len(program.outputs)

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        like = inputs[0].new_empty((), dtype=self.compute)
        shape = inputs[0].shape[1:]
        values = [_as_tensor(value, like) for value in params]
        fixed = self.fixed(values, like)
        # rest values may be 0-d or per channel; from here on every state has the shape of one step
        now = list(state) if state is not None else [value.expand(shape) for value in self.rest(values, like)]
        outputs: List[List[Tensor]] = [[] for _ in range(self.n_outputs)]
        trace: Dict[str, List[Tensor]] = {name: [] for name in record}
        for xs in zip(*(x.to(self.compute).unbind(0) for x in inputs)):
            results = self.step([*xs, *now, *fixed], like)
            now = [value.expand(shape) for value in results[self.n_outputs :]]
            for seen, value in zip(outputs, results):
                seen.append(value.expand(shape).to(self.dtype))
            for name, value in zip(self.states, now):
                if name in trace:
                    trace[name].append(value)
        empty = inputs[0][:0].clone()  # of the graph, so that a call without steps can be differentiated, too
        # a state may be an input or a parameter itself, or one value seen many times: what is given back is its own
        final = tuple(value.clone(memory_format=torch.contiguous_format) for value in now) if self.final else None
        return (
            tuple(_stack(seen, empty) for seen in outputs),
            final,
            tuple(_stack(trace[name], empty.to(self.compute)) for name in record),
        )


def _as_tensor(value: ParamValue, like: Tensor) -> Tensor:
    return value.to(like.dtype) if isinstance(value, Tensor) else number(value, like)


def _stack(values: List[Tensor], empty: Tensor) -> Tensor:
    return torch.stack(values) if values else empty
