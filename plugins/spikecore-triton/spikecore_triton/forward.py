"""The forward kernel of a plan."""

from __future__ import annotations

from typing import List

from spikecore.kernels import ForwardPlan
from spikecore.lang import Node
from spikecore_triton.chunk import Chunk, checkpoint, held, in_every_lane, load_all
from spikecore_triton.writer import CHUNK, Function, Source, Writer, indented, store


def forward(plan: ForwardPlan, left: int) -> Source:
    """The text; ``left`` as for ``print_kernel``."""
    program = plan.program
    writer = Writer(plan, "forward", [*program.outputs, *program.next])
    body = writer.opening(() if plan.has_initial_state else program.rest)
    states = [writer.local[Node("state", (), name)] for name in program.states]
    body += [f"{local} = {writer.start(index)}" for index, local in enumerate(states)]
    step = writer.function("step", [*program.outputs, *program.next])
    if plan.spec.steps is not None:
        body += _forward_chunk(writer, plan, step, Chunk("", plan.spec.steps, ""))
    else:
        chunks = writer.argument("chunks", "chunks")
        inner = [f"first = chunk * {CHUNK}", *_keep(writer, plan, "chunk", "(inside & (chunk > 0)) != 0")]
        inner += _forward_chunk(writer, plan, step, Chunk("first", CHUNK, ""))
        body += [f"for chunk in range({chunks}):", *indented(inner)]
        if left:
            body += [f"tail = {chunks} * {CHUNK}", *_keep(writer, plan, chunks, "inside")]
            body += _forward_chunk(writer, plan, step, Chunk("tail", left, "last_"))
    if plan.final:
        body += [store(writer.one(f"{local}_end", "final", i), local) for i, local in enumerate(states)]
    return writer.finished(body)


def _keep(writer: Writer, plan: ForwardPlan, chunk: str, where: str) -> List[str]:
    """Write the states that backward starts a chunk from."""
    locals_ = [(name, writer.local[Node("state", (), name)]) for name in plan.saved]
    return [store(checkpoint(writer, name, chunk), local, where) for name, local in locals_]


def _forward_chunk(writer: Writer, plan: ForwardPlan, step: Function, chunk: Chunk) -> List[str]:
    program = plan.program
    inputs = [leaf for leaf in step.leaves if leaf.op == "input"]
    lines: List[str] = []
    loaded = [load_all(writer, lines, leaf, "inputs", program.inputs.index(str(leaf.attr)), chunk) for leaf in inputs]
    outs = [_out(writer, node, chunk.prefix) for node in program.outputs]
    states = [writer.local[Node("state", (), name)] for name in program.states]
    values = {**writer.fixed, **{Node("state", (), name): local for name, local in zip(program.states, states)}}
    for t in range(chunk.steps):
        now = {**values, **{leaf: names[t] for leaf, names in zip(inputs, loaded)}}
        lines += held(writer, step, now)
        lines.append(f"{', '.join([*outs, *states])} = {step.call(now)}")
        lines += [in_every_lane(local) for local, node in zip(states, program.next) if not writer.varies(node)]
        for index, out in enumerate(outs):
            lines.append(store(writer.all(writer.output_name(index), "outputs", index, chunk.first, t), out))
        for index, name in enumerate(plan.record):
            local = states[program.states.index(name)]
            lines.append(store(writer.all(f"{local}_trace", "trace", index, chunk.first, t), local))
    return lines


def _out(writer: Writer, node: Node, prefix: str) -> str:
    """The symbol of an output: that of its value in the step, unless the kernel has such a value before its steps."""
    own = not prefix and node in writer.program.labels and node not in writer.fixed
    return writer.label(node, "out") if own else writer.free(f"{prefix}{writer.program.labels.get(node, 'out')}")
