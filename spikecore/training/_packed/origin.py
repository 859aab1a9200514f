"""What a tensor holds, read from the graph of autograd: spikes, or small whole numbers made of them.

The graph says exactly how a tensor was computed: a neuron notes on its node that an output is spikes
(:mod:`spikecore._shell.marked`), and operations that move numbers, pick some of them or add a few make whole numbers of
whole numbers. An operation that has no rule here gives none. What autograd sees changed in place has another node, and
what it does not see, another version.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Optional

from torch import Tensor

from spikecore._base.bits import BYTE, Whole
from spikecore._pooling import Averaged, Pooled
from spikecore._shell import marked
from spikecore.dtypes import NAMES

#: Every floating-point dtype of a neuron holds whole numbers up to BYTE exactly.
DTYPES = frozenset(NAMES)
#: So many nodes are looked at: residual blocks add what blocks before them added, and so on.
_MOST = 2000

_SPIKES = Whole(1)

#: Nodes of views: they share memory and version with their argument.
_VIEWS = frozenset(
    f"{name}Backward{form}"
    for name, forms in {
        "View": "0", "ReshapeAlias": "0", "Alias": "0", "Unsqueeze": "0", "Squeeze": "01234", "Transpose": "01",
        "T": "0", "Permute": "0", "Slice": "0", "Select": "0", "Expand": "0", "Split": "01", "SplitWithSizes": "0",
        "Unbind": "0", "Unfold": "0",
    }.items()
    for form in forms
)  # fmt: skip

#: The argument of a rule: what each argument of the node holds, in the order of ``next_functions``.
_Rule = Callable[[Any, List[Optional[Whole]]], Optional[Whole]]


def bounded(largest: int, unit: float) -> Optional[Whole]:
    """Whole numbers, if a byte holds the largest."""
    return Whole(largest, unit) if largest <= BYTE else None


def joined(held: List[Optional[Whole]]) -> Optional[Whole]:
    """What holds the numbers of each."""
    known = [one for one in held if one is not None]
    if not known or len(known) < len(held):
        return None
    unit = min(one.unit for one in known)
    return bounded(max(round(one.largest * one.unit / unit) for one in known), unit)


def added(held: List[Optional[Whole]]) -> Optional[Whole]:
    """What holds the sum of a number of each."""
    common = joined(held)
    if common is None:
        return None
    sizes = [one.largest * one.unit / common.unit for one in held if one is not None]
    return bounded(round(sum(sizes)), common.unit)


def multiplied(held: List[Optional[Whole]]) -> Optional[Whole]:
    """What holds the product of a number of each."""
    if any(one is None for one in held):
        return None
    return bounded(math.prod(one.largest for one in held if one), math.prod(one.unit for one in held if one))


def averaged(held: Optional[Whole], count: int) -> Optional[Whole]:
    """What holds averages of ``count`` numbers, where halving is exact: ``count`` is a power of 2."""
    if held is None or count < 1 or count & (count - 1):
        return None
    return bounded(held.largest * count, held.unit / count)


def _first(node: Any, held: List[Optional[Whole]]) -> Optional[Whole]:
    return held[0]


def _sum(node: Any, held: List[Optional[Whole]]) -> Optional[Whole]:
    return added(held) if node._saved_alpha == 1 and len(held) == 2 else None


def _average(node: Any, held: List[Optional[Whole]]) -> Optional[Whole]:
    # with ceil_mode, or where padding does not count, some windows are averages of fewer numbers
    kernel, padded = node._saved_kernel_size, any(node._saved_padding) and not node._saved_count_include_pad
    if node._saved_ceil_mode or padded or node._saved_divisor_override is not None:
        return None
    # a size of one number is meant for both dimensions
    return averaged(held[0], math.prod(kernel) if len(kernel) > 1 else kernel[0] ** 2)


def _compact(node: Any, held: List[Optional[Whole]]) -> Optional[Whole]:
    # a user's function may have the name of one of these
    function = getattr(type(node), "_forward_cls", None)
    if function is Averaged:
        return averaged(held[0], math.prod(node.window))
    return held[0] if function is Pooled else None


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(
        ("CloneBackward0", "ToCopyBackward0", "UnsafeViewBackward0", "IndexSelectBackward0", "FlipBackward0"), _first
    ),
    # every window of a maximum has a number, since padding is at most half a window
    **dict.fromkeys(("MaxPool2DWithIndicesBackward0", "MaxPool3DWithIndicesBackward0"), _first),
    **dict.fromkeys(("AdaptiveMaxPool2DBackward0", "AdaptiveMaxPool3DBackward0"), _first),
    **dict.fromkeys(("StackBackward0", "CatBackward0", "MaximumBackward0"), lambda node, held: joined(held)),
    "AddBackward0": _sum,
    "MulBackward0": lambda node, held: multiplied(held) if len(held) == 2 else None,
    "AvgPool2DBackward0": _average,
    **dict.fromkeys((f"{Pooled.__name__}Backward", f"{Averaged.__name__}Backward"), _compact),
}


def origin(tensor: Tensor) -> Optional[Whole]:
    """What ``tensor`` holds, if its graph says so and its version says that nothing was written to it since."""
    if tensor.grad_fn is None or tensor.dtype not in DTYPES:
        return None
    node: Any = tensor.grad_fn
    index = tensor.output_nr
    while node.name() in _VIEWS and marked.version(node, index) is None:
        before = node.next_functions[0]
        if before[0] is None:
            return None
        node, index = before
    noted = marked.version(node, index)
    # what an operation gave has not been written to yet
    if tensor._version != (noted or 0):
        return None
    return _held(node, index, {})


def _held(node: Any, index: int, seen: Dict[Any, Optional[Whole]]) -> Optional[Whole]:
    """What output ``index`` of a node holds. ``seen`` are answers, so that sums of sums are looked at once."""
    if node is None or len(seen) > _MOST:
        return None
    if marked.version(node, index) is not None:
        shortcut = marked.added_to(node, index)
        return _SPIKES if shortcut is None else added([_SPIKES, _held(*shortcut, seen)])
    if node not in seen:
        seen[node] = None
        name = node.name()
        rule = _first if name in _VIEWS else _RULES.get(name)
        if rule is not None:
            found = []
            for argument, nr in node.next_functions:
                found.append(_held(argument, nr, seen))
                if found[-1] is None:  # most answers are known after one step
                    break
            else:
                seen[node] = rule(node, found) if found else None
    return seen[node]
