"""What every kernel backend shares: argument preparation, layouts, the autograd boundary, registered torch ops.

A kernel backend subclasses :class:`KernelBackend` and supplies two launches, forward and backward, on raw tensors.
Under ``torch.compile`` it needs torch 2.4 or newer.
"""

from spikecore.kernels.backend import Geometry, KernelBackend, KernelParams, Launch
from spikecore.kernels.layout import Layout, layout_of
from spikecore.kernels.plan import BackwardPlan, ForwardPlan, hoisted, negated_choice
from spikecore.kernels.reciprocals import with_reciprocals
from spikecore.kernels.runner import KernelRunner

__all__ = [
    "BackwardPlan",
    "ForwardPlan",
    "Geometry",
    "KernelBackend",
    "KernelParams",
    "KernelRunner",
    "Launch",
    "Layout",
    "hoisted",
    "layout_of",
    "negated_choice",
    "with_reciprocals",
]
