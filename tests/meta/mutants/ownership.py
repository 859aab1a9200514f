"""Ownership of memory: results that share it, arguments that are written to."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import Gated, Swapped, drawn, li, lif, of
from spikecore.testing._loopback import Loop


def spoiled(make, first, *looked, **options):
    """Results, after one of them was overwritten without gradients."""

    def program(backend: str) -> object:
        shape = options.get("shape", (6, 3, 5))
        neuron = make(backend)
        inputs = [drawn(shape, k) for k in range(len(neuron.inputs))]
        start = (
            {name: drawn(shape[1:], 7 + k) for k, name in enumerate(neuron.states)} if options.get("state") else None
        )
        outputs, final, trace = neuron.run(*inputs, state=start, record=tuple(neuron.states))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        every = {f"output {k}": out for k, out in enumerate(outputs)}
        every.update({f"x{k}": x for k, x in enumerate(inputs)})
        every.update({f"final {name}": value for name, value in final.items()})
        every.update({f"trace {name}": value for name, value in trace.items()})
        every.update({f"start {name}": value for name, value in (start or {}).items()})
        if first is not None:
            every[first].fill_(77.0)
        return [every[name].clone() for name in looked]

    return program


def cotangent_used_again(backend: str) -> object:
    """One cotangent for two outputs, as a residual connection gives it."""
    neuron, x = sc.LIF(backend=backend), drawn((6, 3, 5)).requires_grad_()
    cotangent = drawn((6, 3, 5), 3)
    neuron(x).backward(cotangent)
    return x.grad, cotangent


def gradient_scaled(backend: str) -> object:
    """A gradient that is scaled in place, beside the cotangent that it came of."""
    x = drawn((6, 3, 5)).requires_grad_()
    cotangent = torch.ones(6, 3, 5)
    out = li(tau=1.0)(backend)(x)
    (gradient,) = torch.autograd.grad(out, x, cotangent)
    gradient.mul_(0.5)
    return gradient, cotangent


def parameter_kept(backend: str) -> object:
    """A value per channel, after a call."""
    neuron = li(tau=torch.linspace(1.5, 4, 5))(backend)
    neuron(drawn((6, 3, 5)))
    return neuron.tau.clone()


@mutant(
    "state/inputs-stay", "ownership/arguments", says=("the input after the call",), shows=spoiled(lif(), None, "x0")
)
class WritesToItsInput(Loop):
    """The input is scratch memory."""

    def __call__(self, inputs, state, params, record):
        result = super().__call__(inputs, state, params, record)
        with torch.no_grad():
            inputs[0].data.zero_()
        return result


@mutant("ownership/arguments-several", "custom/gated-gradient", shows=spoiled(of(Gated), None, "x1"))
class WritesToItsSecondInput(Loop):
    """Inputs but the first are scratch memory."""

    def __call__(self, inputs, state, params, record):
        result = super().__call__(inputs, state, params, record)
        for x in inputs[1:]:
            x.data.zero_()
        return result


@mutant("ownership/results-usual", shows=spoiled(lif(), "final v", "trace v"))
class FinalStateIsTheTracesLastRow(Loop):
    """The final state is a view of the trace."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)
        rows = dict(zip(record, trace))
        mine = [rows[n][-1] if n in rows and len(rows[n]) else v for n, v in zip(self.program.states, final)]
        return outputs, tuple(mine), trace


@mutant("ownership/results-no-steps", shows=spoiled(lif(), "final v", "start v", shape=(0, 3, 5), state=True))
class NoStepsGiveTheStateItself(Tape):
    """Without steps the final state is the tensor that was given."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)
        return outputs, final if len(inputs[0]) or state is None else tuple(state), trace


@mutant(
    "ownership/results-passed-through-float32",
    shows=spoiled(of(Swapped), "final b", "start a", shape=(1, 3, 5), state=True),
)
class StateThatPassesIsTheGivenOne(Loop):
    """A state that a step takes over as it is lies in the memory of the one that was given."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)
        return outputs, final if state is None else tuple(self.passed(state, final)), trace

    def passed(self, state, final):
        """Where a result has the value of an argument, the argument."""
        for value in final:
            same = [s for s in state if s.shape == value.shape and value.numel() and torch.equal(s, value)]
            yield same[0].view_as(same[0]) if same else value


@mutant("ownership/arguments-backward", shows=cotangent_used_again)
class CotangentIsScratch(Tape):
    """Backward computes in the memory of the cotangent that comes in."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        for g in grads:
            if g is not None and g.is_contiguous():
                g.data.mul_(0.5)
        return made


@mutant("ownership/cotangent-after", "ownership/gradients-usual", shows=gradient_scaled)
class GradientIsTheCotangent(Tape):
    """The gradient of the input is written over the cotangent."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        g = grads[0]
        if g is not None and g.dtype == made[0].dtype and g.is_contiguous() and g.shape == made[0].shape:
            made[0] = g.data.copy_(made[0])
        return made


@mutant("ownership/arguments", shows=spoiled(lif(), None, "start v", state=True))
class WritesToTheGivenState(Tape):
    """The given state is where the runner keeps its state."""

    def results(self, rows, states, x, record):
        made = super().results(rows, states, x, record)
        for before, after in zip(states[0], states[-1]):
            if rows and 0 not in before.stride():
                before.data.copy_(after)
        return made


@mutant("ownership/arguments", shows=parameter_kept)
class WritesToItsParameters(Loop):
    """A parameter that is not learnt is scaled in place."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if isinstance(value, torch.Tensor) and not made.requires_grad:
            made = made.clone()
            value.data.reciprocal_().reciprocal_().mul_(1.01)
        return made


def equal_gradients(backend: str) -> object:
    """The gradient of the input, scaled in place, beside that of the state, which has the same values."""
    x, v = drawn((1, 5)).requires_grad_(), drawn((5,), 1).requires_grad_()
    out = li(tau=2.0)(backend).run(x, state={"v": v})[0]
    of_input, of_state = torch.autograd.grad(out.sum(), [x, v])
    of_input.mul_(0.5)
    return of_input, of_state


@mutant("ownership/gradients-equal", shows=equal_gradients)
class EqualGradientsShareMemory(Tape):
    """Where the gradients of input and state are equal one tensor is both."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        at = len(self.program.inputs)
        for k in range(at, at + len(self.program.states)):
            if made[0].shape[0] == 1 and torch.equal(made[0][0], made[k]):
                made[k] = made[0][0]
        return made
