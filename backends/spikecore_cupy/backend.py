"""The backend: two launches over generated kernels."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Callable, Union

import torch
from torch import Tensor

from spikecore.backend import Bits, Spec, Whole
from spikecore.kernels import (
    BackwardLaunch,
    BackwardPlan,
    ForwardLaunch,
    ForwardPlan,
    KernelBackend,
)
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS
from spikecore.lang import Program
from spikecore_cupy import CAPABILITIES
from spikecore_cupy.device import Kernel
from spikecore_cupy.feedback_shape import length_of, takes
from spikecore_cupy.forms import form_of, longest
from spikecore_cupy.launcher import FeedbackLauncher, Launcher, print_feedback, shapes_for
from spikecore_cupy.packing import Packer
from spikecore_cupy.source import print_kernel
from spikecore_cupy.splitting import Splitter
from spikecore_cupy.sums import Statistics

#: Neurons of a row in the text of a kernel with feedback that people are shown.
SHOWN = 128

Plan = Union[ForwardPlan, BackwardPlan]


class CupyBackend(KernelBackend):
    """Compiles every program for NVIDIA GPUs: one kernel forward, one backward, over all time steps."""

    name = "cupy"
    capabilities = CAPABILITIES
    rows = True
    quick_split = True
    reads_periods = True
    feeds_gates = True
    sums_periods = True

    #: Class that compiles and launches a kernel.
    kernel: Callable[..., Any] = Kernel

    #: Class that compiles and launches a kernel with feedback.
    feedback_kernel: Callable[..., Any] = Kernel

    def chunk_of(self, program: Program, spec: Spec) -> int:
        return longest(program, spec) if spec.feedback is None else length_of(program, spec)

    def feeds_back(self, program: Program, spec: Spec, width: int) -> bool:
        """True if the multiprocessors of a GPU hold the weights in their registers: with float32 up to 1024 neurons,
        with 16 bits more.
        """
        kernel: Any = self.feedback_kernel
        return kernel.multiplies() and takes(program, spec, width, kernel.fewest())

    def forward(self, plan: ForwardPlan) -> ForwardLaunch:
        if plan.spec.feedback is not None:
            return FeedbackLauncher(self.feedback_kernel, plan, FORWARD_GROUPS, ())
        return Launcher(self.kernel, plan, FORWARD_GROUPS, ())

    def backward(self, plan: BackwardPlan) -> BackwardLaunch:
        learnt = [plan.kinds[name] for name in plan.learn]
        if plan.spec.feedback is not None:
            # behind them, for the bias, what each neuron gives at all steps, if the layout has it
            learnt += ["full"] * plan.spec.feedback.bias
            return FeedbackLauncher(self.feedback_kernel, plan, BACKWARD_GROUPS, learnt)
        return Launcher(self.kernel, plan, BACKWARD_GROUPS, learnt)

    def statistics(self, spec: Spec) -> Statistics:
        return Statistics(self.kernel, spec)

    def text(self, plan: Plan) -> str:
        if plan.spec.feedback is not None:
            # the width of a row is known when a launch has its weight
            return print_feedback(plan, shapes_for(plan, SHOWN)[0])[0].text
        return print_kernel(plan, form_of(plan)).text

    def pack(self, numbers: Tensor, whole: Whole) -> Bits:
        return self._packer.pack(numbers, whole)

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        return self._packer.unpack(bits, whole, count, dtype)

    def split(self, x: Tensor, count: int) -> Tensor:
        return self._splitter(x, count)

    @cached_property
    def _splitter(self) -> Splitter:
        return Splitter(self.kernel)

    @cached_property
    def _packer(self) -> Packer:
        return Packer(self.kernel)
