"""Forward kernels: all steps of a program."""

from __future__ import annotations

from typing import List

from spikecore.kernels import ForwardPlan
from spikecore.kernels.writing import indented, state_leaf
from spikecore.lang import Node
from spikecore_triton.chunk import Chunk, in_every_lane, store
from spikecore_triton.writer import CHUNK, Function, Source, Writer


class ForwardWriter(Writer):
    """Writes the forward kernel of a plan; ``left`` as for ``print_kernel``."""

    plan: ForwardPlan

    def __init__(self, plan: ForwardPlan, left: int) -> None:
        super().__init__(plan, "forward", plan.roots)
        self._left = left
        self._states = [self.state(name) for name in plan.program.states]

    def source(self) -> Source:
        """The kernel."""
        body = self.opening()
        # states are variables of the kernel, so they stay in registers over all steps
        body += [f"{local} = {self.start(name)}" for name, local in zip(self.program.states, self._states)]
        step = self.function("step", self.plan.roots)
        if self.plan.spec.steps is not None:
            body += self._chunk(step, Chunk("", self.plan.spec.steps, ""))
        else:
            body += self._through_chunks(step)
        if self.plan.final:
            body += [store(self.one(f"{local}_end", "final", k), local) for k, local in enumerate(self._states)]
        return self.finished(body)

    def _through_chunks(self, step: Function) -> List[str]:
        """All whole chunks, then what is left over."""
        chunks = self.argument("chunks", "chunks")
        # the first chunk has no checkpoint: no lane stores one
        inner = [f"first = chunk * {CHUNK}", *self._checkpoints("chunk", "(inside & (chunk > 0)) != 0")]
        inner += self._chunk(step, Chunk("first", CHUNK, ""))
        lines = [f"for chunk in range({chunks}):", *indented(inner)]
        if self._left:
            lines += [f"tail = {chunks} * {CHUNK}", *self._checkpoints(chunks, "inside")]
            lines += self._chunk(step, Chunk("tail", self._left, "last_"))
        return lines

    def _checkpoints(self, chunk: str, where: str) -> List[str]:
        """Write the states that backward starts a chunk from."""
        # only states that some adjoint recomputes: the others would be written and never read
        places = [(self.checkpoint(name, chunk), self.state(name)) for name in self.plan.saved]
        return [store(place, local, where) for place, local in places]

    def _chunk(self, step: Function, chunk: Chunk) -> List[str]:
        plan, program, states = self.plan, self.program, self._states
        inputs = [leaf for leaf in step.leaves if leaf.op == "input"]
        lines: List[str] = []
        loaded = [self.load_all(lines, leaf, "inputs", program.inputs.index(str(leaf.attr)), chunk) for leaf in inputs]
        outs = [self._out(node, chunk.prefix) for node in program.outputs]
        values = {**self.fixed, **{state_leaf(name): local for name, local in zip(program.states, states)}}
        for t in range(chunk.steps):
            # all loads of the chunk come before its first step: memory is waited for once
            now = {**values, **{leaf: names[t] for leaf, names in zip(inputs, loaded)}}
            lines += self.held(step, now)
            lines.append(f"{', '.join([*outs, *states])} = {step.call(now)}")
            # a next state may depend on parameters alone; the loop over chunks needs the shape that it began with
            lines += [in_every_lane(local) for local, node in zip(states, program.next) if not self.varies(node)]
            for index, out in enumerate(outs):
                lines.append(store(self.all(self.output_name(index), "outputs", index, chunk.first, t), out))
            for index, name in enumerate(plan.record):
                local = states[program.states.index(name)]
                lines.append(store(self.all(f"{local}_trace", "trace", index, chunk.first, t), local))
        return lines

    def _out(self, node: Node, prefix: str) -> str:
        """The symbol of an output: that of its value in a step, unless the kernel has such a value before its steps."""
        own = not prefix and node in self.program.labels and node not in self.fixed
        return self.label(node, "out") if own else self.free(f"{prefix}{self.program.labels.get(node, 'out')}")
