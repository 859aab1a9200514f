"""What every kernel backend shares: the way of a call, layouts, the autograd boundary, registered torch ops.

A kernel backend subclasses :class:`KernelBackend` and supplies two launches, forward and backward, on raw tensors.
Under ``torch.compile`` it needs torch 2.6 or newer.

Modules from low to high: ``_plan`` (what a kernel is compiled for), ``_layout`` (what it is called with, and what it
returns), ``writing`` (what generated texts share), ``_call`` (from a call to two launches), ``_autograd``,
``_batch_norm``, ``_runner``, ``_recurrent``, ``_backend``. ``cache`` needs none of them.
"""

from spikecore._base.caches import KERNELS, Lock, Recent
from spikecore.kernels._backend import KernelBackend
from spikecore.kernels._layout import (
    BackwardBuffers,
    BackwardLaunch,
    BackwardResults,
    ForwardBuffers,
    ForwardLaunch,
    ForwardResults,
    KernelParams,
    Launch,
    Layout,
    Moved,
    ReturningBackwardLaunch,
    ReturningForwardLaunch,
    StatisticsLaunch,
    layout_of,
)
from spikecore.kernels._plan import (
    BackwardPlan,
    ForwardPlan,
    Functions,
    Geometry,
    smallest_cut,
    with_reciprocals,
)
from spikecore.kernels._runner import KernelRunner

__all__ = [
    "KERNELS",
    "BackwardBuffers",
    "BackwardLaunch",
    "BackwardPlan",
    "BackwardResults",
    "ForwardBuffers",
    "ForwardLaunch",
    "ForwardPlan",
    "ForwardResults",
    "Functions",
    "Geometry",
    "KernelBackend",
    "KernelParams",
    "KernelRunner",
    "Launch",
    "Layout",
    "Lock",
    "Moved",
    "Recent",
    "ReturningBackwardLaunch",
    "ReturningForwardLaunch",
    "StatisticsLaunch",
    "layout_of",
    "smallest_cut",
    "with_reciprocals",
]
