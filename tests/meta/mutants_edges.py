"""Deliberately wrong backends at NaN, infinities, zeros, subnormals, large numbers; in states that swap, many steps,
large sizes, parameters of other dtypes and values, layouts, and gradients of which some are wanted.

A mutant is the control backend with one thing changed. ``caught_by`` names cases that must fail.
"""

from __future__ import annotations

import math
from typing import Any, List

import torch

from spikecore.testing.loopback import Loop, Loopback

MUTANTS: List[Any] = []


def mutant(*caught_by: str) -> Any:
    """List a mutated Loop as a backend."""

    def listed(cls: Any) -> Any:
        changed = {"name": "mutant_edges", "loop": cls, "__doc__": cls.__doc__, "caught_by": caught_by}
        MUTANTS.append(type(cls.__name__, (Loopback,), changed))
        return cls

    return listed


# -- operations


class Operation(Loop):
    """One operation is another."""

    op = ""

    def other(self, *args):
        raise NotImplementedError

    def operate(self, node, args, t):
        return self.other(*args) if node.op == self.op else super().operate(node, args, t)


@mutant("edges/neg")
class NegationFromZero(Operation):
    """``0 - x``: the sign of zero."""

    op = "neg"

    def other(self, x):
        return 0.0 - x


@mutant("edges/minimum", "edges/minimum-float64")
class MinimumWithoutNaN(Operation):
    """C's fmin: the number beside a NaN."""

    op = "minimum"

    def other(self, a, b):
        return torch.fmin(a, b)


@mutant("edges/maximum")
class MaximumTakesTheFirst(Operation):
    """``a`` at a tie of zeros."""

    op = "maximum"

    def other(self, a, b):
        return torch.where((a >= b) | (a != a), a, b)


@mutant("edges/round")
class RoundHalfUp(Operation):
    """``floor(x + 1/2)``."""

    op = "round"

    def other(self, x):
        return torch.floor(x + 0.5)


@mutant("edges/sin", "edges/sin-float64")
class SineOfLargeNumbers(Operation):
    """One turn subtracted in the precision of x."""

    op = "sin"

    def other(self, x):
        return torch.sin(x - 2 * math.pi * torch.round(x / (2 * math.pi)))


@mutant("edges/tanh")
class TanhByExponentials(Operation):
    """NaN where the exponentials overflow."""

    op = "tanh"

    def other(self, x):
        return (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))


@mutant("edges/where")
class WhereByArithmetic(Operation):
    """``c a + (1 - c) b``."""

    op = "where"

    def other(self, c, a, b):
        c = c.to(a.dtype)
        return c * a + (1 - c) * b


@mutant("edges/sqrt-gradient-zero", "edges/log-gradient-infinite")
class ZeroCotangentsSkipped(Loop):
    """Where the cotangent is 0 the derivative is not computed."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        if node.op in ("sqrt", "log") and args[0].requires_grad:
            held = args[0]
            value = _Skipped.apply(
                held, value.detach(), 0.5 / value.detach() if node.op == "sqrt" else 1 / held.detach()
            )
        return value


class _Skipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, value, slope):
        ctx.save_for_backward(slope)
        return value.clone()

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return torch.where(g == 0, torch.zeros_like(g), g * slope), None, None


@mutant("edges/add", "edges/mul")
class SubnormalsFlushed(Loop):
    """Results below the smallest normal number are 0."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        if value.dtype.is_floating_point:
            value = torch.where(value.abs() < torch.finfo(value.dtype).tiny, value * 0, value)
        return value


@mutant("edges/constant-inexact-float64")
class ConstantsInFloat32(Loop):
    """A number of the equations goes through float32."""

    def evaluate(self, root, values, t, like=None):
        if root.op == "const" and root not in values:
            return super().evaluate(root, values, t, like).float().to(self.compute)
        return super().evaluate(root, values, t, like)


@mutant("edges/output-float16")
class OutputsSaturate(Loop):
    """The largest float16 in place of infinity."""

    def written(self, output):
        most = torch.finfo(self.dtype).max
        return output.clamp(-most, most).to(self.dtype)


@mutant("edges/surrogate-Erf-gradient", "edges/surrogate-ATan-gradient")
class SurrogateCutOff(Loop):
    """No derivative beyond 1 from the threshold."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        if node.op == "spike":
            return torch.where(args[0].abs() > 1.25, value.detach(), value)
        return value


# -- states


@mutant("state/swap-two", "state/swap-three")
class StatesWrittenInTurn(Loop):
    """The second next state reads the first one's new value."""

    def evaluate(self, root, values, t, like=None):
        roots = self.program.next
        if t >= 0 and roots and root is roots[-1]:
            first = [leaf for leaf in values if leaf.op == "state"][:1]
            values = {**values, **{leaf: values.get(roots[0], values[leaf]) for leaf in first}}
        return super().evaluate(root, values, t, like)


@mutant("state/steps-64-scalar", "state/steps-250-channel", "state/steps-100-spikes")
class GradientsOfTheLastSteps(Loop):
    """States older than 50 steps are not differentiated through."""

    def carry(self, before, now, t):
        return [value.detach() for value in now] if t and t % 50 == 0 else now


# -- sizes


@mutant("layouts/size-131075-neurons")
class LastOfManyLeftOut(Loop):
    """Past 2^17 numbers the rest is 0."""

    def written(self, output):
        flat = output.reshape(len(output), -1)
        kept = torch.arange(flat.shape[1], device=flat.device) < 2**17
        return torch.where(kept, flat, torch.zeros_like(flat)).reshape(output.shape).to(self.dtype)


# -- parameters


@mutant("parameters/number-third-float64", "parameters/number-tenth-float64")
class NumbersInFloat32(Loop):
    """A Python number is passed in float32."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        return made if isinstance(value, torch.Tensor) else made.float().to(self.compute)


@mutant("parameters/full-float64-on-float32", "parameters/scalar-float32-on-float16")
class ParametersInBfloat16(Loop):
    """A tensor is read in 16 bits."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        return made.bfloat16().to(self.compute) if isinstance(value, torch.Tensor) else made


# -- layouts


@mutant("layouts/second-input-transposed", "layouts/second-input-part-of-a-larger-one")
class SecondInputAsIfContiguous(Loop):
    """Strides of the second input are ignored."""

    def __call__(self, inputs, state, params, record):
        given = [inputs[0], *[x.as_strided(x.shape, torch.empty(x.shape).stride()) for x in inputs[1:]]]
        return super().__call__(tuple(given), state, params, record)


# -- gradients


@mutant("wanted/second-input-only", "wanted/one-tensor-for-both-inputs-same")
class FirstInputOnly(Loop):
    """Other inputs are differentiated only where the first one is, and not where they are the same tensor."""

    def __call__(self, inputs, state, params, record):
        alone = [x if inputs[0].requires_grad and x is not inputs[0] else x.detach() for x in inputs[1:]]
        return super().__call__((inputs[0], *alone), state, params, record)


@mutant("wanted/from-trace-only", "wanted/from-one-trace-only")
class TraceWithoutGraph(Loop):
    """What is recorded has no gradient."""

    def recorded(self, before, now):
        return [value.detach() for value in now]


@mutant("wanted/none")
class AlwaysAGraph(Loop):
    """Results require gradients whatever was given."""

    def written(self, output):
        made = super().written(output)
        return made if made.requires_grad else made.requires_grad_()
