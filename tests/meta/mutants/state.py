"""State: where a run starts and ends, what goes from step to step, what a trace has."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import Swapped, call, drawn, li, lif, of
from spikecore.testing._loopback import Loop


def twice(backend: str) -> object:
    """Two calls at rest of one neuron."""
    neuron = sc.LIF(backend=backend)
    return [neuron(drawn((6, 3, 5))) for _ in range(2)]


def without_steps(backend: str) -> object:
    """An empty chunk of a stream."""
    return sc.LIF(backend=backend).run(torch.zeros(0, 3), state={"v": torch.ones(3)})[1]["v"]


@mutant("state/rest", says=("third call",), shows=twice)
class StateLeaks(Loop):
    """The next call starts where the last one ended."""

    def start(self, state, known, like):
        kept = getattr(self, "kept", None)
        if state is None and kept is not None and kept[0].shape == like.shape[1:]:
            return kept
        return super().start(state, known, like)

    def carry(self, before, now, t):
        self.kept = [value.detach() for value in now]
        return now


@mutant(
    "forward/lif-hard", "state/given-lif-hard", "state/carried", says=("final state v",), shows=call(lif(), loss=())
)
class FinalStateOneStepEarly(Loop):
    """The final state is that before the last step."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)
        if len(inputs[0]) > 1:
            final = super().__call__(tuple(x[:-1] for x in inputs), state, params, ())[1]
        return outputs, final, trace


@mutant("record/lif-hard", "record/alif-soft", says=("one step late",), shows=call(lif(), record=("v",), loss=()))
class RecordsBeforeTheStep(Loop):
    """The trace has the states at the start of each step."""

    def recorded(self, before, now):
        return before


@mutant(
    "state/long-17", "state/long-33", "state/long-40", says=("chunk of 16 steps",), shows=call(li(), (20, 3), loss=())
)
class ForgetsAtTheBorderOfAChunk(Loop):
    """State is dropped after 16 steps."""

    def carry(self, before, now, t):
        return [torch.zeros_like(value) for value in now] if t == 15 else now


@mutant("state/long-33-gradient", "state/long-17-gradient", says=("input gradient",), shows=call(li(), (20, 3)))
class GradientStopsAtTheBorderOfAChunk(Loop):
    """Values pass after 16 steps, gradients do not."""

    def carry(self, before, now, t):
        return [value.detach() for value in now] if t == 15 else now


@mutant("state/gradient-lif-hard", "state/initial-alone", says=("there is none",), shows=call(lif(), state=True))
class NoGradientToTheInitialState(Loop):
    """The given state is detached."""

    def start(self, state, known, like):
        return [value.detach() for value in super().start(state, known, like)]


@mutant("layouts/no-steps-state", shows=without_steps)
class NoStepsNoState(Loop):
    """Without steps the state is at rest."""

    def start(self, state, known, like):
        return super().start(state if len(like) else None, known, like)


@mutant("record/several", shows=call(of(sc.ALIF), record=("a", "v"), loss=()))
class RecordsInTheOrderOfThePrograms(Loop):
    """Traces come in the program's order of states, not in that asked for."""

    def __call__(self, inputs, state, params, record):
        return super().__call__(inputs, state, params, tuple(sorted(record, key=self.program.states.index)))


@mutant("state/given-izhikevich-hard", shows=call(of(sc.Izhikevich), state=True, loss=()))
class OnlyTheFirstStateIsGiven(Loop):
    """Of two given states the second starts at rest."""

    def start(self, state, known, like):
        made = super().start(state, known, like)
        return made if state is None or len(made) < 2 else [made[0], *super().start(None, known, like)[1:]]


@mutant("state/swap-three", "state/swap-two", shows=call(of(Swapped), loss=()))
class WritesStatesInTurn(Loop):
    """A step writes its states one after another, and the second reads what the first has become."""

    def carry(self, before, now, t):
        program, made = self.program, list(now)
        for k, node in enumerate(program.next):
            place = program.states.index(node.attr) if node.op == "state" else k
            made[k] = made[place] if place < k else made[k]
        return made


@mutant("state/swap-two-gradient", shows=call(of(Swapped), loss=("output", "final")))
class WritesCotangentsInTurn(Tape):
    """Backward writes the cotangents of the states one after another."""

    def back(self, *arriving):
        exact, inputs, states = super().back(*arriving), len(self.program.inputs), len(self.program.states)

        def back(leaves, like):
            made = exact(leaves, like)
            if states < 2:
                return made
            again = exact([*leaves[:-states], made[inputs].expand(leaves[-1].shape), *leaves[1 - states :]], like)
            return [*made[: inputs + 1], *again[inputs + 1 : inputs + states], *made[inputs + states :]]

        return back


def streamed(backend: str) -> object:
    """One step from a given state, as a stream brings it."""
    return sc.LI(backend=backend).run(drawn((1, 3, 5)), state={"v": drawn((3, 5), 1)})[0]


def empty_chunk(backend: str) -> object:
    """The gradient of a state through a chunk of no steps."""
    v = torch.ones(3, requires_grad=True)
    final = sc.LIF(backend=backend).run(torch.zeros(0, 3), state={"v": v})[1]["v"]
    return torch.autograd.grad(final.sum() + 0 * v.sum(), v)[0]


@mutant("state/one-step-gradient", shows=streamed)
class OneStepFromRest(Loop):
    """A single step starts at rest, whatever state is given."""

    def start(self, state, known, like):
        if state is not None and len(like) == 1:
            return [value + 0 * given for value, given in zip(super().start(None, known, like), state)]
        return super().start(state, known, like)


@mutant("state/no-steps-gradient", shows=empty_chunk)
class NoStepsNoStateGradient(Tape):
    """Without steps the given state gets a gradient of zero."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        return made if made[0].shape[0] else [None if v is None else torch.zeros_like(v) for v in made]
