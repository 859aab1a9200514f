"""Layouts: inputs, parameters, states and cotangents that are not contiguous, and small shapes."""

from __future__ import annotations

import torch

from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import Gated, call, li, lif, of
from spikecore.testing._loopback import Loop


def linear(x: torch.Tensor) -> torch.Tensor:
    """What a kernel sees that takes the memory of x for a contiguous tensor."""
    memory = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())[x.storage_offset() :]
    flat = torch.zeros(x.numel(), dtype=x.dtype, device=x.device)
    flat[: min(len(memory), len(flat))] = memory[: len(flat)]
    return flat.view(x.shape)


def from_start(x: torch.Tensor) -> torch.Tensor:
    """What a kernel sees that takes the start of the storage for the start of the tensor."""
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).as_strided(x.shape, x.stride())


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, read):
        """What ``read`` sees."""
        return read(x).clone()

    @staticmethod
    def backward(ctx, grad):
        """The same."""
        return grad, None


class _ReadLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out):
        """The same."""
        return out.clone()

    @staticmethod
    def backward(ctx, grad):
        """The memory as if contiguous."""
        return linear(grad)


def laid(*which: str, how=lambda t: t.transpose(0, -1).contiguous().transpose(0, -1)):
    """Gives the tensors of these names another layout: by default the first dimension last in memory."""
    return lambda name, t: how(t) if name in which and t.ndim > 1 else t


def offset(t):
    """The same numbers behind one other."""
    return torch.cat([t.reshape(-1)[:1], t.reshape(-1)])[1:].view(t.shape)


FULL = torch.linspace(1.5, 4, 15).view(5, 3).t()
GATED = {"inputs": 2, "loss": ("output", "output 1")}


@mutant(
    "layouts/input-strided", "layouts/input-channels-last", "layouts/input-expanded", shows=call(lif(), laid=laid("x"))
)
class InputStridesIgnored(Loop):
    """Inputs are read as if contiguous."""

    def __call__(self, inputs, state, params, record):
        return super().__call__(tuple(_Linear.apply(x, linear) for x in inputs), state, params, record)


@mutant(
    "layouts/input-channels-last",
    "layouts/channels-last-channel",
    shows=call(lif(), (3, 2, 4, 3, 3), laid=laid("x", how=lambda t: t.movedim(2, -1).contiguous().movedim(-1, 2))),
)
class ChannelsLastMisread(Loop):
    """Only images in channels-last go wrong."""

    def __call__(self, inputs, state, params, record):
        x = inputs[0]
        if x.ndim == 5 and x.stride(2) == 1:
            inputs = (_Linear.apply(x, linear),)
        return super().__call__(inputs, state, params, record)


@mutant(
    "layouts/incoming-expanded",
    "layouts/incoming-transposed",
    "layouts/sum",
    says=("input gradient",),
    shows=call(lif(), laid=laid("output")),
)
class IncomingStridesIgnored(Loop):
    """The incoming gradient is read as if contiguous."""

    def written(self, output):
        return _ReadLinear.apply(super().written(output))


@mutant("layouts/one-step", "single-step/lif-hard", shows=call(lif(), (1, 3, 5)))
class OneStepIsNone(Loop):
    """T = 1 gives zeros."""

    def written(self, output):
        return super().written(output) * (0 if len(output) == 1 else 1)


@mutant("layouts/odd", "forward/lif-hard", says=("only the last neuron differs",), shows=call(lif(), (6, 3, 5)))
class OddTailForgotten(Loop):
    """The last neuron of an odd number is not computed."""

    def written(self, output):
        made = super().written(output)
        if made.numel() and made[0].numel() % 2:
            mask = torch.ones_like(made[0]).reshape(-1)
            mask[-1] = 0
            made = made * mask.view(made.shape[1:])
        return made


@mutant("layouts/state", shows=call(lif(), state=True, laid=laid("v")))
class StateStridesIgnored(Tape):
    """A given state is read as if contiguous."""

    def walk(self, tensors):
        inputs, states, values = self.split(tensors)
        return super().walk([*inputs, *(s if 0 in s.stride() else linear(s) for s in states), *values])


@mutant("layouts/state-incoming", shows=call(lif(), loss=("final",), laid=laid("final v")))
class FinalCotangentStridesIgnored(Tape):
    """The cotangent of a final state is read as if contiguous."""

    def backward(self, ctx, grads):
        at, end = len(self.program.outputs), len(self.program.outputs) + len(self.program.states)
        return super().backward(ctx, [g if g is None or not at <= k < end else linear(g) for k, g in enumerate(grads)])


@mutant(
    "layouts/cotangent-of-trace-transposed", shows=call(lif(), record=("v",), loss=("trace",), laid=laid("trace v"))
)
class TraceCotangentStridesIgnored(Tape):
    """The cotangent of a trace is read as if contiguous."""

    def backward(self, ctx, grads):
        end = len(self.program.outputs) + len(self.program.states)
        return super().backward(ctx, [g if g is None or k < end else linear(g) for k, g in enumerate(grads)])


@mutant("layouts/cotangent-of-second-output-transposed", shows=call(of(Gated), **GATED, laid=laid("output 1")))
class SecondCotangentStridesIgnored(Tape):
    """The cotangent of a second output is read as if contiguous."""

    def backward(self, ctx, grads):
        second = range(1, len(self.program.outputs))
        return super().backward(ctx, [linear(g) if k in second and g is not None else g for k, g in enumerate(grads)])


@mutant(
    "layouts/second-input-part-of-a-larger-one",
    "layouts/second-input-transposed",
    shows=call(of(Gated), **GATED, laid=laid("x1")),
)
class SecondInputLikeTheFirst(Loop):
    """All inputs but the first are read as if contiguous."""

    def __call__(self, inputs, state, params, record):
        rest = [_Linear.apply(x, linear) for x in inputs[1:]]
        return super().__call__((inputs[0], *rest), state, params, record)


@mutant("layouts/full-parameter-transposed", shows=call(li(tau=FULL), loss=()))
class ParameterStridesIgnored(Loop):
    """A value per neuron is read as if contiguous."""

    def parameter(self, value, kind, like):
        return super().parameter(linear(value) if kind == "full" else value, kind, like)


@mutant("layouts/channel-parameter-strided", shows=call(li(tau=torch.linspace(1.5, 4, 10)[::2]), loss=()))
class ChannelStrideIgnored(Loop):
    """Values per channel are read one after another, as if contiguous."""

    def parameter(self, value, kind, like):
        return super().parameter(linear(value) if kind == "channel" else value, kind, like)


@mutant("layouts/input-transposed-float16", shows=call(lif(), dtype=torch.float16, laid=laid("x")))
class HalfStridesIgnored(Loop):
    """16-bit inputs are read as if contiguous, as two in a word."""

    def __call__(self, inputs, state, params, record):
        if self.dtype in (torch.float16, torch.bfloat16):
            inputs = tuple(_Linear.apply(x, linear) for x in inputs)
        return super().__call__(inputs, state, params, record)


@mutant("layouts/first-input-offset", shows=call(lif(), laid=laid("x", how=offset)))
class OffsetIgnored(Loop):
    """Inputs are read from the start of their storage."""

    def __call__(self, inputs, state, params, record):
        return super().__call__(tuple(_Linear.apply(x, from_start) for x in inputs), state, params, record)


@mutant("layouts/given-state-offset", shows=call(lif(), state=True, laid=laid("v", how=offset)))
class OffsetOfStateIgnored(Loop):
    """A given state is read from the start of its storage."""

    def start(self, state, known, like):
        if state is not None:
            state = [_Linear.apply(value, from_start) for value in state]
        return super().start(state, known, like)


@mutant(
    "layouts/first-input-first-of-the-batch",
    shows=call(lif(), laid=laid("x", how=lambda t: torch.cat([t, t + 1], 1)[:, : t.shape[1]])),
)
class StrideOfTimeIgnored(Loop):
    """Steps that are contiguous are taken to lie one behind the other."""

    def __call__(self, inputs, state, params, record):
        steps = tuple(_Linear.apply(x, linear) if self.apart(x) else x for x in inputs)
        return super().__call__(steps, state, params, record)

    def apart(self, x):
        """Whether there is something between the steps."""
        return len(x) > 1 and x[0].is_contiguous() and x.stride(0) > x[0].numel()


@mutant("layouts/everything-transposed-float16", shows=call(lif(), dtype=torch.float16, laid=laid("output")))
class HalfCotangentStridesIgnored(Tape):
    """A 16-bit cotangent is read as if contiguous."""

    def backward(self, ctx, grads):
        half = (torch.float16, torch.bfloat16)
        return super().backward(ctx, [linear(g) if g is not None and g.dtype in half else g for g in grads])


@mutant("layouts/full-parameter-transposed", shows=call(li(tau=FULL, learn=("tau",))))
class GradientInTheParametersStrides(Tape):
    """The gradient of a value per neuron is written row by row, and given back with the parameter's strides."""

    def total(self, sum_, value):
        made = super().total(sum_, value)
        dense = value.shape == made.shape and value.numel() and not value.is_contiguous()
        dense = dense and 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride())) == value.numel()
        return made.contiguous().as_strided(made.shape, value.stride()) if dense else made
