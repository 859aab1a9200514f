"""Shared parts of kernel backends: the way of a call, layouts, the autograd boundary, registered torch ops.

A kernel backend subclasses :class:`KernelBackend` and supplies two launches, forward and backward, on raw tensors.
Under ``torch.compile`` it needs torch 2.6 or newer.

Modules from low to high: ``_plan`` (what a kernel is compiled for), ``_layout`` (what it is called with, and what it
returns), ``writing`` (what generated texts share), ``_call`` (from a call to two launches), ``_autograd``,
``_batch_norm``, ``_runner``, ``_feedback_call``, ``_feedback_steps``, ``_recurrent``, ``_backend``, and ``eager``, the
single steps of the reference. ``cache`` needs none of them and no torch, so that a name of this package is imported
when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Mapping

if TYPE_CHECKING:  # the same names once more, for type checkers and editors
    from spikecore._base.caches import KERNELS as KERNELS
    from spikecore._base.caches import Lock as Lock
    from spikecore._base.caches import Recent as Recent
    from spikecore.kernels._backend import KernelBackend as KernelBackend
    from spikecore.kernels._layout import BackwardBuffers as BackwardBuffers
    from spikecore.kernels._layout import BackwardLaunch as BackwardLaunch
    from spikecore.kernels._layout import BackwardResults as BackwardResults
    from spikecore.kernels._layout import ForwardBuffers as ForwardBuffers
    from spikecore.kernels._layout import ForwardLaunch as ForwardLaunch
    from spikecore.kernels._layout import ForwardResults as ForwardResults
    from spikecore.kernels._layout import KernelParams as KernelParams
    from spikecore.kernels._layout import Launch as Launch
    from spikecore.kernels._layout import Layout as Layout
    from spikecore.kernels._layout import Moved as Moved
    from spikecore.kernels._layout import ReturningBackwardLaunch as ReturningBackwardLaunch
    from spikecore.kernels._layout import ReturningForwardLaunch as ReturningForwardLaunch
    from spikecore.kernels._layout import StatisticsLaunch as StatisticsLaunch
    from spikecore.kernels._layout import layout_of as layout_of
    from spikecore.kernels._plan import BackwardPlan as BackwardPlan
    from spikecore.kernels._plan import ForwardPlan as ForwardPlan
    from spikecore.kernels._plan import Functions as Functions
    from spikecore.kernels._plan import Geometry as Geometry
    from spikecore.kernels._plan import every_gradient as every_gradient
    from spikecore.kernels._plan import smallest_cut as smallest_cut
    from spikecore.kernels._plan import with_reciprocals as with_reciprocals
    from spikecore.kernels._runner import KernelRunner as KernelRunner

#: Module -> names of this package that it has.
_NAMES: Mapping[str, str] = {
    "spikecore._base.caches": "KERNELS Lock Recent",
    "spikecore.kernels._backend": "KernelBackend",
    "spikecore.kernels._layout": (
        "BackwardBuffers BackwardLaunch BackwardResults ForwardBuffers ForwardLaunch ForwardResults "
        "KernelParams Launch Layout Moved ReturningBackwardLaunch ReturningForwardLaunch StatisticsLaunch "
        "layout_of"
    ),
    "spikecore.kernels._plan": (
        "BackwardPlan ForwardPlan Functions Geometry every_gradient smallest_cut with_reciprocals"
    ),
    "spikecore.kernels._runner": "KernelRunner",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES]

if not TYPE_CHECKING:  # a checker would take every name for one of these

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
