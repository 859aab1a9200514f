"""Kernels with feedback: all steps of a layer whose outputs come back through a matrix, in one launch (recurrent.cuh).

A thread owns a few neurons of a few rows of the batch: those whose sums its warp gets. They lie apart in memory, so the
text names them by an object ``i``, to which tensors are added as to the index of the first of neighbouring neurons.
Everything that is no product is written as in the other kernels, by the same writers.
"""

from __future__ import annotations

from typing import Callable, List, Mapping, Sequence

from spikecore.kernels.writing import Argument, indented
from spikecore.lang import Node
from spikecore_cupy.feedback_shape import Shape
from spikecore_cupy.lines import over_neurons
from spikecore_cupy.parts import Function
from spikecore_cupy.printer import CudaPrinter
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
        return "Neurons i(neurons);"

    def beside(self) -> Sequence[str]:
        return (f"using Neurons = {self.shape.text};",)

    def top(self) -> str:
        bounds, blocks = f"__launch_bounds__({self.shape.threads}, 1)", self.shape.cluster
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
        found = super().function(name, results, sums, known)
        if not any("how)" in line for line in found.body):
            return found
        return found._replace(arguments=[*found.arguments, "How& how"], template="template <typename How> ")

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
        own = {"params": len(self.program.params), "state": len(self.program.states)}
        if argument.group in own:
            return argument.number >= own[argument.group]
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
