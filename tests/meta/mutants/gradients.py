"""Gradients: surrogates, detached spikes, ties, what is summed."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import at, call, drawn, lif
from spikecore.lang import Node, SpikeRule
from spikecore.lang.eager import SpikeFunction
from spikecore.testing._loopback import Loop


def curvature(backend: str) -> object:
    """A penalty on the gradient's size."""
    x = drawn((4, 3)).double().requires_grad_()
    (slope,) = torch.autograd.grad(sc.LIF(backend=backend)(x).sum(), x, create_graph=True)
    slope.square().sum().backward()
    return x.grad


@mutant("gradient/lif-hard", "surrogate/erf", says=("of the surrogate StraightThrough",), shows=call(lif()))
class SurrogateIgnored(Loop):
    """StraightLine through."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            return SpikeFunction(SpikeRule(node.attr.strict, Node("const", (), 1.0), ""))(*args)
        return super().operate(node, args, t)


@mutant("gradient/lif-hard", "gradient/leaky-soft", shows=call(lif()))
class SurrogateScaled(Loop):
    """One per cent too much."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            more = Node("mul", (node.attr.derivative, Node("const", (), 1.01)))
            return SpikeFunction(SpikeRule(node.attr.strict, more, ""))(*args)
        return super().operate(node, args, t)


@mutant(
    "gradient/lif-hard-detach",
    "gradient/alif-soft-detach",
    says=("of detach_reset=False",),
    shows=call(lif(detach_reset=True)),
)
class DetachIgnored(Loop):
    """``detach`` lets the gradient through."""

    def operate(self, node, args, t):
        return args[0] if node.op == "detach" else super().operate(node, args, t)


@mutant("gradient/lif-soft", "gradient/if-hard", says=("of detach_reset=True",), shows=call(lif()))
class ResetAlwaysDetached(Loop):
    """The spike in a reset never carries a gradient."""

    def evaluate(self, root, values, t, like=None):
        if root in self.program.next and root not in values:
            inner = {k: (v.detach() if k.op == "spike" else v) for k, v in values.items()}
            values[root] = super().evaluate(root, inner, t, like)
        return super().evaluate(root, values, t, like)


@mutant("robust/double-backward", shows=curvature)
class FirstDerivativeIsAConstant(Loop):
    """The surrogate's derivative is not differentiated again."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            frozen = SpikeRule(node.attr.strict, Node("detach", (node.attr.derivative,)), "")
            return SpikeFunction(frozen)(*args)
        return super().operate(node, args, t)


@mutant(
    "language/maximum-gradient",
    "language/minimum-gradient",
    shows=at(sc.ops.maximum, (1.0, 2.0), (1.0, 3.0), gradient=True),
)
class TieGivesAllToOne(Loop):
    """The gradient at a tie of maximum and minimum goes to the first."""

    def operate(self, node, args, t):
        if node.op in ("maximum", "minimum"):
            a, b = torch.broadcast_tensors(*args)
            return torch.where(a >= b if node.op == "maximum" else a <= b, a, b)
        return super().operate(node, args, t)


LEARNT = lif(learn=("tau", "threshold"))


@mutant("parameters/gradient-lif-hard", "parameters/gradient-alone", shows=call(LEARNT))
class ParameterGradientDoubled(Loop):
    """Twice the gradient."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        return made * 2 - made.detach()


@mutant("parameters/gradient-lif-hard", "parameters/many", "parameters/full-1x7", shows=call(LEARNT))
class ParameterGradientNotSummed(Loop):
    """Only the first neuron's part of the gradient arrives."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if not made.requires_grad:
            return made
        full = made.expand(like.shape[1:])
        mask = torch.zeros_like(full)
        mask[(0,) * full.ndim] = 1
        return full * mask + full.detach() * (1 - mask)


@mutant("parameters/gradient-plif-hard", says=("there is none",), shows=call(LEARNT))
class ParameterGradientIgnored(Loop):
    """Declared, but parameters are detached."""

    def parameter(self, value, kind, like):
        return super().parameter(value, kind, like).detach()


@mutant("parameters/gradient-lif-hard", shows=call(LEARNT))
class ParameterGradientOfOneStep(Tape):
    """The parts of the steps replace each other instead of adding up."""

    def add(self, total, part, t):
        return part


@mutant("gradient/lif-hard", shows=call(lif()))
class NoGradientThroughTime(Tape):
    """The cotangent of the state does not go to the step before."""

    def carry(self, before, now, t):
        return [torch.zeros_like(value) for value in now]


@mutant("parameters/gradient-lif-hard", shows=call(LEARNT))
class GradientsOfParametersSwapped(Tape):
    """The gradients of two learnt parameters change places."""

    def total(self, sum_, value):
        self.waiting, sum_ = sum_, getattr(self, "waiting", sum_)
        return super().total(sum_, value)


@mutant("wanted/starting-parameter-only", shows=call(lif(v_reset=0.2, learn=("v_reset",)), (2, 3)))
class NoGradientThroughTheStart(Tape):
    """A learnt parameter that a run starts from gets nothing from the first state."""

    def __call__(self, inputs, state, params, record):
        if state is None:
            like = inputs[0].new_empty((), dtype=self.compute)
            values = [self.value(p, like) for p in params]
            state = [v.detach().expand(inputs[0].shape[1:]) for v in self.rest(values, like)]
        return super().__call__(inputs, state, params, record)
