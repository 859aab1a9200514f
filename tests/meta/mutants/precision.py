"""Precision of numbers: a parameter or a constant that is passed in another dtype than that of arithmetic."""

from __future__ import annotations

import math

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import bits, call, drawn, li, lif, of
from spikecore.testing._loopback import Loop

DOUBLE = {"dtype": torch.float64, "loss": ()}
ODD = li(tau=10 / 3)
THIRDS = 1 + torch.linspace(1, 5, 5, dtype=torch.float64) / 3
STEEP = lif(surrogate=sc.surrogate.Sigmoid(alpha=3.3))


class Third(sc.Neuron):
    """Constants that no float32 holds."""

    states = {"v": 0.1}

    def dynamics(self, x, s, p):
        v = s.v * 0.9 + x * (1 / 3)
        return v, {"v": v}


class Passed(Loop):
    """Passes numbers in some other form."""

    def passed(self, value):
        """The number as it arrives."""
        return value

    def parameter(self, value, kind, like):
        """Numbers alone."""
        return super().parameter(self.passed(value) if isinstance(value, float) else value, kind, like)


def single(value):
    """Rounded to float32."""
    return torch.tensor(value, dtype=torch.float64).float().double().item()


@mutant("parameters/number-third-float64", "parameters/number-tenth-float64", shows=bits(call(ODD, **DOUBLE)))
class NumbersAsFloat32(Passed):
    """Numbers are passed as float32, to float64 arithmetic too."""

    def passed(self, value):
        return single(value)


@mutant("parameters/number-tenth-float32", shows=bits(call(ODD, loss=())))
class NumbersAsBfloat16(Passed):
    """Numbers are passed as bfloat16."""

    def passed(self, value):
        return float(torch.tensor(value).bfloat16())


@mutant("parameters/number-third-float32", shows=bits(call(ODD, loss=())))
class NumbersWithSixDigits(Passed):
    """Numbers are written into source with six digits."""

    def passed(self, value):
        return float(f"{value:g}")


@mutant("parameters/number-tenth-float32", shows=bits(call(li(tau=1.7), loss=())))
class NumbersTruncated(Passed):
    """Numbers are cut to float32 instead of rounded."""

    def passed(self, value):
        near = single(value)
        if abs(near) <= abs(value) or not math.isfinite(near):
            return near
        return torch.nextafter(torch.tensor(near), torch.tensor(0.0)).item()


@mutant("edges/constant-inexact-float64", shows=bits(call(of(Third), **DOUBLE)))
class ConstantsAsFloat32(Loop):
    """Numbers in equations are float32, in float64 arithmetic too."""

    def evaluate(self, root, values, t, like=None):
        made = super().evaluate(root, values, t, like)
        return made.float().to(made.dtype) if root.op == "const" else made


@mutant("edges/constant-inexact", shows=bits(call(of(Third), loss=())))
class ConstantsWithSixDigits(Loop):
    """Numbers in equations are written into source with six digits."""

    def evaluate(self, root, values, t, like=None):
        made = super().evaluate(root, values, t, like)
        if root.op != "const" or not math.isfinite(root.attr):
            return made
        return torch.full_like(made, float(f"{float(root.attr):.6g}"))


@mutant(
    "parameters/channel-bfloat16-on-float32",
    shows=bits(call(li(tau=torch.linspace(1.5, 10 / 3, 5).double() / 3 + 1), loss=())),
)
class ParameterInItsOwnDtype(Loop):
    """A tensor parameter is computed with in its own dtype."""

    def parameter(self, value, kind, like):
        return value if isinstance(value, torch.Tensor) else super().parameter(value, kind, like)

    def carry(self, before, now, t):
        return [value.to(self.compute) for value in now]


@mutant(
    "parameters/scalar-float64-on-float64",
    shows=bits(call(li(tau=torch.tensor(10 / 3, dtype=torch.float64)), **DOUBLE)),
)
class DoubleParameterAsFloat32(Loop):
    """A float64 parameter is read as float32 by float64 runs."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        return made.float().to(made.dtype) if isinstance(value, torch.Tensor) else made


@mutant("gradient/lif-hard-float64", shows=bits(call(STEEP, dtype=torch.float64)))
class SurrogateNumbersAsFloat32(Tape):
    """Backward has the surrogate's numbers as float32, in float64 runs too."""

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        count = len(self.program.numbers)
        cut = len(tensors) - count
        return (*tensors[:cut], *(v.float().to(v.dtype) for v in tensors[cut:])), states


@mutant("gradient/lif-hard-float64", shows=bits(call(lif(tau=10 / 3), dtype=torch.float64)))
class BackwardInFloat32(Tape):
    """Backward of float64 runs computes in float32."""

    def back(self, *arriving):
        exact = super().back(*arriving)

        def back(leaves, like):
            return [v.to(like.dtype) for v in exact([leaf.float() for leaf in leaves], like.float())]

        return back if self.spec.dtype == torch.float64 else exact


@mutant("bits/leaky-soft", shows=bits(call(of(sc.Leaky, beta=0.9, reset="none"), loss=())))
class NumbersInFixedPoint(Passed):
    """Numbers between 0 and 1 are passed as fixed point of sixteen bits."""

    def passed(self, value):
        return round(value * 65536) / 65536 if 0 < value < 1 else value


@mutant(
    "parameters/full-float64-on-float32", "parameters/scalar-float32-on-float16", shows=call(li(tau=THIRDS), loss=())
)
class ParametersAsBfloat16(Loop):
    """Tensor parameters are read as bfloat16."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        return made.bfloat16().to(self.compute) if isinstance(value, torch.Tensor) else made


def one_bad_sample(backend: str) -> object:
    """A loss that is very large for one sample."""
    x = drawn((6, 3, 5)).requires_grad_()
    weight = torch.ones(6, 3, 5)
    weight[:, 0] = 1e4
    (lif()(backend)(x) * weight).sum().backward()
    return x.grad[:, 1:]


@mutant("robust/large-beside-small", shows=one_bad_sample)
class OneScaleForAllGradients(Tape):
    """Gradients of the input have 16 bits below the largest of them, as with one scale for the whole tensor."""

    def backward(self, ctx, grads):
        made = super().backward(ctx, grads)
        for k in range(len(self.program.inputs)):
            unit = made[k].abs().amax() * 2**-16 if made[k].numel() else 1
            made[k] = torch.where(torch.isfinite(made[k] / unit), (made[k] / unit).round() * unit, made[k])
        return made


def nearly_cancelled(backend: str) -> object:
    """Large cotangents of output and trace, which are the same numbers here, and of other signs."""
    x = drawn((6, 3, 5), dtype=torch.float64).requires_grad_()
    out, _, trace = li()(backend).run(x, record=("v",))
    ones = torch.ones(6, 3, 5, dtype=torch.float64)
    torch.autograd.backward([out, trace["v"]], [-1e9 * ones, (1e9 + 0.25) * ones])
    return x.grad


@mutant("state/steps-100-float64", shows=nearly_cancelled)
class TraceCotangentInSingle(Tape):
    """The cotangent of a trace is read in float32, in float64 runs too."""

    def backward(self, ctx, grads):
        end = len(self.program.outputs) + len(self.program.states)
        return super().backward(ctx, [g if g is None or k < end else g.float().double() for k, g in enumerate(grads)])


def in_single_then_double(backend: str) -> object:
    """A neuron that is tried in float32 and trusted in float64."""
    neuron = li(tau=torch.tensor(2.7), learn=("tau",))(backend)
    neuron(drawn((4, 3)))
    with torch.no_grad():
        neuron.double().tau.fill_(10 / 3)
    return (neuron(drawn((4, 3), dtype=torch.float64)).detach() * 1e9).round() % 1000


@mutant("sequences/converted-between", shows=in_single_then_double)
class DtypeOfTheFirstCall(Loop):
    """A parameter has the precision of the first call that it came to."""

    def parameter(self, value, kind, like):
        if isinstance(value, torch.Tensor):
            first = getattr(value, "converted", value.dtype)
            value.converted = first
            return super().parameter(value.to(first), kind, like)
        return super().parameter(value, kind, like)
