"""What is computed in front of a neuron's dynamics: batch normalisation, and a shortcut.

A neuron with a prologue takes ``x`` and, where there is a shortcut, ``skip`` of the same shape:

    y = neuron(norm(x))                  shortcut ""
    y = neuron(norm(x) + skip)           shortcut "before"
    y = neuron(norm(x)) + skip           shortcut "after", of SEW

``[T, B, C, ...]``, normalised over all but ``C``, time included; ``[B, C, ...]`` in single-step mode. The prologue is
no module: it holds a reference to one that stands elsewhere in the network and keeps its names there.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.errors import a_kind
from spikecore._shell.fused_calls import Results
from spikecore.backend import Unsupported
from spikecore.lang._plain import is_compiling, is_jit_tracing, is_plain


class Prologue:
    """Batch normalisation and a shortcut in front of one neuron.

    fused: whether they must be part of the kernel (True), must not (False), or are where they can (None). optional:
    whether a call may have no ``skip``, although there is a shortcut, or one that is broadcast.
    """

    #: The default of prologues that were pickled by versions without this attribute.
    optional = False

    def __init__(
        self, norm: nn.Module, shortcut: str = "", fused: Optional[bool] = None, optional: bool = False
    ) -> None:
        self.norm, self.shortcut, self.fused, self.optional = norm, shortcut, fused, optional
        #: Why the last call computed normalisation and neuron one after the other: "" if it did not, None before one.
        self.reason: Optional[str] = None

    def taken(self, owner: str, inputs: Sequence[Any], single: bool) -> Tuple[Tensor, Optional[Tensor]]:
        """The input and the shortcut of a call, which are checked as far as the neuron does not."""
        names = ("x", "skip") if self.shortcut and not (self.optional and len(inputs) == 1) else ("x",)
        if len(inputs) != len(names):
            count = "1 or 2 inputs" if self.optional else f"{len(names)} input{'s' * (len(names) != 1)}"
            raise TypeError(
                f"{owner}, which normalises its input, takes {count} ({', '.join(names)}), got {len(inputs)}"
            )
        for name, value in zip(names, inputs):
            if not isinstance(value, Tensor):
                raise TypeError(f"{owner}: {name} is {a_kind(value)}; give a tensor")
        x = inputs[0]
        least, form = (2, "[B, C, ...]") if single else (3, "[T, B, C, ...]")
        if x.ndim < least:
            raise ValueError(f"{owner}: x must be {form} to be normalised over all but C, got shape {list(x.shape)}")
        skip = inputs[1] if len(names) > 1 else None
        if skip is not None and not self.optional and skip.shape != x.shape:
            raise ValueError(
                f"{owner}: skip has shape {list(skip.shape)} and x has {list(x.shape)}; a shortcut has the shape of x"
            )
        return x, skip

    def refuse(self, owner: str, reason: str) -> None:
        """Note why a call is computed one after the other. Raises :class:`Unsupported` where it must not be."""
        self.reason = reason
        if self.fused:
            raise Unsupported(f"{owner} was to normalise within its kernel (fused=True): {reason}")


def lie_alike(x: Tensor, skip: Tensor) -> bool:
    """Whether a kernel reads both as they are."""
    if is_jit_tracing() or not (is_compiling() or is_plain(skip)):
        return False
    alike = (
        x.shape == skip.shape
        and x.dtype == skip.dtype
        and x.device == skip.device
        and x.layout is torch.strided is skip.layout
    )
    return alike and x.stride() == skip.stride()


def added(found: Results, skip: Any) -> Results:
    """The results of a call, with ``skip`` added to its first output."""
    outputs, end, trace = found
    return (outputs[0] + skip, *outputs[1:]), end, trace
