"""What is computed in front of a neuron's dynamics: batch normalisation, and a shortcut.

A neuron with a prologue takes ``x`` and, where there is a shortcut, ``skip`` of the same shape:

    y = neuron(norm(x))                  shortcut ""
    y = neuron(norm(x) + skip)           shortcut "before"
    y = neuron(norm(x)) + skip           shortcut "after", of SEW

``[T, B, C, ...]``, normalised over all but ``C``, time included; ``[B, C, ...]`` in single-step mode. The prologue is
no module: it holds a reference to one that stands elsewhere in the network and keeps its names there.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple

from torch import Tensor, nn

from spikecore._shell import norms
from spikecore._shell.ranged import Ranged
from spikecore._shell.repeated import repeat, step_of
from spikecore._shell.state import State
from spikecore.backend import Tensors

SHORTCUTS = ("", "before", "after")
#: Outputs of a call, state after it, recorded states.
Results = Tuple[Tensors, Optional[State], Tensors]


class Prologue:
    """Batch normalisation and a shortcut in front of one neuron."""

    def __init__(self, norm: nn.Module, shortcut: str = "") -> None:
        self.norm, self.shortcut = norm, shortcut

    def taken(self, owner: str, inputs: Sequence[Any], single: bool) -> Tuple[Tensor, Optional[Tensor]]:
        """The input and the shortcut of a call, which are checked as far as the neuron does not."""
        names = ("x", "skip") if self.shortcut else ("x",)
        if len(inputs) != len(names):
            raise TypeError(
                f"{owner}, which normalises its input, takes {len(names)} input{'s' * (len(names) != 1)} "
                f"({', '.join(names)}), got {len(inputs)}"
            )
        for name, value in zip(names, inputs):
            if not isinstance(value, Tensor):
                raise TypeError(f"{owner}: {name} is a {type(value).__name__}; give a tensor")
        x = inputs[0]
        least, form = (2, "[B, C, ...]") if single else (3, "[T, B, C, ...]")
        if x.ndim < least:
            raise ValueError(f"{owner}: x must be {form} to be normalised over all but C, got shape {list(x.shape)}")
        skip = inputs[1] if self.shortcut else None
        if skip is not None and skip.shape != x.shape:
            raise ValueError(
                f"{owner}: skip has shape {list(skip.shape)} and x has {list(x.shape)}; a shortcut has the shape of x"
            )
        return x, skip


class Prologued(Ranged):
    """A neuron that may have a prologue."""

    #: What is computed in front of the dynamics; a class attribute until there is one.
    _prologue: Optional[Prologue] = None

    def _execute(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool = False,
    ) -> Results:
        """A call without the prologue."""
        raise NotImplementedError(f"{type(self).__name__} must define _execute")

    def _behind_prologue(
        self,
        inputs: Sequence[Any],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool = False,
    ) -> Results:
        """A call of a neuron with a prologue."""
        prologue: Any = self._prologue
        x, skip = prologue.taken(type(self).__name__, inputs, single)
        step = None if single else step_of(x)
        if step is not None and norms.has_one_step(step):
            y = repeat(norms.normalised_step(prologue.norm, step, x.shape[0]), x.shape[0])
        else:
            y = norms.normalised(prologue.norm, x if single else x.flatten(0, 1)).view(x.shape)
        if skip is not None and prologue.shortcut == "before":
            y = y + skip
        outputs, end, trace = self._execute((y,), state, record, final, single)
        if skip is not None and prologue.shortcut == "after":
            outputs = (outputs[0] + skip, *outputs[1:])
        return outputs, end, trace


def set_prologue(neuron: Prologued, prologue: Optional[Prologue]) -> None:
    """Give a neuron a prologue, or take it away."""
    if prologue is None:
        neuron.__dict__.pop("_prologue", None)
    else:
        neuron.__dict__["_prologue"] = prologue


def prologue_of(module: nn.Module) -> Optional[Prologue]:
    """The prologue of a neuron, None without one and for another module."""
    return module._prologue if isinstance(module, Prologued) else None
