"""Kernels as text: a plan printed as a Python function over blocks of neurons.

Every kernel has one frame. Neurons are taken in blocks; for a block all time steps run one after the other, and the
innermost loop goes over its neurons, so that it becomes vector instructions. Between two steps a block's values lie
in ``scratch``, one row per value. The backward kernel first recomputes the states of a chunk of steps into a history
of each, then runs the adjoint through it; where steps are too many for one chunk it goes through all chunks forwards,
for the states they start from, and then backwards.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict, List, Union

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.lang import Node
from spikecore_numba.writer import Source, Store, Writer, indented

#: The groups of tensors that a launch gets, in its order.
FORWARD_GROUPS = ("inputs", "state", "params", "outputs", "final", "trace")
BACKWARD_GROUPS = (
    "inputs",
    "state",
    "params",
    "grad_outputs",
    "grad_final",
    "grad_trace",
    "grad_inputs",
    "grad_state",
    "grad_params",
)
#: Groups in the dtype of inputs and outputs; the others are in that of arithmetic.
STORED = ("inputs", "outputs", "grad_outputs", "grad_inputs")
#: Arguments that every kernel has, before its own, and those of one that keeps a history of states.
HEAD = ("begin", "end", "steps", "neurons", "width", "scratch")
HISTORY_HEAD = ("begin", "end", "steps", "neurons", "width", "scratch", "length", "chunks")


def print_kernel(plan: Union[ForwardPlan, BackwardPlan]) -> Source:
    """The kernel of a plan."""
    return _forward(plan) if isinstance(plan, ForwardPlan) else _backward(plan)


def _forward(plan: ForwardPlan) -> Source:
    program = plan.program
    writer = Writer(plan, "forward", [*program.outputs, *program.next], () if plan.has_initial_state else program.rest)
    stores: List[Store] = []
    for index, node in enumerate(program.outputs):
        stores.append((node, writer.stored(writer.all(writer.output_name(index), "outputs", index))))
    for name, node in zip(program.states, program.next):
        local = writer.local[Node("state", (), name)]
        stores.append((node, f"{writer.row(local)} = {{}}"))
        if name in plan.record:
            stores.append((node, f"{writer.all(f'{local}_trace', 'trace', plan.record.index(name))} = {{}}"))
    body = [
        *writer.starting(program.states),
        "for t in range(steps):",
        *indented(writer.loop(stores, _step_loads(writer))),
        *(_ending(writer) if plan.final else ()),
    ]
    return writer.finished(HEAD, body)


def _backward(plan: BackwardPlan) -> Source:
    program, kept = plan.program, plan.recomputed_states
    rest = [node for name, node in zip(program.states, program.rest) if name in kept and not plan.has_initial_state]
    recomputed = [node for name, node in zip(program.states, program.next) if name in kept]
    writer = Writer(plan, "backward", [*plan.roots, *recomputed], rest)
    adjoint = ["for t in range(stop - 1, start - 1, -1):", *indented(_adjoint_step(writer, plan))]
    if not kept:
        adjoint[0] = "for t in range(steps - 1, -1, -1):"
    body = [
        *writer.starting(kept),
        *_first_cotangents(writer, plan),
        *(_through_chunks(writer, plan, adjoint) if kept else adjoint),
        *(_last_cotangents(writer) if plan.state else ()),
    ]
    return writer.finished(HISTORY_HEAD if kept else HEAD, body)


def _step_loads(writer: Writer) -> Dict[Node, Callable[[], str]]:
    """Where the leaves of a step come from."""
    loads = writer.param_loads(first=False)
    for index, name in enumerate(writer.program.inputs):
        leaf = Node("input", (), name)
        loads[leaf] = partial(writer.read, f"{writer.local[leaf]}s", "inputs", index)
    for name in writer.program.states:
        leaf = Node("state", (), name)
        loads[leaf] = partial(writer.row, writer.local[leaf])
    return loads


def _ending(writer: Writer) -> List[str]:
    """The loop that writes the final states."""
    loads = _step_loads(writer)
    leaves = [Node("state", (), name) for name in writer.program.states]
    stores = [(leaf, f"{writer.one(f'{writer.local[leaf]}_end', 'final', i)} = {{}}") for i, leaf in enumerate(leaves)]
    return writer.loop(stores, loads)


def _through_chunks(writer: Writer, plan: BackwardPlan, adjoint: List[str]) -> List[str]:
    """Recompute a chunk's states into history, and from the last chunk on run the adjoint through it."""
    leaves = [Node("state", (), name) for name in plan.recomputed_states]
    rows = [writer.row(writer.local[leaf]) for leaf in leaves]
    history = [writer.history(writer.local[leaf]) for leaf in leaves]
    following = dict(zip(plan.program.states, plan.program.next))
    stores: List[Store] = [(leaf, f"{h}[past + i] = {{}}") for leaf, h in zip(leaves, history)]
    stores += [(following[name], f"{row} = {{}}") for name, row in zip(plan.recomputed_states, rows)]
    past = "past = (t - start) * width"
    pairs = list(zip(history, rows))
    return [
        "# all chunks forwards, for the states they start from, then all backwards; mostly there is one",
        "for turn in range(2 * chunks - 1):",
        *indented(
            [
                "chunk = turn if turn < chunks else 2 * chunks - 2 - turn",
                "start = chunk * length",
                "stop = start + length if start + length < steps else steps",
                "saved = (length + chunk) * width",
                "if turn < chunks:",
                *indented(["for i in range(count):", *indented(f"{h}[saved + i] = {r}" for h, r in pairs)]),
                "else:",
                *indented(["for i in range(count):", *indented(f"{r} = {h}[saved + i]" for h, r in pairs)]),
                "for t in range(start, stop):",
                *indented([past, *writer.loop(stores, _step_loads(writer))]),
                "if turn >= chunks - 1:",
                *indented([adjoint[0], *indented([past]), *adjoint[1:]]),
            ]
        ),
    ]


def _adjoint_step(writer: Writer, plan: BackwardPlan) -> List[str]:
    """The loop of one step backwards."""
    program, adjoint = plan.program, plan.adjoint
    loads = _step_loads(writer)
    for name in plan.recomputed_states:
        leaf = Node("state", (), name)
        loads[leaf] = partial("{}[past + i]".format, writer.history(writer.local[leaf]))
    arriving = [i for i, there in enumerate(plan.outputs) if there]
    for k, index in enumerate(arriving):
        name = f"grad_{writer.output_name(index)}"
        loads[Node("out_grad", (), index)] = partial(writer.read, name, "grad_outputs", k)
    for name in plan.carried_cotangents:
        loads[Node("next_grad", (), name)] = partial(_cotangent, writer, plan, name)
    stores: List[Store] = []
    for k, index in enumerate(i for i, wants in enumerate(plan.inputs) if wants):
        name = f"grad_{writer.local[Node('input', (), program.inputs[index])]}s"
        stores.append((adjoint.inputs[index], writer.stored(writer.all(name, "grad_inputs", k))))
    for name, node in zip(program.states, adjoint.states):
        if name in plan.carried_cotangents:
            stores.append((node, f"{writer.row(writer.local[Node('next_grad', (), name)])} = {{}}"))
    for k, (param, node) in enumerate(zip(plan.learn, adjoint.params)):
        stores.append((node, f"{_param_sum(writer, param, k)} += {{}}"))
    return writer.loop(stores, loads)


def _cotangent(writer: Writer, plan: BackwardPlan, name: str) -> str:
    """The cotangent of a state at the end of a step: from the next step, and from the trace."""
    carried = writer.row(writer.local[Node("next_grad", (), name)])
    if name not in plan.trace:
        return carried
    local = writer.local[Node("state", (), name)]
    return f"{carried} + {writer.all(f'grad_{local}_trace', 'grad_trace', plan.trace.index(name))}"


def _param_sum(writer: Writer, param: str, index: int) -> str:
    return writer.one(f"grad_{writer.local[Node('param', (), param)]}s", "grad_params", index)


def _first_cotangents(writer: Writer, plan: BackwardPlan) -> List[str]:
    """The loop that sets what is carried and summed: cotangents of the final state, or zero."""
    zero = writer.printer.number(0.0)
    lines = []
    for index, name in enumerate(plan.program.states):
        if name in plan.carried_cotangents:
            state = writer.local[Node("state", (), name)]
            end = writer.one(f"grad_{state}_end", "grad_final", index) if plan.final else zero
            lines.append(f"{writer.row(writer.local[Node('next_grad', (), name)])} = {end}")
    lines += [f"{_param_sum(writer, param, k)} = {zero}" for k, param in enumerate(plan.learn)]
    return ["for i in range(count):", *indented(lines)] if lines else []


def _last_cotangents(writer: Writer) -> List[str]:
    """The loop that writes the gradients of the initial states."""
    lines = []
    for index, name in enumerate(writer.program.states):
        target = writer.one(f"grad_{writer.local[Node('state', (), name)]}_start", "grad_state", index)
        lines.append(f"{target} = {writer.row(writer.local[Node('next_grad', (), name)])}")
    return ["for i in range(count):", *indented(lines)] if lines else []
