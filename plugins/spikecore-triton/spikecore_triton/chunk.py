"""What the forward and the backward kernel do with a chunk: steps that are written out one after the other."""

from __future__ import annotations

from typing import Dict, List, NamedTuple

from spikecore.lang import Node
from spikecore_triton.writer import Function, Writer, load


class Chunk(NamedTuple):
    """Steps that are written out one after the other."""

    #: Name of the variable with the first step of the chunk; empty where the chunk begins at step 0.
    first: str
    steps: int
    #: Prefix of the chunk's names: a variable that two chunks share would be carried from one to the other.
    prefix: str


def checkpoint(writer: Writer, name: str, chunk: str) -> str:
    """Address of the checkpoint of a state that ``chunk`` starts from; the first chunk has none."""
    local = writer.local[Node("state", (), name)]
    pointer = writer.argument(f"{local}_checkpoints", "pointer", "checkpoints", writer.plan.saved.index(name))
    return f"{pointer} + ({chunk} - 1) * neurons + at"


def load_all(writer: Writer, lines: List[str], leaf: Node, group: str, index: int, chunk: Chunk) -> List[str]:
    """Load the values of a leaf at every step of a chunk; returns their names."""
    local = writer.local[leaf]
    tensor = f"{local}s" if leaf.op == "input" else f"grad_{writer.output_name(int(str(leaf.attr)))}"
    names = [writer.free(f"{chunk.prefix}{local}_{t}") for t in range(chunk.steps)]
    for t, name in enumerate(names):
        lines.append(f"{name} = {load(writer.all(tensor, group, index, chunk.first, t))}")
    return names


def held(writer: Writer, function: Function, values: Dict[Node, str]) -> List[str]:
    """Numbers of 16 bits become wider where a function takes them, not before."""
    if writer.plan.dtype == writer.plan.compute:
        return []
    stored = [values[leaf] for leaf in function.leaves if leaf.op in ("input", "out_grad")]
    return [f"{name} = hold({name})" for name in stored]


def in_every_lane(local: str) -> str:
    """A value that all neurons share, made one number per neuron: a loop carries values of one shape."""
    return f"{local} = tl.broadcast_to({local}, (BLOCK,))"
