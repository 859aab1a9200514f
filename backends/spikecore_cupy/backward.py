"""Backward kernels: the steps of a chunk computed again, and the adjoint from its last step to the first."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence

from spikecore.kernels import BackwardPlan
from spikecore.lang import Node
from spikecore_cupy.derivative import Derivative, derivative
from spikecore_cupy.frame import (
    Stream,
    call,
    grad_leaf,
    in_chunks,
    input_streams,
    loads_first,
    loads_later,
    saved_at,
    state_leaf,
)
from spikecore_cupy.lines import indented, over_neurons, over_steps
from spikecore_cupy.writer import Function, Source, Writer


def backward_kernel(plan: BackwardPlan, width: int) -> Source:
    """The kernel of a plan, for ``width`` neurons a thread."""
    program, found = plan.program, derivative(plan)
    following = dict(zip(program.states, program.next))
    rest = [node for name, node in zip(program.states, program.rest) if name in plan.recomputed_states]
    roots = [*found.roots, *(following[name] for name in plan.recomputed_states)]
    writer = Writer(plan, "backward", width, roots, () if plan.has_initial_state else rest, found.approximate)
    between: Dict[Node, str] = {}
    for node in found.cut:
        if node.op != "input":
            between[node] = _kept(writer, node, between)
    step = writer.function("step", _recomputed(writer, plan, between))
    adjoint = _adjoint(writer, plan, found, between)
    shared = [name for name in plan.learn if plan.spec.params[program.params.index(name)] == "scalar"]
    opening = [*writer.opening(), *_first_cotangents(writer, plan, shared)]
    before = input_streams(writer, step) if between else []
    back = [*input_streams(writer, adjoint), *_cotangents(writer, plan)]
    body = loads_first(writer, [*before, *(stream for stream in back if stream not in before)])
    body += _recomputation(writer, plan, between, step, before) if between else []
    body += over_steps(
        writer.fixed, [*loads_later(writer, back), *_adjoint_step(writer, plan, between, adjoint)], backwards=True
    )
    chunks = in_chunks(writer, body, "int begin = (steps - 1) / T * T; begin >= 0; begin -= T", [])
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


def _kept(writer: Writer, node: Node, between: Mapping[Node, str]) -> str:
    """The symbol of a value of a forward step that backward keeps, beside those between the two already."""
    if node.op == "state":
        return writer.free(f"{writer.local[node]}_before")
    word = writer.program.labels.get(node, "kept")
    name = writer.printer.label(node, word)
    # a value that is kept and detached, too, is kept twice
    return writer.free(word) if name in between.values() else name


def _recomputed(writer: Writer, plan: BackwardPlan, between: Mapping[Node, str]) -> Dict[str, Node]:
    """What a step computed again gives: the states that the next one needs, and what the adjoint is computed from."""
    following = dict(zip(plan.program.states, plan.program.next))
    results = {f"new_{writer.local[state_leaf(name)]}": following[name] for name in plan.recomputed_states}
    return {**results, **{f"kept_{name}": node for node, name in between.items()}}


def _adjoint(writer: Writer, plan: BackwardPlan, found: Derivative, between: Mapping[Node, str]) -> Function:
    """The device function of one step backwards."""
    wanted = zip(plan.program.inputs, found.inputs, plan.inputs)
    results = {_grad_input(writer, name): node for name, node, wants in wanted if wants}
    results.update((f"new_{writer.local[grad_leaf(name)]}", node) for name, node in found.states.items())
    sums = {_sum(writer, name): node for name, node in zip(plan.learn, found.params)}
    return writer.function("adjoint", results, sums, between)


def _adjoint_step(writer: Writer, plan: BackwardPlan, between: Mapping[Node, str], adjoint: Function) -> List[str]:
    """One step backwards of all neurons of a thread."""
    program = plan.program
    where = {node: f"{name}[t][j]" for node, name in between.items()}
    for k in range(len(program.outputs)):
        leaf = Node("out_grad", (), k)
        where[leaf] = writer.value(f"{writer.local[leaf]}[{writer.now}][j]")
    for name in plan.carried_cotangents:
        carried = writer.local[grad_leaf(name)]
        where[grad_leaf(name)] = (
            f"{carried}[j] + {_trace(writer, name)}[{writer.now}][j]" if name in plan.trace else f"{carried}[j]"
        )
    grads = [_grad_input(writer, name) for name, wants in zip(program.inputs, plan.inputs) if wants]
    exact = writer.stored == writer.real
    targets = [f"{name}[j]" if exact else writer.unique(f"{name}_j") for name in grads]
    targets += [f"{writer.local[grad_leaf(name)]}[j]" for name in plan.carried_cotangents]
    kinds = dict(zip(program.params, plan.spec.params))
    targets += [_sum(writer, name) + ("" if kinds[name] == "scalar" else "[j]") for name in plan.learn]
    late = [writer.local[node] for node in adjoint.takes if node.op == "out_grad" and not exact]
    lines = [f"hold({name}[{writer.now}]);" for name in late]
    lines += [writer.pack(name, writer.stored) for name in grads]
    held = [f"hold({writer.local[grad_leaf(name)]}[j]);" for name in plan.carried_cotangents]
    held += [f"hold({name}[t][j]);" for name in between.values()]
    inner = [*held, call(writer, adjoint, "adjoint", targets, where)]
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
    for name in plan.recomputed_states:
        state = writer.local[state_leaf(name)]
        first = writer.starting(name, state)
        if not writer.fixed:
            saved = saved_at(writer, state, plan.saved.index(name))
            first = ["if (begin == 0) {", *indented(first), "} else {", f"    {state} = load<V>({saved});", "}"]
        lines += [writer.pack(state), *first]
    most = "T" if writer.fixed else "whole ? T : T - 1"
    lines += [f"Pack<{writer.real}, V> {name}[{most}];" for name in between.values()]
    targets = [f"{writer.local[state_leaf(name)]}[j]" for name in plan.recomputed_states]
    targets += [f"{name}[t][j]" for name in between.values()]
    body = over_neurons([call(writer, step, "step", targets, {})])
    if writer.stored != writer.real:
        body = [*(f"hold({stream.name}[{writer.now}]);" for stream in inputs), *body]
    return [*lines, *over_steps(writer.fixed, [*loads_later(writer, inputs), *body])]


def _first_cotangents(writer: Writer, plan: BackwardPlan, shared: Sequence[str]) -> List[str]:
    """What is carried from step to step, and summed, before the last step."""
    lines = []
    zero = writer.printer.number(0.0)
    for k, name in enumerate(plan.program.states):
        if name in plan.carried_cotangents:
            carried, end = writer.local[grad_leaf(name)], f"grad_{writer.local[state_leaf(name)]}_end"
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
        if name in plan.carried_cotangents:
            trace = _trace(writer, name)
            streams.append(Stream(trace, writer.real, writer.all(f"{trace}s", "grad_trace", k)))
    return streams


def _last_cotangents(writer: Writer, plan: BackwardPlan, shared: Sequence[str]) -> List[str]:
    """Stores of the gradients of initial states, and of parameters with a value per neuron."""
    lines = []
    for k, name in enumerate(plan.program.states if plan.state else ()):
        target = writer.one(f"grad_{writer.local[state_leaf(name)]}_start", "grad_state", k)
        lines.append(f"store({target}, {writer.local[grad_leaf(name)]});")
    for k, name in enumerate(plan.learn):
        if name not in shared:
            total = _sum(writer, name)
            lines.append(f"store({writer.one(f'{total}s', 'grad_params', k)}, {total});")
    return lines


def _grad_input(writer: Writer, name: str) -> str:
    return writer.unique(f"grad_{writer.local[Node('input', (), name)]}")


def _sum(writer: Writer, name: str) -> str:
    return writer.unique(f"grad_{writer.local[Node('param', (), name)]}")


def _trace(writer: Writer, name: str) -> str:
    return writer.unique(f"grad_{writer.local[state_leaf(name)]}_t")
