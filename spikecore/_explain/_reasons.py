"""Why a layer copied."""

from __future__ import annotations

from typing import Dict, List, Tuple

import torch

from spikecore._delay import Delay
from spikecore._explain._layers import REPEATED, Copy
from spikecore._explain._traffic import Moved, Traffic
from spikecore._explain._watching import Given, Seen
from spikecore._shell.state import Stateful
from spikecore.layers import TimeBatched
from spikecore.neurons import Recurrent


def copies(seen: Seen, moved: Traffic) -> Tuple[Copy, ...]:
    """The copies of a layer, one for each reason; those of a single number are left out.

    Those of a neuron that runs as operations of torch are among these operations, which its words count.
    """
    if isinstance(seen.module, Stateful) and not seen.compiles:
        return ()
    if isinstance(seen.module, Recurrent) and isinstance(seen.module.linear, Delay):
        return ()  # of weights by lag and of sums that wait, which no layout of the data would take away
    found: Dict[Tuple[str, bool, str], List[int]] = {}
    for one in moved.copies:
        key = ("backward" if one.backward else "forward", one.converts, _reason(seen, one))
        found.setdefault(key, []).append(one.numbers)
    size = _width(seen)
    return tuple(Copy(*key, len(numbers), size * sum(numbers)) for key, numbers in found.items())


def _reason(seen: Seen, one: Moved) -> str:
    first = seen.inputs[0] if seen.inputs else None
    if one.converts:
        return "numbers are converted to another dtype or device"
    if isinstance(seen.module, TimeBatched) and not one.backward and first is not None:
        if first.layout.startswith("one step repeated"):
            return f"{REPEATED} {first.shape[0]} times is written out to fold time into the batch"
        return f"time and batch do not follow each other in memory ({first.layout}), so that folding them copies"
    if isinstance(seen.module, Stateful):
        if one.backward:
            return "the gradient of the output does not lie as the input does"
        if first is not None and not _has_dense_steps(first):
            return f"the steps of the input are not dense in memory (strides {first.strides})"
        return "an input, state or parameter does not lie as the first input does"
    operation = next((name for name in reversed(one.within) if not _is_copying(name)), "")
    within = operation.replace("aten::", "").replace("autograd::engine::evaluate_function: ", "")
    return f"{within} needs the numbers in another layout" if within else "numbers are laid out anew"


def _is_copying(name: str) -> bool:
    return name.replace("aten::", "") in ("clone", "contiguous", "copy_")


def _has_dense_steps(x: Given) -> bool:
    """Whether each step lies in one piece of memory, in any order of its dimensions."""
    wanted = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.strides[1:], x.shape[1:]) if size > 1):
        if stride != wanted:
            return False
        wanted *= size
    return True


def _width(seen: Seen) -> int:
    """Bytes of a number that the layer computes with."""
    dtype = seen.output.dtype if seen.output is not None else torch.float32
    return torch.empty((), dtype=dtype).element_size()
