"""A program run step by step with PyTorch operations: what a backend needs whose device PyTorch itself computes on.

Rules of this module:

- One operation per node, in source order, from a table of functions (see :mod:`spikecore.lang.eager`).
- Nothing reads a value on the host, and shapes alone decide what is done: the walk can be traced.
- State is local to a call.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import ParamValue, Spec, Tensors
from spikecore.ends import needed, tied
from spikecore.lang import Node, Program, once, topological
from spikecore.lang.eager import TORCH, Functions, Straight
from spikecore.lang.plain import is_plain, number


def is_autocast(device: str) -> bool:
    """Whether autocast is on for a type of device."""
    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:  # a type of device that autocast does not know
        return False
    except TypeError:  # before torch 2.4
        return {"cpu": torch.is_autocast_cpu_enabled, "cuda": torch.is_autocast_enabled}.get(device, bool)()


class Walker:
    """Walks a program: once per call through what depends on parameters alone, once per step through the rest."""

    def __init__(self, program: Program, spec: Spec, functions: Functions = TORCH) -> None:
        self.dtype, self.compute, self.final = spec.dtype, spec.compute, spec.final
        self.program, self.states = program, program.states
        self.ties = needed(program, spec.learn)
        n_moving = len(program.inputs) + len(program.states)
        moving, params = program.leaves[:n_moving], program.leaves[n_moving:]
        roots = [*program.outputs, *program.next]
        constants = [node for node in topological([*roots, *program.rest]) if node.op == "const"]
        fixed: Sequence[Node] = [*params, *constants, *once(program.nodes)]
        self.rest = Straight(params, program.rest, functions)
        self.fixed = Straight(params, fixed, functions)
        self.step = Straight([*moving, *fixed], roots, functions)
        self.n_outputs = len(program.outputs)
        # a state that is an output, too, gets a node of its own in autograd's graph, where the gradients of later steps
        # are summed before that of the output is added
        self.shared = tuple(roots.count(node) > 1 for node in program.next)

    def walk(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        record: Tuple[str, ...],
        tie: bool = True,
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """One call, as that of a runner (see :meth:`spikecore.backend.Backend.compile`).

        ``tie``: whether gradients begin as those of a kernel do (:mod:`spikecore.ends`), for which the device must run
        the backward of an ``autograd.Function``.
        """
        device = inputs[0].device.type
        if not is_autocast(device):
            return self._walk(inputs, state, params, record, tie)
        # the arithmetic has its dtype already, and CPU autocast takes no other half type than its own
        with torch.autocast(device, enabled=False):
            return self._walk(inputs, state, params, record, tie)

    def _walk(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        record: Tuple[str, ...],
        tie: bool,
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
            following = results[self.n_outputs :]
            now = [v.expand(shape) if apart else _full(v, shape) for v, apart in zip(following, self.shared)]
            for seen, value in zip(outputs, results):
                seen.append(_full(value, shape).to(self.dtype))
            for name, value in zip(self.states, now):
                if name in trace:
                    trace[name].append(value)
        if tie and self.ties and inputs[0].shape[0] and is_plain(inputs[0]):
            sources = self._sources(inputs, state, params)
            last = [seen[-1] for seen in outputs]
            last, traced, now = tied(self.program, record, self.final, last, now, sources)
            for seen, value in zip(outputs, last):
                seen[-1] = value
            for name, value in zip(record, traced):
                trace[name][-1] = value
        # cloned: a state may alias an input, a parameter or an expanded value
        final = tuple(value.clone(memory_format=torch.contiguous_format) for value in now) if self.final else None
        return (
            tuple(_stack(seen, inputs[0]) for seen in outputs),
            final,
            tuple(_stack(trace[name], inputs[0]).to(self.compute) for name in record),
        )

    def _sources(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> List[Tuple[str, str, Tensor]]:
        """The tensors that a walk begins with: kind of leaf, name, tensor."""
        program = self.program
        given = [("param", name, value) for name, value in zip(program.params, params) if isinstance(value, Tensor)]
        return [
            *(("input", name, x) for name, x in zip(program.inputs, inputs)),
            *(("state", name, value) for name, value in zip(program.states, state or ())),
            *given,
        ]


def _as_tensor(value: ParamValue, like: Tensor) -> Tensor:
    return value.to(like.dtype) if isinstance(value, Tensor) else number(value, like)


def _full(value: Tensor, shape: torch.Size) -> Tensor:
    return value if value.shape == shape else value.expand(shape)


def _stack(values: List[Tensor], x: Tensor) -> Tensor:
    # T = 0: stay connected to the input, so that backward works
    return torch.stack(values) if values else x[:0].clone()
