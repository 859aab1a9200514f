"""Steps that begin beside a sector of memory: a block copies them to shared memory and back, whole packs at a time.

With a number of neurons that is no multiple of a sector's numbers, steps begin anywhere. Wide accesses are then not
aligned, and sectors that two blocks write in parts cost memory a read and two writes. (On an H200 LIF over 100 steps of
an odd number of neurons ran at 0.63 of a copy's speed in float32 and 0.52 in bfloat16, read number by number.)
"""

from __future__ import annotations

from typing import List, Sequence

import torch

from spikecore_cupy.groups import GroupWriter
from spikecore_cupy.lines import over_steps
from spikecore_cupy.parts import Stream

#: The condition under which a chunk has all T steps, and how many steps it has.
WHOLE = "whole"
LENGTH = f"{WHOLE} ? T : T - 1"


class StagingWriter(GroupWriter):
    """Writes loads and stores of all steps of a chunk, through shared memory where the form says so."""

    #: Names of the buffers in shared memory, and tensors of all steps that are written from them, one each.
    _buffers: Sequence[str] = ()
    _written: Sequence[str] = ()

    def over_steps(self, lines: Sequence[str], backwards: bool = False) -> List[str]:
        """A loop over the steps of a chunk."""
        return over_steps(lines, "" if self.fixed else WHOLE, backwards)

    def staged_loads(self, streams: Sequence[Stream], stores: int) -> List[str]:
        """Lines that copy the steps of a chunk to shared memory, where the threads of the block find them. There are
        buffers for so many tensors that are stored, too.
        """
        others = [self.unique(f"rows{k}") for k in range(len(streams), stores)]
        self._buffers, self._written = [*(stream.name for stream in streams), *others], []
        lines = []
        for k, name in enumerate(self._buffers):
            place = f"{self.unique('shared')}.at + {k} * T * ROW, {'0' if self.fixed else 'begin'}, {self.part}"
            lines.append(f"const Staged<{self.stored}, V, T, ROW> {name}({place});")
        for stream in streams:
            tensor = self.argument(stream.tensor, "pointer", stream.group, stream.number)
            lines += self.over_steps([f"{stream.name}.read({tensor}, t);"])
            lines.append(f"{stream.name}.read_ends({tensor}, {self._length});")
        return [*lines, "copied_in();"]

    def numbers(self, streams: Sequence[Stream]) -> List[str]:
        """Lines of a step before its first neuron: what it needs of shared memory, so that this is waited for once."""
        if not self.form.staged:
            return []
        return [f"const auto {self.of_step(stream.name)} = {stream.name}.get(t);" for stream in streams]

    def store_step(self, name: str, group: str, index: int, value: str) -> str:
        """The line that stores this thread's numbers of a step."""
        if not self.form.staged:
            return self.store(self.all(name, group, index), value)
        # where an input was: its numbers of this step have been read, by this thread
        buffer = self._buffers[len(self._written)]
        self._written = [*self._written, self.argument(name, "pointer", group, index)]
        return f"{buffer}.put(t, {value});"

    def written(self) -> List[str]:
        """Lines that copy what a chunk stored from shared memory."""
        if not self.form.staged:
            return []
        lines = ["BLOCK_WAIT();"]
        for buffer, tensor in zip(self._buffers, self._written):
            lines += self.over_steps([f"{buffer}.write({tensor}, t);"])
            lines.append(f"{buffer}.write_ends({tensor}, {self._length});")
        # the next chunk is copied to the same memory
        return lines if self.fixed else [*lines, "BLOCK_WAIT();"]

    def neurons_of_a_thread(self) -> List[str]:
        """The lines that say which neurons a thread has, and what its block shares, before any other."""
        if not self.form.staged:
            return super().neurons_of_a_thread()
        size = f"{len(self._buffers)} * T * ROW"
        shared = f"BLOCK_SHARED Shared<{self.stored}, {size}> {self.unique('shared')};"
        return [shared, f"const Part<V> {self.part}(neurons);"]

    def beside(self) -> Sequence[str]:
        """How far apart steps are in shared memory."""
        if not self.form.staged:
            return ()
        row = self.form.width * self.form.threads + 256 // torch.finfo(self.plan.dtype).bits
        return [f"constexpr int ROW = {row};  // numbers of a step in shared memory"]

    @property
    def _length(self) -> str:
        return "T" if self.fixed else LENGTH
