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
from spikecore_cupy.feedback_shape import Narrow
from spikecore_cupy.feedback_writer import At, FeedbackWriter
from spikecore_cupy.text import Stream, over_neurons

#: Steps that are loaded ahead: one less than there are places, so that no place is filled while it is read. Two steps
#: of 0.2 us are less than a load takes where the L2 cache has no number.
FAR = 3


class Walk(NamedTuple):
    """A step of a tensor, of which a kernel knows the place alone: a product of 64 bits for each step takes longer."""

    here: str
    tensor: str
    stride: str

    @property
    def at(self) -> str:
        """The thread's neurons there."""
        return f"gathered({self.here}, i)"

    def begin(self, step: str) -> str:
        """The line that finds the place of a step."""
        return f"auto {self.here} = ({self.tensor} + {step} * {self.stride} + i).here;"

    def move(self, by: str) -> List[str]:
        """Lines that go on, so that the compiler does not find the place anew."""
        return [f"{self.here} {by};", f"hold({self.here});"]


def computed_beside(step: str) -> str:
    """The step that is computed again beside another, which is not in the first chunk."""
    return f"(2 * ({step} / T * T) - 1 - {step})"


class NarrowWriter(FeedbackWriter):
    """What both directions share. A step of a tensor has the place of its number among four."""

    @property
    def spikes(self) -> bool:
        return isinstance(self.shape, Narrow) and bool(self.shape.spikes)

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
        return Walk(self.unique(f"{name}_here"), pointer, stride)

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

    def _first_output(self, gave: str) -> List[str]:
        # behind it no spike is given
        return [f"float extra[{self._sums}];", f"i.product_of({gave}, extra);", *over_neurons([f"{gave}[j] = 0.0f;"])]

    def _before_steps(self, leaves: Sequence[Node]) -> List[str]:
        #: Where the inputs of a step are.
        self._ways = [self.walking(self.local[x], f"{self.local[x]}s", "inputs", k) for k, x in enumerate(leaves)]
        return [*self._packs_of_step, *(way.begin(str(FAR)) for way in self._ways)]

    def _one_step(self, every: Sequence[At], drives: Sequence[str], inner: Sequence[str]) -> List[str]:
        place = f"(t + {FAR}) & 3"
        loads = [f"if (t + {FAR} < steps) begin_arrival({w.at}, {n}, {place});" for n, w in enumerate(self._ways)]
        loads += [line for way in self._ways for line in way.move(f"+= {way.stride}")]
        # with delays an earlier output may be that of the step before
        before = ["if (t > 0) {", *indented(self._storing(drives, "(t - 1)")), "}", *self._earlier_outputs()]
        before += self._saving()
        for n, at in enumerate(every):
            before += self.now(self._now(n), self.value(f"arrived({at('t')}, {n}, t & 3, j)"))
        return [*self.step_begins("1 - k", loads), *before, *self._product(), *inner, "i.pass(k);"]

    def _behind(self, drives: Sequence[str]) -> List[str]:
        return ["if (steps > 0) {", *indented(self._storing(drives, "(steps - 1)")), "}"]


class NarrowBackwardWriter(NarrowWriter, FeedbackBackwardWriter):
    """Writes the backward kernel. Steps have the places of their turns, from the last one."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: The lines that find where steps are, that go on to the next ones, and that take what has arrived.
        self._walks: List[str] = []
        self._moves: List[str] = []
        self._takes: List[str] = []

    def _taken_now(self, name: str, arrived: str) -> str:
        now = self.unique(f"{name}_now")
        self._takes += self.now(now, arrived)
        return f"{now}[j]"

    def _cotangent_arriving(self, stream: Stream, k: int) -> str:
        at = self.each_step(stream.tensor, stream.group, stream.number)
        way = self.walking(stream.name, stream.tensor, stream.group, stream.number)
        self._first += self.first_steps(at, "steps - 1 - k", k)
        self._walks.append(way.begin(f"(steps - {FAR + 1})"))
        self._following.append(f"if (begin + t >= {FAR}) begin_arrival({way.at}, {k}, (turn + {FAR}) & 3);")
        self._moves += way.move(f"-= {way.stride}")
        arrived = f"arrived({at('(begin + t)')}, {k}, turn & 3, j)"
        return self._taken_now(stream.name, self.value(arrived) if stream.kind == self.stored else arrived)

    def _input_arriving(self, leaf: Node, at: At, k: int) -> str:
        name = self.local[leaf]
        way = self.walking(name, f"{name}s", "inputs", self.program.inputs.index(str(leaf.attr)))
        jump = self.unique(f"{name}_jump")
        begun = f"if (now >= T) begin_arrival({at(computed_beside('now'))}, {k}, k);"
        self._first += [
            f"for (int k = 0; k < {FAR}; ++k) {{",
            "    const int now = steps - 1 - k;",
            f"    {begun}",
            "}",
        ]
        self._walks.append(way.begin(computed_beside(f"(steps - {FAR + 1})")))
        self._walks.append(f"const long long {jump} = (1 - 2 * T) * {way.stride};")
        self._following.append(f"if (begin + t >= T + {FAR}) begin_arrival({way.at}, {k}, (turn + {FAR}) & 3);")
        self._moves += way.move(f"+= t == {FAR} % T ? {jump} : {way.stride}")
        return self._taken_now(name, self.value(f"arrived({at('(begin - 1 - t)')}, {k}, turn & 3, j)"))

    def _stores_of_last(self, grads: Sequence[str]) -> List[str]:
        """Stores of the gradients of the step behind, which was the last one."""
        lines = []
        for k, grad in enumerate(grads):
            way = self.walking(grad, f"{grad}s", "grad_inputs", k)
            self._walks.append(way.begin("(steps + 1)"))
            self._moves += way.move(f"-= {way.stride}")
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
        lines += [*before, *self._takes, *product, *again, *adjoint, *corrected, "++turn;", "i.pass(1 - t % 2);"]
        return ["int turn = 0;", *packs, *self._walks], lines

    def _behind(self, grads: Sequence[str]) -> List[str]:
        return ["if (steps > 0) {", *indented(self._storing(grads, "0")), "}"]
