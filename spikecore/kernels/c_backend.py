"""A backend whose kernels are those of a dialect of C: what it allocates for them, and their arguments."""

from __future__ import annotations

from typing import Any, Callable, List, Union

import torch
from torch import Tensor

from spikecore.kernels._backend import KernelBackend
from spikecore.kernels._layout import BackwardLaunch, ForwardLaunch
from spikecore.kernels._plan import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.c_writer import Kernel, printed
from spikecore.lang.dialects import Dialect

#: Numbers of a step that the gradient of an input that broadcasts is added to, at least: a few long sums lose digits.
SPAN = 256


class DialectBackend(KernelBackend):
    """Compiles the kernels of :attr:`dialect`. A subclass defines :meth:`function`.

    Forward writes nothing for backward, which computes the states of a neuron again.
    """

    dialect: Dialect
    reads_periods = True

    def function(self, plan: Union[ForwardPlan, BackwardPlan], kernel: Kernel) -> Callable[[Geometry, List[Any]], None]:
        """A function ``run(geometry, values)`` that runs a kernel; the values are those of ``kernel.arguments``."""
        raise NotImplementedError(f"{type(self).__name__} must define function(plan, kernel)")

    def scratch(self, like: Tensor, count: int, dtype: torch.dtype) -> Any:
        """Memory for so many numbers, which none but a kernel reads, beside a tensor ``like`` that it computes with."""
        return like.new_empty(count, dtype=dtype)

    def forward(self, plan: ForwardPlan) -> ForwardLaunch:
        """The launch of a printed kernel."""
        kernel = printed(self.dialect, plan)
        run = self.function(plan, kernel)

        def launch(geometry: Geometry, *groups: Any) -> None:
            run(geometry, kernel.values(geometry, groups))

        return launch

    def backward(self, plan: BackwardPlan) -> BackwardLaunch:
        """The same; it gives the parameters' gradients, one number per neuron each, and the sums of ``plan.summed``."""
        kernel, dtype = printed(self.dialect, plan), plan.compute
        run = self.function(plan, kernel)

        def launch(geometry: Geometry, inputs: Any, *groups: Any) -> List[Tensor]:
            like, steps, neurons = inputs[0], geometry.steps, geometry.neurons
            sums = [like.new_empty(neurons, dtype=dtype) for _ in plan.learn]
            period = max(geometry.period, 1)
            span = min(neurons, -(-SPAN // period) * period)
            sums += [like.new_zeros(steps, span, dtype=dtype) for _ in plan.summed]
            # the states before each step: threads keep those of all neurons, a loop those of one
            count = steps * neurons if self.dialect.neuron else steps
            history = [self.scratch(like, count, dtype) for _ in plan.recomputed_states]
            run(geometry, kernel.values(geometry, (inputs, *groups, sums, history), span))
            return sums

        return launch

    def text(self, plan: Union[ForwardPlan, BackwardPlan]) -> str:
        """The text of a kernel."""
        return printed(self.dialect, plan).text
