"""Kernels with feedback: all steps of a layer whose outputs come back through a matrix, in one launch (recurrent.cuh).

A thread owns a few neurons of a few rows of the batch: those whose sums its warp gets. They lie apart in memory, so the
text names them by an object ``i``, to which tensors are added as to the index of the first of neighbouring neurons.
Everything that is no product is written as in the other kernels, by the same writers.

Forward keeps the drive ``x + r`` of every step, and the states before every chunk but the first. Backward computes the
states again from these, without a product. What the adjoint is computed from is kept in shared memory. The states of a
chunk are computed again while the adjoint of the chunk behind it waits for other blocks.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Optional, Sequence

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.kernels.writing import Argument, indented, input_leaf, output_cotangent, state_cotangent
from spikecore.lang import Node
from spikecore_cupy.feedback_shape import Shape, for_forward, parts_of
from spikecore_cupy.source import BackwardWriter, ForwardWriter
from spikecore_cupy.text import CudaPrinter, Form, Function, Source, Stream, over_neurons
from spikecore_cupy.writer import Writer

HEADER = "recurrent.cuh"
#: Where a step of a tensor is, from the text of its number.
At = Callable[[str], str]


class FeedbackWriter(Writer):
    """What the writers of both directions share."""

    header = HEADER
    shape: Shape
    printer: CudaPrinter
    #: Divisions of all of a thread's neurons are verified together: a branch for each would put one behind the other.
    division = "divided({0}, {1}, how)"

    def beginning(self) -> str:
        return "Neurons i(neurons, exchange);" if self.shape.apart else "Neurons i(neurons);"

    def beside(self) -> Sequence[str]:
        return (f"using Neurons = {self.shape.text};",)

    def top(self) -> str:
        bounds = f"__launch_bounds__({self.shape.threads}, 1)"
        blocks = 2 if self.shape.apart else self.shape.cluster
        # a launch of one block needs no cluster, and GPUs before compute capability 9.0 have none
        cluster = f"__cluster_dims__({blocks}, 1, 1) " if blocks > 1 else ""
        return f'extern "C" __global__ void {cluster}{bounds} {self.name}('

    def function(
        self,
        name: str,
        results: Mapping[str, Node],
        sums: Mapping[str, Node] = {},
        known: Mapping[Node, str] = {},
    ) -> Function:
        """See the base; a function with divisions takes ``how`` they are made."""
        self.printer.division = self.division
        text = super().function(name, results, sums, known)
        if not any("how)" in line for line in text.body):
            return text
        return text._replace(arguments=[*text.arguments, "How& how"], template="template <typename How> ")

    def each(self, function: Function, targets: Sequence[str], where: Mapping[Node, str]) -> List[str]:
        """A step of each of a thread's neurons; no target is an argument, too, so that it may be computed twice."""
        if not function.template:
            return over_neurons([self.call(function, targets, where)])
        plain = over_neurons([self.call(function, [*targets, "plain"], where)])
        return [
            "Quick quick;",
            *over_neurons([self.call(function, [*targets, "quick"], where)]),
            "if (!quick.sure) {",
            "    Plain plain;",
            *indented(plain),
            "}",
        ]

    def takes_groups(self, learnt: Sequence[str]) -> bool:
        """A thread has no more than one group of neurons."""
        return False

    def is_stored(self, argument: Argument) -> bool:
        """The weight and the bias, the drive, and the output before the first step are stored, too."""
        of_program = {"params": len(self.program.params), "state": len(self.program.states)}
        if argument.group in of_program:
            return argument.number >= of_program[argument.group]
        if argument.group == "checkpoints":
            return argument.number == 0
        return super().is_stored(argument)

    def saved_at(self, name: str, chunk: str = "chunk") -> str:
        state = self.state(name)
        # behind the drive
        number = 1 + self.plan.saved.index(name)
        tensor = self.argument(f"{state}_saved", "pointer", "checkpoints", number)
        return f"{tensor} + ({chunk} - 1) * neurons + i"

    def weights(self) -> str:
        """The line that takes the weights."""
        if self.shape.apart:
            self.argument("exchange", "exchange")
        tensor = self.argument("weights", "pointer", "params", len(self.program.params))
        return f"i.take_weights({tensor});"

    def first_two(self, at: At, step: str, number: int) -> List[str]:
        """Begin to load two steps of tensor ``number`` of those that arrive, ``step`` from their place ``k``. A step is
        loaded two ahead, those of even steps to the first place: so the place in an unrolled loop is a constant.
        """
        begun = f"if (step >= 0 && step < steps) begin_arrival({at('step')}, {number}, k);"
        return ["for (int k = 0; k < 2; ++k) {", f"    const int step = {step};", f"    {begun}", "}"]

    def arriving_first(self, loads: Sequence[str]) -> List[str]:
        """The loads before the first step: in a group that is complete then, since behind it is one more."""
        return ["if (i.works()) {", *indented(loads), "}", "loads_begun();", "loads_begun();"]

    def shared_step(self, each: Sequence[str], after: Sequence[str], buffer: str) -> List[str]:
        """What a step computes and gives, and what is done while the numbers go to all blocks, loads among it."""
        each, after = ["loads_wait<1>();", *each], [*after, "loads_begun();"]
        if self.shape.cluster == 1:
            # the next step begins behind the barrier
            each, after = [*each, *after], []
        lines = ["if (i.works()) {", *indented(each), "}", f"i.pass({buffer});"]
        if after:
            lines += ["if (i.works()) {", *indented(after), "}"]
        return [*lines, f"i.wait({buffer});"]

    def each_step(self, tensor: str, group: str, number: int) -> At:
        """Where a step of a tensor of all steps is."""
        return lambda step: self.all(tensor, group, number, step)


class FeedbackForwardWriter(FeedbackWriter, ForwardWriter):
    """Writes the forward kernel of a plan with feedback."""

    def __init__(self, plan: ForwardPlan, shape: Shape) -> None:
        self.shape = for_forward(plan.program, shape)
        super().__init__(plan, Form(shape.each, shape.length))

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
        arrived = self.value(f"arrived({at('t')}, 0, k, j)")
        total = f"{arrived} + {back}" if "value(" in back else f"{arrived} + ({back})"
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
            arrived = f"arrived({at('(begin + t)')}, {k}, t % 2, j)"
            self._arrived[stream.name] = self.value(arrived) if stream.kind == self.stored else arrived
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
                f"if (threadIdx.x == 0) {tensor}[i.block] = {of_block};",
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
            loading = [f"const Pack<{self.stored}, V> found = load<V>({at(time)});"] if at is not None else []
            inner = indented([*loading, *self._again(step, value, place)])
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
