"""Kernels with feedback: all steps of a layer whose outputs come back through a matrix, in one launch (recurrent.cuh).

A thread owns a few neurons of a few rows of the batch: those whose sums its warp gets. They lie apart in memory, so the
text names them by an object ``i``, to which tensors are added as to the index of the first of neighbouring neurons.
Everything that is no product is written as in the other kernels, by the same writers. Where outputs come back to
several inputs, the gates, there are a drive, a sum and a cotangent for each.

Forward keeps the drive ``x + r`` of every step, and the states before every chunk but the first. Backward computes the
states again from these, without a product. What the adjoint is computed from is kept in shared memory. The states of a
chunk are computed again while the adjoint of the chunk behind it waits for other blocks.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Tuple

from spikecore.backend import Feedback
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.kernels.writing import indented, input_leaf, output_cotangent, state_cotangent
from spikecore.lang import Node
from spikecore_cupy.feedback_shape import Layout, for_backward, for_forward, parts_of
from spikecore_cupy.feedback_writer import At, FeedbackWriter
from spikecore_cupy.source import BackwardWriter, ForwardWriter
from spikecore_cupy.text import Form, Function, Source, Stream, over_neurons


class FeedbackForwardWriter(FeedbackWriter, ForwardWriter):
    """Writes the forward kernel of a plan with feedback."""

    def __init__(self, plan: ForwardPlan, shape: Layout, powers: bool = False) -> None:
        self.feedback = plan.spec.feedback or Feedback()
        self.shape = for_forward(plan.program, plan.spec, shape)
        self.header = shape.header
        super().__init__(plan, Form(self.shape.each, shape.length, powers=powers))

    def source(self) -> Source:
        plan, program, states = self.plan, self.program, self._states
        results = {f"new_{name}": node for name, node in zip(states, program.next)}
        step = self.function("step", {**results, **dict(zip(self._outs, program.outputs))})
        starts = []
        for name, state in zip(program.states, states):
            starts += [self.pack(state), *self.starting(name, state)]
        gave, stored = self.unique("gave"), self.stored
        starts.append(self.pack(gave))
        if self.feedback.delays:
            starts += [*self.lags(), *over_neurons([f"{gave}[j] = {self._earlier('-1')};"])]
        elif plan.has_initial_state:
            first = self.one("first", "state", len(program.states))
            starts.append(f"const Pack<{stored}, V> before = load<V>({first});")
            starts += over_neurons([f"{gave}[j] = {self.value('before[j]')};"])
        else:
            starts += over_neurons([f"{gave}[j] = {self.printer.number(0.0)};"])
        biases = self.of_gates("bias") if self.feedback.bias else []
        for gate, bias in enumerate(biases):
            of_all = self.argument("biases", "pointer", "params", len(program.params) + 1)
            of_gate = f"{of_all} + {gate * self.shape.width}" if gate else of_all
            starts.append(f"const Pack<{stored}, V> {bias} = column_values<V>({of_gate}, i);")
        # nobody may write to the memory of a block that has not started
        starts.append("i.begin();")
        # the first output may be any number, where the others are spikes
        some = self.spikes and plan.has_initial_state and not self.feedback.delays
        if some:
            starts += self._first_output(gave)
        starts += [f"if (i.works()) i.give(1, {gave});", "i.pass(1);", "i.wait(1);"]
        leaves = [input_leaf(name) for name in program.inputs]
        every = [self.each_step(f"{self.local[x]}s", "inputs", k) for k, x in enumerate(leaves)]
        drives = self.of_gates("drive")
        sums = [f"[{gate} * V + j]" if gate else "[j]" for gate in range(len(drives))]
        texts = []
        for gate, (number, drive, at) in enumerate(zip(self.gates, drives, sums)):
            back = f"(back{at} + extra{at})" if some else f"back{at}"
            back = self._rounded(f"{back} + {self.value(f'{biases[gate]}[j]')}" if biases else back)
            texts.append(self._drive(drive, every[number], number, back))
        inner = [*over_neurons(texts), *self._step_of(step, self._taken(every), gave)]
        if some:
            inner += over_neurons([f"extra{at} = 0.0f;" for at in sums])
        inner.append(f"i.give(k, {gave});")
        self._packs_of_step = [f"Pack<{stored}, V> {drive};" for drive in drives]
        self._packs_of_step += [self.pack(out, stored) for out in self._outs]
        starts += self._before_steps(leaves)
        loop = self._every_step(self._one_step(every, drives, inner))
        ending = [f"store({self.one(f'{s}_end', 'final', k)}, {s});" for k, s in enumerate(states) if plan.final]
        arrivals = [line for n, at in enumerate(every) for line in self.first_steps(at, "k", n)]
        begin = ["constexpr int begin = 0;", *self.arriving_first(arrivals)]
        body = [self.weights(), *self.opening(), *starts, *begin, *loop, "i.end();", *self._behind(drives), *ending]
        return self.finished([step], body)

    def _before_steps(self, leaves: Sequence[Node]) -> List[str]:
        """Lines before the first step, beside those of the states and of what was given before it."""
        return []

    def _every_step(self, lines: Sequence[str]) -> List[str]:
        """The loop over steps, from the lines of one."""
        # two steps by name: an array that is not indexed by a constant would be in memory
        inner = ["const int t = pair + k;", "if (t >= steps) continue;", *lines]
        two = ["#pragma unroll", "for (int k = 0; k < 2; ++k) {", *indented(inner), "}"]
        return ["for (int pair = 0; pair < steps; pair += 2) {", *indented(two), "}"]

    def _one_step(self, every: Sequence[At], drives: Sequence[str], inner: Sequence[str]) -> List[str]:
        """Lines of a step; ``inner`` are those behind the product, which give the outputs."""
        # loaded before the product, so that the loads are under way while it is computed
        earlier = self._earlier_outputs()
        # behind the use of what has arrived, whose place it takes
        after = [f"if (t + 2 < steps) begin_arrival({at('(t + 2)')}, {n}, k);" for n, at in enumerate(every)]
        after += self._storing(drives, "t")
        shared = self.shared_step([*self._saving(), *inner], after, "k")
        return [*earlier, *self._product(), *self._packs_of_step, *shared]

    def _product(self) -> List[str]:
        return [f"float back[{self._sums}];", self.product("1 - k")]

    def _behind(self, drives: Sequence[str]) -> List[str]:
        """Lines behind the last step."""
        return []

    def _earlier_outputs(self) -> List[str]:
        """Lines that load what comes back behind a delay."""
        return [self.pack("earlier"), *over_neurons([self._loaded()])] if self.feedback.delays else []

    def _first_output(self, gave: str) -> List[str]:
        """Lines for the feedback of the further parts of the output before the first step."""
        parts = parts_of(self.plan.dtype)
        each = [
            # the two buffers take turns, and the second one is that of the first part
            f"const int buffer = ({parts} - part + 1) % 2;",
            *over_neurons(["rest[j] -= first_bits(rest[j]);"]),
            "if (i.works()) i.give(buffer, rest);",
            "i.pass(buffer);",
            "i.wait(buffer);",
            f"float more[{self._sums}];",
            "i.product(buffer, more);",
            f"for (int n = 0; n < {self._sums}; ++n) extra[n] += more[n];",
        ]
        return [
            f"Pack<{self.real}, V> rest = {gave};",
            f"float extra[{self._sums}] = {{}};",
            "#pragma unroll 1",
            f"for (int part = 1; part < {parts}; ++part) {{",
            *indented(each),
            "}",
        ]

    @property
    def _sums(self) -> str:
        """The sums of a thread's neurons."""
        return "V" if len(self.gates) == 1 else f"{len(self.gates)} * V"

    def _rounded(self, text: str) -> str:
        return text if self.stored == self.real else f"value(rounded<{self.stored}>({text}))"

    def _storing(self, drives: Sequence[str], step: str) -> List[str]:
        """Stores of what forward gives at a step, whose number is a text."""
        lines = []
        if self.plan.checkpoints:
            # of `all`, a checkpoint of all steps has no stride
            for gate, (drive, name) in enumerate(zip(drives, self.of_gates("drives"))):
                us = self.argument(name, "pointer", "checkpoints", gate)
                lines.append(f"store({us} + {step} * neurons + i, {drive});")
        for k, (out, tensor) in enumerate(zip(self._outs, self._tensors)):
            lines.append(f"store({self.all(tensor, 'outputs', k, step)}, {out});")
        for k, name in enumerate(map(self.state, self.plan.record)):
            lines.append(f"store({self.all(f'{name}_trace', 'trace', k, step)}, {name});")
        return lines

    def _arrived(self, at: At, number: int) -> str:
        """A neuron's number of an input at a step."""
        return self.value(f"arrived({at('t')}, {number}, k, j)")

    def _taken(self, every: Sequence[At]) -> Dict[Node, str]:
        """Texts for the inputs of a step."""
        places = {
            input_leaf(name): self._arrived(at, k) for k, (name, at) in enumerate(zip(self.program.inputs, every))
        }
        for number, drive in zip(self.gates, self.of_gates("drive")):
            places[input_leaf(self.program.inputs[number])] = self.value(f"{drive}[j]")
        return places

    def _earlier(self, step: str) -> str:
        """The output of a neuron that comes back behind a step. In front of those of the call stand those before it."""
        number = self.feedback.output
        outputs = self.argument(self._tensors[number], "pointer", "outputs", number)
        return self.value(f"{outputs}[({step} - (long long)lag[j]) * neurons + i.at(j)]")

    def _loaded(self) -> str:
        """The line that loads the output of a neuron that comes back behind a step, unless it is that of the step."""
        zero = self.printer.number(0.0)
        return f"earlier[j] = lag[j] == {zero} ? {zero} : {self._earlier('t')};"

    def _drive(self, drive: str, at: At, number: int, back: str) -> str:
        arrived = self._arrived(at, number)
        total = f"{arrived} + {back}" if "value(" in back else f"{arrived} + ({back})"
        return f"{drive}.set(j, {total if self.stored == self.real else f'rounded<{self.stored}>({total})'});"

    def _saving(self) -> List[str]:
        """Stores of the states before a chunk."""
        if not self.plan.saved:
            return []
        lines = [f"store({self.saved_at(name)}, {self.state(name)});" for name in self.plan.saved]
        return ["if (t && t % T == 0) {", "    const int chunk = t / T;", *indented(lines), "}"]

    def _step_of(self, step: Function, inputs: Mapping[Node, str], gave: str) -> List[str]:
        """One step of a thread's neurons."""
        following = [self.unique(f"{name}_following") for name in self._states]
        numbers = [self.unique(f"{out}_number") for out in self._outs]
        lines = [self.pack(name) for name in (*following, *numbers)]
        lines += self.each(step, [f"{name}[j]" for name in (*following, *numbers)], inputs)
        lines += [f"{name} = {new};" for name, new in zip(self._states, following)]
        set_outputs = []
        for out, node, number in zip(self._outs, self.program.outputs, numbers):
            text = f"{number}[j]" if self.stored == self.real else f"{self.conversion(node)}({number}[j])"
            set_outputs.append(f"{out}.set(j, {text});")
        back = self.value(f"{self._outs[self.feedback.output]}[j]")
        if self.feedback.delays:
            back = f"lag[j] == {self.printer.number(0.0)} ? {back} : earlier[j]"
        return [*lines, *over_neurons([*set_outputs, f"{gave}[j] = {back};"])]


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

    def __init__(self, plan: BackwardPlan, shape: Layout, powers: bool = False) -> None:
        # what the base finds needs a form, whose width depends on the shape alone
        self.feedback = plan.spec.feedback or Feedback()
        super().__init__(plan, Form(shape.each, shape.length, powers=powers))
        self.shape = for_backward(plan.dtype, shape)
        self.header = shape.header
        #: True if a neuron's values of all steps are added up: their sum over the batch is the gradient of the bias.
        #: Not where the weights leave no registers: 1024 neurons of three states took 6 % longer with it (H100).
        self._totals = self.feedback.bias and not shape.apart and len(self.gates) == 1
        #: Arrived value of a stream for neuron j.
        self._arrived: Dict[str, str] = {}
        #: The first loads of what arrives, and the next ones: of cotangents, and of inputs, which are read again.
        self._first: List[str] = []
        self._following: List[str] = []
        self._refetched: List[str] = []

    def source(self) -> Source:
        adjoint = self._adjoint()
        step = self.function("step", self._recomputed())
        #: The inputs that the adjoint reads, which are kept first; what of a step is kept, and where.
        self._reads = [node for node in adjoint.takes if node.op == "input"]
        self._slots = {node: k for k, node in enumerate([*self._reads, *self._kept])}
        leaves = [(k, input_leaf(name)) for k, name in enumerate(self.program.inputs)]
        leaves_read = {*self._reads, *(step.takes if self._kept else ())}
        streams = self._cotangents()
        #: The inputs that are read again: where they are, and the numbers of what arrives.
        inputs = {
            leaf: (self.each_step(f"{self.local[leaf]}s", "inputs", k), len(streams) + n)
            for n, (k, leaf) in enumerate([(k, leaf) for k, leaf in leaves if leaf in leaves_read])
        }
        self.shape = self.shape._replace(kept=len(self._slots), arriving=len(streams) + len(inputs))
        for k, stream in enumerate(streams):
            self._arrived[stream.name] = self._cotangent_arriving(stream, k)
        body = [self.weights(), *self.opening(), *self._first_cotangents(), *self._zeros()]
        body += self._ring() if self.feedback.delays else ()
        body += ["const int chunks = (steps + T - 1) / T;", "int begin = (chunks - 1) * T;"]
        again: List[str] = []
        corrected: List[str] = []
        if inputs or self._kept:
            body += self._first_again(step, {leaf: at for leaf, (at, _) in inputs.items()})
            drives = {leaf: self._input_arriving(leaf, at, k) for leaf, (at, k) in inputs.items()}
            again, corrected = self._again(step, drives, "place")
        body += self.arriving_first(self._first)
        # the last step gets nothing from a later one
        gave = self.of_gates("gave")
        body += [*map(self.pack, gave), *over_neurons([f"{name}[j] = 0.0f;" for name in gave]), "i.begin();"]
        body += [f"if (i.works()) {give}" for give in self._giving("(steps - 1) & 1")] + [PASSED]
        lines = [*self._back_step(adjoint), *self._giving("1 - t % 2")]
        grads = [self._grad_input(self.program.inputs[index]) for index in self.plan.wanted]
        product = self._from_ring() if self.feedback.delays else [self.product("t % 2")]
        product = ["float back[V];", *product]
        packs = [self.pack(grad, self.stored) for grad in grads]
        before, of_step = self._one_step(grads, product, packs, lines, again, corrected)
        body += before
        inner = ["const int count = steps - begin < T ? steps - begin : T;", *self._states_taken()]
        inner += [*self._chunk(of_step), "begin -= T;"]
        body += ["for (int chunk = chunks - 1; chunk >= 0; --chunk) {", *indented(inner), "}", "i.end();"]
        body += self._behind(grads)
        scaled = [line for name, node in self._derivative.factors.items() for line in self._scaled(name, node)]
        if self._totals:
            scaled.append(f"store({self.argument('totals', 'sum', 'grad_params', len(self.plan.learn))} + i, total);")
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

    def _storing(self, grads: Sequence[str], step: str) -> List[str]:
        """Stores of the gradients of a step, whose number is a text."""
        return [f"store({self.all(f'{grad}s', 'grad_inputs', k, step)}, {grad});" for k, grad in enumerate(grads)]

    def _chunk(self, lines: Sequence[str]) -> List[str]:
        """The loop over the steps of a chunk, from the lines of one."""
        head = ["if (t >= count) continue;", "const int place = (chunks - 1 - chunk) & 1 ? T - 1 - t : t;"]
        return ["#pragma unroll 2", "for (int t = T - 1; t >= 0; --t) {", *indented([*head, *lines]), "}"]

    def _behind(self, grads: Sequence[str]) -> List[str]:
        """Lines behind the last step."""
        return []

    def _cotangent_arriving(self, stream: Stream, k: int) -> str:
        """The number of a cotangent at a step, which arrives two steps ahead, from the last step to the first."""
        at = self.each_step(stream.tensor, stream.group, stream.number)
        self._first += self.first_steps(at, LAST_TWO, k)
        self._following.append(f"if (begin + t >= 2) begin_arrival({at('(begin + t - 2)')}, {k}, t % 2);")
        arrived = f"arrived({at('(begin + t)')}, {k}, t % 2, j)"
        return self.value(arrived) if stream.kind == self.stored else arrived

    def _input_arriving(self, leaf: Node, at: At, k: int) -> str:
        """The number of an input at the step that is computed again, which arrives two steps ahead."""
        self._refetched += [] if self._refetched else [f"const int ahead = {EARLIER};"]
        self._first += self.first_steps(at, EARLIER_TWO, k)
        self._refetched.append(f"if (ahead >= 0) begin_arrival({at('ahead')}, {k}, 1 - t % 2);")
        return self.value(f"arrived({at('(begin - 1 - t)')}, {k}, 1 - t % 2, j)")

    def _one_step(
        self,
        grads: Sequence[str],
        product: Sequence[str],
        packs: Sequence[str],
        adjoint: Sequence[str],
        again: Sequence[str],
        corrected: Sequence[str],
    ) -> Tuple[List[str], List[str]]:
        """Lines before the first step, and those of a step."""
        # while other blocks give their numbers
        after = [*self._storing(grads, "(begin + t)"), *self._following]
        after += self._states_ahead() if again else []
        after += ["if (chunk) {", *indented([*again, *corrected]), "}"] if again else []
        after += self._refetched
        return [], [*product, *packs, *self.shared_step(adjoint, after, "1 - t % 2")]

    def _ring(self) -> List[str]:
        """The lines that take the delays, and the ring of what comes from each step for earlier outputs."""
        # behind the delays stands how many steps may still come back
        delays = self.argument("delays", "pointer", "params", self.delays_at)
        rows = f"const int rows = (int){delays}[{self.shape.width}];"
        return [*self.lags(), rows, "int at_ring = steps % rows;"]

    def _from_ring(self) -> List[str]:
        """The product, which goes into the ring, and what comes from the step at which a neuron's output comes back."""
        ring = self.argument("ring", "pointer", "grad_state", len(self.program.states))
        zero = self.printer.number(0.0)
        place = f"{ring}[(long long){{}} * neurons + i.at(j)]"
        later = ["int later = at_ring + (int)lag[j];", "later = later < rows ? later : later - rows;"]
        return [
            self.pack("sent"),
            *over_neurons([*later, f"sent[j] = lag[j] == {zero} ? {zero} : {place.format('later')};"]),
            self.product("t % 2"),
            *over_neurons(
                [
                    f"if (i.works() && i.has(j)) {place.format('at_ring')} = back[j];",
                    f"back[j] = lag[j] == {zero} ? back[j] : sent[j];",
                ]
            ),
            "at_ring = at_ring ? at_ring - 1 : rows - 1;",
        ]

    def _zeros(self) -> List[str]:
        lines = []
        for name in self.plan.learn:
            lines += [
                self.pack(self._sum(name)),
                *over_neurons([f"{self._sum(name)}[j] = {self.printer.number(0.0)};"]),
            ]
        if self._totals:
            lines += [self.pack("total"), *over_neurons(["total[j] = 0.0f;"])]
        return lines

    def _packs(self) -> List[str]:
        """The states of the steps that are computed again."""
        return [self.state(name) for name in self._states]

    def _next_state(self, state: str) -> str:
        """A state before the next chunk to be computed again, which is loaded before."""
        return self.unique(f"{state}_next")

    def _states_ahead(self) -> List[str]:
        """Begin to load the states before the chunk that is computed again behind the next border: to registers, or to
        the L2 cache where the weights leave no registers. BRF of 1024 neurons in float32 then spills 0.75 as many
        bytes of a thread, and takes 0.98 of the time for 256 rows (H100).
        """
        if not self.shape.apart:
            return self._states_of("(chunk - 2)", "if (chunk > 1 && t == (count > 1)) {")
        if not self._kept or not self._states:
            return []
        loads = [f"will_load<V>({self.saved_at(name, '(chunk - 2)')});" for name in self._states]
        return ["if (chunk > 2 && t == (count > 1)) {", *indented(loads), "}"]

    def _states_taken(self) -> List[str]:
        """At the beginning of a chunk: the states before the one that is computed again meanwhile."""
        if self.shape.apart:
            return self._states_of("(chunk - 1)", "if (chunk && chunk < chunks - 1 && i.works()) {", False)
        if not self._kept:
            return []
        taken = [f"{state} = {self._next_state(state)};" for state in self._packs()]
        return ["if (chunk < chunks - 1 && i.works()) {", *indented(taken), "}"]

    def _states_of(self, chunk: str, head: str, following: bool = True) -> List[str]:
        """Loads of the states before a chunk: those of the next one to be computed again, or of the present one."""
        if not self._kept or not self._states:
            return []
        first, saved = [], []
        for name in self._states:
            target = self._next_state(self.state(name)) if following else self.state(name)
            first += self.starting(name, target)
            saved.append(f"{target} = load<V>({self.saved_at(name, chunk)});")
        inner = [f"if ({chunk} == 0) {{", *indented(first), "} else {", *indented(saved), "}"]
        return [head, *indented(inner), "}"]

    def _first_again(self, step: Function, inputs: Mapping[Node, At]) -> List[str]:
        """The steps of the last chunk again, and the first ones of the chunk before, for which there is a place."""
        ahead = [] if self.shape.apart else [self.pack(self._next_state(state)) for state in self._packs()]
        lines = [*map(self.pack, self._packs()), *ahead]
        names = {leaf: self.unique(f"{self.local[leaf]}_found") for leaf in inputs}
        values = {leaf: self.value(f"{name}[j]") for leaf, name in names.items()}

        def loop(until: str, time: str, place: str) -> List[str]:
            packs = [f"const Pack<{self.stored}, V> {names[leaf]}" for leaf in inputs]
            loading = [f"{pack} = load<V>({at(time)});" for pack, at in zip(packs, inputs.values())]
            again, corrected = self._again(step, values, place)
            inner = indented([*loading, *again, *corrected])
            return [f"for (int k = 0; k < {until}; ++k) {{", *inner, "}"]

        inner = self._states_of("(chunks - 1)", "{", False) + loop("steps - begin", "(begin + k)", "k")
        before = self._states_of("(chunks - 2)", "{", False) + loop("done", "(begin - T + k)", "T - 1 - k")
        inner += ["if (chunks > 1) {", *indented(before), "}"]
        return [*lines, "const int done = T - (steps - begin);", "if (i.works()) {", *indented(inner), "}"]

    def _again(self, step: Function, inputs: Mapping[Node, str], place: str) -> Tuple[List[str], List[str]]:
        """A step again from its inputs, which keeps what the adjoint is computed from in a place: lines that may be
        wrong where a division is not ordinary, and those that correct it.
        """
        keeping = [f"i.kept({place}, {self._slots[leaf]}, j) = {inputs[leaf]};" for leaf in self._reads]
        lines = over_neurons(keeping) if keeping else []
        if not self._kept:
            return lines, []
        states = self._packs()
        slots = [f"i.kept({place}, {self._slots[node]}, j)" for node in self._kept]
        following = [self.unique(f"{state}_following") for state in states]
        targets = [*(f"{name}[j]" for name in following), *slots]
        lines += [*map(self.pack, following), *self.quickly(step, targets, inputs)]
        carried = [f"{state} = {new};" for state, new in zip(states, following)]
        return lines, [*self.plainly(step, targets, inputs), *carried]

    def _back_step(self, adjoint: Function) -> List[str]:
        """One step backwards of a thread's neurons."""
        where = {node: self._kept_of(slot) for node, slot in self._slots.items()}
        for index in self.plan.arriving:
            arrived = self._arrived[self.local[output_cotangent(index)]]
            where[output_cotangent(index)] = f"{arrived} + back[j]" if index == self.feedback.output else arrived
        for name, carried in self._carried.items():
            traced = f" + {self._arrived[self._trace(name)]}" if name in self.plan.trace else ""
            where[state_cotangent(name)] = f"{carried}[j]{traced}"
        grads = [self._grad_input(self.program.inputs[index]) for index in self.plan.wanted]
        exact = self.stored == self.real
        targets = [f"{grad}[j]" if exact else self.unique(f"{grad}_j") for grad in grads]
        targets += [f"{carried}[j]" for carried in self._carried.values()]
        targets += [f"{self._sum(name)}[j]" for name in self.plan.learn]
        # what it adds to may be added once
        inner = [self.call(adjoint, [*targets, *(["plain"] if adjoint.template else [])], where)]
        if adjoint.template:
            inner.insert(0, "Plain plain;")
        if not exact:
            numbers = [self.unique(f"{grad}_j") for grad in grads]
            inner.insert(0, f"{self.real} {', '.join(numbers)};")
            inner += [f"{grad}.set(j, rounded<{self.stored}>({number}));" for grad, number in zip(grads, numbers)]
        for number, gave in zip(self.gates, self.of_gates("gave")):
            back = self._grad_input(self.program.inputs[number])
            inner.append(f"{gave}[j] = {self.value(f'{back}[j]')};")
        return over_neurons([*inner, *(["total[j] += gave[j];"] if self._totals else ())])

    def _kept_of(self, slot: int) -> str:
        """The name of a value that is kept of a step for neuron j."""
        return f"i.kept(place, {slot}, j)"

    def _giving(self, buffer: str) -> List[str]:
        """The lines that give the cotangents of the inputs that outputs come back to."""
        gave = self.of_gates("gave")
        return [f"i.give({buffer}, {name}{f', {gate}' if gate else ''});" for gate, name in enumerate(gave)]

    def _store_sums(self) -> List[str]:
        lines = []
        for k, name in enumerate(self.plan.learn):
            if name not in self._scalars:
                total = self._sum(name)
                lines.append(f"store({self.argument(f'{total}s', 'sum', 'grad_params', k)} + i, {total});")
        return lines
