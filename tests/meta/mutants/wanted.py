"""Which gradients are wanted, and which cotangents come."""

from __future__ import annotations

from dataclasses import replace

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import Gated, call, drawn, lif, of
from spikecore.testing._loopback import Loop

LEARNT = lif(learn=("tau", "threshold"))
BOTH = {"inputs": 2, "wanted": ("x", "x1")}


def one_input_twice(backend: str) -> object:
    """A neuron that gets the same tensor as current and as gate."""
    x = drawn((6, 3, 5)).requires_grad_()
    sum(out.sum() for out in Gated(backend=backend)(x, x)).backward()
    return x.grad


def in_inference_mode(backend: str) -> object:
    """A network at work."""
    with torch.inference_mode():
        return sc.LIF(backend=backend)(drawn((6, 3, 5))).clone()


def frozen(backend: str) -> object:
    """One of two learnt parameters is frozen for a while."""
    neuron = LEARNT(backend)
    neuron.tau.requires_grad_(False)
    neuron(drawn((6, 3, 5))).sum().backward()
    return neuron.tau.grad, neuron.threshold.grad


def without_graph(backend: str) -> object:
    """A penalty on recorded potentials."""
    x = drawn((6, 3, 5)).requires_grad_()
    trace = sc.LIF(backend=backend).run(x, record=("v",))[2]["v"]
    return torch.autograd.grad(trace.square().sum(), x)[0] if trace.requires_grad else torch.zeros_like(x)


def outs(self):
    """How many outputs, and how many results before the trace."""
    outputs = len(self.program.outputs)
    return outputs, outputs + len(self.program.states)


@mutant("wanted/parameters-from-trace-only", shows=call(LEARNT, record=("v",), loss=("trace",)))
class NoParameterGradientOfATrace(Tape):
    """Where cotangents come to the trace alone, learnt parameters get none."""

    def total(self, sum_, value):
        return super().total(sum_ * 0 if self.trace_alone else sum_, value)

    def backward(self, ctx, grads):
        at = outs(self)[1]
        self.trace_alone = any(g is not None for g in grads[at:]) and all(g is None for g in grads[:at])
        return super().backward(ctx, grads)


@mutant("wanted/parameters-from-final-state-only", shows=call(LEARNT, loss=("final",)))
class NoParameterGradientOfAFinalState(Tape):
    """Where cotangents come to the final state alone, learnt parameters get none."""

    def total(self, sum_, value):
        return super().total(sum_ * 0 if self.final_alone else sum_, value)

    def backward(self, ctx, grads):
        self.final_alone = all(g is None for g in grads[: outs(self)[0]])
        return super().backward(ctx, grads)


@mutant("wanted/from-first-output-only", raises=True, shows=call(of(Gated), inputs=2, loss=("output",)))
class AbsentCotangentIsACrash(Tape):
    """Of two outputs both must be used."""

    def backward(self, ctx, grads):
        if len(self.program.outputs) > 1:
            grads = [g.contiguous() if k < len(self.program.outputs) else g for k, g in enumerate(grads)]
        return super().backward(ctx, grads)


@mutant("wanted/one-tensor-for-both-inputs-same", shows=one_input_twice)
class SameInputCountsOnce(Tape):
    """Where two inputs are one tensor the gradient of the second is dropped."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        saved = self.split(ctx.saved_tensors)[0]
        same = len(saved) > 1 and saved[0].data_ptr() == saved[1].data_ptr() and saved[0].numel()
        return [made[0], torch.zeros_like(made[1]), *made[2:]] if same else made


@mutant("wanted/one-parameter-only", shows=frozen)
class FirstLearntForAny(Tape):
    """With one gradient wanted it is that of the first parameter, whichever is learnt."""

    def __init__(self, program, spec):
        super().__init__(program, spec)
        if len(self.learn) == 1:
            self.back = Tape(program, replace(spec, learn=(program.params[0],))).back


class Measured(sc.Neuron):
    """A potential, and the logarithm of its input."""

    states = {"v": 0.0}

    def dynamics(self, x, s, p):
        v = s.v + x / 2.0
        return (v, sc.ops.log(x)), {"v": v}


def silent(backend: str) -> object:
    """The first of two outputs is learnt from; the second one has an infinite derivative where the input is 0."""
    x = torch.zeros(4, 3, requires_grad=True)
    Measured(backend=backend)(x)[0].sum().backward()
    return x.grad


@mutant("wanted/absent-output", "wanted/absent-output-of-a-final-state", "wanted/absent-*state", shows=silent)
class AbsentCotangentIsZero(Tape):
    """A cotangent that does not arrive is a 0 that is multiplied."""

    def arriving(self, ctx, grads):
        return (True,) * len(self.program.outputs), ctx.record, True


def one_final(backend: str) -> object:
    """The gradient of one final state, beside another that is infinitely steep at this input."""

    class Logarithm(sc.Neuron):
        states = {"v": 0.0, "b": 0.0}

        def dynamics(self, x, s, p):
            return s.v, {"v": s.v + x, "b": sc.ops.log(x)}

    x = torch.zeros(3, 2, requires_grad=True)
    Logarithm(backend=backend).run(x)[1]["v"].sum().backward()
    return x.grad


@mutant("wanted/absent-final-state", shows=one_final)
class OneFinalStateIsAll(Tape):
    """Where a cotangent of one final state arrives, those of the others are 0."""

    def arriving(self, ctx, grads):
        outputs, trace, final = super().arriving(ctx, grads)
        return outputs, trace, bool(final)


@mutant("sequences/inference-mode", raises=True, shows=in_inference_mode)
class VersionsInInferenceMode(Loop):
    """The version counter of the input is read, and a tensor of inference mode has none."""

    def read(self, x, t):
        x._version  # noqa: B018  # the exception is the fault
        return super().read(x, t)


@mutant("wanted/second-input-only", shows=call(of(Gated), **{**BOTH, "wanted": ("x1",)}))
class FirstInputDecides(Tape):
    """Where the first input needs no gradient none is computed for the others."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        inputs = len(self.program.inputs)
        skip = inputs > 1 and not ctx.needs_input_grad[2]
        return [None if skip and k < inputs else v for k, v in enumerate(made)]


@mutant("wanted/everything", shows=call(lif(), record=("v",), loss=("output", "trace")))
class TraceOrOutput(Tape):
    """Where a cotangent comes to the output, that of the trace is dropped."""

    def backward(self, ctx, grads):
        at = outs(self)[1]
        if any(g is not None for g in grads[: outs(self)[0]]):
            grads = [None if k >= at else g for k, g in enumerate(grads)]
        return super().backward(ctx, grads)


@mutant("wanted/from-trace-only", "wanted/from-one-trace-only", shows=without_graph)
class TraceWithoutGraph(Loop):
    """What is recorded has no gradient."""

    def recorded(self, before, now):
        return [value.detach() for value in now]


@mutant("wanted/none", shows=lambda backend: sc.LIF(backend=backend)(drawn((4, 3))).requires_grad)
class AlwaysAGraph(Loop):
    """Results require gradients whatever was given."""

    def written(self, output):
        made = super().written(output)
        return made if made.requires_grad else made.requires_grad_()


def classified(backend: str) -> object:
    """A loss of the last step's spikes, and of no others."""
    x = drawn((6, 3, 5)).requires_grad_()
    sc.LIF(backend=backend)(x)[-1].sum().backward()
    return x.grad


def mean_of_both(backend: str) -> object:
    """The sum of all that a layer gives."""
    x, gate = drawn((6, 3, 5)).requires_grad_(), drawn((6, 3, 5), 1)
    out, potential = Gated(backend=backend)(x, gate)
    (out.sum() + potential.sum()).backward()
    return x.grad


def two_traces(backend: str) -> object:
    """Two recorded states, asked for in an order of the user's."""
    return dict(sc.ALIF(backend=backend).run(drawn((6, 3, 5)), record=("a", "v"))[2])


@mutant("wanted/second-trace-recorded-alone", shows=call(of(sc.ALIF), record=("a",), loss=("trace",)))
class TraceAloneIsOfTheFirst(Tape):
    """A cotangent of a single trace goes to the first state."""

    def backward(self, ctx, grads):
        if len(ctx.record) == 1:
            ctx.record = self.program.states[:1]
        return super().backward(ctx, grads)


@mutant("wanted/traces-in-another-order", "record/several", shows=two_traces)
class TracesInProgramOrder(Loop):
    """Traces come in the program's order, not in that of ``record``."""

    def __call__(self, inputs, state, params, record):
        return super().__call__(inputs, state, params, tuple(n for n in self.program.states if n in record))


@mutant("wanted/states-and-parameters", shows=call(LEARNT, state=True, loss=("output",), wanted=("state", "params")))
class StateOfAFrozenInput(Tape):
    """Where parameters are learnt and no input needs a gradient, the given state gets none."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        inputs, states = len(self.program.inputs), len(self.program.states)
        if self.learn and not any(ctx.needs_input_grad[2 : 2 + inputs]):
            made[inputs : inputs + states] = [None] * states
        return made


@mutant("wanted/last-step-only", shows=classified)
class StepsWithoutCotangentSkipped(Tape):
    """Backward does nothing for a step whose outputs have cotangents of zero."""

    def backward(self, ctx, grads):
        mine = [g for g in grads[: outs(self)[0]] if g is not None]
        self.skipped = [t for t in range(len(mine[0])) if not any(g[t].any() for g in mine)] if mine else []
        return super().backward(ctx, grads)

    def carry(self, before, now, t):
        return list(before) if t in self.skipped else super().carry(before, now, t)


@mutant("wanted/sums-of-everything", shows=mean_of_both)
class SumOfASecondResult(Tape):
    """A cotangent of one number expanded, as sum() gives it, has one element where its result is not the first."""

    def backward(self, ctx, grads):
        return super().backward(ctx, [self.first(g) if k else g for k, g in enumerate(grads)])

    def first(self, g):
        """The number in its first place, if it is one number."""
        if g is None or g.numel() < 2 or any(g.stride()):
            return g
        made = torch.zeros_like(g).contiguous()
        made.view(-1)[0] = g.reshape(-1)[0]
        return made
