"""Kernels as text: a plan printed as a Triton kernel over blocks of neurons.

Every kernel has one frame. A thread owns a few neurons and all their steps; states stay in registers. Steps come in
chunks of at most 16, written out one after the other: first every load of the chunk, then every step. The backward
kernel recomputes a chunk's states from what they were before it, then runs the adjoint through it. Up to 16 steps are
one chunk. More are a loop over chunks, whose starting states forward keeps as checkpoints as far as backward needs
them, and a shorter chunk of what is left, which is another kernel for each number of steps left over.
"""

from __future__ import annotations

from typing import Union

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore_triton.backward import backward
from spikecore_triton.forward import forward
from spikecore_triton.writer import Source

#: The groups of tensors that a launch gets, in its order.
FORWARD_GROUPS = ("inputs", "state", "params", "outputs", "final", "trace", "checkpoints")
BACKWARD_GROUPS = (
    "inputs",
    "state",
    "params",
    "checkpoints",
    "grad_outputs",
    "grad_final",
    "grad_trace",
    "grad_inputs",
    "grad_state",
    "grad_params",
)


def print_kernel(plan: Union[ForwardPlan, BackwardPlan], left: int = 0) -> Source:
    """The kernel of a plan; ``left`` is the number of steps after the last whole chunk, where steps are many."""
    return forward(plan, left) if isinstance(plan, ForwardPlan) else backward(plan, left)
