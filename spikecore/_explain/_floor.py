"""The least that any implementation of a neuron must move through memory."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from spikecore.lang import topological
from spikecore.neuron import Neuron


class Words(NamedTuple):
    """Words per time step and neuron: read and written by a forward pass, and by a forward and a backward pass."""

    forward: int
    training: int


def words(neuron: Neuron) -> Words:
    """The floor of a neuron at rest, whose states stay in registers and are found again in the backward pass.

    Forward reads the inputs and writes the outputs. Backward reads the cotangents of the outputs and writes those of
    the inputs; where the adjoint of a step needs inputs or states, it reads the inputs again. LIF: 2, and 2 + 3.
    """
    read, written = len(neuron.program.inputs), len(neuron.program.outputs)
    return Words(read + written, read + written + _again(neuron) + written + read)


def words_of_call(neuron: Neuron, reads: Sequence[float], wanted: Sequence[bool], backward: bool) -> float:
    """The floor of one call whose inputs are read at ``reads`` words per time step and neuron.

    That is 1, or 1/T for an input that is one step repeated. ``wanted``: whether the gradient of each input is asked
    for, which takes as many words as reading it. Without ``backward`` there is a forward pass only.
    """
    written = len(neuron.program.outputs)
    forward = sum(reads) + written
    if not backward:
        return forward
    again = sum(reads) if _again(neuron) else 0
    return forward + written + again + sum(read for read, wants in zip(reads, wanted) if wants)


def _again(neuron: Neuron) -> int:
    """How many inputs the backward pass reads again: none where the derivatives of a step are constant."""
    program = neuron.program
    adjoint = program.adjoint([name for name, _ in neuron.named_parameters() if name in program.params])
    needs = topological([*adjoint.inputs, *adjoint.states, *adjoint.params])
    return len(program.inputs) if any(node.op in ("input", "state") for node in needs) else 0
