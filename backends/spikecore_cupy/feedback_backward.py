"""Backward kernels with feedback: the states of a chunk again from its checkpoint and the drive, without a product, and
the adjoint from its last step to the first. What the adjoint is computed from is kept in shared memory.
"""

from __future__ import annotations

from typing import Callable, List

from spikecore.kernels import BackwardPlan
from spikecore.kernels.writing import indented, input_leaf, output_cotangent, state_cotangent
from spikecore_cupy.backward import BackwardWriter
from spikecore_cupy.feedback import FeedbackWriter
from spikecore_cupy.feedback_shape import Shape, parts_of
from spikecore_cupy.lines import over_neurons
from spikecore_cupy.parts import Form, Function, Source


class FeedbackBackwardWriter(FeedbackWriter, BackwardWriter):
    """Writes the backward kernel of a plan with feedback."""

    def __init__(self, plan: BackwardPlan, shape: Shape) -> None:
        # what the base finds needs a form, whose width depends on the shape alone
        super().__init__(plan, Form(shape.each, shape.length))
        #: Where what is kept of a step lies: the drive first.
        self._slots = {node: k + 1 for k, node in enumerate(self._kept)}
        self.shape = shape._replace(value_parts=parts_of(plan.dtype), kept=1 + len(self._slots))

    def source(self) -> Source:
        adjoint = self._adjoint()
        step = self.function("step", self._recomputed())
        functions = [step, adjoint] if self._kept else [adjoint]
        drive = f"{self.local[input_leaf(self.program.inputs[0])]}s"
        used = any(node.op == "input" for function in functions for node in function.takes)
        streams = self._cotangents()
        # of those that the chunk's last step reads, two steps ahead, from the last step to the first
        ahead: List[str] = []
        following: List[str] = []
        for stream in streams:
            load = self.loading(stream.tensor, stream.group, stream.number)
            ahead += self.first_two(stream.name, stream.kind, load, "steps - 1")
            following += [
                f"const Pack<{stream.kind}, V> {self._now(stream.name)} = {stream.name}[t % 2];",
                f"if (begin + t >= 2) {stream.name}[t % 2] = {load('(begin + t - 2)')};",
            ]
        load_drive = self.loading(drive, "inputs", 0)
        body = [self.weights(), *self.opening(), *self._first_cotangents(), *self._zeros()]
        body += ["const int chunks = (steps + T - 1) / T;", "int begin = (chunks - 1) * T;"]
        if used:
            body += ["if (i.works()) {", *indented(self._first_drives(load_drive)), "}"]
            body.append(f"Pack<{self.stored}, V> earlier[2];")
        if self._kept:
            body += [self.pack(self._next(name)) for name in self._states]
            body += self._states_of("(chunks - 1)", "{")
        body += ahead
        # the last step gets nothing from a later one
        body += [self.pack("gave"), *over_neurons(["gave[j] = 0.0f;"])]
        body += ["i.begin();", "if (i.works()) i.give((steps - 1) & 1, gave);", "i.wait((steps - 1) & 1);"]
        inner = ["const int count = steps - begin < T ? steps - begin : T;"]
        if self._kept:
            inner += ["if (i.works()) {", *indented(self._again(step)), "}"]
            following += self._states_of("(chunk - 1)", "if (chunk && t == (count > 1)) {")
        inner += [
            "#pragma unroll 2",
            "for (int t = T - 1; t >= 0; --t) {",
            "    if (t >= count) continue;",
            *indented(following),
        ]
        if used:
            # two steps ahead, as all that is loaded
            inner += ["    if (chunk) {", *indented(indented(self._earlier("t + 2", "t % 2", "t + 2 < count")))]
            inner += [f"        earlier[t % 2] = {load_drive('(begin + t - T)')};", "    }"]
        inner += ["    float back[V];", "    i.product(t % 2, back);", "    if (i.works()) {"]
        inner += indented(indented(self._back_step(adjoint)))
        inner += ["        i.give(1 - t % 2, gave);", "    }", "    i.wait(1 - t % 2);", "}"]
        if used:
            last = [line for t in range(2) for line in self._earlier(str(t), str(t), f"{t} < count")]
            inner += ["if (chunk) {", *indented(last), "}"]
        inner.append("begin -= T;")
        body += ["for (int chunk = chunks - 1; chunk >= 0; --chunk) {", *indented(inner), "}"]
        scaled = [line for name, node in self._derivative.factors.items() for line in self._scaled(name, node)]
        body += ["if (i.works()) {", *indented([*self._last_cotangents(), *scaled, *self._store_sums()]), "}"]
        for name in self._scalars:
            total = self._sum(name)
            tensor = self.argument(f"{total}s", "sum", "grad_params", self.plan.learn.index(name))
            of_block = self.unique(f"{total}_block")
            body += [
                f"const {self.real} {of_block} = block_sum(own_sum({total}, i));",
                f"if (threadIdx.x == 0) {tensor}[blockIdx.x] = {of_block};",
            ]
        return self.finished(functions, body)

    def _now(self, stream: str) -> str:
        """What a stream has for the step that is computed."""
        return self.unique(f"{stream}_now")

    def _zeros(self) -> List[str]:
        lines = []
        for name in self.plan.learn:
            lines += [
                self.pack(self._sum(name)),
                *over_neurons([f"{self._sum(name)}[j] = {self.printer.number(0.0)};"]),
            ]
        return lines

    def _first_drives(self, load: Callable[[str], str]) -> List[str]:
        """The drive of the last chunk, and what is behind it of the chunk before: each step puts one in its place."""
        here = [
            "const int from = begin + t < steps ? t : t - T;",
            "if (begin + from < 0) continue;",
            f"const Pack<{self.stored}, V> found = {load('(begin + from)')};",
            *over_neurons([f"i.kept(t, 0, j) = {self.value('found[j]')};"]),
        ]
        return ["for (int t = 0; t < T; ++t) {", *indented(here), "}"]

    def _earlier(self, step: str, place: str, where: str) -> List[str]:
        """What was loaded of the chunk before takes the place of a step that is done."""
        keep = over_neurons([f"i.kept({step}, 0, j) = {self.value(f'earlier[{place}][j]')};"])
        return [f"if ({where} && i.works()) {{", *indented(keep), "}"]

    def _next(self, name: str) -> str:
        """The state before the next chunk to be computed: loaded while the chunk behind it goes on."""
        return self.unique(f"{self.state(name)}_next")

    def _states_of(self, chunk: str, head: str) -> List[str]:
        """Loads of the states before a chunk."""
        if not self._states:
            return []
        first, saved = [], []
        for name in self._states:
            target = self._next(name)
            first += self.starting(name, target)
            saved.append(f"{target} = load<V>({self.saved_at(name, chunk)});")
        inner = [f"if ({chunk} == 0) {{", *indented(first), "} else {", *indented(saved), "}"]
        return [head, *indented(inner), "}"]

    def _again(self, step: Function) -> List[str]:
        """The steps of a chunk again, which keep what the adjoint is computed from."""
        lines: List[str] = []
        states = [self.state(name) for name in self._states]
        for name, state in zip(self._states, states):
            lines.append(f"Pack<{self.real}, V> {state} = {self._next(name)};")
        slots = [f"i.kept(t, {self._slots[node]}, j)" for node in self._kept]
        where = {input_leaf(name): "i.kept(t, 0, j)" for name in self.program.inputs}
        following = [self.unique(f"{state}_following") for state in states]
        inner = [self.pack(name) for name in following]
        inner += self.each(step, [*(f"{name}[j]" for name in following), *slots], where)
        inner += [f"{state} = {new};" for state, new in zip(states, following)]
        return [*lines, "for (int t = 0; t < count; ++t) {", *indented(inner), "}"]

    def _back_step(self, adjoint: Function) -> List[str]:
        """One step backwards of a thread's neurons."""
        where = {node: f"i.kept(t, {slot}, j)" for node, slot in self._slots.items()}
        where.update((input_leaf(name), "i.kept(t, 0, j)") for name in self.program.inputs)
        cotangent = output_cotangent(0)
        where[cotangent] = f"{self.value(f'{self._now(self.local[cotangent])}[j]')} + back[j]"
        for name, carried in self._carried.items():
            traced = f" + {self._now(self._trace(name))}[j]" if name in self.plan.trace else ""
            where[state_cotangent(name)] = f"{carried}[j]{traced}"
        grad = self._grad_input(self.program.inputs[0])
        exact = self.stored == self.real
        targets = [f"{grad}[j]" if exact else self.unique(f"{grad}_j")]
        targets += [f"{carried}[j]" for carried in self._carried.values()]
        targets += [f"{self._sum(name)}[j]" for name in self.plan.learn]
        # what it adds to may be added once
        inner = [self.call(adjoint, [*targets, *(["plain"] if adjoint.template else [])], where)]
        if adjoint.template:
            inner.insert(0, "Plain plain;")
        if exact:
            inner.append(f"gave[j] = {grad}[j];")
        else:
            number = self.unique(f"{grad}_j")
            inner = [f"{self.real} {number};", *inner, f"{grad}.set(j, rounded<{self.stored}>({number}));"]
            inner.append(f"gave[j] = value({grad}[j]);")
        lines = [self.pack(grad, self.stored), *over_neurons(inner)]
        return [*lines, f"store({self.all(f'{grad}s', 'grad_inputs', 0)}, {grad});"]

    def _store_sums(self) -> List[str]:
        lines = []
        for k, name in enumerate(self.plan.learn):
            if name not in self._scalars:
                total = self._sum(name)
                lines.append(f"store({self.argument(f'{total}s', 'sum', 'grad_params', k)} + i, {total});")
        return lines
