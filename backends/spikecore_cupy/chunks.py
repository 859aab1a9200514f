"""Many steps in chunks of nearly equal lengths.

A chunk has T steps or one less, the longer chunks first, so that every number of steps is computed by unrolled loops.
(A last chunk of a few steps, in a loop, waited for memory at each of them: 25 steps took a third longer than 32.)

Measured on an H200 and left out: to issue the loads of the next chunk within this one, in the places that its steps
leave (forward the same, backward 5 to 25 % slower, for it takes up to half as many registers again), and a text for
each of the two lengths (the same where all chunks are equal, up to 9 % slower where they are not).
"""

from __future__ import annotations

from typing import List, Sequence

from spikecore.backend import Spec
from spikecore.kernels.writing import indented
from spikecore.lang import Program
from spikecore_cupy.parts import Stream
from spikecore_cupy.staging import LENGTH, WHOLE, StagingWriter


def longest(program: Program, spec: Spec) -> int:
    """Steps of a chunk at most, where there are several: the same for forward and backward, which share checkpoints.

    Backward keeps some values of every step of a chunk in registers, and a checkpoint is memory to write and to read.
    With 16 bits of memory a checkpoint of one state, 32 bits, weighs twice as much, and with two states 8 bytes of
    registers a neuron and step allow 10 steps of four neurons. On an H200, backward: two states in bfloat16
    0.83 of a copy's speed (chunks of 12 and two neurons 0.69 to 0.81), LIF in bfloat16 0.89 at T = 250 (12: 0.82).
    """
    if spec.dtype == spec.compute or spec.learn or program.statistics or program.seeds:
        return 12
    return 16 if len(program.states) == 1 else 10


def chunk_length(steps: int, most: int) -> int:
    """The length of the longer chunks of so many steps: as few chunks as there can be, and as equal."""
    count = -(-steps // most)
    return -(-steps // count)


class ChunkWriter(StagingWriter):
    """Writes loads and loops over steps: of one chunk whose length is a constant, or of any number of chunks."""

    def loads(self, streams: Sequence[Stream], stores: int) -> List[str]:
        """All loads of a chunk, before its first step: so that memory is not waited for one step at a time."""
        if self.form.staged:
            return self.staged_loads(streams, stores)
        lines = [f"Pack<{stream.kind}, V> {stream.name}[T];" for stream in streams]
        for stream in streams:
            load = f"{stream.name}[t] = load<V>({self.all(stream.tensor, stream.group, stream.number)});"
            lines += self.over_steps([load])
        return lines

    def forward_chunks(self, before: Sequence[str], chunk: Sequence[str]) -> List[str]:
        """One chunk after the other; every one but the first begins with ``before``."""
        if self.fixed:
            return list(chunk)
        first = ["if (chunk) {", *indented(before), "}"] if before else []
        inner = [_IS_WHOLE, *first, *chunk, f"begin += {LENGTH};"]
        loop = "for (int chunk = 0; chunk < chunks; ++chunk) {"
        return [_COUNTS, "int begin = 0;", loop, *indented(inner), "}"]

    def backward_chunks(self, chunk: Sequence[str]) -> List[str]:
        """One chunk after the other, from the last to the first."""
        if self.fixed:
            return list(chunk)
        waits = ["BLOCK_WAIT();"] if self.form.together else []
        inner = [*waits, _IS_WHOLE, f"begin -= {LENGTH};", *chunk]
        loop = "for (int chunk = chunks - 1; chunk >= 0; --chunk) {"
        return [_COUNTS, "int begin = steps;", loop, *indented(inner), "}"]


#: How many chunks there are, and how many of them have T steps.
_COUNTS = "const int chunks = (steps + T - 1) / T, longer = steps - chunks * (T - 1);"
_IS_WHOLE = f"const bool {WHOLE} = chunk < longer;"
