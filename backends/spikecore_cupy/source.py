"""Kernels as text: a plan printed as CUDA C++.

A thread owns V neighbouring neurons and runs all their time steps; states stay in registers. Steps go in chunks: all
loads of a chunk come before the first use, so that memory is not waited for one step at a time. Up to 16 steps are one
chunk, whose length is a constant; more are chunks of a constant length or one less (``chunks``). Forward writes, for
more, the states before every chunk but the first that the adjoint is computed from; backward starts each chunk from
them, recomputes them inside, and runs the adjoint back through it.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Union

from spikecore.kernels import BackwardPlan, ForwardPlan, smallest_cut
from spikecore.kernels.writing import (
    indented,
    output_cotangent,
    state_cotangent,
)
from spikecore.lang import Node, topological
from spikecore_cupy.chunks import ChunkWriter
from spikecore_cupy.derivative import derivative, inputs_in_halves
from spikecore_cupy.text import Form, Function, Source, Stream, over_neurons


class ForwardWriter(ChunkWriter):
    """Writes the forward kernel of a plan."""

    plan: ForwardPlan

    def __init__(self, plan: ForwardPlan, form: Form) -> None:
        super().__init__(plan, "forward", form, plan.roots)
        self.is_grouped = self.takes_groups(())
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
        steps = self.steps(inputs, self._step(step))
        chunks = self.forward_chunks(saving, [*loads, *steps, *self.written()])
        # offsets are those of tensors in the lines of the steps
        each, until = [*self.offsets(), *starts, *chunks, *ending], "neurons"
        if self.is_grouped:
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
        if step.template:
            return [*self._verified(step), *self._stores()]
        declare = [f"{self.real} {', '.join(self.unique(f'{out}_j') for out in self._outs)};"] if convert else []
        lines = [self.pack(out, self.stored) for out in self._outs]
        # stores come after all neurons of the thread: one store moves a pack
        lines += over_neurons([*declare, self.call(step, targets, {}), *convert])
        return [*lines, *self._stores()]

    def _verified(self, step: Function) -> List[str]:
        """One step of all neurons, which may be computed twice."""
        following = [self.unique(f"{name}_following") for name in self._states]
        numbers = [self.unique(f"{out}_number") for out in self._outs]
        lines = [self.pack(name) for name in (*following, *numbers)]
        lines += self.each(step, [f"{name}[j]" for name in (*following, *numbers)], {})
        lines += [f"{name} = {new};" for name, new in zip(self._states, following)]
        lines += [self.pack(out, self.stored) for out in self._outs]
        for out, node, number in zip(self._outs, self.program.outputs, numbers):
            text = f"{number}[j]" if self.stored == self.real else f"{self.conversion(node)}({number}[j])"
            lines += over_neurons([f"{out}.set(j, {text});"])
        return lines

    def _stores(self) -> List[str]:
        """Stores of a step's outputs and of what is recorded."""
        lines = []
        for k, (out, tensor) in enumerate(zip(self._outs, self._tensors)):
            lines += self.store_step(tensor, "outputs", k, out)
        for k, state in enumerate(self.plan.record):
            name = self.state(state)
            lines += self.store_step(f"{name}_trace", "trace", k, name)
        return lines


class BackwardWriter(ChunkWriter):
    """Writes the backward kernel of a plan."""

    plan: BackwardPlan

    def __init__(self, plan: BackwardPlan, form: Form) -> None:
        self._derivative = rule = derivative(plan)
        # the kernel computes the adjoint, and again the states that it is computed from
        roots = [*rule.roots, *plan.following.values()]
        super().__init__(plan, "backward", form, [*roots, *rule.factors.values()], rule.approximate)
        #: Values that are kept of every recomputed step of a chunk, by name.
        self._kept = self.kept_values(smallest_cut(rule.roots, inputs_in_halves(plan) if form.again else ()))
        #: The states that are recomputed, those whose cotangents are carried, and the latter's variables.
        self._states = plan.recomputed_states
        self._carried = {name: self.carried(name) for name in plan.carried_cotangents}
        #: True if a thread has several groups of neighbouring neurons, whose parts of a sum it adds up. It reads its
        #: parameters once, so neurons of all groups have the same: one that all neurons share, or that of a channel.
        self.is_grouped = not plan.summed and self.takes_groups(plan.learn)
        #: Inputs that broadcast, whose gradients are summed over the threads of a block.
        self._added = [plan.program.inputs[index] for index in plan.summed]
        #: Learnt parameters of one value for all neurons: their gradient is summed over the threads of a block.
        self._scalars = [name for name in plan.learn if self.kinds[name] == "scalar"]
        #: Learnt parameters per channel whose gradient is summed over the threads of a block.
        self._summed = [name for name in plan.learn if form.sums and self.kinds[name] == "channel"]

    def source(self) -> Source:
        """The kernel."""
        step, adjoint = self.function("step", self._recomputed()), self._adjoint()
        # where the adjoint is computed from inputs and cotangents alone, no step is computed again
        before = self.input_streams(step) if self._kept else []
        back = [*self.input_streams(adjoint), *self._cotangents()]
        self.loops, self.twice = (2 if self._kept else 1), [stream.name for stream in before if stream in back]
        # an input that both read is loaded once
        chunk = self.loads([*before, *(stream for stream in back if stream not in before)], len(self.plan.wanted))
        chunk += self._recomputation(step, before) if self._kept else []
        copies = self._copies(adjoint)
        chunk += [f"Pack<{self.real}, V> {self._grad_input(name)}[T] = {{}};" for name in self._added]
        chunk += self.steps(back, self._adjoint_step(adjoint, copies), backwards=True)
        chunk += [*self._input_sums(), *self.written()]
        chunks = self.backward_chunks(chunk)
        each = [*self._first_cotangents(), *chunks, *self._last_cotangents()]
        # behind all lines that read or write a tensor of all steps
        each = [*self.offsets(), *each]
        until = "neurons"
        if self.is_grouped:
            until, each = self.argument("span", "span"), self.over_groups(each)
        scaled = [line for name, node in self._derivative.factors.items() for line in self._scaled(name, node)]
        zero = self._zero_sums()
        again = [line for node, name in copies.items() for line in self._copied(node, name)]
        body = [*self.opening(), *again, *([] if self._summed else zero), *each, *scaled, *self._store_sums()]
        if self._added:
            body = [f"BLOCK_SHARED Pack<{self.real}, V> {self.unique('parts')}[T * {self.form.threads}];", *body]
        functions = [step, adjoint] if self._kept else [adjoint]
        if not (self._scalars or self._summed):
            return self.finished(functions, [*self.leaving(until), *body])
        # every thread of a block takes part in the sums, those without neurons, too
        sums, after = [], []
        for name in self._scalars:
            total = self._sum(name)
            tensor = self.argument(f"{total}s", "sum", "grad_params", self.plan.learn.index(name))
            sums.append(f"{self.real} {total} = {self.printer.number(0.0)};")
            if self._added:
                # a thread without neurons has computed those of another one
                after.append(f"if (!{self.unique('tile')}.active) {total} = {self.printer.number(0.0)};")
            after += [f"{total} = block_sum({total});", f"if (threadIdx.x == 0) {tensor}[blockIdx.x] = {total};"]
        for name in self._summed:
            after += self.block_sum(self._sum(name), self.plan.learn.index(name))
        if self._summed:
            sums += zero
            after.insert(0, f"BLOCK_SHARED {self.real} {self.unique('parts')}[{self.form.threads} * V];")
        inside = body if self._added else [f"if ({self.first} < {until}) {{", *indented(body), "}"]
        return self.finished(functions, [*sums, *inside, *after])

    # -- device functions

    def _recomputed(self) -> Dict[str, Node]:
        """Values of a recomputed step: states that the next one needs, and what the adjoint is computed from."""
        following = {f"new_{self.state(name)}": node for name, node in self.plan.following.items()}
        return {**following, **{f"kept_{name}": node for node, name in self._kept.items()}}

    def _adjoint(self) -> Function:
        """The device function of one step backwards."""
        rule, inputs = self._derivative, self.program.inputs
        # an input gradient that nobody wants is not computed
        results = {self._grad_input(inputs[index]): rule.inputs[index] for index in self.plan.wanted}
        results.update((f"new_{self.carried(name)}", node) for name, node in rule.states.items())
        sums = {self._sum(name): node for name, node in zip(self.plan.learn, rule.params)}
        return self.function("adjoint", results, sums, self._kept)

    # -- steps

    def _recomputation(self, step: Function, inputs: Sequence[Stream]) -> List[str]:
        """The steps of a chunk again, which keep what the adjoint is computed from."""
        ahead = self.form.ahead
        self.states_ahead = self._states if ahead else ()
        lines: List[str] = [self.wait()] if ahead else []
        states = [self.state(name) for name in self._states]
        for name, state in zip(self._states, states):
            # the first chunk starts at rest or from given states, every other one from its checkpoint
            first = self.starting(name, state)
            if not self.fixed:
                # arguments are in the order in which lines first name them, which is the same in all forms of a plan
                place = self.saved_at(name)
                saved = f"{state} = {f'{self.ahead(state)}.get(0)' if ahead else self.load(place)};"
                first = ["if (chunk == 0) {", *indented(first), "} else {", *indented([saved]), "}"]
            lines += [self.pack(state), *first]
        lines += self.fetched_states()
        kept = [self.kept_of_step(name) for name in self._kept.values()]
        if not self.form.aside:
            lines += [f"Pack<{self.real}, V> {name}[T];" for name in self._kept.values()]
        targets = [*(f"{state}[j]" for state in states), *(f"{name}[j]" for name in kept)]
        body = over_neurons([self.call(step, targets, {})])
        if step.template:
            following = [self.unique(f"{state}_following") for state in states]
            body = [self.pack(name) for name in following]
            body += self.each(step, [*(f"{name}[j]" for name in following), *targets[len(states) :]], {})
            body += [f"{state} = {new};" for state, new in zip(states, following)]
        if self.form.aside:
            body = [*map(self.pack, kept), *body]
            body += [self.put_aside(name, self.real, value) for name, value in zip(self._kept.values(), kept)]
        if self.stored != self.real and not (self.form.staged or ahead):
            # 16-bit numbers stay two to a register until this line
            body = [*(f"hold({stream.name}[t]);" for stream in inputs), *body]
        return [*lines, *self.steps(inputs, body)]

    def _taken_again(self, adjoint: Function) -> List[Node]:
        """The inputs that the adjoint takes once more from registers that hold two numbers each."""
        halves = inputs_in_halves(self.plan) if self.form.again else ()
        return [node for node in adjoint.takes if node in halves]

    def _copies(self, adjoint: Function) -> Dict[Node, str]:
        """Of what is known before the first step, that which the adjoint needs to compute again what a step computed;
        and the names of the copies that it takes instead, for the compiler would keep what a step computed.
        """
        if not self.form.again:
            return {}
        before = [*self.uniform, *self.varying]
        known = {node for node in (*self._one, *self._many, *before) if not node.is_bool}
        stepped = {*topological([*self.plan.following.values(), *self._kept], known=before)}
        # what is computed from a number that is taken once more is computed again without a copy
        fresh = set(self._taken_again(adjoint))
        copied = set()
        for node in topological(self._derivative.roots, known=[*before, *self._kept]):
            if node.args and node in stepped and node not in self._kept:
                if fresh.isdisjoint(node.args):
                    copied.update(known.intersection(node.args))
                fresh.add(node)
        return {node: self.unique(f"{self.local[node]}_again") for node in adjoint.takes if node in copied}

    def _copied(self, node: Node, name: str) -> List[str]:
        """Lines that copy what is known before the first step."""
        if node in self.shared:
            return [f"const {self.real} {name} = again({self.local[node]});"]
        return [self.pack(name), *over_neurons([f"{name}[j] = again({self.local[node]}[j]);"])]

    def _adjoint_step(self, adjoint: Function, copies: Dict[Node, str]) -> List[str]:
        """One step backwards of all neurons of a thread."""
        where = {node: f"{self.kept_of_step(name)}[j]" for node, name in self._kept.items()}
        where.update((node, name if node in self.shared else f"{name}[j]") for node, name in copies.items())
        for k in range(len(self.program.outputs)):
            leaf = output_cotangent(k)
            where[leaf] = self.value(f"{self.of_step(self.local[leaf])}[j]")
        for name, carried in self._carried.items():
            # the cotangent of a recorded state is added to that which the later step gave
            traced = f" + {self.of_step(self._trace(name))}[j]" if name in self.plan.trace else ""
            where[state_cotangent(name)] = f"{carried}[j]{traced}"
        exact = self.stored == self.real
        grads, targets = [self._grad_input(self.program.inputs[index]) for index in self.plan.written], []
        for index in self.plan.wanted:
            name = self._grad_input(self.program.inputs[index])
            where_to = f"{name}[j]" if exact else self.unique(f"{name}_j")
            # what a block adds up is kept for all steps of a chunk, in the dtype of arithmetic
            targets.append(f"{name}[t][j]" if index in self.plan.summed else where_to)
        targets += [f"{carried}[j]" for carried in self._carried.values()]
        targets += [self._sum(name) + ("" if name in self._scalars else "[j]") for name in self.plan.learn]
        # only what the adjoint reads: a held number that nobody reads would still take its register
        apart = exact or self.form.staged or self.form.ahead
        late = [self.local[node] for node in adjoint.takes if node.op == "out_grad" and not apart]
        lines = [f"hold({name}[t]);" for name in late]
        lines += [f"take_again({self.local[node]}[t]);" for node in self._taken_again(adjoint)]
        lines += [self.pack(name, self.stored) for name in grads]
        # without, the compiler computes what does not depend on later steps for all steps first, and runs out of
        # registers
        holds = [f"hold({carried}[j]);" for carried in self._carried.values()]
        if self.form.aside:
            kept = self._kept.values()
            lines += [f"const auto {self.kept_of_step(name)} = {self.ahead(name)}.get(t);" for name in kept]
        else:
            holds += [f"hold({name}[t][j]);" for name in self._kept.values()]
        if adjoint.template:
            # what it adds to may be added once
            targets.append("plain")
            holds.append("Plain plain;")
        inner = [*holds, self.call(adjoint, targets, where)]
        if grads and not exact:
            inner.insert(0, f"{self.real} {', '.join(self.unique(f'{name}_j') for name in grads)};")
            inner += [f"{name}.set(j, rounded<{self.stored}>({self.unique(f'{name}_j')}));" for name in grads]
        lines += over_neurons(inner)
        for k, name in enumerate(grads):
            lines += self.store_step(f"{name}s", "grad_inputs", k, name, backwards=True)
        return lines

    def _input_sums(self) -> List[str]:
        """Lines that add up, over a block, the gradients of a chunk's steps of inputs that broadcast."""
        lines = []
        parts, add = self.unique("parts"), f"{self.unique('tile')}.add"
        for k, index in enumerate(self.plan.summed):
            name, k = self._grad_input(self._added[k]), k + len(self.plan.learn)
            tensor = self.argument(f"{name}s", "sum", "grad_params", k)
            step = self.argument(f"{name}s_step", "parts_step", "grad_params", k)
            over = "_all" if self.input_kind(index) == "step" else ""
            place = tensor if self.fixed else f"{tensor} + begin * {step}"
            lines.append(f"{add}{over}({parts}, {place}, {step}, {self._length}, {name});")
        return lines

    # -- cotangents

    def _first_cotangents(self) -> List[str]:
        """Lines that set the carried cotangents before the last step."""
        lines, zero = [], self.printer.number(0.0)
        for name, carried in self._carried.items():
            lines.append(self.pack(carried))
            if self.plan.final:
                # the launch gets one tensor for each state, carried or not
                end, index = f"grad_{self.state(name)}_end", self.program.states.index(name)
                lines.append(f"{carried} = {self.load(self.one(end, 'grad_final', index))};")
            else:
                lines += over_neurons([f"{carried}[j] = {zero};"])
        return lines

    def _zero_sums(self) -> List[str]:
        """The gradients of parameters with a sum for each neuron of a thread, before the first step."""
        lines, zero = [], self.printer.number(0.0)
        for name in self.plan.learn:
            if name not in self._scalars:
                lines += [self.pack(self._sum(name)), *over_neurons([f"{self._sum(name)}[j] = {zero};"])]
        return lines

    def _cotangents(self) -> List[Stream]:
        """The cotangents that arrive for every step."""
        streams = []
        for k, index in enumerate(self.plan.arriving):
            tensor = f"grad_{self.output_name(index)}"
            streams.append(Stream(self.local[output_cotangent(index)], self.stored, tensor, "grad_outputs", k))
        for k, name in enumerate(self.plan.trace):
            if name in self._carried:
                trace = self._trace(name)
                streams.append(Stream(trace, self.real, f"{trace}s", "grad_trace", k))
        return streams

    def _last_cotangents(self) -> List[str]:
        """Stores of the gradients of initial states."""
        lines = []
        for k, name in enumerate(self.program.states if self.plan.state else ()):
            target = self.one(f"grad_{self.state(name)}_start", "grad_state", k)
            lines.append(self.store(target, self.carried(name)))
        return lines

    def _store_sums(self) -> List[str]:
        """Stores of the gradients of parameters, of which each neuron of a thread has a sum."""
        lines = []
        for k, name in enumerate(self.plan.learn):
            if name not in self._scalars and name not in self._summed:
                total = self._sum(name)
                tensor = self.argument(f"{total}s", "sum", "grad_params", k)
                lines.append(f"store({tensor} + {self.first}, {total});")
        return lines

    def _scaled(self, name: str, factor: Node) -> List[str]:
        """The product of a sum with what is a factor of all its parts."""
        by = self.printer.expression(factor, {}) if factor.op == "const" else self.at(factor)
        return over_neurons([f"{self._sum(name)}[j] *= {by};"])

    # -- names

    def _grad_input(self, name: str) -> str:
        return self.unique(f"grad_{self.input(name)}")

    def _sum(self, name: str) -> str:
        return self.unique(f"grad_{self.param(name)}")

    def _trace(self, name: str) -> str:
        return self.unique(f"grad_{self.state(name)}_t")


def print_kernel(plan: Union[ForwardPlan, BackwardPlan], form: Form) -> Source:
    """The kernel of a plan, in a form."""
    if isinstance(plan, ForwardPlan):
        return ForwardWriter(plan, form).source()
    return BackwardWriter(plan, form).source()
