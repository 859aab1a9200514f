"""Forward kernels with feedback: the drive ``x + r`` of every step, and the states before every chunk but the first."""

from __future__ import annotations

from typing import List

from spikecore.kernels import ForwardPlan
from spikecore.kernels.writing import indented, input_leaf
from spikecore.lang import Node
from spikecore_cupy.feedback import At, FeedbackWriter
from spikecore_cupy.feedback_shape import Shape, parts_of
from spikecore_cupy.forward import ForwardWriter
from spikecore_cupy.lines import over_neurons
from spikecore_cupy.parts import Form, Function, Source


class FeedbackForwardWriter(FeedbackWriter, ForwardWriter):
    """Writes the forward kernel of a plan with feedback."""

    def __init__(self, plan: ForwardPlan, shape: Shape) -> None:
        parts = 1 if plan.program.outputs[0].op == "spike" else parts_of(plan.dtype)
        length = shape.length
        self.shape = shape._replace(value_parts=parts, length=1, kept=0, arriving=1)
        super().__init__(plan, Form(self.shape.each, length))

    def source(self) -> Source:
        plan, program, states = self.plan, self.program, self._states
        results = {f"new_{name}": node for name, node in zip(states, program.next)}
        step = self.function("step", {**results, self._outs[0]: program.outputs[0]})
        starts = []
        for name, state in zip(program.states, states):
            starts += [self.pack(state), *self.starting(name, state)]
        gave, stored = self.unique("gave"), self.stored
        first = self.one("first", "state", len(program.states))
        starts += [f"const Pack<{stored}, V> before = load<V>({first});", self.pack(gave)]
        starts += over_neurons([f"{gave}[j] = {self.value('before[j]')};"])
        feedback = plan.spec.feedback
        if feedback is not None and feedback.bias:
            bias = self.argument("biases", "pointer", "params", len(program.params) + 1)
            starts.append(f"const Pack<{stored}, V> bias = column_values<V>({bias}, i);")
            added = f" + {self.value('bias[j]')}"
        else:
            added = ""
        # nobody may write to the memory of a block that has not started
        starts.append("i.begin();")
        # the first output may be any number, where the others are spikes
        later = range(1, parts_of(plan.dtype)) if self.shape.value_parts == 1 else ()
        if later:
            starts += self._parts_of_first(gave)
        back = self._rounded(f"{'(back[j] + extra[j])' if later else 'back[j]'}{added}")
        starts += [f"if (i.works()) i.give(1, {gave});", "i.pass(1);", "i.wait(1);"]
        x = input_leaf(program.inputs[0])
        at = self.each_step(f"{self.local[x]}s", "inputs", 0)
        out = self._outs[0]
        inner = [*self._saving(), *over_neurons([self._drive(at, back)]), *self._step_of(step, x, gave)]
        if later:
            inner += over_neurons(["extra[j] = 0.0f;"])
        inner.append(f"i.give(k, {gave});")
        # behind the use of what has arrived, whose place it takes
        after = [f"if (t + 2 < steps) begin_arrival({at('(t + 2)')}, 0, k);"]
        if plan.checkpoints:
            # of `all`, a checkpoint of all steps has no stride
            us = self.argument("drives", "pointer", "checkpoints", 0)
            after.append(f"store({us} + t * neurons + i, drive);")
        after.append(f"store({self.all(self._tensors[0], 'outputs', 0)}, {out});")
        for k, name in enumerate(map(self.state, self.plan.record)):
            after.append(f"store({self.all(f'{name}_trace', 'trace', k)}, {name});")
        steps = [
            "const int t = pair + k;",
            "if (t >= steps) continue;",
            "float back[V];",
            "i.product(1 - k, back);",
            f"Pack<{stored}, V> drive;",
            self.pack(out, stored),
            *self.shared_step(inner, after, "k"),
        ]
        # two steps by name: an array that is not indexed by a constant would be in memory
        loop = [
            "for (int pair = 0; pair < steps; pair += 2) {",
            "    #pragma unroll",
            "    for (int k = 0; k < 2; ++k) {",
        ]
        loop += [*indented(indented(steps)), "    }", "}"]
        ending = [f"store({self.one(f'{s}_end', 'final', k)}, {s});" for k, s in enumerate(states) if plan.final]
        begin = ["constexpr int begin = 0;", *self.arriving_first(self.first_two(at, "k", 0))]
        body = [self.weights(), *self.opening(), *starts, *begin, *loop, "i.end();", *ending]
        return self.finished([step], body)

    def _parts_of_first(self, gave: str) -> List[str]:
        """What comes from the further parts of the output before the first step."""
        parts = parts_of(self.plan.dtype)
        each = [
            # the two buffers take turns, and the second one is that of the first part
            f"const int buffer = ({parts} - part + 1) % 2;",
            *over_neurons(["rest[j] -= first_bits(rest[j]);"]),
            "if (i.works()) i.give(buffer, rest);",
            "i.pass(buffer);",
            "i.wait(buffer);",
            "float more[V];",
            "i.product(buffer, more);",
            *over_neurons(["extra[j] += more[j];"]),
        ]
        return [
            f"Pack<{self.real}, V> rest = {gave};",
            "float extra[V] = {};",
            "#pragma unroll 1",
            f"for (int part = 1; part < {parts}; ++part) {{",
            *indented(each),
            "}",
        ]

    def _rounded(self, text: str) -> str:
        return text if self.stored == self.real else f"value(rounded<{self.stored}>({text}))"

    def _drive(self, at: At, back: str) -> str:
        now = self.value(f"arrived({at('t')}, 0, k, j)")
        total = f"{now} + {back}" if "value(" in back else f"{now} + ({back})"
        return f"drive.set(j, {total if self.stored == self.real else f'rounded<{self.stored}>({total})'});"

    def _saving(self) -> List[str]:
        """Stores of the states before a chunk."""
        if not self.plan.saved:
            return []
        lines = [f"store({self.saved_at(name)}, {self.state(name)});" for name in self.plan.saved]
        return ["if (t && t % T == 0) {", "    const int chunk = t / T;", *indented(lines), "}"]

    def _step_of(self, step: Function, x: Node, gave: str) -> List[str]:
        """One step of a thread's neurons."""
        out, node = self._outs[0], self.program.outputs[0]
        following = [self.unique(f"{name}_following") for name in self._states]
        lines = [self.pack(name) for name in (*following, self.unique(f"{out}_number"))]
        targets = [f"{name}[j]" for name in (*following, self.unique(f"{out}_number"))]
        lines += self.each(step, targets, {x: self.value("drive[j]")})
        lines += [f"{name} = {new};" for name, new in zip(self._states, following)]
        number = targets[-1]
        exact = self.stored == self.real
        lines += over_neurons(
            [
                f"{out}.set(j, {number if exact else f'{self.conversion(node)}({number})'});",
                f"{gave}[j] = {self.value(f'{out}[j]')};",
            ]
        )
        return lines
