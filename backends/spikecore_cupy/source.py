"""Kernels as text: a plan printed as CUDA C++.

A thread owns V neighbouring neurons and runs all their time steps; states stay in registers. Steps go in chunks: all
loads of a chunk come before the first use, so that memory is not waited for one step at a time. Up to 16 steps are one
chunk, whose length is a constant; more are chunks of a constant length or one less (``chunks``). Forward writes, for
more, the states before every chunk but the first that the adjoint is computed from; backward starts each chunk from
them, recomputes them inside, and runs the adjoint back through it.
"""

from __future__ import annotations

from typing import Union

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore_cupy.backward import BackwardWriter
from spikecore_cupy.forward import ForwardWriter
from spikecore_cupy.parts import Form, Source


def print_kernel(plan: Union[ForwardPlan, BackwardPlan], form: Form) -> Source:
    """The kernel of a plan, in a form."""
    if isinstance(plan, ForwardPlan):
        return ForwardWriter(plan, form).source()
    return BackwardWriter(plan, form).source()
