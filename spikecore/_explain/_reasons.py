"""Why a layer copied."""

from __future__ import annotations

from typing import Dict, List, Tuple

import torch

from spikecore._explain._layers import OWN, REPEATED, Copy
from spikecore._explain._traffic import Moved, Traffic
from spikecore._explain._watching import Given, Seen
from spikecore._shell.state import Stateful
from spikecore.layers import Delay, TimeBatched
from spikecore.neuron import Neuron
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
    #: Copies of the input in the forward pass. It is kept as it was given, so that backward copies it again.
    inputs = 0
    for one in sorted(moved.copies, key=lambda one: one.backward):
        if isinstance(seen.module, Recurrent) and one.numbers not in _whole(seen):
            continue  # of the weight and of one step's state, which no layout of the data would take away
        reason = _reason(seen, one)
        if isinstance(seen.module, Neuron) and not one.converts and one.numbers in _whole(seen):
            if not one.backward:
                inputs += not _has_dense_steps(seen.inputs[0])
            elif inputs:
                inputs -= 1
                reason = f"{_not_dense(seen.inputs[0])}, and it was kept as it was given"
        found.setdefault(("backward" if one.backward else "forward", one.converts, reason), []).append(one.numbers)
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
            return _not_dense(first)
        return "an input, state or parameter does not lie as the first input does"
    repeated = first is not None and first.layout.startswith("one step repeated")
    if first is not None and repeated and not one.backward and one.numbers == _numbers(first):
        return f"{REPEATED} {first.shape[0]} times is written out"
    operation = next((name for name in reversed(one.within) if not _is_copying(name)), "")
    within = operation.replace("aten::", "").replace("autograd::engine::evaluate_function: ", "")
    if (
        first is not None
        and first.layout == "contiguous"
        and "convolution" in within
        and one.numbers != _numbers(first)
    ):
        return f"{within} {OWN}"
    return f"{within} needs the numbers in another layout" if within else "numbers are laid out anew"


def _not_dense(x: Given) -> str:
    return f"the steps of the input are not dense in memory (strides {x.strides})"


def _whole(seen: Seen) -> Tuple[int, ...]:
    """How many numbers the inputs of a layer have."""
    return tuple(map(_numbers, seen.inputs))


def _numbers(x: Given) -> int:
    count = 1
    for length in x.shape:
        count *= length
    return count


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
