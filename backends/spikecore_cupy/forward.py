"""Forward kernels: all steps of a program."""

from __future__ import annotations

from typing import List

from spikecore.kernels import ForwardPlan
from spikecore_cupy.chunks import ChunkWriter
from spikecore_cupy.lines import over_neurons
from spikecore_cupy.parts import Form, Function, Source


class ForwardWriter(ChunkWriter):
    """Writes the forward kernel of a plan."""

    plan: ForwardPlan

    def __init__(self, plan: ForwardPlan, form: Form) -> None:
        super().__init__(plan, "forward", form, plan.roots)
        self._grouped = self.takes_groups(())
        #: The tensors of outputs, and the variables that hold a step of each.
        self._tensors = [self.output_name(k) for k in range(len(plan.program.outputs))]
        words = ["out"] if len(self._tensors) == 1 else [f"out{k}" for k in range(len(self._tensors))]
        self._outs = [self.free(word) for word in words]
        self._states = [self.state(name) for name in plan.program.states]

    def source(self) -> Source:
        """The kernel."""
        plan, program, states = self.plan, self.program, self._states
        # states come before outputs in the function's arguments, as in the call of it
        results = {f"new_{name}": node for name, node in zip(states, program.next)}
        step = self.function("step", {**results, **dict(zip(self._outs, program.outputs))})
        starts = []
        for name, state in zip(program.states, states):
            starts += [self.pack(state), *self.starting(name, state)]
        # an input that no value of the step is computed from is not loaded
        inputs = self.input_streams(step)
        # states stay in registers; only the last value goes to memory, and only where somebody asks for it
        ending = [self.store(self.one(f"{s}_end", "final", k), s) for k, s in enumerate(states) if plan.final]
        saving = [self.store(self.saved_at(name), self.state(name)) for name in plan.saved]
        loads = self.loads(inputs, len(program.outputs))
        steps = self.over_steps([*self.numbers(inputs), *self._step(step)])
        chunks = self.forward_chunks(saving, [*loads, *steps, *self.written()])
        # offsets are those of tensors in the lines of the steps
        each, until = [*self.offsets(), *starts, *chunks, *ending], "neurons"
        if self._grouped:
            until, each = self.argument("span", "span"), self.over_groups(each)
        return self.finished([step], [*self.leaving(until), *self.opening(), *each])

    def _step(self, step: Function) -> List[str]:
        """One step of all neurons of a thread: compute, store outputs and what is recorded."""
        targets, convert = [f"{name}[j]" for name in self._states], []
        if self.stored == self.real:
            targets += [f"{out}[j]" for out in self._outs]
        else:
            # a pack of 16-bit numbers has no references to them, so a function sets a number of arithmetic instead
            targets += [self.unique(f"{out}_j") for out in self._outs]
            convert = [
                f"{out}.set(j, {self.conversion(node)}({self.unique(f'{out}_j')}));"
                for out, node in zip(self._outs, self.program.outputs)
            ]
        declare = [f"{self.real} {', '.join(self.unique(f'{out}_j') for out in self._outs)};"] if convert else []
        lines = [self.pack(out, self.stored) for out in self._outs]
        # stores come after all neurons of the thread: one store moves a pack
        lines += over_neurons([*declare, self.call(step, targets, {}), *convert])
        for k, (out, tensor) in enumerate(zip(self._outs, self._tensors)):
            lines.append(self.store_step(tensor, "outputs", k, out))
        for k, state in enumerate(self.plan.record):
            name = self.state(state)
            lines.append(self.store(self.all(f"{name}_trace", "trace", k), name))
        return lines
