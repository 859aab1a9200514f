"""Which cotangents the interpreter starts backward from: the same ones as a kernel.

Autograd runs no backward of what nobody asked the gradient of, and gives ``None`` for what it did not reach. A kernel
starts with a cotangent for every state it carries, 0 if none arrives, and writes zeros for what no path leads to.
:func:`tied` gives the interpreter the kernel's rules, so that a zero cotangent that meets an infinite derivative is NaN
on every backend, and no gradient is missing.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.lang import Node, Program, loop_invariant
from spikecore.lang._program import UNBOUNDED, differentiable_leaves


class _Ends(torch.autograd.Function):
    """The values after the last step, behind which further tensors get a zero gradient where the rules want one.

    The first ``count`` tensors are outputs, recorded states and final states after the last step; behind them stand the
    states again, and the tensors that the call began with.
    """

    @staticmethod
    def forward(ctx: Any, rules: _Rules, count: int, *tensors: Tensor) -> Tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.rules = rules
        ctx.behind = [(t.shape, t.dtype, t.device) for t in tensors[count:]]
        return tuple([tensor.view_as(tensor) for tensor in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Any:
        zero = ctx.rules.zero([grad is not None for grad in grads])
        behind = [
            torch.zeros(shape, dtype=dtype, device=device) if wants and is_zero else None
            for (shape, dtype, device), wants, is_zero in zip(ctx.behind, ctx.needs_input_grad[2 + len(grads) :], zero)
        ]
        return (None, None, *grads, *behind)


class _Rules:
    """Which of the tensors that the values are computed from get a gradient of zeros."""

    def __init__(self, program: Program, record: Tuple[str, ...], sources: Sequence[Tuple[str, str]]) -> None:
        self.program, self.record, self.sources = program, record, sources

    def zero(self, present: Sequence[bool]) -> List[bool]:
        """Whether a tensor gets a gradient of zeros instead of none: states after the last step, then sources.

        ``present`` says which values have a cotangent.
        """
        program, n = self.program, len(self.program.outputs)
        m = n + len(self.record)
        trace = tuple(name for name, there in zip(self.record, present[n:m]) if there)
        final = [name for name, there in zip(program.states, present[m:]) if there]
        found = program.reach(present[:n], trace, final)
        live = [name in found.live for name in program.states]
        # whether a path leads to a first state, and to the parameter that it is, depends on the number of steps
        return [*live, *(kind == "state" or Node(kind, (), name) not in found.leaves for kind, name in self.sources)]


def needed(program: Program, learn: Sequence[str]) -> bool:
    """Whether the rules make a difference for a program: a derivative can be infinite, or a result reaches not all.

    Neurons of ``+ - *``, division by parameters, and bounded functions need nothing, and the interpreter is as quick
    for them as torch's operations are. (An input that is infinite itself, at the last step, has a gradient of 0 there,
    not NaN.)
    """
    fixed = set(loop_invariant(program.nodes)) | {node for node in program.nodes if node.op in ("param", "const")}
    for node in program.nodes:
        if node.op in UNBOUNDED and not (node.op == "div" and node.args[1] in fixed):
            return True
    # within one step, since there may be no more
    sources = [leaf for leaf in program.leaves if leaf.op != "param" or leaf.attr in learn]
    reached = [differentiable_leaves([root]) for root in (*program.outputs, *program.next)]
    return any(leaf not in leaves for leaves in reached for leaf in sources)


def tied(
    program: Program,
    record: Tuple[str, ...],
    final: bool,
    outputs: Sequence[Tensor],
    now: Sequence[Tensor],
    sources: Sequence[Tuple[str, str, Tensor]],
) -> Tuple[List[Tensor], List[Tensor], List[Tensor]]:
    """Outputs, recorded and final states after the last step, with the cotangents that a kernel would have there.

    Nothing but autograd in reverse mode may follow the call: the tensors are plain ones. ``sources`` are the tensors
    that the call began with: kind of leaf, name, tensor.
    """
    traced = [now[program.states.index(name)] for name in record]
    values = [*outputs, *traced, *(now if final else ())]
    n, m = len(outputs), len(outputs) + len(record)
    learnt = [(kind, name, tensor) for kind, name, tensor in sources if tensor.requires_grad]
    if learnt and torch.is_grad_enabled():
        rules = _Rules(program, record, [(kind, name) for kind, name, _ in learnt])
        behind = [*now, *(tensor for _, _, tensor in learnt)]
        values = list(_Ends.apply(rules, len(values), *values, *behind))
    return values[:n], values[n:m], values[m:]
