"""What every kernel backend shares: argument preparation, layouts, the autograd boundary, registered torch ops.

A kernel backend subclasses :class:`KernelBackend` and supplies two launches, forward and backward, on raw tensors.
Under ``torch.compile`` it needs torch 2.4 or newer.

Modules from low to high: ``cut``, ``_closure``, ``_steps``, ``_geometry``, ``_plan`` (what a kernel is compiled for),
``_launches`` (what it is called with), ``writing`` (what generated texts share), ``_layout``, ``_memory``,
``_arguments``, ``_saved``, ``_sized``, ``_execution``, ``_straight``, ``_direct``, ``_returned``,
``_normalised``, ``_laid``, ``_direct_normalised``, ``_again``, ``_registered``, ``_flat``, ``_runner``,
``_feedback_call``, ``_feedback_steps``, ``_feedback_launch``, ``_recurrent``, ``_backend``.
``cache`` needs none of them.
"""

from spikecore._base.caches import KERNELS, Lock, Recent
from spikecore.kernels._backend import KernelBackend
from spikecore.kernels._geometry import Geometry, RowGeometry
from spikecore.kernels._launches import (
    BackwardBuffers,
    BackwardLaunch,
    BackwardResults,
    ForwardBuffers,
    ForwardLaunch,
    ForwardResults,
    KernelParams,
    Launch,
    Moved,
    ReturningBackwardLaunch,
    ReturningForwardLaunch,
    StatisticsLaunch,
)
from spikecore.kernels._layout import Layout, layout_of
from spikecore.kernels._plan import BackwardPlan, ForwardPlan
from spikecore.kernels._reciprocals import with_reciprocals
from spikecore.kernels._runner import KernelRunner
from spikecore.kernels._steps import Functions

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
    "RowGeometry",
    "StatisticsLaunch",
    "layout_of",
    "with_reciprocals",
]
