"""Backward kernels with feedback: the adjoint of all steps, and the states again from checkpoints and the drive.

There is no product for the states. What the adjoint is computed from is kept in shared memory. The states of a chunk
are computed again while the adjoint of the chunk behind it waits for other blocks.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from spikecore.kernels import BackwardPlan
from spikecore.kernels.writing import indented, input_leaf, output_cotangent, state_cotangent
from spikecore_cupy.backward import BackwardWriter
from spikecore_cupy.feedback import At, FeedbackWriter
from spikecore_cupy.feedback_shape import Shape, parts_of
from spikecore_cupy.lines import over_neurons
from spikecore_cupy.parts import Form, Function, Source, Stream

#: The last two steps; k is 0 for the even one.
LAST_TWO = "steps - 1 - ((steps - 1 - k) & 1)"
PASSED = "i.pass((steps - 1) & 1), i.wait((steps - 1) & 1);"
#: While the adjoint goes from the last step of a chunk to the first, the chunk before is computed again from its first
#: step to the last: its step T - 1 - t takes the place of step t, which is done. EARLIER is the time of the step two
#: behind that one, T + 1 - t, whose drive is loaded then; past the chunk's end, a step of the chunk before it.
#: EARLIER_TWO are the times of the two steps that come first, behind the ``done`` ones, which had a place from the
#: beginning. A time is negative where there is no such chunk.
EARLIER_TWO = "begin - T + done + ((done + k) & 1) - (done + ((done + k) & 1) < T ? 0 : 2 * T)"
EARLIER = "begin + 1 - t - (t > 1 ? 0 : 2 * T)"


class FeedbackBackwardWriter(FeedbackWriter, BackwardWriter):
    """Writes the backward kernel of a plan with feedback."""

    def __init__(self, plan: BackwardPlan, shape: Shape) -> None:
        # what the base finds needs a form, whose width depends on the shape alone
        super().__init__(plan, Form(shape.each, shape.length))
        self.shape = shape._replace(value_parts=parts_of(plan.dtype))
        #: What of a stream has arrived for neuron j.
        self._arrived: Dict[str, str] = {}

    def source(self) -> Source:
        adjoint = self._adjoint()
        step = self.function("step", self._recomputed())
        #: Whether the adjoint reads the drive, which is kept first; what of a step is kept, and where.
        self._reads = any(node.op == "input" for node in adjoint.takes)
        self._slots = {node: k + self._reads for k, node in enumerate(self._kept)}
        drives = self._reads or (bool(self._kept) and any(node.op == "input" for node in step.takes))
        streams = self._cotangents()
        self.shape = self.shape._replace(kept=self._reads + len(self._slots), arriving=len(streams) + drives)
        # two steps ahead, from the last step to the first
        first: List[str] = []
        following: List[str] = []
        for k, stream in enumerate(streams):
            at = self.each_step(stream.tensor, stream.group, stream.number)
            first += self.first_two(at, LAST_TWO, k)
            following.append(f"if (begin + t >= 2) begin_arrival({at('(begin + t - 2)')}, {k}, t % 2);")
            found = f"arrived({at('(begin + t)')}, {k}, t % 2, j)"
            self._arrived[stream.name] = self.value(found) if stream.kind == self.stored else found
        body = [self.weights(), *self.opening(), *self._first_cotangents(), *self._zeros()]
        body += ["const int chunks = (steps + T - 1) / T;", "int begin = (chunks - 1) * T;"]
        again: List[str] = []
        if drives or self._kept:
            at, k = self.each_step(f"{self.local[input_leaf(self.program.inputs[0])]}s", "inputs", 0), len(streams)
            body += self._first_again(step, at if drives else None)
            drive = self.value(f"arrived({at('(begin - 1 - t)')}, {k}, 1 - t % 2, j)")
            again += ["if (chunk) {", *indented(self._again(step, drive, "place")), "}"]
            if drives:
                first += self.first_two(at, EARLIER_TWO, k)
                again.append(f"const int ahead = {EARLIER};")
                again.append(f"if (ahead >= 0) begin_arrival({at('ahead')}, {k}, 1 - t % 2);")
            following += self._states_of("(chunk - 2)", "if (chunk > 1 && t == (count > 1)) {")
        body += self.arriving_first(first)
        # the last step gets nothing from a later one
        body += [self.pack("gave"), *over_neurons(["gave[j] = 0.0f;"])]
        body += ["i.begin();", "if (i.works()) i.give((steps - 1) & 1, gave);", PASSED]
        each = [*self._back_step(adjoint, streams[0]), "i.give(1 - t % 2, gave);"]
        grad = self._grad_input(self.program.inputs[0])
        # while other blocks give their numbers
        after = [f"store({self.all(f'{grad}s', 'grad_inputs', 0)}, {grad});", *following, *again]
        inner = ["const int count = steps - begin < T ? steps - begin : T;"]
        if self._kept:
            inner += [
                "if (chunk < chunks - 1 && i.works()) {",
                *(f"    {state} = {self._next(state)};" for state in self._packs()),
                "}",
            ]
        inner += [
            "#pragma unroll 2",
            "for (int t = T - 1; t >= 0; --t) {",
            "    if (t >= count) continue;",
            "    const int place = (chunks - 1 - chunk) & 1 ? T - 1 - t : t;",
            "    float back[V];",
            "    i.product(t % 2, back);",
            f"    {self.pack(grad, self.stored)}",
            *indented(self.shared_step(each, after, "1 - t % 2")),
            "}",
            "begin -= T;",
        ]
        body += ["for (int chunk = chunks - 1; chunk >= 0; --chunk) {", *indented(inner), "}", "i.end();"]
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
        return self.finished([step, adjoint] if self._kept else [adjoint], body)

    def _zeros(self) -> List[str]:
        lines = []
        for name in self.plan.learn:
            lines += [
                self.pack(self._sum(name)),
                *over_neurons([f"{self._sum(name)}[j] = {self.printer.number(0.0)};"]),
            ]
        return lines

    def _packs(self) -> List[str]:
        """The states of the steps that are computed again."""
        return [self.state(name) for name in self._states]

    def _next(self, state: str) -> str:
        """A state before the next chunk to be computed again, which is loaded before."""
        return self.unique(f"{state}_next")

    def _states_of(self, chunk: str, head: str, following: bool = True) -> List[str]:
        """Loads of the states before a chunk: those of the next one to be computed again, or of the present one."""
        if not self._kept or not self._states:
            return []
        first, saved = [], []
        for name in self._states:
            target = self._next(self.state(name)) if following else self.state(name)
            first += self.starting(name, target)
            saved.append(f"{target} = load<V>({self.saved_at(name, chunk)});")
        inner = [f"if ({chunk} == 0) {{", *indented(first), "} else {", *indented(saved), "}"]
        return [head, *indented(inner), "}"]

    def _first_again(self, step: Function, at: Optional[At]) -> List[str]:
        """The steps of the last chunk again, and the first ones of the chunk before, for which there is a place."""
        lines = [line for state in self._packs() for line in (self.pack(state), self.pack(self._next(state)))]
        value = self.value("found[j]")

        def loop(until: str, time: str, place: str) -> List[str]:
            found = [f"const Pack<{self.stored}, V> found = load<V>({at(time)});"] if at is not None else []
            inner = indented([*found, *self._again(step, value, place)])
            return [f"for (int k = 0; k < {until}; ++k) {{", *inner, "}"]

        inner = self._states_of("(chunks - 1)", "{", False) + loop("steps - begin", "(begin + k)", "k")
        before = self._states_of("(chunks - 2)", "{", False) + loop("done", "(begin - T + k)", "T - 1 - k")
        inner += ["if (chunks > 1) {", *indented(before), "}"]
        return [*lines, "const int done = T - (steps - begin);", "if (i.works()) {", *indented(inner), "}"]

    def _again(self, step: Function, drive: str, place: str) -> List[str]:
        """A step again from its drive, which keeps what the adjoint is computed from in a place."""
        lines = over_neurons([f"i.kept({place}, 0, j) = {drive};"]) if self._reads else []
        if not self._kept:
            return lines
        states = self._packs()
        slots = [f"i.kept({place}, {self._slots[node]}, j)" for node in self._kept]
        following = [self.unique(f"{state}_following") for state in states]
        lines += [self.pack(name) for name in following]
        where = {input_leaf(name): drive for name in self.program.inputs}
        lines += self.each(step, [*(f"{name}[j]" for name in following), *slots], where)
        return [*lines, *(f"{state} = {new};" for state, new in zip(states, following))]

    def _back_step(self, adjoint: Function, output: Stream) -> List[str]:
        """One step backwards of a thread's neurons."""
        where = {node: f"i.kept(place, {slot}, j)" for node, slot in self._slots.items()}
        where.update((input_leaf(name), "i.kept(place, 0, j)") for name in self.program.inputs)
        where[output_cotangent(0)] = f"{self._arrived[output.name]} + back[j]"
        for name, carried in self._carried.items():
            traced = f" + {self._arrived[self._trace(name)]}" if name in self.plan.trace else ""
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
        return over_neurons(inner)

    def _store_sums(self) -> List[str]:
        lines = []
        for k, name in enumerate(self.plan.learn):
            if name not in self._scalars:
                total = self._sum(name)
                lines.append(f"store({self.argument(f'{total}s', 'sum', 'grad_params', k)} + i, {total});")
        return lines
