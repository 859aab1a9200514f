"""Steps in chunks of nearly equal lengths, groups of neurons of a thread, and steps that go through shared memory.

Chunks: each has T steps or one less, the longer first, so that every number of steps is computed by unrolled loops.
A last chunk of a few steps, in a loop, would wait for memory at each of them.

Ahead: a thread fetches the next chunk into shared memory while it computes this one, into the places that its steps
have read, and no register waits for memory. What it stores goes to places that move from step to step; the
compiler would compute each anew.

Aside: in 16 bits, what backward keeps of the steps of a chunk of many neurons lies in shared memory, too, which saves
registers; a comparison of a step is made again.

Groups: a thread may have several groups of neighbouring neurons, far from one another, one after the other. It then
reads parameters per channel once for all of them, and adds up its parts of a gradient.

Staging: with a number of neurons that is no multiple of a sector's numbers, steps begin anywhere. Wide accesses are
then not aligned, and sectors that two blocks write in parts cost memory a read and two writes. A block then copies
steps to shared memory and back, whole packs at a time.
"""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import torch

from spikecore.kernels.writing import STORED, indented
from spikecore_cupy.text import Stream, over_steps
from spikecore_cupy.writer import Writer

#: The condition under which a chunk has all T steps, and how many steps it has.
WHOLE = "whole"
LENGTH = f"{WHOLE} ? T : T - 1"
#: Number of chunks, and of those with T steps.
_COUNTS = "const int chunks = (steps + T - 1) / T, longer = steps - chunks * (T - 1);"
_IS_WHOLE = f"const bool {WHOLE} = chunk < longer;"
#: Of the chunk that is fetched, whether it has T steps, and where it begins.
_NEXT = [
    "const bool next_whole = coming < longer;",
    "const int next = coming * (T - 1) + (next_whole ? coming : longer);",
]


def chunk_length(steps: int, most: int) -> int:
    """The length of the longer chunks of so many steps: as few chunks as there can be, and as equal."""
    count = -(-steps // most)
    return -(-steps // count)


class ChunkWriter(Writer):
    """Writes loads and loops over steps: of one chunk whose length is a constant, or of any number of chunks."""

    #: Names of the buffers in shared memory, and tensors of all steps that are written from them, one each.
    _buffers: Sequence[str] = ()
    _written: Sequence[str] = ()
    #: Number of loops over the steps of a chunk that read fetched values, and the tensors that both read.
    loops = 1
    twice: Sequence[str] = ()
    #: The states whose checkpoints are fetched ahead.
    states_ahead: Sequence[str] = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Streams that are fetched ahead, by the loop over the steps of a chunk that reads them, and True for a
        #: backward loop.
        self._fetched: List[Tuple[Sequence[Stream], bool]] = []
        #: What is put into shared memory for a later loop: names, types and steps.
        self._aside: List[Tuple[str, str, str]] = []
        #: Declarations of the places of the next numbers that are stored, where chunks are fetched ahead.
        self._moving: List[str] = []
        if self.form.ahead:
            self.header = "ahead.cuh"

    # -- chunks

    def loads(self, streams: Sequence[Stream], stores: int) -> List[str]:
        """All loads of a chunk, before its first step: so that memory is not waited for one step at a time."""
        if self.form.staged:
            return self.staged_loads(streams, stores)
        if self.form.ahead:
            # arguments are in the order in which lines first name them, which is the same in all forms of a plan
            for stream in streams:
                self.all(stream.tensor, stream.group, stream.number)
            return []
        lines = [f"Pack<{stream.kind}, {self.width(stream)}> {stream.name}[T];" for stream in streams]
        for stream in streams:
            place = self.all(stream.tensor, stream.group, stream.number)
            lines += self.over_steps([f"{stream.name}[t] = load<{self.width(stream)}>({place});"])
        return lines

    def forward_chunks(self, before: Sequence[str], chunk: Sequence[str]) -> List[str]:
        """One chunk after the other; every one but the first begins with ``before``."""
        if self.fixed:
            return list(chunk)
        first = ["if (chunk) {", *indented(before), "}"] if before else []
        loop = "for (int chunk = 0; chunk < chunks; ++chunk) {"
        ahead = self.form.ahead
        if ahead:
            head = f"for (int coming = 0; coming < {ahead}; ++coming) {{"
            start = ["const bool more = coming < chunks;", *_NEXT, *self._first_chunks()]
            coming = [f"const int coming = chunk + {ahead};", "const bool more = coming < chunks;", *_NEXT]
            inner = [_IS_WHOLE, *coming, *self._turns("chunk"), *first, *chunk, f"begin += {LENGTH};"]
            before_it = [*self._moving, "#pragma unroll 1", head, *indented(start), "}"]
            return [_COUNTS, *before_it, "int begin = 0;", loop, *indented(inner), "}"]
        inner = [_IS_WHOLE, *first, *chunk, f"begin += {LENGTH};"]
        return [_COUNTS, "int begin = 0;", loop, *indented(inner), "}"]

    def backward_chunks(self, chunk: Sequence[str]) -> List[str]:
        """One chunk after the other, from the last to the first."""
        if self.fixed:
            return list(chunk)
        loop = "for (int chunk = chunks - 1; chunk >= 0; --chunk) {"
        ahead = self.form.ahead
        if ahead:
            head = f"for (int coming = chunks - 1; coming >= chunks - {ahead}; --coming) {{"
            start = ["const bool more = coming >= 0;", *_NEXT, *self._first_chunks()]
            coming = [f"const int coming = chunk - {ahead};", "const bool more = coming >= 0;", *_NEXT]
            inner = [_IS_WHOLE, f"begin -= {LENGTH};", *coming, *self._turns("chunk"), *chunk]
            before_it = [*self._moving, "#pragma unroll 1", head, *indented(start), "}"]
            return [_COUNTS, *before_it, "int begin = steps;", loop, *indented(inner), "}"]
        waits = ["BLOCK_WAIT();"] if self.form.together else []
        inner = [*waits, _IS_WHOLE, f"begin -= {LENGTH};", *chunk]
        return [_COUNTS, "int begin = steps;", loop, *indented(inner), "}"]

    def over_steps(self, lines: Sequence[str], backwards: bool = False) -> List[str]:
        """A loop over the steps of a chunk."""
        return over_steps(lines, "" if self.fixed else WHOLE, backwards)

    def steps(self, streams: Sequence[Stream], lines: Sequence[str], backwards: bool = False) -> List[str]:
        """A loop over the steps of a chunk, which reads the streams."""
        if not self.form.ahead:
            return self.over_steps([*self.numbers(streams), *lines], backwards)
        # what both loops read is in registers from the first on
        new = [stream for stream in streams if not any(stream in others for others, _ in self._fetched)]
        numbers = []
        for stream in streams:
            at_t = self.of_step(stream.name)
            again = self.unique(f"{stream.name}_again")
            if stream not in new:
                where = f"{self.ahead(again)}.get(t)" if self.form.aside else f"{stream.name}[t]"
                numbers.append(f"const auto {at_t} = {where};")
                continue
            numbers.append(f"const auto {at_t} = {self.ahead(stream.name)}.get(t);")
            if stream.name in self.twice:
                aside = self.form.aside
                numbers.append(self.put_aside(again, stream.kind, at_t) if aside else f"{stream.name}[t] = {at_t};")
        self._fetched.append((new, backwards))
        several = () if self.form.aside else self.twice
        registers = [f"Pack<{stream.kind}, V> {stream.name}[T];" for stream in new if stream.name in several]
        step = [f"if (is_step<T>(k, t, {WHOLE})) {{", *indented([*numbers, *lines]), "}"]
        group = [self.wait(), *self._over_group(["const int t = group + k;", *step], backwards)]
        group += self._fetches(new, backwards)
        return [*registers, *self._from(new, backwards), *self._over_groups_of_steps(group, backwards)]

    # -- chunks that are fetched while the one before them is computed

    def _over_groups_of_steps(self, lines: Sequence[str], backwards: bool) -> List[str]:
        """A loop over the steps of a chunk, TOGETHER at a time."""
        head = "for (int group = 0; group < T; group += TOGETHER) {"
        if backwards:
            head = "for (int group = (T - 1) / TOGETHER * TOGETHER; group >= 0; group -= TOGETHER) {"
        return ["#pragma unroll", head, *indented(lines), "}"]

    def _over_group(self, lines: Sequence[str], backwards: bool) -> List[str]:
        """A loop over the steps of a group."""
        head = "for (int k = TOGETHER - 1; k >= 0; --k) {" if backwards else "for (int k = 0; k < TOGETHER; ++k) {"
        return ["#pragma unroll", head, *indented(lines), "}"]

    def wait(self) -> str:
        """The line that waits for the oldest group that was fetched: each loop over a chunk has as many."""
        return f"arrived<{self.loops * self.form.ahead} * ((T + TOGETHER - 1) / TOGETHER) - 1>();"

    def _from(self, streams: Sequence[Stream], backwards: bool) -> List[str]:
        """Lines that say where the first step that a loop fetches is, in each tensor."""
        step = "(next + T - 1)" if backwards else "next"
        at = [(self._coming(one), one.kind, self.all(one.tensor, one.group, one.number, step)) for one in streams]
        return [f"const {kind}* {name} = {place};" for name, kind, place in at]

    def _coming(self, stream: Stream) -> str:
        return self.unique(f"{stream.name}_next")

    def _fetches(self, streams: Sequence[Stream], backwards: bool) -> List[str]:
        """Lines that fetch a group of steps of a later chunk to where this one's were: before each access that fills
        what was read the compiler puts three that do nothing.
        """
        lines = []
        for one in streams:
            sign, place = "-" if backwards else "+", self._coming(one)
            lines.append(f"if (t < T - 1 || next_whole) {self.ahead(one.name)}.fetch(t, {place});")
            # held, so that the compiler does not find each place anew from the number of its step
            lines += [f"{place} {sign}= {self.stride(one.tensor, one.group, one.number)};", f"hold({place});"]
        if not lines:
            return ["chunk_fetched();"]
        step = ["const int t = group + k;", "if (is_step<T>(k, t, true)) {", *indented(lines), "}"]
        return ["if (more) {", *indented(self._over_group(step, backwards)), "}", "chunk_fetched();"]

    def _first_chunks(self) -> List[str]:
        """Lines that fetch what one of the first chunks reads."""
        lines = [*self._turns("(coming < 0 ? 0 : coming)"), *self.fetched_states()]
        for streams, backwards in self._fetched:
            lines += self._from(streams, backwards)
            lines += self._over_groups_of_steps(self._fetches(streams, backwards), backwards)
        return lines

    def fetched_states(self) -> List[str]:
        """Lines that fetch the checkpoints of the next chunk."""
        lines = []
        for name in self.states_ahead:
            place = self.saved_at(name, "coming - 1")
            lines.append(f"{self.ahead(self.state(name))}.fetch(0, {place});")
        return ["if (coming > 0) {", *indented(lines), "}"] if lines else []

    def kept_of_step(self, name: str) -> str:
        """The name of a value that is kept of step t."""
        return self.unique(f"{name}_t") if self.form.aside else f"{name}[t]"

    def put_aside(self, name: str, kind: str, value: str) -> str:
        """The line that puts numbers of step t into shared memory, where a later loop over these steps finds them."""
        self._aside.append((name, kind, "T"))
        return f"{self.ahead(name)}.put(t, {value});"

    def _turns(self, chunk: str) -> List[str]:
        """Lines that turn to the places of a chunk, where there are places for several."""
        count = self.form.ahead
        if count == 1:
            return []
        return [f"{self.ahead(name)}.turn({chunk} % {count});" for name, _, _ in self._fetched_tensors()]

    def _fetched_tensors(self) -> List[Tuple[str, str, str]]:
        """The names, types and steps of the tensors that are fetched."""
        streams = [stream for several, _ in self._fetched for stream in several]
        kinds = [(stream.name, stream.kind, "T") for stream in streams]
        return [*kinds, *((self.state(name), self.real, "1") for name in self.states_ahead)]

    def ahead(self, name: str) -> str:
        """The places in shared memory of a tensor."""
        return self.unique(f"{name}_ahead")

    def _places(self) -> List[str]:
        """The declarations of places in shared memory."""
        lines, fetched = [], self._fetched_tensors()
        for name, kind, count in [*fetched, *self._aside]:
            several = self.form.ahead if (name, kind, count) in fetched else 1
            const = "const " if several == 1 else ""
            sizes, places = f"<{kind}, V, {count}, {self.form.threads}, {several}>", self.unique(f"{name}_places")
            lines += [f"BLOCK_SHARED Places{sizes} {places};", f"{const}Ahead{sizes} {self.ahead(name)}({places});"]
        return lines

    # -- steps in shared memory, where the form says so

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

    def store_step(self, name: str, group: str, index: int, value: str, backwards: bool = False) -> List[str]:
        """Lines that store this thread's numbers of a step."""
        if self.form.ahead:
            place, sign = self.unique(f"{name}_place"), "-" if backwards else "+"
            first = self.all(name, group, index, "(steps - 1)" if backwards else "0")
            self._moving.append(f"{self.stored if group in STORED else self.real}* {place} = {first};")
            step = self.stride(name, group, index)
            return [self.store(place, value), f"{place} {sign}= {step};", f"hold({place});"]
        if not self.form.staged:
            return [self.store(self.all(name, group, index), value)]
        # where an input was: its numbers of this step have been read, by this thread
        buffer = self._buffers[len(self._written)]
        self._written = [*self._written, self.argument(name, "pointer", group, index)]
        return [f"{buffer}.put(t, {value});"]

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
            return [*self._places(), *super().neurons_of_a_thread()]
        size = f"{len(self._buffers)} * T * ROW"
        shared = f"BLOCK_SHARED Shared<{self.stored}, {size}> {self.unique('shared')};"
        return [shared, f"const Part<V> {self.part}(neurons);"]

    def beside(self) -> Sequence[str]:
        """Distance of steps in shared memory."""
        if not self.form.staged:
            return ()
        row = self.form.width * self.form.threads + 256 // torch.finfo(self.plan.dtype).bits
        return [f"constexpr int ROW = {row};  // numbers of a step in shared memory"]

    @property
    def _length(self) -> str:
        return "T" if self.fixed else LENGTH

    # -- groups of neurons

    def takes_groups(self, learnt: Sequence[str]) -> bool:
        """True if a thread has several groups of neighbouring neurons: if it adds up gradients of the ``learnt``
        parameters, or reads parameters per channel, which then are read once for all of them.
        """
        # A gradient for each neuron is no sum over groups, be it that of a parameter that no formula here reads.
        if any(self.kinds[name] == "full" for name in learnt):
            return False
        if any(leaf in self.used for leaf in self.params_of("full")):
            return False
        if learnt or any(leaf in self.used for leaf in self.params_of("channel")):
            self.first = self.unique("first")
            return True
        return False

    def over_groups(self, lines: Sequence[str]) -> List[str]:
        """The lines for each group of neurons of a thread."""
        span = self.argument("span", "span")
        if self.form.down:
            # the last neurons first
            begin = f"{self.first} + (neurons - 1 - {self.first}) / {span} * {span}"
            return [f"for (long long i = {begin}; i >= 0; i -= {span}) {{", *indented(lines), "}"]
        return [f"for (long long i = {self.first}; i < neurons; i += {span}) {{", *indented(lines), "}"]

    def block_sum(self, total: str, number: int) -> List[str]:
        """Lines that add up, over the threads of a block, what each has of a sum per channel, and store it."""
        tensor = self.argument(f"{total}s", "sum", "grad_params", number)
        lanes, period = self.argument("lanes", "lanes"), self.argument("period", "period")
        parts = self.unique("parts")
        return [
            f"block_totals({parts}, {total}, {lanes}, {period});",
            f"block_store({tensor}, {total}, {lanes}, {period});",
        ]
