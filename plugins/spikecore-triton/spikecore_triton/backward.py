"""The backward kernel of a plan: steps computed again, and the adjoint through them from the last to the first."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Union

from spikecore.kernels import BackwardPlan, with_reciprocals
from spikecore.kernels.cut import smallest_cut
from spikecore.lang import Node, loop_invariant, topological
from spikecore_triton.chunk import Chunk, checkpoint, held, in_every_lane, load_all
from spikecore_triton.writer import CHUNK, Function, Source, Writer, indented, load, store


class _Backward(NamedTuple):
    """What a backward kernel is written from: the functions of a step."""

    writer: Writer
    plan: BackwardPlan
    #: Values, other than inputs, that are kept of every recomputed step -> their names.
    between: Dict[Node, str]
    #: Recomputes a step: returns the states that are needed after it, and the values to keep; None if there are none.
    following: Union[Function, None]
    adjoint: Function
    #: Names of the sums, one for each learnt parameter.
    sums: List[str]


def backward(plan: BackwardPlan, left: int) -> Source:
    """The text; ``left`` as for ``print_kernel``."""
    program, kept, roots = plan.program, plan.recomputed_states, _roots(plan)
    recomputed = [node for name, node in zip(program.states, program.next) if name in kept]
    writer = Writer(plan, "backward", [*roots, *recomputed])
    rest = [node for name, node in zip(program.states, program.rest) if name in kept]
    body = writer.opening(() if plan.has_initial_state else rest)
    between: Dict[Node, str] = {}
    for node in smallest_cut(roots):
        if node.op != "input":
            between[node] = writer.kept(node, between)
    following = writer.function("following", [*recomputed, *between]) if between else None
    sums = [writer.free(f"sum_{writer.local[Node('param', (), name)]}") for name in plan.learn]
    kernel = _Backward(writer, plan, between, following, writer.function("adjoint", roots, between), sums)
    body += _first_cotangents(kernel)
    starts = {name: writer.start(program.states.index(name)) for name in kept}
    if plan.spec.steps is not None:
        body = _backward_chunk(kernel, Chunk("", plan.spec.steps, ""), starts, body)
    else:
        body += _through_chunks(kernel, starts, left)
    return writer.finished([*body, *_last_cotangents(kernel)])


def _roots(plan: BackwardPlan) -> Sequence[Node]:
    """What one step backwards computes. Where it is rounded to 16 bits, divisions by parameters are products."""
    if plan.dtype == plan.compute:
        return plan.roots
    order = topological(plan.roots)
    fixed = {*loop_invariant(order), *(node for node in order if node.op == "param")}
    new = with_reciprocals(order, {*plan.program.nodes, *fixed}, fixed)
    return [new[node] for node in plan.roots]


def _through_chunks(kernel: _Backward, starts: Dict[str, str], left: int) -> List[str]:
    """What is left over first, then all chunks from the last one back."""
    writer = kernel.writer
    chunks = writer.argument("chunks", "chunks")
    names = {name: writer.free(f"{writer.local[Node('state', (), name)]}_first") for name in starts}
    lines = [f"{names[name]} = {start}" for name, start in starts.items()]
    if left:
        kept = {name: load(checkpoint(writer, name, chunks)) for name in starts}
        lines += [f"tail = {chunks} * {CHUNK}", *_backward_chunk(kernel, Chunk("tail", left, "last_"), kept)]
    where = "(inside & (chunk > 0)) != 0"
    kept = {name: load(checkpoint(writer, name, "chunk"), where, names[name]) for name in starts}
    inner = [f"chunk = {chunks} - 1 - turn", f"first = chunk * {CHUNK}"]
    inner += _backward_chunk(kernel, Chunk("first", CHUNK, ""), kept)
    return [*lines, f"for turn in range({chunks}):", *indented(inner)]


def _backward_chunk(kernel: _Backward, chunk: Chunk, starts: Dict[str, str], before: Sequence[str] = ()) -> List[str]:
    """Load a chunk, compute its steps again from how it starts, and run the adjoint from its last step to its first."""
    writer, plan, program = kernel.writer, kernel.plan, kernel.plan.program
    wanted = {*kernel.adjoint.leaves, *(kernel.following.leaves if kernel.following else ())}
    values = [dict(writer.fixed) for _ in range(chunk.steps)]
    lines: List[str] = []

    def everywhere(leaf: Node, group: str, index: int) -> None:
        for now, name in zip(values, load_all(writer, lines, leaf, group, index, chunk)):
            now[leaf] = name

    for index, name in enumerate(program.inputs):
        if Node("input", (), name) in wanted:
            everywhere(Node("input", (), name), "inputs", index)
    for k, index in enumerate(i for i, there in enumerate(plan.outputs) if there):
        if Node("out_grad", (), index) in wanted:
            everywhere(Node("out_grad", (), index), "grad_outputs", k)
    _load_cotangents(kernel, chunk, lines, values)
    lines += before
    return [*lines, *_steps_again(kernel, chunk, values, starts), *_adjoint_steps(kernel, chunk, values)]


def _steps_again(kernel: _Backward, chunk: Chunk, values: List[Dict[Node, str]], starts: Dict[str, str]) -> List[str]:
    """Compute the steps of a chunk again, and keep what the adjoint is computed from."""
    writer, plan = kernel.writer, kernel.plan
    if kernel.following is None:
        return []
    leaves = {name: Node("state", (), name) for name in plan.recomputed_states}
    states = {name: writer.local[leaf] for name, leaf in leaves.items()}
    if chunk.prefix:
        states = {name: writer.free(f"{chunk.prefix}{local}") for name, local in states.items()}
    lines = [f"{local} = {starts[name]}" for name, local in states.items()]
    for t, now in enumerate(values):
        names = {node: writer.free(f"{chunk.prefix}{name}_{t}") for node, name in kernel.between.items()}
        before = {**now, **{leaf: states[name] for name, leaf in leaves.items()}}
        lines += held(writer, kernel.following, now)
        lines.append(f"{', '.join([*states.values(), *names.values()])} = {kernel.following.call(before)}")
        now.update(names)
    return lines


def _load_cotangents(kernel: _Backward, chunk: Chunk, lines: List[str], values: List[Dict[Node, str]]) -> None:
    """The cotangent of each carried state at the end of a step: from the next step, and from the trace."""
    writer, plan = kernel.writer, kernel.plan
    for name in plan.carried_cotangents:
        leaf = Node("next_grad", (), name)
        carried = writer.local[leaf]
        for t, now in enumerate(values):
            now[leaf] = carried
            if name in plan.trace and leaf in kernel.adjoint.leaves:
                tensor = f"grad_{writer.local[Node('state', (), name)]}_trace"
                traced = writer.free(f"{chunk.prefix}{tensor}_{t}")
                where = writer.all(tensor, "grad_trace", plan.trace.index(name), chunk.first, t)
                lines.append(f"{traced} = {load(where)}")
                now[leaf] = f"{carried} + {traced}"


def _adjoint_steps(kernel: _Backward, chunk: Chunk, values: List[Dict[Node, str]]) -> List[str]:
    writer, plan = kernel.writer, kernel.plan
    program, adjoint = plan.program, plan.adjoint
    moved = [writer.local[Node("input", (), n)] for n, wants in zip(program.inputs, plan.inputs) if wants]
    inputs = [writer.free(f"{chunk.prefix}grad_{local}") for local in moved]
    learnt = [f"grad_{writer.local[Node('param', (), name)]}" for name in plan.learn]
    params = [writer.free(f"{chunk.prefix}{local}_part") for local in learnt]
    carried = {name: writer.local[Node("next_grad", (), name)] for name in plan.carried_cotangents}
    nodes = dict(zip(program.states, adjoint.states))
    uniform = [local for name, local in carried.items() if not writer.varies(nodes[name])]
    lines = []
    for t in reversed(range(chunk.steps)):
        taken = [*(values[t][node] for node in kernel.between), *carried.values()]
        lines += held(writer, kernel.adjoint, values[t])
        lines += [f"{name} = hold({name})" for name in taken]
        lines.append(f"{', '.join([*inputs, *carried.values(), *params])} = {kernel.adjoint.call(values[t])}")
        lines += [in_every_lane(local) for local in uniform]
        for k, (local, name) in enumerate(zip(moved, inputs)):
            lines.append(store(writer.all(f"grad_{local}s", "grad_inputs", k, chunk.first, t), name))
        lines += [f"{total} = {total} + {part}" for total, part in zip(kernel.sums, params)]
    return lines


def _first_cotangents(kernel: _Backward) -> List[str]:
    """Initial values of what is carried and summed: cotangents of the final state, or zero."""
    writer, plan = kernel.writer, kernel.plan
    zero = "tl.zeros((BLOCK,), tl.float32)"
    lines = []
    for index, name in enumerate(plan.program.states):
        if name in plan.carried_cotangents:
            state = writer.local[Node("state", (), name)]
            end = load(writer.one(f"grad_{state}_end", "grad_final", index)) if plan.final else zero
            lines.append(f"{writer.local[Node('next_grad', (), name)]} = {end}")
    return [*lines, *(f"{name} = {zero}" for name in kernel.sums)]


def _last_cotangents(kernel: _Backward) -> List[str]:
    """Write the gradients of the initial states, and of the parameters: one per neuron, or one per block."""
    writer, plan = kernel.writer, kernel.plan
    lines = []
    for index, name in enumerate(plan.program.states if plan.state else ()):
        target = writer.one(f"grad_{writer.local[Node('state', (), name)]}_start", "grad_state", index)
        lines.append(store(target, writer.local[Node("next_grad", (), name)]))
    kinds = dict(zip(plan.program.params, plan.spec.params))
    for index, (name, total) in enumerate(zip(plan.learn, kernel.sums)):
        pointer = writer.argument(f"grad_{writer.local[Node('param', (), name)]}s", "pointer", "grad_params", index)
        if kinds[name] == "scalar":
            block = f"tl.sum(tl.where(inside, {total}, 0.0), axis=0)"
            lines.append(f"tl.store({pointer} + tl.program_id(0), {block})")
        else:
            lines.append(store(f"{pointer} + at", total))
    return lines
