"""Kernels with feedback of narrow layers, of which a block has whole rows (narrow.cuh).

No block waits for another, so the time of a step is that of one thread: what it waits for, and how many instructions it
has. What is left of a step is done beside the product of the next one, without branches: loads and stores, and in
backward the step that is computed again. The place of a step of a tensor goes from step to step.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence, Tuple

from spikecore.kernels.writing import indented
from spikecore.lang import Node
from spikecore_cupy.feedback import FeedbackBackwardWriter, FeedbackForwardWriter
from spikecore_cupy.feedback_writer import At, FeedbackWriter
from spikecore_cupy.text import Stream, over_neurons

#: Places of steps that arrive, and steps that are loaded ahead: one less, so that no place is filled while it is read.
#: Two steps of 0.2 us are less than a load takes where the L2 cache has no number.
PLACES, FAR = 4, 3


class Walk(NamedTuple):
    """A step of a tensor, of which a kernel knows the place alone: a product of 64 bits for each step takes longer.

    here, backwards: names of its place, and of the stride from a step to the one before.
    """

    here: str
    tensor: str
    stride: str
    backwards: str

    @property
    def at(self) -> str:
        """The thread's neurons there."""
        return f"gathered({self.here}, i)"

    def begin(self, step: str) -> str:
        """The line that finds the place of a step."""
        return f"auto {self.here} = ({self.tensor} + {step} * {self.stride} + i).here;"

    def back(self) -> str:
        """The line that finds the stride to the step before."""
        return f"const long long {self.backwards} = -{self.stride};"

    def move(self, by: str) -> List[str]:
        """Lines that go on, so that the compiler does not find the place anew."""
        return [f"{self.here} {by};", f"hold({self.here});"]


def computed_beside(step: str) -> str:
    """The step that is computed again beside another, which is not in the first chunk."""
    return f"(2 * ({step} / T * T) - 1 - {step})"


class NarrowWriter(FeedbackWriter):
    """Base of both directions. A step of a tensor has the place of its number among four."""

    def first_steps(self, at: At, step: str, number: int) -> List[str]:
        begun = f"if (step >= 0 && step < steps) begin_arrival({at('step')}, {number}, k);"
        return [f"for (int k = 0; k < {FAR}; ++k) {{", f"    const int step = {step};", f"    {begun}", "}"]

    def arriving_first(self, loads: Sequence[str]) -> List[str]:
        return [*loads, *["loads_begun();"] * FAR]

    def product(self, buffer: str) -> str:
        return f"i.product({buffer}, back, early);"

    def walking(self, name: str, tensor: str, group: str, number: int) -> Walk:
        """The place of a step of a tensor."""
        pointer, stride = self.argument(tensor, "pointer", group, number), self.stride(tensor, group, number)
        return Walk(self.unique(f"{name}_here"), pointer, stride, self.unique(f"{name}_back"))

    def now(self, name: str, value: str) -> List[str]:
        """Lines that take a number of each neuron before its place is filled, which is ``name[j]`` then."""
        return [self.pack(name), *over_neurons([f"{name}[j] = {value};"])]

    def step_begins(self, buffer: str, loads: Sequence[str]) -> List[str]:
        """The first lines of a step: the loads begin while the product's first numbers come from shared memory."""
        return [f"loads_wait<{FAR - 1}>();", f"const auto early = i.first_groups({buffer});", *loads, "loads_begun();"]


class NarrowForwardWriter(NarrowWriter, FeedbackForwardWriter):
    """Writes the forward kernel."""

    def _now(self, number: int) -> str:
        return self.unique(f"{self.program.inputs[number]}_now")

    def _arrived(self, at: At, number: int) -> str:
        return f"{self._now(number)}[j]"

    def _before_steps(self, leaves: Sequence[Node]) -> List[str]:
        #: Where the inputs of a step are.
        self._ways = [self.walking(self.local[x], f"{self.local[x]}s", "inputs", k) for k, x in enumerate(leaves)]
        return [*self._packs_of_step, *(way.begin(str(FAR)) for way in self._ways)]

    def _one_step(self, every: Sequence[At], drives: Sequence[str], inner: Sequence[str]) -> List[str]:
        ahead = f"(place + {FAR}) & 3"
        loads = [f"if (t + {FAR} < steps) begin_arrival({w.at}, {n}, {ahead});" for n, w in enumerate(self._ways)]
        loads += [line for way in self._ways for line in way.move(f"+= {way.stride}")]
        # with delays an earlier output may be that of the step before
        before = ["if (t > 0) {", *indented(self._storing(drives, "(t - 1)")), "}", *self._earlier_outputs()]
        before += self._saving()
        for n, at in enumerate(every):
            before += self.now(self._now(n), self.value(f"arrived({at('t')}, {n}, place, j)"))
        return [*self.step_begins("1 - k", loads), *before, *self._product(), *inner, "i.pass(k);"]

    def _every_step(self, lines: Sequence[str]) -> List[str]:
        # four by name, so that places are constants, and without a question at each
        each = [f"one(t + {k}, {k});" for k in range(PLACES)]
        last = [f"if (t + {k} < steps) {each[k]}" for k in range(PLACES - 1)]
        loop = ["int t = 0;", f"for (; t + {PLACES} <= steps; t += {PLACES}) {{", *indented(each), "}", *last]
        lines = ["const int k = place & 1;", *lines]
        return ["auto one = [&](const int t, const int place) {", *indented(lines), "};", *loop]

    def _behind(self, drives: Sequence[str]) -> List[str]:
        return ["if (steps > 0) {", *indented(self._storing(drives, "(steps - 1)")), "}"]


class NarrowBackwardWriter(NarrowWriter, FeedbackBackwardWriter):
    """Writes the backward kernel. A step has the place of its turn, from the last one."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: The lines that find where steps are, that go on to the next ones, and that take what has arrived.
        self._walks: List[str] = []
        self._moves: List[str] = []
        self._takes: List[str] = []

    def _place(self, ahead: int = 0) -> str:
        """The place of the step so many turns behind this one: a constant where a chunk has whole groups of places."""
        step = "t" if self.shape.length % PLACES == 0 else "(begin + t)"
        return f"({ahead} - 1 - {step}) & 3"

    def _first_turns(self, begun: str) -> List[str]:
        """The first loads, from the last step."""
        return [f"for (int k = 0; k < {FAR}; ++k) {{", "    const int now = steps - 1 - k;", f"    {begun}", "}"]

    def _taken_now(self, name: str, arrived: str) -> str:
        now = self.unique(f"{name}_now")
        self._takes += self.now(now, arrived)
        return f"{now}[j]"

    def _cotangent_arriving(self, stream: Stream, k: int) -> str:
        at = self.each_step(stream.tensor, stream.group, stream.number)
        way = self.walking(stream.name, stream.tensor, stream.group, stream.number)
        self._first += self._first_turns(f"if (now >= 0) begin_arrival({at('now')}, {k}, (k - steps) & 3);")
        self._walks.append(way.begin(f"(steps - {FAR + 1})"))
        self._walks.append(way.back())
        self._following.append(f"if (begin + t >= {FAR}) begin_arrival({way.at}, {k}, {self._place(FAR)});")
        self._moves += way.move(f"+= {way.backwards}")
        arrived = f"arrived({at('(begin + t)')}, {k}, {self._place()}, j)"
        return self._taken_now(stream.name, self.value(arrived) if stream.kind == self.stored else arrived)

    def _input_arriving(self, leaf: Node, at: At, k: int) -> str:
        name = self.local[leaf]
        way = self.walking(name, f"{name}s", "inputs", self.program.inputs.index(str(leaf.attr)))
        jump = self.unique(f"{name}_jump")
        begun = f"if (now >= T) begin_arrival({at(computed_beside('now'))}, {k}, (k - steps) & 3);"
        self._first += self._first_turns(begun)
        self._walks.append(way.begin(computed_beside(f"(steps - {FAR + 1})")))
        self._walks.append(f"const long long {jump} = (1 - 2 * T) * {way.stride};")
        self._following.append(f"if (begin + t >= T + {FAR}) begin_arrival({way.at}, {k}, {self._place(FAR)});")
        self._moves += way.move(f"+= t == {FAR} % T ? {jump} : {way.stride}")
        return self._taken_now(name, self.value(f"arrived({at('(begin - 1 - t)')}, {k}, {self._place()}, j)"))

    def _stores_of_last(self, grads: Sequence[str]) -> List[str]:
        """Stores of the gradients of the step behind, which was the last one."""
        lines = []
        for k, grad in enumerate(grads):
            way = self.walking(grad, f"{grad}s", "grad_inputs", k)
            self._walks += [way.begin("(steps + 1)"), way.back()]
            self._moves += way.move(f"+= {way.backwards}")
            lines.append(f"store({way.at}, {grad});")
        return ["if (begin + t + 1 < steps) {", *indented(lines), "}"] if lines else []

    def _kept_of(self, slot: int) -> str:
        # its place is taken by the step that is computed again
        return f"{self.unique(f'kept_{slot}')}[j]"

    def _states_ahead(self) -> List[str]:
        return []

    def _states_taken(self) -> List[str]:
        return [*super()._states_taken(), *self._states_of("(chunk - 2)", "if (chunk > 1) {")]

    def _one_step(
        self,
        grads: Sequence[str],
        product: Sequence[str],
        packs: Sequence[str],
        adjoint: Sequence[str],
        again: Sequence[str],
        corrected: Sequence[str],
    ) -> Tuple[List[str], List[str]]:
        before = self._stores_of_last(grads)
        for slot in self._slots.values():
            before += self.now(self.unique(f"kept_{slot}"), f"i.kept(place, {slot}, j)")
        lines = self.step_begins("t % 2", [*self._following, *self._moves])
        # the steps of the first chunk are computed again, too, which nobody reads: there is no branch
        lines += [*before, *self._takes, *product, *again, *adjoint, *corrected, "i.pass(1 - t % 2);"]
        return [*packs, *self._walks], lines

    def _chunk(self, lines: Sequence[str]) -> List[str]:
        unrolled = PLACES if self.shape.length % PLACES == 0 else 2
        one = ["const int place = first_place + t * onward;", *lines]
        loop = [f"#pragma unroll {unrolled}", "for (int t = T - 1; t >= 0; --t) one(t);"]
        rest = ["#pragma unroll 1", "for (int t = count - 1; t >= 0; --t) one(t);"]
        return [
            "const bool upwards = (chunks - 1 - chunk) & 1;",
            "const int first_place = upwards ? T - 1 : 0, onward = upwards ? -1 : 1;",
            "auto one = [&](const int t) {",
            *indented(one),
            "};",
            "if (count == T) {",
            *indented(loop),
            "} else {",
            *indented(rest),
            "}",
        ]

    def _behind(self, grads: Sequence[str]) -> List[str]:
        return ["if (steps > 0) {", *indented(self._storing(grads, "0")), "}"]
