"""Launches of kernels with feedback: one for all steps of a call."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence, Tuple, Union

from torch import Tensor

from spikecore.backend import BackendError
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.writing import Places
from spikecore_cupy.device import shared
from spikecore_cupy.feedback_backward import FeedbackBackwardWriter
from spikecore_cupy.feedback_forward import FeedbackForwardWriter
from spikecore_cupy.feedback_shape import MEMORY, Shape, for_batch, length_of, shapes_of
from spikecore_cupy.parts import Source

Plan = Union[ForwardPlan, BackwardPlan]


def shapes_for(plan: Plan, width: int, clusters: bool = True) -> Sequence[Shape]:
    """How the kernels of a plan may be laid out for rows of so many neurons, the layout with most blocks first."""
    found = shapes_of(width, plan.dtype, clusters)
    if not found:
        raise BackendError(f"a feedback of {width} neurons does not fit the registers of a cluster")
    return [shape._replace(length=length_of(plan.program, plan.spec)) for shape in found]


def print_feedback(plan: Plan, shape: Shape) -> Tuple[Source, Shape]:
    """The kernel of a plan with feedback, and its shape with what depends on the plan."""
    if isinstance(plan, ForwardPlan):
        writer: Union[FeedbackForwardWriter, FeedbackBackwardWriter] = FeedbackForwardWriter(plan, shape)
    else:
        writer = FeedbackBackwardWriter(plan, shape)
    return writer.source(), writer.shape


class FeedbackLauncher:
    """The kernels of a plan with feedback, one for each shape."""

    def __init__(self, kernel: Callable[..., Any], plan: Plan, groups: Sequence[str], learnt: Sequence[str]) -> None:
        self.kernel, self.plan, self.groups, self.learnt = kernel, plan, groups, learnt
        self._params = groups.index("params")
        self._kernels: Dict[Shape, _Printed] = {}

    def __call__(self, geometry: Geometry, *groups: Any) -> Sequence[Tensor]:
        """Launch on these tensors; gives the parameters' gradients in parts."""
        steps, neurons, channels = geometry
        params, x = groups[self._params], groups[0][0]
        width, device = params[len(self.plan.program.params)].shape[0], x.get_device()
        printed = self._printed(width, neurons // width, device)
        shape = printed.shape
        blocks = -(-(neurons // width) // shape.rows) * shape.cluster
        pointers = [groups[group][index].data_ptr() for group, index in printed.pointers]
        sums: Sequence[Tensor] = ()
        if self.learnt:
            counts = [blocks if kind == "scalar" else neurons for kind in self.learnt]
            sums = [x.new_empty(count, dtype=self.plan.compute) for count in counts]
        pointers += [sums[index].data_ptr() for _, index in printed.sums]
        strides = [groups[group][index].stride(0) for group, index in printed.strides]
        strides += [channels[index][which] for index, which in printed.channels]
        numbers = [params[index] for _, index in printed.numbers]
        printed.kernel(blocks, device, (neurons, steps, *pointers, *strides, *numbers), shape.threads)
        return sums

    def _printed(self, width: int, batch: int, device: int) -> _Printed:
        clusters = self.kernel.clusters(device)  # type: ignore[attr-defined]  # a class of kernels
        shapes = shapes_for(self.plan, width, clusters)
        shape = for_batch(shapes, batch, self.kernel.multiprocessors(device))  # type: ignore[attr-defined]
        found = self._kernels.get(shape)
        if found is None:
            found = self._kernels[shape] = _Printed(self.kernel, self.plan, shape, shapes[0], self.groups)
        return found


class _Printed:
    """A kernel, its shape, and where its arguments are."""

    def __init__(
        self, kernel: Callable[..., Any], plan: Plan, shape: Shape, first: Shape, groups: Sequence[str]
    ) -> None:
        source, self.shape = print_feedback(plan, shape)
        if self.shape.memory > MEMORY:
            # what backward keeps is known now, and more blocks have room for it
            source, self.shape = print_feedback(plan, first)
        places = Places(source.arguments, groups)
        self.pointers, self.sums = places.of("pointer"), places.of("sum")
        self.strides, self.numbers, self.channels = places.of("stride"), places.of("number"), places.channels()
        self.kernel = shared(kernel, source.name, source.text, source.types, self.shape.memory)
