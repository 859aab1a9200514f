"""16-bit and 64-bit dtypes: parameters, cotangents, traces and states."""

from __future__ import annotations

import torch

from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import bits, call, drawn, li
from spikecore.testing._loopback import Loop

HALF, BRAIN, DOUBLE = torch.float16, torch.bfloat16, torch.float64
MIXED = li(tau=torch.linspace(1.5, 4, 5).half(), learn=("tau",))


def half_parameters(backend: str) -> object:
    """A network in half precision: the time constants are in half precision, too."""
    neuron = li(tau=torch.linspace(1.5, 4, 5).half(), learn=("tau",))(backend)
    x = drawn((6, 3, 5), dtype=HALF)
    out = neuron(x)
    out.float().square().sum().backward()
    return out.detach(), neuron.tau.grad, neuron.tau.grad.dtype


def overflow(backend: str) -> object:
    """A loss scaled too far: GradScaler looks for infinite gradients."""
    x = drawn((6, 3, 5), dtype=HALF).requires_grad_()
    out = li(tau=1.0)(backend)(x)
    out.backward(torch.full_like(out, 6e4) * drawn(out.shape, 3, dtype=HALF))
    return torch.isinf(x.grad).sum(), torch.isnan(x.grad).sum()


def not_a_number(backend: str) -> object:
    """A cotangent that is NaN somewhere: GradScaler skips the step."""
    x = drawn((6, 3, 5), dtype=HALF).requires_grad_()
    out = li()(backend)(x)
    cotangent = torch.ones_like(out)
    cotangent[2, 1] = float("nan")
    out.backward(cotangent)
    return torch.isnan(x.grad).sum()


@mutant("parameters/scalar-float16-on-float16", shows=half_parameters)
class HalfParametersAsBfloat16(Loop):
    """A float16 parameter is read as bfloat16."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if isinstance(value, torch.Tensor) and value.dtype == HALF:
            return value.bfloat16().to(self.compute)
        return made


@mutant(
    "parameters/channel-bfloat16-on-float16", "parameters/scalar-float16-on-float16", raises=True, shows=half_parameters
)
class HalfParametersRefused(Loop):
    """A 16-bit parameter is an exception."""

    def parameter(self, value, kind, like):
        if isinstance(value, torch.Tensor) and value.dtype in (HALF, BRAIN):
            raise TypeError("expected float32 parameters")
        return super().parameter(value, kind, like)


@mutant("parameters/scalar-float32-on-float16", shows=half_parameters)
class HalfSumOfAParametersGradient(Tape):
    """The gradient of a learnt parameter is summed in bfloat16 in 16-bit runs."""

    def add(self, total, part, t):
        made = super().add(total, part, t)
        return made.bfloat16().to(made.dtype) if self.spec.dtype in (HALF, BRAIN) else made


@mutant("gradient/izhikevich-soft-float16", shows=call(li(), (20, 3, 5), dtype=HALF))
class HalfCotangentOfTheState(Tape):
    """16-bit runs carry the cotangent of the state in 16 bits."""

    def carry(self, before, now, t):
        half = self.spec.dtype
        return [v.to(half).to(self.compute) for v in now] if half in (HALF, BRAIN) else super().carry(before, now, t)


@mutant("edges/input-gradient-float16", shows=overflow)
class SaturatesInsteadOfOverflow(Tape):
    """Input gradients beyond what 16 bits hold are the largest finite number."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        inputs = len(self.program.inputs)
        if self.spec.dtype != HALF:
            return made
        return [*(v.nan_to_num(float("nan"), 65504.0, -65504.0) for v in made[:inputs]), *made[inputs:]]


@mutant("edges/input-gradient-float16", shows=not_a_number)
class NaNBecomesZeroInBackward(Tape):
    """A NaN cotangent counts as 0 in 16-bit runs."""

    def incoming(self, grad, zero):
        made = super().incoming(grad, zero)
        return made.nan_to_num(0.0) if grad is not None and grad.dtype == HALF else made


@mutant("state/steps-100-float64", shows=bits(call(li(tau=10 / 3), dtype=DOUBLE, record=("v",), loss=())))
class DoubleTraceThroughFloat32(Loop):
    """The trace of a float64 run goes through float32."""

    def recorded(self, before, now):
        return [v.float().to(v.dtype) for v in now]


@mutant("state/steps-100-float16", shows=bits(call(li(), dtype=HALF, record=("v",), loss=())))
class HalfTraceThroughHalf(Loop):
    """The trace of a 16-bit run is rounded to 16 bits."""

    def recorded(self, before, now):
        return [v.to(self.dtype).to(self.compute) for v in now]


@mutant("state/steps-100-float16", shows=bits(call(li(), dtype=HALF, record=("v",), loss=())))
class HalfTraceInHalf(Loop):
    """The trace of a 16-bit run has the inputs' dtype."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)
        return outputs, final, tuple(v.to(self.dtype) for v in trace)


@mutant("state/steps-100-float64", shows=bits(call(li(), dtype=DOUBLE, state=True, loss=())))
class DoubleStateReadAsFloat32(Loop):
    """A given state of a float64 run is rounded to float32."""

    def start(self, state, known, like):
        given = None if state is None else [v.float().to(v.dtype) for v in state]
        return super().start(given, known, like)


@mutant("state/steps-100-float16", shows=bits(call(li(), dtype=HALF, state=True, loss=())))
class HalfStateReadAsHalf(Loop):
    """A given state of a 16-bit run is rounded to 16 bits."""

    def start(self, state, known, like):
        given = None if state is None else [v.to(self.dtype).to(self.compute) for v in state]
        return super().start(given, known, like)


@mutant("edges/output-bfloat16", shows=bits(call(li(), dtype=BRAIN, loss=())))
class BfloatTruncated(Loop):
    """bfloat16 outputs are cut, not rounded."""

    def written(self, output):
        if self.dtype != BRAIN:
            return super().written(output)
        cut = (output.detach().view(torch.int32) >> 16 << 16).view(torch.float32)
        return (output + (cut - output.detach())).to(BRAIN)


@mutant("edges/output-float16", shows=bits(call(li(), dtype=HALF, scale=1e5, loss=())))
class HalfOutputSaturates(Loop):
    """float16 outputs beyond 65,504 are 65,504."""

    def written(self, output):
        return super().written(output.clamp(-65504, 65504) if self.dtype == HALF else output)


@mutant("parameters/channel-float16-on-float32", shows=call(MIXED, (200, 3, 5)))
class PartsOfAHalfParameterRounded(Tape):
    """The gradient of a 16-bit parameter is added up over the steps in 16 bits."""

    def __call__(self, inputs, state, params, record):
        self.half = any(isinstance(p, torch.Tensor) and p.dtype == torch.float16 for p in params)
        return super().__call__(inputs, state, params, record)

    def add(self, total, part, t):
        made = super().add(total, part, t)
        return made.half().to(self.compute) if self.half else made
