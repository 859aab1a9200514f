"""Memory that calls share: what backward needs is overwritten by another call, results lie in one buffer."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import drawn, lif, two_calls
from spikecore.testing._loopback import Loop

LEARNT = lif(learn=("tau",))


def called_twice(neuron):
    """Two more calls."""
    for seed in (9, 10):
        neuron(drawn((6, 3, 5), seed).requires_grad_())


def backward_twice(backend: str) -> object:
    """One graph, kept, run backwards twice."""
    x = drawn((6, 3, 5)).requires_grad_()
    out = sc.LIF(backend=backend)(x)
    found = []
    for _ in range(2):
        found += torch.autograd.grad(out.sum(), x, retain_graph=True)
    return found


def both(pick):
    """What two calls gave, looked at after both."""

    def program(backend: str) -> object:
        neuron = sc.LIF(backend=backend)
        found = [pick(neuron.run(drawn((6, 3, 5), k), record=("v",))) for k in range(2)]
        return [value.clone() for value in found]

    return program


def gradients_of_both(backend: str) -> object:
    """Two gradients, taken by torch.autograd.grad and looked at after both."""
    neuron = sc.LIF(backend=backend)
    found = []
    for k in range(2):
        x = drawn((6, 3, 5), k).requires_grad_()
        found += torch.autograd.grad(neuron(x).sum(), x)
    return [value.clone() for value in found]


def evaluated(backend: str) -> object:
    """An evaluation between forward and backward."""
    neuron, x = sc.LIF(backend=backend), drawn((6, 3, 5)).requires_grad_()
    out = neuron(x)
    with torch.no_grad():
        neuron(drawn((6, 3, 5), 9))
    out.sum().backward()
    return x.grad


def refilled_input(backend: str) -> object:
    """One input buffer, filled anew for each batch."""
    neuron, x = sc.LIF(backend=backend), drawn((6, 3, 5))
    first = neuron(x)
    x.copy_(drawn((6, 3, 5), 1))
    return first, neuron(x)


def steps_by_zero_grad(backend: str) -> object:
    """The gradient of a learnt parameter in three batches, set to None before each."""
    neuron, found = LEARNT(backend), []
    for k in range(3):
        neuron.tau.grad = None
        neuron(drawn((6, 3, 5), k)).sum().backward()
        found.append(neuron.tau.grad.clone())
    return found


@mutant("sequences/two-calls-lif-hard", shows=two_calls(lif()))
class OneTapeForAllCalls(Tape):
    """The states that backward needs are kept in the runner, and the next call overwrites them."""

    def keep(self, ctx, tensors, states):
        super().keep(ctx, tensors, states)
        self.tape = [value for row in states[1:-1] for value in row]

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        width = len(self.program.states)
        if len(self.tape) != width * (len(states) - 1) or (self.tape and self.tape[0].shape != states[0][0].shape):
            return tensors, states
        return tensors, [states[0], *([*self.tape[k : k + width]] for k in range(0, len(self.tape), width or 1))]


@mutant("sequences/two-calls-lif-hard", "sequences/two-calls-learnt", shows=two_calls(LEARNT))
class InputsOfTheLastCall(Tape):
    """Backward reads the input of the runner's last call of that shape."""

    def keep(self, ctx, tensors, states):
        super().keep(ctx, tensors, states)
        self.last = tensors

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        now = len(self.program.inputs)
        same = self.last[0].shape == tensors[0].shape
        return (*(self.last if same else tensors)[:now], *tensors[now:]), states


@mutant("sequences/shapes", shows=two_calls(lif(), between=called_twice))
class TwoTapesInTurn(Tape):
    """There are two places for what backward needs; the third call takes the first one again."""

    def keep(self, ctx, tensors, states):
        super().keep(ctx, tensors, states)
        self.ring, self.turn = getattr(self, "ring", {}), getattr(self, "turn", -1) + 1
        ctx.place = self.turn % 2
        self.ring[ctx.place] = [list(row) for row in states[:-1]]

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        mine = self.ring[ctx.place]
        same = len(mine) == len(states) and mine and mine[0] and mine[0][0].shape == states[0][0].shape
        return tensors, mine if same else states


@mutant("sequences/no-grad-between", shows=evaluated)
class EvaluationOverwritesTheTape(Tape):
    """A call without gradients writes into the memory that the last call with gradients keeps."""

    def __call__(self, inputs, state, params, record):
        self.graded = torch.is_grad_enabled()
        return super().__call__(inputs, state, params, record)

    def keep(self, ctx, tensors, states):
        super().keep(ctx, tensors, states)
        self.written = None if self.graded else [list(row) for row in states[:-1]]

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        fits = self.written and len(self.written) == len(states) and states[0]
        fits = fits and self.written[0][0].shape == states[0][0].shape
        return tensors, self.written if fits else states


@mutant("sequences/retained", "sequences/accumulated", shows=backward_twice)
class BackwardUsesItsTapeUp(Tape):
    """Backward writes its cotangents over the kept states."""

    def carry(self, before, now, t):
        made = super().carry(before, now, t)
        for state, value in zip(self.states[t], made):
            if t and state.shape == value.shape:
                state.data.copy_(value)
        return made

    def kept(self, ctx):
        tensors, self.states = super().kept(ctx)
        return tensors, self.states


@mutant("sequences/outputs-kept", shows=both(lambda results: results[0]))
class OneBufferForOutputs(Loop):
    """Outputs of one shape lie in one buffer."""

    def written(self, output):
        made = super().written(output)
        self.buffer = getattr(self, "buffer", {})
        held = self.buffer.setdefault((made.shape, made.dtype), made.detach())
        if made.requires_grad:
            return made
        return held.copy_(made)


@mutant("sequences/outputs-kept", shows=both(lambda results: results[1]["v"]))
class OneBufferForFinalStates(Tape):
    """Final states of one shape lie in one buffer."""

    def results(self, rows, states, x, record):
        made = super().results(rows, states, x, record)
        self.buffer = getattr(self, "buffer", {})
        at = len(self.program.outputs)
        for k in range(at, at + len(self.program.states)):
            held = self.buffer.setdefault((k, made[k].shape), made[k].detach().clone())
            made[k] = held.copy_(made[k].detach()).view_as(held)
        return made


@mutant("sequences/outputs-kept", shows=both(lambda results: results[2]["v"]))
class OneBufferForTraces(Loop):
    """Traces of one shape lie in one buffer."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)
        self.buffer = getattr(self, "buffer", {})
        shared = []
        for k, value in enumerate(trace):
            held = self.buffer.setdefault((k, value.shape), torch.empty_like(value.detach()))
            shared.append(value if value.requires_grad else held.copy_(value))
        return outputs, final, tuple(shared)


@mutant("sequences/gradients-kept", shows=gradients_of_both)
class OneBufferForGradients(Tape):
    """Input gradients of one shape lie in one buffer."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        self.buffer = getattr(self, "buffer", {})
        for k in range(len(self.program.inputs)):
            held = self.buffer.setdefault((k, made[k].shape), made[k])
            made[k] = held if made[k] is held else held.copy_(made[k])
        return made


@mutant("sequences/two-calls-learnt", "sequences/optimiser-scalar", shows=steps_by_zero_grad)
class SumOfGradientsNotCleared(Tape):
    """The sum of a parameter's gradient goes on from that of the last backward pass."""

    def total(self, sum_, value):
        made = super().total(sum_, value)
        self.sums = getattr(self, "sums", {})
        key = (value.shape, len(self.learn))
        self.sums[key] = made = self.sums.get(key, 0) + made
        return made.clone()


def strided_buffer(backend: str) -> object:
    """A part of a larger buffer, filled anew for each batch."""
    neuron, buffer = sc.LIF(backend=backend), drawn((6, 4, 5))
    first = neuron(buffer[:, :3])
    buffer.copy_(drawn((6, 4, 5), 1))
    return first, neuron(buffer[:, :3])


def other_cotangent(backend: str) -> object:
    """A kept graph, run backwards from two losses."""
    x = drawn((6, 3, 5)).requires_grad_()
    out = sc.LIF(backend=backend)(x)
    return [torch.autograd.grad((out * drawn((6, 3, 5), k)).sum(), x, retain_graph=True)[0] for k in range(2)]


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, packed):
        """The copy."""
        return packed.clone()

    @staticmethod
    def backward(ctx, grad):
        """That of the input."""
        return grad, None


@mutant("sequences/refilled-buffer", shows=strided_buffer)
class PackedByAddress(Loop):
    """The contiguous copy of an input that is not is kept by its address, shape and strides."""

    def __call__(self, inputs, state, params, record):
        self.copies = getattr(self, "copies", {})
        return super().__call__(tuple(map(self.packed, inputs)), state, params, record)

    def packed(self, x):
        """The first copy of its address."""
        if x.is_contiguous() or not x.numel():
            return x
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
        return _Packed.apply(x, self.copies.setdefault(key, x.detach().clone()))


@mutant("ownership/cotangent-after", shows=other_cotangent)
class BackwardRemembered(Tape):
    """A kept graph gives the gradients of its first backward pass again, whatever cotangents come."""

    def backward(self, ctx, grads):
        ctx.found = getattr(ctx, "found", None) or super().backward(ctx, grads)
        return [None if v is None else v.clone() for v in ctx.found]
