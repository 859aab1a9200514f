"""Inputs that are only added to an output, as a shortcut is to spikes: what backward has no work with.

The gradient of such an input is the output's cotangent as it arrives, and no gradient is computed from its values. So
autograd keeps nothing of it, kernels write nothing for it, and the cotangent goes on to where the input came from.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from torch import Tensor

from spikecore.backend import Spec
from spikecore.kernels._closure import leaves_of
from spikecore.kernels._plan import every_gradient
from spikecore.lang import Program


class Passing(NamedTuple):
    """The inputs of a program that are only added. The first input, whose shape a call has, is none of them."""

    #: For each its index among the inputs, and the index of the output that it is added to.
    added: Tuple[Tuple[int, int], ...]

    def kept(self, tensors: Sequence[Tensor]) -> List[Tensor]:
        """Of a call's tensors those that a backward pass reads."""
        dropped = [index for index, _ in self.added]
        return [tensor for index, tensor in enumerate(tensors) if index not in dropped]

    def restored(self, kept: Sequence[Tensor]) -> List[Tensor]:
        """As many tensors as a call had: the first input, of the same shape and dtype, where a tensor was dropped."""
        tensors = [*kept]
        for index, _ in self.added:
            tensors.insert(index, kept[0])
        return tensors

    def through(
        self,
        find: Callable[[Sequence[bool]], Optional[Sequence[Optional[Tensor]]]],
        wanted: Sequence[bool],
        grads: Sequence[Optional[Tensor]],
    ) -> Optional[List[Optional[Tensor]]]:
        """The ``wanted`` gradients of a call's tensors, from the cotangents of its results: the cotangents that are
        gradients, and those that ``find`` gives, which gets which of the others are wanted; None where it gives None.
        """
        arrived = {index: grads[output] for index, output in self.added if grads[output] is not None}
        left = [wants and index not in arrived for index, wants in enumerate(wanted)]
        found = find(left) if True in left else [None] * len(left)
        if found is None:
            return None
        return [arrived[i] if wants and i in arrived else one for i, (wants, one) in enumerate(zip(wanted, found))]


@lru_cache(maxsize=256)
def passing(program: Program, spec: Spec) -> Optional[Passing]:
    """The inputs of a program that are only added; None without any."""
    if len(program.inputs) < 2:
        return None
    plan = every_gradient(program, spec, True)
    read = leaves_of("input", [*plan.roots, *plan.following.values()])
    added = [
        (index, int(grad.attr))  # type: ignore[arg-type]  # of this node it is a number
        for index, (name, grad) in enumerate(zip(program.inputs, plan.adjoint.inputs))
        if index and grad.op == "out_grad" and name not in read
    ]
    return Passing(tuple(added)) if added else None
