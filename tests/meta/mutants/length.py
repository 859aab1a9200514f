"""Length: what goes wrong only in long runs."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import bits, call, li, lif, of
from spikecore.testing._loopback import Loop

LONG = (100, 2, 3)
SLOW = li(tau=20.0, learn=("tau",))


@mutant("state/steps-100-scalar", shows=call(SLOW, LONG, loss=()))
class ForgetsAfterSixtyFourSteps(Loop):
    """State is dropped after 64 steps."""

    def carry(self, before, now, t):
        return [torch.zeros_like(value) for value in now] if t == 63 else now


@mutant("state/steps-250-channel", "state/steps-64-scalar", "state/steps-100-scalar", shows=call(SLOW, LONG))
class GradientReachesFiftySteps(Tape):
    """Gradients go through 50 steps and not through more."""

    def carry(self, before, now, t):
        return [torch.zeros_like(value) for value in now] if t == self.steps - 50 else super().carry(before, now, t)

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        self.steps = len(tensors[0])
        return tensors, states


@mutant("state/steps-100-scalar", shows=call(lif(), LONG, record=("v",), loss=()))
class TraceOfSixtyFourSteps(Loop):
    """The memory of a trace is 64 steps long, and later steps overwrite the first ones."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)
        return outputs, final, tuple(torch.cat([v[64:128], v[len(v[64:128]) :]])[: len(v)] for v in trace)


@mutant("state/steps-64-scalar", shows=call(lif(learn=("tau",)), LONG))
class ParameterGradientOfTheLastChunk(Tape):
    """In a run of several chunks only the last 32 steps add to a parameter's gradient."""

    def add(self, total, part, t):
        return super().add(total, part, t) if t >= self.steps - 32 else total

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        self.steps = len(tensors[0])
        return tensors, states


@mutant("state/steps-17-scalar", shows=call(SLOW, (20, 2, 3), state=True, loss=()))
class GivenStateIgnoredInLongRuns(Loop):
    """Beyond 16 steps every run starts at rest."""

    def start(self, state, known, like):
        return super().start(state if self.spec.steps is not None else None, known, like)


@mutant("state/steps-100-float16", shows=call(SLOW, (60, 2, 3), dtype=torch.float16, loss=()))
class StateRoundedAtTheBorderOfAChunk(Loop):
    """16-bit inputs: state is rounded to 16 bits after each 32 steps."""

    def carry(self, before, now, t):
        return [v.to(self.dtype).to(self.compute) for v in now] if t % 32 == 31 else now


@mutant("state/steps-250-scalar", shows=call(lif(), (140, 3), loss=()))
class CounterOfSevenBits(Loop):
    """From step 128 on the inputs are read from the start again."""

    def read(self, x, t):
        return super().read(x, t % 128)


@mutant("state/steps-64-spikes", shows=call(lif(), (60, 2, 3), state=True))
class CheckpointOfTheFirstChunk(Tape):
    """Backward starts the third chunk of 16 steps, and each later one, from the state before the second."""

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        return tensors, [states[16] if t >= 32 and t % 16 == 0 else row for t, row in enumerate(states)]


@mutant("state/steps-64-scalar", shows=call(of(sc.ALIF, learn=("rho",)), (60, 2, 3), record=("a",), loss=("trace",)))
class TraceGradientOfFortySteps(Tape):
    """A cotangent of a trace counts in the first 40 steps."""

    def backward(self, ctx, grads):
        count = len(self.program.outputs) + len(self.program.states)
        cut = [g if g is None else torch.cat([g[:40], torch.zeros_like(g[40:])]) for g in grads[count:]]
        return super().backward(ctx, (*grads[:count], *cut))


@mutant("state/steps-100-float64", shows=bits(call(li(tau=10 / 3), (33, 3), dtype=torch.float64, loss=())))
class DoublesInFloat32WhenLong(Loop):
    """float64 runs of more than 16 steps have float32 state."""

    def carry(self, before, now, t):
        return [v.float().to(v.dtype) for v in now] if self.spec.steps is None else now


@mutant("state/steps-1025-scalar", shows=call(SLOW, (1100, 3), loss=()))
class TableOfAThousandSteps(Loop):
    """State is dropped after 1,024 steps."""

    def carry(self, before, now, t):
        return [torch.zeros_like(value) for value in now] if t == 1023 else now
