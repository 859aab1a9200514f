"""Backward kernels: steps computed again, and the adjoint through them from the last to the first."""

from __future__ import annotations

from typing import Dict, List, Sequence

from spikecore.kernels import BackwardPlan, smallest_cut, with_reciprocals
from spikecore.kernels.writing import (
    indented,
    input_leaf,
    output_cotangent,
    state_cotangent,
    state_leaf,
)
from spikecore.lang import Node, loop_invariant, topological
from spikecore_triton.chunk import Chunk, in_every_lane, load, store
from spikecore_triton.writer import CHUNK, Source, Writer

#: The names of values at one step of a chunk.
Names = Dict[Node, str]


class BackwardWriter(Writer):
    """Writes the backward kernel of a plan; ``left`` as for ``print_kernel``."""

    plan: BackwardPlan

    def __init__(self, plan: BackwardPlan, left: int) -> None:
        # the kernel computes the adjoint, and again the states that it is computed from
        roots, following = _roots(plan), [*plan.following.values()]
        super().__init__(plan, "backward", [*roots, *following])
        self._left = left
        self._opening = self.opening()
        #: Values, other than inputs, that are kept of every recomputed step -> their names.
        self._kept = self.kept_values(smallest_cut(roots))
        #: Recomputes a step: returns the states that are needed after it, and the values to keep; None if there are
        #: none.
        self._following = self.function("following", [*following, *self._kept]) if self._kept else None
        #: Names of the sums, one for each learnt parameter.
        self._sums = [self.free(f"sum_{self.param(name)}") for name in plan.learn]
        self._adjoint = self.function("adjoint", roots, self._kept)
        self._carried = {name: self.carried(name) for name in plan.carried_cotangents}

    def source(self) -> Source:
        """The kernel."""
        body = [*self._opening, *self._first_cotangents()]
        starts = {name: self.start(name) for name in self.plan.recomputed_states}
        if self.plan.spec.steps is not None:
            body = self._chunk(Chunk("", self.plan.spec.steps, ""), starts, body)
        else:
            body += self._through_chunks(starts)
        return self.finished([*body, *self._last_cotangents()])

    # -- chunks

    def _through_chunks(self, starts: Dict[str, str]) -> List[str]:
        """The rest of the steps first, then all chunks from the last one back."""
        chunks = self.argument("chunks", "chunks")
        # computed before the loop: a masked load takes them in place of the first chunk's checkpoint
        names = {name: self.free(f"{self.state(name)}_first") for name in starts}
        lines = [f"{names[name]} = {start}" for name, start in starts.items()]
        if self._left:
            saved = {name: load(self.checkpoint(name, chunks)) for name in starts}
            lines += [f"tail = {chunks} * {CHUNK}", *self._chunk(Chunk("tail", self._left, "last_"), saved)]
        # the first chunk has no checkpoint: its states are the initial ones
        where = "(inside & (chunk > 0)) != 0"
        saved = {name: load(self.checkpoint(name, "chunk"), where, names[name]) for name in starts}
        inner = [f"chunk = {chunks} - 1 - turn", f"first = chunk * {CHUNK}"]
        inner += self._chunk(Chunk("first", CHUNK, ""), saved)
        return [*lines, f"for turn in range({chunks}):", *indented(inner)]

    def _chunk(self, chunk: Chunk, starts: Dict[str, str], before: Sequence[str] = ()) -> List[str]:
        """Load a chunk, compute its steps again from how it starts, and run the adjoint from its last step to its
        first.
        """
        # what neither function takes is not loaded
        wanted = {*self._adjoint.leaves, *(self._following.leaves if self._following else ())}
        values: List[Names] = [dict(self.fixed) for _ in range(chunk.steps)]
        leaves = [(input_leaf(name), "inputs", k) for k, name in enumerate(self.program.inputs)]
        leaves += [(output_cotangent(index), "grad_outputs", k) for k, index in enumerate(self.plan.arriving)]
        lines: List[str] = []
        for leaf, group, index in leaves:
            if leaf in wanted:
                for now, name in zip(values, self.load_all(lines, leaf, group, index, chunk)):
                    now[leaf] = name
        self._load_cotangents(chunk, lines, values)
        return [*lines, *before, *self._steps_again(chunk, values, starts), *self._adjoint_steps(chunk, values)]

    def _steps_again(self, chunk: Chunk, values: List[Names], starts: Dict[str, str]) -> List[str]:
        """Compute the steps of a chunk again, and keep what the adjoint is computed from."""
        if self._following is None:
            return []
        leaves = {name: state_leaf(name) for name in starts}
        states = {name: self.local[leaf] for name, leaf in leaves.items()}
        if chunk.prefix:
            # a variable that the loop sets, too, would be carried from one to the other
            states = {name: self.free(f"{chunk.prefix}{local}") for name, local in states.items()}
        lines = [f"{local} = {starts[name]}" for name, local in states.items()]
        for t, now in enumerate(values):
            names = {node: self.free(f"{chunk.prefix}{name}_{t}") for node, name in self._kept.items()}
            before = {**now, **{leaf: states[name] for name, leaf in leaves.items()}}
            lines += self.held(self._following, now)
            lines.append(f"{', '.join([*states.values(), *names.values()])} = {self._following.call(before)}")
            now.update(names)
        return lines

    def _adjoint_steps(self, chunk: Chunk, values: List[Names]) -> List[str]:
        plan, program = self.plan, self.program
        moved = [self.input(program.inputs[index]) for index in plan.wanted]
        inputs = [self.free(f"{chunk.prefix}grad_{local}") for local in moved]
        learnt = [f"grad_{self.param(name)}" for name in plan.learn]
        params = [self.free(f"{chunk.prefix}{local}_part") for local in learnt]
        nodes = dict(zip(program.states, plan.adjoint.states))
        carried = [*self._carried.values()]
        uniform = [local for name, local in self._carried.items() if not self.varies(nodes[name])]
        lines = []
        # a step's cotangents are computed from those of the step after it
        for t in reversed(range(chunk.steps)):
            taken = [*(values[t][node] for node in self._kept), *carried]
            lines += self.held(self._adjoint, values[t])
            # without, the compiler computes for all steps first what does not depend on later ones
            lines += [f"{name} = hold({name})" for name in taken]
            lines.append(f"{', '.join([*inputs, *carried, *params])} = {self._adjoint.call(values[t])}")
            lines += [in_every_lane(local) for local in uniform]
            for k, (local, name) in enumerate(zip(moved, inputs)):
                lines.append(store(self.all(f"grad_{local}s", "grad_inputs", k, chunk.first, t), name))
            # each lane sums over its steps; lanes are added up once, after the last chunk
            lines += [f"{total} = {total} + {part}" for total, part in zip(self._sums, params)]
        return lines

    # -- cotangents

    def _load_cotangents(self, chunk: Chunk, lines: List[str], values: List[Names]) -> None:
        """The cotangent of each carried state at the end of a step: from the next step, and from the trace."""
        for name, carried in self._carried.items():
            leaf = state_cotangent(name)
            for t, now in enumerate(values):
                now[leaf] = carried
                if name in self.plan.trace and leaf in self._adjoint.leaves:
                    tensor = f"grad_{self.state(name)}_trace"
                    traced = self.free(f"{chunk.prefix}{tensor}_{t}")
                    where = self.all(tensor, "grad_trace", self.plan.trace.index(name), chunk.first, t)
                    lines.append(f"{traced} = {load(where)}")
                    now[leaf] = f"{carried} + {traced}"

    def _first_cotangents(self) -> List[str]:
        """Initial values of what is carried and summed: cotangents of the final state, or zero."""
        zero = "tl.zeros((BLOCK,), tl.float32)"
        lines = []
        for name, carried in self._carried.items():
            tensor, index = f"grad_{self.state(name)}_end", self.program.states.index(name)
            end = load(self.one(tensor, "grad_final", index)) if self.plan.final else zero
            lines.append(f"{carried} = {end}")
        return [*lines, *(f"{name} = {zero}" for name in self._sums)]

    def _last_cotangents(self) -> List[str]:
        """Write the gradients of the initial states, and of the parameters: one per neuron, or one per block."""
        lines = []
        for index, name in enumerate(self.program.states if self.plan.state else ()):
            target = self.one(f"grad_{self.state(name)}_start", "grad_state", index)
            lines.append(store(target, self.carried(name)))
        for index, (name, total) in enumerate(zip(self.plan.learn, self._sums)):
            tensor = f"grad_{self.param(name)}s"
            if self.kinds[name] == "scalar":
                pointer = self.argument(tensor, "pointer", "grad_params", index)
                # lanes without a neuron computed with whatever their masked loads gave
                block = f"tl.sum(tl.where(inside, {total}, 0.0), axis=0)"
                lines.append(f"tl.store({pointer} + tl.program_id(0), {block})")
            else:
                lines.append(store(self.one(tensor, "grad_params", index), total))
        return lines


def _roots(plan: BackwardPlan) -> Sequence[Node]:
    """The results of one step backwards. Where it is rounded to 16 bits, divisions by parameters are products."""
    # a product with a reciprocal is off by two units in the last place, which only rounding to 16 bits hides
    if plan.dtype == plan.compute:
        return plan.roots
    order = topological(plan.roots)
    fixed = {*loop_invariant(order), *(node for node in order if node.op == "param")}
    new = with_reciprocals(order, {*plan.program.nodes, *fixed}, fixed)
    return [new[node] for node in plan.roots]
