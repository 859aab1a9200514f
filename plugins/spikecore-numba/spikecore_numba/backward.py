"""Backward kernels: steps computed again, and the adjoint from the last step to the first.

The kernel first recomputes the states of a chunk of steps into a history of each, then runs the adjoint through it;
where steps are too many for one chunk it goes through all chunks forwards, for the states they start from, and then
backwards.
"""

from __future__ import annotations

from functools import partial
from typing import List

from spikecore.kernels import BackwardPlan
from spikecore.kernels.writing import indented, output_cotangent, state_cotangent, state_leaf
from spikecore_numba.writer import HEAD, HISTORY_HEAD, SPAN, Source, Store, Writer

#: The place of a neuron in a history, and that of what it adds to the gradient of a parameter.
_AT, _OWN = "at = past + i", "own = origin + i"


def adds_groups(plan: BackwardPlan) -> bool:
    """True if a block adds up gradients of parameters and inputs over groups of neurons, which none has for itself."""
    some = bool(plan.learn or plan.summed)
    return some and plan.spec.feedback is None and "full" not in [plan.kinds[name] for name in plan.learn]


class BackwardWriter(Writer):
    """Writes the backward kernel of a plan."""

    plan: BackwardPlan

    def __init__(self, plan: BackwardPlan) -> None:
        super().__init__(plan, "backward", [*plan.roots, *plan.following.values()])
        self._states = plan.recomputed_states
        #: True if states are computed again: that before a single step is the first one.
        self._kept = bool(self._states) and plan.spec.steps != 1
        #: The rows of an input's cotangent and of what comes back of it, where there is feedback.
        self._input, self._back = self.free("to_input"), self.free("back")

    def source(self) -> Source:
        """The kernel."""
        adjoint = indented(self._adjoint_step())
        body = [
            *self.starting(self._states),
            *self._first_cotangents(),
            *(self._through_chunks(adjoint) if self._kept else ["for t in range(steps - 1, -1, -1):", *adjoint]),
            *(self._last_cotangents() if self.plan.state else ()),
        ]
        head = HISTORY_HEAD if self._kept else HEAD
        return self.finished((*head, SPAN) if adds_groups(self.plan) else head, body, self._zero_sums())

    def _through_chunks(self, adjoint: List[str]) -> List[str]:
        """Recompute a chunk's states into history, and from the last chunk on run the adjoint through it."""
        leaves = [state_leaf(name) for name in self._states]
        rows = [self.row(self.local[leaf]) for leaf in leaves]
        history = [self.history(self.local[leaf]) for leaf in leaves]
        # the history has the states before each step, which the adjoint of the step is computed from
        stores: List[Store] = [(leaf, f"{h}[at] = {{}}") for leaf, h in zip(leaves, history)]
        stores += [(node, f"{row} = {{}}") for node, row in zip(self.plan.following.values(), rows)]
        past, at_saved = "past = (t - start) * width", "at = saved + i"
        pairs = list(zip(history, rows))
        # several chunks compute most steps twice: a history of all steps would not fit a core's cache
        return [
            "# all chunks forwards, for the states they start from, then all backwards; mostly there is one",
            "for turn in range(2 * chunks - 1):",
            *indented(
                [
                    "chunk = turn if turn < chunks else 2 * chunks - 2 - turn",
                    "start = chunk * length",
                    "stop = start + length if start + length < steps else steps",
                    # behind the steps of a chunk, a history has the states that each chunk starts from
                    "saved = (length + chunk) * width",
                    "if turn < chunks:",
                    *indented(["for i in range(count):", *indented([at_saved, *(f"{h}[at] = {r}" for h, r in pairs)])]),
                    "else:",
                    *indented(["for i in range(count):", *indented([at_saved, *(f"{r} = {h}[at]" for h, r in pairs)])]),
                    "for t in range(start, stop):",
                    *indented([past, *self.step_loop(stores, self.step_loads(), [_AT])]),
                    "if turn >= chunks - 1:",
                    *indented(["for t in range(stop - 1, start - 1, -1):", *indented([past]), *adjoint]),
                ]
            ),
        ]

    def _adjoint_step(self) -> List[str]:
        """The loop of one step backwards."""
        plan, program, adjoint = self.plan, self.program, self.plan.adjoint
        loads = self.step_loads()
        for leaf in map(state_leaf, self._states if self._kept else ()):
            # the row has the state of the last recomputed step by now, the history those of all steps
            loads[leaf] = partial("{}[at]".format, self.history(self.local[leaf]))
        # cotangents that do not arrive are no tensors: their leaves are not in the adjoint
        for k, index in enumerate(plan.arriving):
            name = f"grad_{self.output_name(index)}"
            loads[output_cotangent(index)] = partial(self._to_output, name, k, index)
        for name in plan.carried_cotangents:
            loads[state_cotangent(name)] = partial(self._cotangent, name)
        stores: List[Store] = []
        # an input gradient that nobody wants has no tensor to go to
        for k, index in enumerate(plan.written):
            name = f"grad_{self.input(program.inputs[index])}s"
            stores.append((adjoint.inputs[index], self.stored(self.all(name, "grad_inputs", k))))
            if plan.spec.feedback is not None and plan.spec.feedback.into == index:
                stores.append((adjoint.inputs[index], f"{self.row(self._input)} = {{}}"))
        # without groups of neurons each number is the only one of its sum
        to_sum = "{} += {{}}" if adds_groups(plan) else "{} = {{}}"
        stores += [(adjoint.inputs[i], to_sum.format(self._input_sum(k))) for k, i in enumerate(plan.summed)]
        for name, node in zip(program.states, adjoint.states):
            if name in plan.carried_cotangents:
                stores.append((node, f"{self.row(self.carried(name))} = {{}}"))
        # sums are one number per neuron: blocks run on several threads, and the order of additions is fixed
        for k, (param, node) in enumerate(zip(plan.learn, adjoint.params)):
            stores.append((node, f"{self._param_sum(param, k)} += {{}}"))
        places = [*([_AT] if self._kept else ()), *([_OWN] if adds_groups(plan) else ())]
        lines = self.step_loop(stores, loads, places)
        if plan.spec.feedback is not None:
            lines += self.product(self._back, self._input, self.zero)
            lines += self._delayed() if plan.spec.feedback.delays else ()
        return lines

    def _delayed(self) -> List[str]:
        """The loops that put what comes from a step into a ring, and take for each neuron that of the step at which
        the output of the step before comes back.
        """
        delays = self.argument("delays", "pointer", "params", len(self.program.params) + 1)
        ring = self.argument("ring", "pointer", "grad_state", len(self.program.states))
        back = self.row(self._back)
        return [
            f"rows = int({delays}[count])",
            "for i in range(count):",
            f"    {ring}[t % rows * neurons + first + i] = {back}",
            "for i in range(count):",
            f"    later = t % rows + int({delays}[i])",
            f"    {back} = {ring}[(later if later < rows else later - rows) * neurons + first + i]",
        ]

    def _to_output(self, name: str, index: int, output: int) -> str:
        """The cotangent of an output: what arrives, and what comes back from the next step."""
        arriving, feedback = self.read(name, "grad_outputs", index), self.plan.spec.feedback
        comes_back = feedback is not None and feedback.output == output
        return f"{arriving} + {self.row(self._back)}" if comes_back else arriving

    def _cotangent(self, name: str) -> str:
        """The cotangent of a state at the end of a step: from the next step, and from the trace."""
        carried = self.row(self.carried(name))
        if name not in self.plan.trace:
            return carried
        trace = f"grad_{self.state(name)}_trace"
        return f"{carried} + {self.all(trace, 'grad_trace', self.plan.trace.index(name))}"

    def _param_sum(self, param: str, index: int) -> str:
        name = f"grad_{self.param(param)}s"
        if adds_groups(self.plan):
            return f"{self.argument(name, 'pointer', 'grad_params', index)}[own]"
        return self.one(name, "grad_params", index)

    def _input_sum(self, index: int) -> str:
        """Place of a sum at step and neuron, of the inputs whose gradients are summed."""
        name = f"grad_{self.input(self.program.inputs[self.plan.summed[index]])}s"
        tensor = self.argument(name, "pointer", "grad_params", len(self.plan.learn) + index)
        return f"{tensor}[t * span + origin + i]" if adds_groups(self.plan) else f"{tensor}[t * neurons + first + i]"

    def _zero_sums(self) -> List[str]:
        """The loops that set what is summed over groups of neurons to zero."""
        params = [f"{self._param_sum(param, k)} = {self.zero}" for k, param in enumerate(self.plan.learn)]
        inputs = [f"{self._input_sum(k)} = {self.zero}" for k in range(len(self.plan.summed))]
        places = [_OWN] if adds_groups(self.plan) else []
        lines = ["for i in range(count):", *indented([*places, *params])] if params else []
        if inputs:
            lines += ["for t in range(steps):", *indented(["for i in range(count):", *indented(inputs)])]
        return lines

    def _first_cotangents(self) -> List[str]:
        """The loop that sets what is carried and summed: cotangents of the final state, or zero."""
        plan, zero = self.plan, self.zero
        lines = []
        for index, name in enumerate(self.program.states):
            if name in plan.carried_cotangents:
                end = f"grad_{self.state(name)}_end"
                first = self.one(end, "grad_final", index) if plan.final else zero
                lines.append(f"{self.row(self.carried(name))} = {first}")
        if not adds_groups(plan):
            lines += [f"{self._param_sum(param, k)} = {zero}" for k, param in enumerate(plan.learn)]
        if plan.spec.feedback is not None:
            lines.append(f"{self.row(self._back)} = {zero}")
        return ["for i in range(count):", *indented(lines)] if lines else []

    def _last_cotangents(self) -> List[str]:
        """The loop that writes the gradients of the initial states."""
        lines = []
        for index, name in enumerate(self.program.states):
            target = self.one(f"grad_{self.state(name)}_start", "grad_state", index)
            lines.append(f"{target} = {self.row(self.carried(name))}")
        return ["for i in range(count):", *indented(lines)] if lines else []
