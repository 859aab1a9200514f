"""Inputs that are only added to an output, as a shortcut is to spikes: their gradient is that output's cotangent.

No gradient is computed from their values. So autograd keeps nothing of them, kernels write nothing for them, and the
cotangent goes on to where the input came from.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from torch import Tensor

from spikecore.backend import Spec, Tensors
from spikecore.kernels._closure import leaves_of
from spikecore.kernels._plan import every_gradient
from spikecore.lang import Program


class Passing(NamedTuple):
    """The inputs of a program that are only added. The first input, whose shape a call has, is none of them."""

    #: For each its index among the inputs, and the index of the output that it is added to.
    added: Tuple[Tuple[int, int], ...]

    def reads(self, wanted: Sequence[bool]) -> bool:
        """Whether kernels have to find any of the ``wanted`` gradients of a call's tensors."""
        return True in self._left(wanted)

    def kept(self, tensors: Sequence[Tensor]) -> Tensors:
        """Of a call's tensors those that a backward pass reads."""
        dropped = [index for index, _ in self.added]
        return tuple([tensor for index, tensor in enumerate(tensors) if index not in dropped])

    def restored(self, kept: Sequence[Tensor]) -> Tensors:
        """As many tensors as a call had. In the place of a dropped one stands the first input, which has its shape and
        dtype: whoever gets these tensors may look at shapes, and must not read its numbers. Nothing, of nothing.
        """
        tensors = [*kept]
        for index, _ in self.added if kept else ():
            tensors.insert(index, kept[0])
        return tuple(tensors)

    def through(
        self,
        find: Callable[[Sequence[bool]], Sequence[Optional[Tensor]]],
        wanted: Sequence[bool],
        grads: Sequence[Optional[Tensor]],
    ) -> List[Optional[Tensor]]:
        """The ``wanted`` gradients of a call's tensors, from the cotangents of its results: the cotangents that are
        gradients, and those that ``find`` gives, which gets which of the others are wanted, if any is.
        """
        left = self._left(wanted)
        found: List[Optional[Tensor]] = [None] * len(left)
        if True in left:
            found = [*find(left)]
        for index, output in self.added:
            found[index] = grads[output] if wanted[index] else None
        return found

    def _left(self, wanted: Sequence[bool]) -> List[bool]:
        left = [*wanted]
        for index, _ in self.added:
            left[index] = False
        return left


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
