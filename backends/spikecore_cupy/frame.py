"""What forward and backward kernels have in common: streams of steps, calls of a step, chunks."""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Sequence, Tuple

from spikecore.lang import Node
from spikecore_cupy.lines import indented, over_steps
from spikecore_cupy.writer import Function, Writer


def state_leaf(name: str) -> Node:
    """The leaf of a state."""
    return Node("state", (), name)


def grad_leaf(name: str) -> Node:
    """The leaf of the cotangent that a state has after a step."""
    return Node("next_grad", (), name)


def outs_of(writer: Writer) -> List[Tuple[int, str]]:
    """The outputs: number, and what the tensor is called."""
    return [(k, writer.output_name(k)) for k in range(len(writer.program.outputs))]


def saved_at(writer: Writer, state: str, index: int) -> str:
    """Where the states before a chunk are kept."""
    return f"{writer.argument(f'{state}_saved', 'pointer', 'saved', index)} + (begin / T - 1) * neurons + i"


class Stream(NamedTuple):
    """A tensor of all steps that a kernel reads: what its numbers are called, their type, and where they lie."""

    name: str
    kind: str
    place: str


def input_streams(writer: Writer, function: Function) -> List[Stream]:
    """The inputs that a function takes."""
    streams = []
    for index, name in enumerate(writer.program.inputs):
        leaf, local = Node("input", (), name), writer.local[Node("input", (), name)]
        if leaf in function.takes:
            streams.append(Stream(local, writer.stored, writer.all(f"{local}s", "inputs", index)))
    return streams


def loads_first(writer: Writer, streams: Sequence[Stream]) -> List[str]:
    """The loads of a whole chunk, before its first step."""
    if writer.fixed:
        return [line for s in streams for line in (f"Pack<{s.kind}, V> {s.name}[T];", *_loads(writer, s))]
    lines = [f"Pack<{s.kind}, V> {s.name}[N];" for s in streams]
    inner = [line for stream in streams for line in _loads(writer, stream)]
    return [*lines, "if (whole) {", *indented(inner), "}"] if streams else []


def _loads(writer: Writer, stream: Stream) -> List[str]:
    return over_steps(writer.fixed, [f"{stream.name}[t] = load<V>({stream.place});"])


def loads_later(writer: Writer, streams: Sequence[Stream]) -> List[str]:
    """The loads of a step of a chunk that is not whole."""
    if writer.fixed or not streams:
        return []
    if len(streams) == 1:
        return [f"if (!whole) {streams[0].name}[0] = load<V>({streams[0].place});"]
    return ["if (!whole) {", *indented(f"{s.name}[0] = load<V>({s.place});" for s in streams), "}"]


def call(writer: Writer, function: Function, name: str, targets: Sequence[str], where: Mapping[Node, str]) -> str:
    """The call of a device function for neuron j at step t; ``where`` has values that lie elsewhere."""
    values = []
    for node in function.takes:
        if node in where:
            values.append(where[node])
        elif node.op == "input":
            values.append(writer.value(f"{writer.local[node]}[{writer.now}][j]"))
        else:
            values.append(writer.at(node))
    return f"{name}({', '.join([*values, *targets])});"


def in_chunks(writer: Writer, body: Sequence[str], loop: str, before: Sequence[str]) -> List[str]:
    """The body for the one chunk of a fixed number of steps, or for one chunk after the other."""
    if writer.fixed:
        return list(body)
    return [
        "const auto chunk = [&](auto whole, const int begin) {",
        # a part of a chunk is a loop that loads step by step
        "    constexpr int U = whole ? T : 1, N = U;",
        "    const int count = whole ? T : steps - begin;",
        *indented(body),
        "};",
        f"for ({loop}) {{",
        *indented([*before, "if (steps - begin >= T) chunk(Known<true>(), begin);"]),
        "    else chunk(Known<false>(), begin);",
        "}",
    ]
