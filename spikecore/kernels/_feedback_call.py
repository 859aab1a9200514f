"""Tensors of a call with feedback, and launches that return results as launches that fill tensors."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from torch import Tensor

from spikecore.kernels._arguments import Call, Channels
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._launches import Launch


class FeedbackCall(NamedTuple):
    """A call with feedback: its tensors, in natural layout."""

    #: The call of one step, from a given state.
    call: Call
    #: ``[T, ..., H]``.
    shape: Tuple[int, ...]
    #: The first states of the program, and the output before the first step; contiguous.
    state: Sequence[Tensor]
    first: Tensor
    #: As a kernel takes them.
    params: Tuple[Any, ...]
    channels: Channels
    weight: Tensor
    bias: Optional[Tensor]

    def geometry(self, steps: int) -> Geometry:
        """The sizes of a launch of so many steps."""
        neurons = 1
        for size in self.shape[1:]:
            neurons *= size
        return Geometry(steps, neurons, self.channels)


class Wanted(NamedTuple):
    """The cotangents of a call, and which gradients are wanted."""

    output: Optional[Tensor]
    #: Of the program's states, and of those that were recorded.
    final: Tuple[Optional[Tensor], ...]
    trace: Tuple[Optional[Tensor], ...]
    #: Whether the gradients of the first states are wanted, and of which parameters that are tensors.
    state: bool
    learn: Tuple[bool, ...]


#: Output, final states, recorded states, and what is kept for backward.
Results = Tuple[Tensor, List[Tensor], List[Tensor], List[Tensor]]
#: Gradients of the input, of the first states, and of the parameters that are learnt, in parts.
Gradients = Tuple[Tensor, Sequence[Tensor], List[Optional[Tensor]]]


def filling_forward(launch: Launch) -> Launch:
    """A forward launch of a backend with ``owns_outputs``, as one that fills contiguous tensors."""

    def fills(geometry: Geometry, inputs: Any, state: Any, params: Any, *filled: Any) -> None:
        groups = launch(geometry, *_flat(geometry, inputs, state), params)
        for targets, values in zip(filled, groups):
            for target, value in zip(targets, values):
                target.copy_(value.view_as(target))

    return fills


def filling_backward(launch: Launch, learnt: int) -> Launch:
    """A backward launch of a backend with ``owns_outputs``, as one that fills contiguous tensors."""

    def fills(geometry: Geometry, inputs: Any, state: Any, params: Any, kept: Any, *given: Any) -> Any:
        outputs, final, trace, to_inputs, to_state = given
        late = [*_flat(geometry, outputs, final), *_flat(geometry, trace, ())[:1]]
        groups = launch(geometry, *_flat(geometry, inputs, state), params, kept, *late)
        for targets, values in zip((to_inputs, to_state), groups):
            for target, value in zip(targets, values):
                target.copy_(value.view_as(target))
        return groups[2] if learnt else ()

    return fills


def _flat(geometry: Geometry, moving: Any, state: Any) -> List[Any]:
    """Contiguous tensors of all steps and of one, flat."""
    steps, neurons = geometry.steps, geometry.neurons
    return [tuple([x.view(steps, neurons) for x in moving]), tuple([x.view(neurons) for x in state])]
