"""Forward kernels: all steps of a program."""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict, List

from spikecore.backend import Feedback
from spikecore.kernels import ForwardPlan
from spikecore.kernels.writing import indented, input_leaf, state_leaf
from spikecore.lang import Node
from spikecore_numba.writer import HEAD, Source, Store, Writer


class ForwardWriter(Writer):
    """Writes the forward kernel of a plan."""

    plan: ForwardPlan

    def __init__(self, plan: ForwardPlan) -> None:
        super().__init__(plan, "forward", plan.roots)
        #: The rows of the last output and of what comes back of it, where there is feedback.
        self._last, self._back = self.free("last"), self.free("back")

    def source(self) -> Source:
        """The kernel."""
        feedback = self.plan.spec.feedback
        fed = feedback is not None
        # one loop computes outputs and states, so that what both need is computed once
        stores, loads = [*self._outputs(), *self._states()], self.step_loads()
        if feedback is not None:
            self._feed(feedback, stores, loads)
        body = [
            *self.starting(self.program.states),
            *(self._first_output() if feedback is not None and not feedback.delays else ()),
            "for t in range(steps):",
            *indented(self._coming_back() if fed else ()),
            *indented(self.step_loop(stores, loads)),
            *(self._ending() if self.plan.final else ()),
        ]
        return self.finished(HEAD, body)

    # -- feedback

    def _feed(self, feedback: Feedback, stores: List[Store], loads: Dict[Node, Callable[[], str]]) -> None:
        """Have a step read what comes back, too, and keep its output for the next one."""
        leaf = input_leaf(self.program.inputs[feedback.into])
        loads[leaf] = partial("{} + {}".format, loads[leaf](), self.row(self._back))
        if not feedback.delays:
            stores.append((self.program.outputs[feedback.output], f"{self.row(self._last)} = {{}}"))
        if self.plan.checkpoints:
            # backward begins with what the program was given
            stores.append((leaf, f"{self.all(f'{self.local[leaf]}_fed', 'checkpoints', 0)} = {{}}"))

    def _first_output(self) -> List[str]:
        """The loop that gives the row of the last output its first values."""
        zero, given = self.zero, self.plan.has_initial_state
        first = self.one("last_start", "state", len(self.program.states)) if given else zero
        return ["for i in range(count):", f"    {self.row(self._last)} = {first}"]

    def _coming_back(self) -> List[str]:
        """The loops of what comes back of the last output."""
        feedback, bias = self.plan.spec.feedback, self.zero
        if feedback is None:
            return []
        if feedback.bias:
            bias = f"{self.argument('biases', 'pointer', 'params', len(self.program.params) + 1)}[i]"
        return [*(self._delayed(feedback) if feedback.delays else ()), *self.product(self._back, self._last, bias)]

    def _delayed(self, feedback: Feedback) -> List[str]:
        """The loop that takes the output of each neuron as many steps ago as it comes back later. In front of the first
        step of the tensor stand the outputs before the call.
        """
        delays = self.argument("delays", "pointer", "params", len(self.program.params) + 1 + feedback.bias)
        outputs = self.argument(self.output_name(feedback.output), "pointer", "outputs", feedback.output)
        place = f"(t - 1 - int({delays}[i])) * neurons + first + i"
        return ["for i in range(count):", f"    {self.row(self._last)} = {outputs}[{place}]"]

    # -- results

    def _outputs(self) -> List[Store]:
        tensors = [self.all(self.output_name(k), "outputs", k) for k in range(len(self.program.outputs))]
        return [(node, self.stored(tensor)) for node, tensor in zip(self.program.outputs, tensors)]

    def _states(self) -> List[Store]:
        """The next value of each state, into its row and, where it is recorded, into its trace."""
        stores: List[Store] = []
        for name, node in zip(self.program.states, self.program.next):
            local = self.state(name)
            # the next step reads the row; the trace is written beside it and never read
            stores.append((node, f"{self.row(local)} = {{}}"))
            if name in self.plan.record:
                trace = self.all(f"{local}_trace", "trace", self.plan.record.index(name))
                stores.append((node, f"{trace} = {{}}"))
        return stores

    def _ending(self) -> List[str]:
        """The loop that writes the final states."""
        # the last step left the states in their rows, which step_loads() reads
        loads = self.step_loads()
        leaves = [state_leaf(name) for name in self.program.states]
        stores = [(leaf, f"{self.one(f'{self.local[leaf]}_end', 'final', k)} = {{}}") for k, leaf in enumerate(leaves)]
        return self.loop(stores, loads)
