"""Many steps in chunks of nearly equal lengths: which steps a chunk has, and when its loads are issued.

A chunk has T steps or one less, the longer chunks first, so that every number of steps is computed by unrolled loops.
(A last chunk of a few steps, in a loop, waited for memory at each of them: 25 steps took a third longer than 32.)
"""

from __future__ import annotations

from typing import List, Sequence

from spikecore.kernels.writing import indented
from spikecore_cupy.lines import over_steps
from spikecore_cupy.parts import CHUNK, Stream
from spikecore_cupy.writer import Writer

#: The condition under which a chunk has all T steps.
WHOLE = "whole"


def chunk_length(steps: int) -> int:
    """The length of the longer chunks of so many steps: as few chunks as there can be, and as equal."""
    count = -(-steps // CHUNK)
    return -(-steps // count)


class ChunkWriter(Writer):
    """Writes loads and loops over steps: of one chunk whose length is a constant, or of any number of chunks."""

    @property
    def ahead(self) -> bool:
        """Whether the loads of the next chunk are issued during this one."""
        return self.form.ahead and not self.fixed

    def over_steps(self, lines: Sequence[str], backwards: bool = False, after: Sequence[str] = ()) -> List[str]:
        """A loop over the steps of a chunk; ``after`` is done in the place of a last step that is missing, too."""
        return over_steps(lines, "" if self.fixed else WHOLE, backwards, after)

    def arrays(self, streams: Sequence[Stream]) -> List[str]:
        """Where a thread holds the inputs and cotangents of a chunk."""
        return [f"Pack<{stream.kind}, V> {stream.name}[T];" for stream in streams]

    def loads(self, streams: Sequence[Stream], whole: str = WHOLE) -> List[str]:
        """All loads of a chunk, before its first step: so that memory is not waited for one step at a time."""
        lines = []
        for stream in streams:
            load = f"{stream.name}[t] = load<V>({self.all(stream.tensor, stream.group, stream.number)});"
            lines += over_steps([load], "" if self.fixed else whole)
        return lines

    def next_load(self, stream: Stream, step: str = "t") -> str:
        """The load of a step of the next chunk, in a place that this chunk no longer needs."""
        place = self.all(stream.tensor, stream.group, stream.number, f"(next + {step})")
        return f"if ({step} < T - 1 ? more : more_whole) {stream.name}[{step}] = load<V>({place});"

    def forward_chunks(self, streams: Sequence[Stream], saving: Sequence[str], steps: Sequence[str]) -> List[str]:
        """The steps of one chunk after the other; every chunk but the first begins with ``saving``."""
        if self.fixed:
            return [*self.arrays(streams), *self.loads(streams), *self.over_steps(steps)]
        # before the first chunk the states are what backward can compute itself
        inner = ["if (chunk) {", *indented(saving), "}"] if saving else []
        lines = [*_COUNTS, "int begin = 0;"]
        if self.ahead:
            # a first chunk is whole
            lines += [*self.arrays(streams), *self.loads(streams, "true")]
            inner += ["const bool more = chunk + 1 < chunks, more_whole = chunk + 1 < longer;"]
            inner += [f"const int next = begin + {_LENGTH};"]
            inner += [*self.over_steps(steps, after=[self.next_load(stream) for stream in streams]), "begin = next;"]
        else:
            inner += [*self.arrays(streams), *self.loads(streams), *self.over_steps(steps), f"begin += {_LENGTH};"]
        return [*lines, *self._over_chunks("int chunk = 0; chunk < chunks; ++chunk", inner)]

    def backward_chunks(self, streams: Sequence[Stream], opening: Sequence[str], inner: Sequence[str]) -> List[str]:
        """One chunk after the other, from the last to the first; ``opening`` comes behind the loads of each, or where
        loads are issued ahead behind those of the last chunk alone.
        """
        if self.fixed:
            return [*self.arrays(streams), *self.loads(streams), *opening, *inner]
        every = "int chunk = chunks - 1; chunk >= 0; --chunk"
        if not self.ahead:
            inner = [f"begin -= {_LENGTH};", *self.arrays(streams), *self.loads(streams), *opening, *inner]
            return [*_COUNTS, "int begin = steps;", *self._over_chunks(every, inner)]
        # the last chunk is whole where all are
        lines = [*_COUNTS, "int begin = steps - (chunks == longer ? T : T - 1);"]
        lines += [*self.arrays(streams), *self.loads(streams, "chunks == longer"), "int chunk = chunks - 1;", *opening]
        head = [
            "const bool more = chunk > 0, more_whole = more && chunk <= longer;",
            "const int next = begin - (chunk <= longer ? T : T - 1);",
        ]
        return [*lines, *self._over_chunks("; chunk >= 0; --chunk", [*head, *inner, "begin = next;"])]

    def _over_chunks(self, loop: str, inner: Sequence[str]) -> List[str]:
        if not self.form.twice:
            return [f"for ({loop}) {{", *indented([f"const bool {WHOLE} = chunk < longer;", *inner]), "}"]
        return [
            f"const auto one = [&](auto {WHOLE}, const int chunk) {{",
            *indented(inner),
            "};",
            f"for ({loop}) {{",
            "    if (chunk < longer) one(Known<true>(), chunk);",
            "    else one(Known<false>(), chunk);",
            "}",
        ]


#: How many chunks there are, and how many of them have T steps.
_COUNTS = ["const int chunks = (steps + T - 1) / T, longer = steps - chunks * (T - 1);"]
_LENGTH = f"({WHOLE} ? T : T - 1)"
