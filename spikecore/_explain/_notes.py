"""What there is to say of a layer beside its numbers."""

from __future__ import annotations

from typing import List, Mapping, Set, Tuple, Type

from torch import nn

from spikecore._explain._watching import Seen
from spikecore._pooling import CompactAvgPool2d, CompactMaxPool2d
from spikecore._shell.norms import Deferred
from spikecore._shell.prologued import prologue_of
from spikecore.layers import Delay, PackedConv2d, PackedLinear
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
    prologue = prologue_of(seen.module)
    if prologue is not None:
        skip = {"": "", "before": ", and adds a shortcut before it", "after": ", and adds a shortcut to its spikes"}
        added = skip[prologue.shortcut] if len(seen.inputs) > 1 else ""
        apart = f"; not in one kernel: {prologue.reason}" if prologue.reason else ""
        found.append(f"normalises its input{added}{apart}")
    if isinstance(seen.module, Deferred):
        found.append("the neuron behind it normalises")
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
