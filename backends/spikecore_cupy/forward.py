"""Forward kernels: all steps of a program."""

from __future__ import annotations

from typing import List

from spikecore.kernels import ForwardPlan
from spikecore_cupy.frame import call, in_chunks, input_streams, loads_first, loads_later, outs_of, saved_at, state_leaf
from spikecore_cupy.lines import indented, over_neurons, over_steps
from spikecore_cupy.writer import Function, Source, Writer


def forward_kernel(plan: ForwardPlan, width: int) -> Source:
    """The kernel of a plan, for ``width`` neurons a thread."""
    program = plan.program
    rest = () if plan.has_initial_state else program.rest
    writer = Writer(plan, "forward", width, [*program.outputs, *program.next], rest)
    states = [writer.local[state_leaf(name)] for name in program.states]
    outs = [writer.free(name[:-1] if len(program.outputs) == 1 else f"out{k}") for k, name in outs_of(writer)]
    results = {f"new_{name}": node for name, node in zip(states, program.next)}
    step = writer.function("step", {**results, **dict(zip(outs, program.outputs))})
    opening = ["if (i >= neurons) return;", *writer.opening()]
    for name, state in zip(program.states, states):
        opening += [writer.pack(state), *writer.starting(name, state)]
    inputs = input_streams(writer, step)
    steps = over_steps(writer.fixed, [*loads_later(writer, inputs), *_forward_step(writer, plan, step, states, outs)])
    ending = [f"store({writer.one(f'{s}_end', 'final', k)}, {s});" for k, s in enumerate(states) if plan.final]
    kept = [writer.local[state_leaf(name)] for name in plan.saved]
    saving = [f"store({saved_at(writer, s, k)}, {s});" for k, s in enumerate(kept)]
    before = ["if (begin) {", *indented(saving), "}"] if saving else []
    chunks = in_chunks(
        writer, [*loads_first(writer, inputs), *steps], "int begin = 0; begin < steps; begin += T", before
    )
    return writer.finished([step], [*opening, *chunks, *ending])


def _forward_step(writer: Writer, plan: ForwardPlan, step: Function, states: List[str], outs: List[str]) -> List[str]:
    """One step of all neurons of a thread: compute, store outputs and what is recorded."""
    program = plan.program
    targets, convert = [f"{name}[j]" for name in states], []
    if writer.stored == writer.real:
        targets += [f"{out}[j]" for out in outs]
    else:
        targets += [writer.unique(f"{out}_j") for out in outs]
        convert = [
            f"{out}.set(j, {writer.conversion(node)}({writer.unique(f'{out}_j')}));"
            for out, node in zip(outs, program.outputs)
        ]
    declare = [f"{writer.real} {', '.join(writer.unique(f'{out}_j') for out in outs)};"] if convert else []
    lines = [writer.pack(out, writer.stored) for out in outs]
    lines += over_neurons([*declare, call(writer, step, "step", targets, {}), *convert])
    for k, (out, (_, name)) in enumerate(zip(outs, outs_of(writer))):
        lines.append(f"store({writer.all(name, 'outputs', k)}, {out});")
    for k, state in enumerate(plan.record):
        name = writer.local[state_leaf(state)]
        lines.append(f"store({writer.all(f'{name}_trace', 'trace', k)}, {name});")
    return lines
