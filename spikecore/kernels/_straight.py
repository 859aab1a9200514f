"""Launches of calls at rest with one plain contiguous input; what these calls have in common is found once.

Direct calls (:mod:`spikecore.kernels._direct`) and the registered ops of calls at rest (:mod:`spikecore.kernels._flat`)
use them, and cross the autograd boundary each in its own way.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.caches import CALLS, Recent
from spikecore.backend import Range, Tensors
from spikecore.kernels._arguments import Call
from spikecore.kernels._execution import Execution
from spikecore.kernels._geometry import Geometry, RowGeometry
from spikecore.kernels._launches import ForwardBuffers
from spikecore.kernels._layout import Layout
from spikecore.kernels._parts import summed
from spikecore.lang._plain import PLAIN

_PARAMS = ForwardBuffers._fields.index("params")
#: A launch of contiguous tensors, ``launch(tensors, params)``. Those to be filled are among them. It returns the parts
#: of the parameters' gradients, or None where these tensors take another launch.
Dense = Callable[[Sequence[Tensor], Sequence[Any]], Optional[Sequence[Tensor]]]


class Sizes:
    """What follows from the shape of an input."""

    __slots__ = ("backward", "counts", "forward", "geometry", "kept", "shape")

    def __init__(
        self,
        shape: Tuple[int, ...],
        geometry: Geometry,
        kept: Optional[Tuple[int, ...]],
        counts: Tuple[int, ...] = (),
    ) -> None:
        self.shape, self.geometry = shape, geometry
        #: How many numbers each parameter that is a tensor has.
        self.counts = counts
        #: Shape of a checkpoint; None where one chunk has all steps.
        self.kept = kept
        #: Launches forward, of input, output and checkpoints: without checkpoints, and with them.
        self.forward: List[Optional[Dense]] = [None, None]
        #: Launches backward, by which gradients are wanted, of input, checkpoints, cotangent, gradient of the input.
        self.backward: Dict[Tuple[bool, ...], Dense] = {}


class Straight:
    """The launches of calls at rest of one execution, with one plain contiguous input and outputs alone.

    views: for each parameter the shape that it has over the neurons of one time step; None for a number. A parameter
    with one number per neuron has the shape of a step, whatever stands there.
    ranges: those that forward launches put parameters into, see :class:`spikecore.kernels.ForwardPlan`.
    """

    def __init__(
        self,
        execution: Execution,
        views: Sequence[Optional[Tuple[int, ...]]],
        ranges: Tuple[Optional[Range], ...] = (),
    ) -> None:
        self.execution, self.views, self.ranges = execution, tuple(views), ranges
        self.dtype, self.compute = execution.spec.dtype, execution.spec.compute
        #: Indices of the parameters that are tensors, and a call at rest without them.
        self.tensors = execution.arguments.tensor_params
        self.at_rest = Call((), False, (None,) * len(self.views))
        self._kinds = execution.arguments.kinds
        #: Whether a step is computed from the input; one that is not read may be a view that repeats one step.
        self.reads = any(node.op == "input" for node in execution.program.nodes)
        #: Of the last input, and by shape: the layers of a network that share a program take turns with their sizes.
        self._sizes, self._by_shape = Sizes((), Geometry(0, 0, ()), None), Recent[Tuple[int, ...], Sizes](CALLS)

    def __deepcopy__(self, memo: Any) -> Straight:
        return self  # as runners, which copies of a neuron share

    def sizes(self, x: Tensor) -> Optional[Sizes]:
        """What follows from the shape of an input that is whole; None if there is nothing to compute."""
        sizes = self._sizes
        if sizes.shape != x.shape:
            if not x.numel():
                return None
            shape = tuple(x.shape)
            sizes = self._sizes = self._by_shape.get_or(shape, lambda: self._sized(shape))
        return sizes

    def params(self, numbers: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Any]:
        """All parameters, from numbers with any value in the place of a tensor."""
        if not tensors:
            return numbers
        params = [*numbers]
        for index, value in zip(self.tensors, tensors):
            params[index] = value
        return params

    def takes(self, tensors: Sequence[Any]) -> bool:
        """Whether the parameters that are tensors are plain, and as a kernel takes them."""
        for value in tensors:
            if type(value) not in PLAIN or value.dtype is not self.compute or not whole(value):
                return False
        return True

    def forward(self, sizes: Sizes, x: Tensor, params: Any, saved: Sequence[Tensor]) -> Tensor:
        """The output; ``saved`` are checkpoints to be filled."""
        if self.reads:
            out = torch.empty_like(x)
        else:
            x = out = x.new_empty(sizes.shape)
        dense = sizes.forward[bool(saved)]
        if dense is None:
            launch = self.execution.forward_launch(self.at_rest, bool(saved), self.ranges)
            dense = sizes.forward[bool(saved)] = dense_of(launch, sizes.geometry, (1, 0, 0, 1, 0, 0, len(saved)))
        if dense((x, out, *saved), params) is None:
            launch = self.execution.forward_launch(self.at_rest, bool(saved), self.ranges)
            launch(sizes.geometry, (x,), (), params, (out,), (), (), saved)
        return out

    def gradients(
        self, wanted: Tuple[bool, ...], sizes: Sizes, numbers: Sequence[Any], saved: Tensors, grad: Tensor
    ) -> Optional[Sequence[Optional[Tensor]]]:
        """The ``wanted`` gradients of input and parameters, from a cotangent of the output; None if these tensors are
        not for this way. ``saved`` are input, parameters that are tensors, and checkpoints.
        """
        x, device = saved[0] if self.reads else grad, grad.device
        # what a saved-tensor hook gave back may be anything
        if x.shape != sizes.shape or x.dtype is not self.dtype or x.device != device:
            return None
        if not (whole(x) and whole(grad)):
            return None
        params, count = numbers, len(self.tensors)
        values: Sequence[Tensor] = ()
        checkpoints: Sequence[Tensor] = ()
        if len(saved) > 1:
            values, checkpoints = saved[1 : 1 + count], saved[1 + count :]
            for size, value in zip(sizes.counts, values):
                if value.dtype is not self.compute or value.device != device or not whole(value):
                    return None
                if value.numel() != size:
                    return None
            for one in checkpoints:
                if one.shape != sizes.kept or one.dtype is not self.compute or one.device != device or not whole(one):
                    return None
            params = self.params(numbers, values)
        result = [torch.empty_like(x)] if wanted[0] else []
        dense = sizes.backward.get(wanted)
        if dense is None:
            launch = self.execution.gradients(self.at_rest, (grad,), wanted).launch
            counts = (1, 0, 0, len(checkpoints), 1, 0, 0, len(result), 0)
            dense = sizes.backward[wanted] = dense_of(launch, sizes.geometry, counts)
        sums = dense((x, *checkpoints, grad, *result), params)
        if sums is None:
            launch = self.execution.gradients(self.at_rest, (grad,), wanted).launch
            sums = launch(sizes.geometry, (x,), (), params, checkpoints, (grad,), (), (), result, ())
        if not count:
            return result
        found: List[Optional[Tensor]] = [result[0] if wanted[0] else None]
        done = 0
        for index, value, wants in zip(self.tensors, values, wanted[1:]):
            part = None
            if wants:
                part = sums[done]
                done += 1
                # one part for each number of the parameter, in its shape, is the gradient
                if part.shape != value.shape and self._kinds[index] == "full":
                    part = part.view(value.shape)
                elif part.shape != value.shape:
                    part = summed(self._kinds[index], part, value, sizes.geometry.channels[index])
            found.append(part)
        return found

    def _sized(self, shape: Tuple[int, ...]) -> Sizes:
        steps, chunk, layout = shape[0], self.execution.chunk, Layout(shape[1:], None)
        neurons = 1
        for size in shape[1:]:
            neurons *= size
        channels: Tuple[Tuple[int, int], ...] = ()
        if self.tensors:
            channels = tuple(
                layout.channels_along(view) if kind == "channel" and view is not None else (0, 0)
                for kind, view in zip(self._kinds, self.views)
            )
        kept = ((steps - 1) // chunk, *shape[1:]) if 0 < chunk < steps else None
        each = {index: neurons if self._kinds[index] == "full" else channels[index][1] or 1 for index in self.tensors}
        return Sizes(shape, Geometry(steps, neurons, channels), kept, tuple(each.values()))


def dense_of(launch: Any, geometry: Geometry, counts: Sequence[int]) -> Dense:
    """A launch of contiguous tensors of these sizes, so many in each of the groups of :mod:`._launches`.

    The launch of a backend may have a method ``dense(geometry, counts)`` that gives it; any other launch does as well,
    and any takes tensors whose rows lie apart.
    """
    make = None if isinstance(geometry, RowGeometry) else getattr(launch, "dense", None)
    if make is not None:
        found: Dense = make(geometry, counts)
        return found
    ends = [sum(counts[: k + 1]) for k in range(len(counts))]
    bounds = [(end - count, end) for count, end in zip(counts, ends)]

    def dense(tensors: Sequence[Tensor], params: Sequence[Any]) -> Optional[Sequence[Tensor]]:
        groups: List[Sequence[Any]] = [tensors[begin:end] for begin, end in bounds]
        groups[_PARAMS] = params
        return launch(geometry, *groups) or ()

    return dense


def whole(value: Tensor) -> bool:
    """Whether the memory of a tensor holds its values one after the other."""
    try:
        return value.is_contiguous() and not value.is_neg() and value.data_ptr() != 0
    except RuntimeError:  # tensors wrapped by functorch raise on data_ptr()
        return False
