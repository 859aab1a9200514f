"""What there is to say of a layer beside its numbers."""

from __future__ import annotations

from typing import List, Mapping, Set, Tuple, Type

from torch import nn

from spikecore._delay import Delay
from spikecore._explain._watching import Seen
from spikecore._packed import PackedConv2d, PackedLinear
from spikecore.layers import NormNeuron
from spikecore.layers._pooling import CompactAvgPool2d, CompactMaxPool2d
from spikecore.neurons import Recurrent

#: What layers keep for backward.
_KEEPS: Mapping[Type[nn.Module], str] = {
    CompactMaxPool2d: "keeps a byte for each maximum",
    CompactAvgPool2d: "keeps nothing",
    PackedLinear: "keeps its input as bits",
    PackedConv2d: "keeps its input as bits",
}


def notes(seen: Seen) -> Tuple[str, ...]:
    """Sentences without a full stop, for the lines under the row of a layer."""
    found: List[str] = []
    if isinstance(seen.module, NormNeuron):
        skip = {None: "", "before": ", and adds a shortcut before it", "after": ", and adds a shortcut to its spikes"}
        added = skip[seen.module.shortcut] if len(seen.inputs) > 1 else ""
        apart = f"; not in one kernel: {seen.module.reason}" if seen.module.reason else ""
        found.append(f"normalises its input{added}{apart}")
    found.extend(text for kind, text in _KEEPS.items() if isinstance(seen.module, kind))
    if isinstance(seen.module, Delay):
        found.append(seen.module.in_words())
    if isinstance(seen.module, Recurrent) and isinstance(seen.module.linear, Delay):
        found.append(f"feeds back through {seen.module.linear.in_words()}")
    if seen.once:
        found.append("computed once for all time steps")
    said: Set[str] = set()
    for refusing, computing, why in seen.refusals:
        text = f"{refusing} refused, {computing} computes: {why}"
        if text not in said:
            found.append(text)
        said.add(text)
    return tuple(found)
