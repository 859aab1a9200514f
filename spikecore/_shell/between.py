"""What stands between a batch normalisation and the neuron that computes it after ``sc.fuse``.

The normalisation gives its input back, and the neuron normalises: right only while the one still feeds the other. A
module that is put in, replaced or taken away changes that without a word to either, so both look at each call.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Optional, Sequence, Tuple

from torch import nn

#: Modules that hold one other and call it as it is, by the name under which they hold it: those of torch.compile,
#: activation checkpointing and FullyShardedDataParallel.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
#: Steps from a sequence down to a module: what holds it, and its index among the modules held there.
Way = Tuple[Tuple[nn.Module, int], ...]


class Apart(RuntimeError):
    """A call of a normalisation or a neuron that :func:`spikecore.fuse` joined, and that stand apart now.

    A class of its own, because callers that explain errors of the modules within them leave subclasses as they are.
    """


class Between:
    """The modules that a sequence calls from a normalisation to its neuron, by who holds them."""

    def __init__(self, norm: Way, neuron: Way) -> None:
        parted = next(k for k, (one, other) in enumerate(zip(norm, neuron)) if one != other)
        (holder, first), (_, last) = norm[parted], neuron[parted]
        #: A module, the index of the first child that counts, those children, and whether they are the last ones.
        self.held = [(holder, first, _children(holder)[first : last + 1], False)]
        self.held += [(holder, first, _children(holder)[first:], True) for holder, first in norm[parted + 1 :]]
        self.held += [(holder, 0, _children(holder)[: last + 1], False) for holder, last in neuron[parted + 1 :]]

    def __deepcopy__(self, memo: Dict[int, Any]) -> Between:
        """For a copy of the whole sequence, between its copies; a copy of a part of it is one that was changed."""
        copied = Between.__new__(Between)
        # the sequence that holds all the others is copied first
        copied.held = copy.deepcopy(self.held, memo) if self.held and id(self.held[0][0]) in memo else []
        return copied

    def is_changed(self) -> bool:
        """Whether other modules stand there now."""
        return not (self.held and all(_is_held(*one) for one in self.held))


def apart(between: Optional[Between], what: str) -> str:
    """What to raise :class:`Apart` with where other modules stand there now, else "". ``what``: the module called."""
    if between is None or not between.is_changed():
        return ""
    return (
        f"this {what} was fused by sc.fuse, with a normalisation in front of a neuron, and what stands between the two "
        "is not what stood there then: a module was put in, replaced or taken away, or this is a copy of a part of the "
        "network; call sc.fuse(net) again, or sc.unfuse(net)"
    )


def _children(holder: nn.Module) -> Tuple[Any, ...]:
    # not children(), which leaves out a module that comes a second time
    return tuple(holder._modules.values())


def _is_held(holder: nn.Module, first: int, children: Sequence[Any], last: bool) -> bool:
    now = _children(holder)
    found = now[first:] if last else now[first : first + len(children)]
    return len(found) == len(children) and all(map(_is, found, children))


def _is(module: Any, expected: Any) -> bool:
    while module is not expected:
        inner = [] if module is None else [module._modules[name] for name in _WRAPPED if name in module._modules]
        if not inner:
            return False
        module = inner[0]
    return True
