"""Forward kernels: all steps of a program."""

from __future__ import annotations

from typing import List

from spikecore.kernels import ForwardPlan
from spikecore.kernels.writing import indented, state_leaf
from spikecore_numba.writer import HEAD, Source, Store, Writer


class ForwardWriter(Writer):
    """Writes the forward kernel of a plan."""

    plan: ForwardPlan

    def __init__(self, plan: ForwardPlan) -> None:
        super().__init__(plan, "forward", plan.roots)

    def source(self) -> Source:
        """The kernel."""
        # one loop computes outputs and states, so that what both need is computed once
        stores = [*self._outputs(), *self._states()]
        body = [
            *self.starting(self.program.states),
            "for t in range(steps):",
            *indented(self.loop(stores, self.step_loads())),
            *(self._ending() if self.plan.final else ()),
        ]
        return self.finished(HEAD, body)

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
