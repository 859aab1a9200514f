"""Kernels as text: a plan printed as CUDA C++.

A thread owns V neighbouring neurons and runs all their time steps; states stay in registers. Steps go in chunks: all
loads of a chunk come before the first use, so that memory is not waited for one step at a time. Up to 16 steps are one
chunk, whose length is a constant. Forward writes, for more, the states before every chunk but the first; backward
starts each chunk from them, recomputes the states inside, and runs the adjoint back through it.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple, Union

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.lang import Node
from spikecore_cupy.derivative import Derivative, derivative
from spikecore_cupy.writer import Function, Source, Writer, indented, over_neurons, over_steps

#: The groups of arguments that a launch gets, in its order.
FORWARD_GROUPS = ("inputs", "state", "params", "outputs", "final", "trace", "saved")
BACKWARD_GROUPS = (
    "inputs",
    "state",
    "params",
    "saved",
    "grad_outputs",
    "grad_final",
    "grad_trace",
    "grad_inputs",
    "grad_state",
    "grad_params",
)


def print_kernel(plan: Union[ForwardPlan, BackwardPlan], width: int) -> Source:
    """The kernel of a plan, for ``width`` neurons a thread."""
    return _forward(plan, width) if isinstance(plan, ForwardPlan) else _backward(plan, width)


# -- forward


def _forward(plan: ForwardPlan, width: int) -> Source:
    program = plan.program
    rest = () if plan.given else program.rest
    writer = Writer(plan, "forward", width, [*program.outputs, *program.next], rest)
    states = [writer.local[_state(name)] for name in program.states]
    outs = [writer.free(name[:-1] if len(program.outputs) == 1 else f"out{k}") for k, name in _outs(writer)]
    results = {f"new_{name}": node for name, node in zip(states, program.next)}
    step = writer.function("step", {**results, **dict(zip(outs, program.outputs))})
    opening = ["if (i >= neurons) return;", *writer.opening()]
    for name, state in zip(program.states, states):
        opening += [writer.pack(state), *writer.starting(name, state)]
    inputs = _inputs(writer, step)
    steps = over_steps(writer, [*_later(writer, inputs), *_forward_step(writer, plan, step, states, outs)])
    ending = [f"store({writer.one(f'{s}_end', 'final', k)}, {s});" for k, s in enumerate(states) if plan.final]
    saving = [f"store({_saved(writer, s, k)}, {s});" for k, s in enumerate(states) if plan.checkpoints]
    before = ["if (begin) {", *indented(saving), "}"] if saving else []
    chunks = _in_chunks(writer, [*_first(writer, inputs), *steps], "int begin = 0; begin < steps; begin += T", before)
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
    lines += over_neurons([*declare, _call(writer, step, "step", targets, {}), *convert])
    for k, (out, (_, name)) in enumerate(zip(outs, _outs(writer))):
        lines.append(f"store({writer.all(name, 'outputs', k)}, {out});")
    for k, state in enumerate(plan.record):
        name = writer.local[_state(state)]
        lines.append(f"store({writer.all(f'{name}_trace', 'trace', k)}, {name});")
    return lines


# -- backward


def _backward(plan: BackwardPlan, width: int) -> Source:
    program, found = plan.program, derivative(plan)
    following = dict(zip(program.states, program.next))
    rest = [node for name, node in zip(program.states, program.rest) if name in plan.kept and not plan.given]
    roots = [*found.roots, *(following[name] for name in plan.kept)]
    writer = Writer(plan, "backward", width, roots, rest, found.approximate)
    between = {node: writer.free(_word(writer, node)) for node in found.cut if node.op != "input"}
    step = writer.function("step", _recomputed(writer, plan, between))
    adjoint = _adjoint(writer, plan, found, between)
    shared = [name for name in plan.learn if plan.spec.params[program.params.index(name)] == "scalar"]
    opening = [*writer.opening(), *_first_cotangents(writer, plan, shared)]
    before = _inputs(writer, step) if between else []
    back = [*_inputs(writer, adjoint), *_cotangents(writer, plan)]
    body = _first(writer, [*before, *(stream for stream in back if stream not in before)])
    body += _recomputation(writer, plan, between, step, before) if between else []
    body += over_steps(writer, [*_later(writer, back), *_adjoint_step(writer, plan, between, adjoint)], backwards=True)
    chunks = _in_chunks(writer, body, "int begin = (steps - 1) / T * T; begin >= 0; begin -= T", [])
    ending = _last_cotangents(writer, plan, shared)
    functions = [step, adjoint] if between else [adjoint]
    if not shared:
        return writer.finished(functions, ["if (i >= neurons) return;", *opening, *chunks, *ending])
    # every thread takes part in the sums
    sums, after = [], []
    for name in shared:
        total = _sum(writer, name)
        place = f"{writer.argument(f'{total}s', 'sum', 'grad_params', plan.learn.index(name))}[blockIdx.x]"
        sums.append(f"{writer.real} {total} = {writer.printer.number(0.0)};")
        after += [f"{total} = block_sum({total});", f"if (threadIdx.x == 0) {place} = {total};"]
    inside = ["if (i < neurons) {", *indented([*opening, *chunks, *ending]), "}"]
    return writer.finished(functions, [*sums, *inside, *after])


def _word(writer: Writer, node: Node) -> str:
    """What a value of a forward step is called that backward keeps."""
    if node.op == "state":
        return f"{writer.local[node]}_before"
    return writer.program.labels.get(node, "kept")


def _recomputed(writer: Writer, plan: BackwardPlan, between: Mapping[Node, str]) -> Dict[str, Node]:
    """What a step computed again gives: the states that the next one needs, and what the adjoint is computed from."""
    following = dict(zip(plan.program.states, plan.program.next))
    results = {f"new_{writer.local[_state(name)]}": following[name] for name in plan.kept}
    return {**results, **{f"kept_{name}": node for node, name in between.items()}}


def _adjoint(writer: Writer, plan: BackwardPlan, found: Derivative, between: Mapping[Node, str]) -> Function:
    """The device function of one step backwards."""
    wanted = zip(plan.program.inputs, found.inputs, plan.inputs)
    results = {_grad_input(writer, name): node for name, node, wants in wanted if wants}
    results.update((f"new_{writer.local[_grad(name)]}", node) for name, node in found.states.items())
    sums = {_sum(writer, name): node for name, node in zip(plan.learn, found.params)}
    return writer.function("adjoint", results, sums, between)


def _adjoint_step(writer: Writer, plan: BackwardPlan, between: Mapping[Node, str], adjoint: Function) -> List[str]:
    """One step backwards of all neurons of a thread."""
    program = plan.program
    where = {node: f"{name}[t][j]" for node, name in between.items()}
    for k in range(len(program.outputs)):
        leaf = Node("out_grad", (), k)
        where[leaf] = writer.value(f"{writer.local[leaf]}[{writer.now}][j]")
    for name in plan.carried:
        carried = writer.local[_grad(name)]
        where[_grad(name)] = (
            f"{carried}[j] + {_trace(writer, name)}[{writer.now}][j]" if name in plan.trace else f"{carried}[j]"
        )
    grads = [_grad_input(writer, name) for name, wants in zip(program.inputs, plan.inputs) if wants]
    exact = writer.stored == writer.real
    targets = [f"{name}[j]" if exact else writer.unique(f"{name}_j") for name in grads]
    targets += [f"{writer.local[_grad(name)]}[j]" for name in plan.carried]
    kinds = dict(zip(program.params, plan.spec.params))
    targets += [_sum(writer, name) + ("" if kinds[name] == "scalar" else "[j]") for name in plan.learn]
    late = [writer.local[node] for node in adjoint.takes if node.op == "out_grad" and not exact]
    lines = [f"hold({name}[{writer.now}]);" for name in late]
    lines += [writer.pack(name, writer.stored) for name in grads]
    held = [f"hold({writer.local[_grad(name)]}[j]);" for name in plan.carried]
    held += [f"hold({name}[t][j]);" for name in between.values()]
    inner = [*held, _call(writer, adjoint, "adjoint", targets, where)]
    if grads and not exact:
        inner.insert(0, f"{writer.real} {', '.join(writer.unique(f'{name}_j') for name in grads)};")
        inner += [f"{name}.set(j, rounded<{writer.stored}>({writer.unique(f'{name}_j')}));" for name in grads]
    lines += over_neurons(inner)
    return [*lines, *(f"store({writer.all(f'{g}s', 'grad_inputs', k)}, {g});" for k, g in enumerate(grads))]


def _recomputation(
    writer: Writer, plan: BackwardPlan, between: Mapping[Node, str], step: Function, inputs: Sequence[Stream]
) -> List[str]:
    """The steps of a chunk again, which keep what the adjoint is computed from."""
    lines: List[str] = []
    for name in plan.kept:
        state = writer.local[_state(name)]
        first = writer.starting(name, state)
        if not writer.fixed:
            saved = _saved(writer, state, plan.program.states.index(name))
            first = ["if (begin == 0) {", *indented(first), "} else {", f"    {state} = load<V>({saved});", "}"]
        lines += [writer.pack(state), *first]
    most = "T" if writer.fixed else "whole ? T : T - 1"
    lines += [f"Pack<{writer.real}, V> {name}[{most}];" for name in between.values()]
    targets = [f"{writer.local[_state(name)]}[j]" for name in plan.kept]
    targets += [f"{name}[t][j]" for name in between.values()]
    body = over_neurons([_call(writer, step, "step", targets, {})])
    if writer.stored != writer.real:
        body = [*(f"hold({stream.name}[{writer.now}]);" for stream in inputs), *body]
    return [*lines, *over_steps(writer, [*_later(writer, inputs), *body])]


def _first_cotangents(writer: Writer, plan: BackwardPlan, shared: Sequence[str]) -> List[str]:
    """What is carried from step to step, and summed, before the last step."""
    lines = []
    zero = writer.printer.number(0.0)
    for k, name in enumerate(plan.program.states):
        if name in plan.carried:
            carried, end = writer.local[_grad(name)], f"grad_{writer.local[_state(name)]}_end"
            lines.append(writer.pack(carried))
            if plan.final:
                lines.append(f"{carried} = load<V>({writer.one(end, 'grad_final', k)});")
            else:
                lines += over_neurons([f"{carried}[j] = {zero};"])
    for name in plan.learn:
        if name not in shared:
            lines += [writer.pack(_sum(writer, name)), *over_neurons([f"{_sum(writer, name)}[j] = {zero};"])]
    return lines


def _cotangents(writer: Writer, plan: BackwardPlan) -> List[Stream]:
    """The cotangents that arrive for every step."""
    streams = []
    arriving = [k for k, there in enumerate(plan.outputs) if there]
    for k, index in enumerate(arriving):
        place = writer.all(f"grad_{writer.output_name(index)}", "grad_outputs", k)
        streams.append(Stream(writer.local[Node("out_grad", (), index)], writer.stored, place))
    for k, name in enumerate(plan.trace):
        if name in plan.carried:
            trace = _trace(writer, name)
            streams.append(Stream(trace, writer.real, writer.all(f"{trace}s", "grad_trace", k)))
    return streams


def _last_cotangents(writer: Writer, plan: BackwardPlan, shared: Sequence[str]) -> List[str]:
    """Stores of the gradients of initial states, and of parameters with a value per neuron."""
    lines = []
    for k, name in enumerate(plan.program.states if plan.state else ()):
        target = writer.one(f"grad_{writer.local[_state(name)]}_start", "grad_state", k)
        lines.append(f"store({target}, {writer.local[_grad(name)]});")
    for k, name in enumerate(plan.learn):
        if name not in shared:
            total = _sum(writer, name)
            lines.append(f"store({writer.one(f'{total}s', 'grad_params', k)}, {total});")
    return lines


# -- both


def _state(name: str) -> Node:
    return Node("state", (), name)


def _grad(name: str) -> Node:
    return Node("next_grad", (), name)


def _outs(writer: Writer) -> List[Tuple[int, str]]:
    return [(k, writer.output_name(k)) for k in range(len(writer.program.outputs))]


def _grad_input(writer: Writer, name: str) -> str:
    return writer.unique(f"grad_{writer.local[Node('input', (), name)]}")


def _sum(writer: Writer, name: str) -> str:
    return writer.unique(f"grad_{writer.local[Node('param', (), name)]}")


def _trace(writer: Writer, name: str) -> str:
    return writer.unique(f"grad_{writer.local[_state(name)]}_t")


def _saved(writer: Writer, state: str, index: int) -> str:
    """Where the states before a chunk are kept."""
    return f"{writer.argument(f'{state}_saved', 'pointer', 'saved', index)} + (begin / T - 1) * neurons + i"


class Stream(NamedTuple):
    """A tensor of all steps that a kernel reads: what its numbers are called, their type, and where they lie."""

    name: str
    kind: str
    place: str


def _inputs(writer: Writer, function: Function) -> List[Stream]:
    """The inputs that a function takes."""
    streams = []
    for index, name in enumerate(writer.program.inputs):
        leaf, local = Node("input", (), name), writer.local[Node("input", (), name)]
        if leaf in function.takes:
            streams.append(Stream(local, writer.stored, writer.all(f"{local}s", "inputs", index)))
    return streams


def _first(writer: Writer, streams: Sequence[Stream]) -> List[str]:
    """The loads of a whole chunk, before its first step."""
    if writer.fixed:
        return [line for s in streams for line in (f"Pack<{s.kind}, V> {s.name}[T];", *_loads(writer, s))]
    lines = [f"Pack<{s.kind}, V> {s.name}[N];" for s in streams]
    inner = [line for stream in streams for line in _loads(writer, stream)]
    return [*lines, "if (whole) {", *indented(inner), "}"] if streams else []


def _loads(writer: Writer, stream: Stream) -> List[str]:
    return over_steps(writer, [f"{stream.name}[t] = load<V>({stream.place});"])


def _later(writer: Writer, streams: Sequence[Stream]) -> List[str]:
    """The loads of a step of a chunk that is not whole."""
    if writer.fixed or not streams:
        return []
    if len(streams) == 1:
        return [f"if (!whole) {streams[0].name}[0] = load<V>({streams[0].place});"]
    return ["if (!whole) {", *indented(f"{s.name}[0] = load<V>({s.place});" for s in streams), "}"]


def _call(writer: Writer, function: Function, name: str, targets: Sequence[str], where: Mapping[Node, str]) -> str:
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


def _in_chunks(writer: Writer, body: Sequence[str], loop: str, before: Sequence[str]) -> List[str]:
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
