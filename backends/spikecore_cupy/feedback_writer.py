"""Base of the writers of kernels with feedback: a thread's neurons, what arrives for them, and a step's lines."""

from __future__ import annotations

from typing import Callable, List, Sequence

from spikecore.backend import Feedback
from spikecore.kernels import ForwardPlan
from spikecore.kernels.writing import Argument, indented
from spikecore_cupy.feedback_shape import Layout, Shape
from spikecore_cupy.text import CudaPrinter
from spikecore_cupy.writer import Writer

#: Address of a step of a tensor, from the text of its number.
At = Callable[[str], str]


class FeedbackWriter(Writer):
    """Base of the writers of both directions."""

    shape: Layout
    printer: CudaPrinter
    feedback: Feedback
    at_once = True

    @property
    def spikes(self) -> bool:
        """True if what comes back is spikes to the kernel, each one part."""
        return isinstance(self.shape, Shape) and self.shape.value_parts == 1

    @property
    def gates(self) -> Sequence[int]:
        """The inputs that the outputs come back to."""
        return self.feedback.inputs

    def of_gates(self, name: str) -> List[str]:
        """A name for each gate."""
        return [name] if len(self.gates) == 1 else [f"{name}_{gate}" for gate in range(len(self.gates))]

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

    def takes_groups(self, learnt: Sequence[str]) -> bool:
        """A thread has no more than one group of neurons."""
        return False

    def all(self, name: str, group: str, index: int, step: str = "") -> str:
        """Address of a step, as in other kernels; the places of neurons, which are no number here, are added last."""
        return super().all(name, group, index, step or ("" if self.fixed else "(begin + t)"))

    def is_stored(self, argument: Argument) -> bool:
        """The weight and the bias, the drive, and the output before the first step are stored, too."""
        if argument.group == "params" and argument.number == self.delays_at:
            return False
        of_program = {"params": len(self.program.params), "state": len(self.program.states)}
        if argument.group in of_program:
            return argument.number >= of_program[argument.group]
        if argument.group == "checkpoints":
            return argument.number < len(self.gates)
        return super().is_stored(argument)

    def saved_at(self, name: str, chunk: str = "chunk") -> str:
        state = self.state(name)
        # behind the drives
        number = len(self.gates) + self.plan.saved.index(name)
        tensor = self.argument(f"{state}_saved", "pointer", "checkpoints", number)
        return f"{tensor} + ({chunk} - 1) * neurons + i"

    def weights(self) -> str:
        """The line that takes the weights."""
        if self.shape.apart:
            self.argument("exchange", "exchange")
        tensor = self.argument("weights", "pointer", "params", len(self.program.params))
        # a sum of neuron m has a row of the weight forward, and a column backward
        apart = "1, Neurons::H" if isinstance(self.plan, ForwardPlan) else "Neurons::H, 1"
        return f"i.take_weights({tensor}, {apart});"

    @property
    def delays_at(self) -> int:
        """Position of the delays among the parameters, -1 without: behind the weight and, forward, the bias."""
        feedback = self.plan.spec.feedback or Feedback()
        if not feedback.delays:
            return -1
        return len(self.program.params) + 1 + (feedback.bias and isinstance(self.plan, ForwardPlan))

    def lags(self) -> List[str]:
        """The lines that take how many steps later the output of each neuron comes back."""
        delays = self.argument("delays", "pointer", "params", self.delays_at)
        return [f"const Pack<{self.real}, V> lag = column_values<V>({delays}, i);"]

    def first_steps(self, at: At, step: str, number: int) -> List[str]:
        """Begin to load two steps of tensor ``number`` of those that arrive, ``step`` from their place ``k``. A step is
        loaded two ahead, those of even steps to the first place: so the place in an unrolled loop is a constant.
        """
        begun = f"if (step >= 0 && step < steps) begin_arrival({at('step')}, {number}, k);"
        return ["for (int k = 0; k < 2; ++k) {", f"    const int step = {step};", f"    {begun}", "}"]

    def arriving_first(self, loads: Sequence[str]) -> List[str]:
        """The loads before the first step: in a group that is complete then, since behind it is one more."""
        return ["if (i.works()) {", *indented(loads), "}", "loads_begun();", "loads_begun();"]

    def product(self, buffer: str) -> str:
        """The line that multiplies."""
        return f"i.product({buffer}, back);"

    def shared_step(self, each: Sequence[str], after: Sequence[str], buffer: str) -> List[str]:
        """Lines of a step: what it computes and gives, and the work while numbers go to all blocks, such as loads."""
        each, after = ["loads_wait<1>();", *each], [*after, "loads_begun();"]
        if self.shape.cluster == 1:
            # the next step begins behind the barrier
            each, after = [*each, *after], []
        lines = ["if (i.works()) {", *indented(each), "}", f"i.pass({buffer});"]
        if after:
            lines += ["if (i.works()) {", *indented(after), "}"]
        return [*lines, f"i.wait({buffer});"]

    def each_step(self, tensor: str, group: str, number: int) -> At:
        """Address of a step in a tensor of all steps."""
        return lambda step: self.all(tensor, group, number, step)
