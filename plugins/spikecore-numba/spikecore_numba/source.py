"""Kernels as text: a plan printed as a Python function over blocks of neurons."""

from __future__ import annotations

from typing import Union

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore_numba.backward import BackwardWriter
from spikecore_numba.forward import ForwardWriter
from spikecore_numba.writer import Source


def print_kernel(plan: Union[ForwardPlan, BackwardPlan]) -> Source:
    """The kernel of a plan."""
    return ForwardWriter(plan).source() if isinstance(plan, ForwardPlan) else BackwardWriter(plan).source()
