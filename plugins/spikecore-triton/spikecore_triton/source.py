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
from spikecore_triton.backward import BackwardWriter
from spikecore_triton.forward import ForwardWriter
from spikecore_triton.writer import Source


def print_kernel(plan: Union[ForwardPlan, BackwardPlan], left: int = 0) -> Source:
    """The kernel of a plan; ``left`` is the number of steps after the last whole chunk, where steps are many."""
    if isinstance(plan, ForwardPlan):
        return ForwardWriter(plan, left).source()
    return BackwardWriter(plan, left).source()
