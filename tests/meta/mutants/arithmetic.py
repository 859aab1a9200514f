"""Arithmetic: order of operations, rounding, dtypes of state and output."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.use import at, bits, call, fed, li, lif, of
from spikecore.testing._loopback import Loop

HALF = torch.float16


@mutant(
    "forward/lif-hard-float16",
    "forward/leaky-hard-bfloat16",
    says=("has dtype torch.float32",),
    shows=bits(call(lif(), dtype=HALF, loss=())),
)
class OutputInFloat32(Loop):
    """16-bit inputs give float32 spikes."""

    def written(self, output):
        return output


@mutant(
    "bits/lif-hard-float16", "bits/alif-soft-bfloat16", "state/carried-16-bit", shows=call(li(), dtype=HALF, loss=())
)
class StateInTheInputsDtype(Loop):
    """16-bit inputs have 16-bit state."""

    def carry(self, before, now, t):
        return [value.to(self.dtype).to(self.compute) for value in now]


@mutant("bits/lif-hard", "bits/lif-nodecay-soft", says=("source order",), shows=bits(call(li(), loss=())))
class Reassociated(Loop):
    """``(a - b) / c`` as ``a / c - b / c``."""

    def evaluate(self, root, values, t, like=None):
        if root.op == "div" and root.args[0].op == "sub" and root not in values:
            (a, b), c = root.args[0].args, root.args[1]
            over = [self.evaluate(node, values, t, like) for node in (a, b, c)]
            values[root] = over[0] / over[2] - over[1] / over[2]
        return super().evaluate(root, values, t, like)


@mutant("bits/lif-hard", "bits/li", says=("divide where the source divides",), shows=bits(call(li(), loss=())))
class DividesByTheReciprocal(Loop):
    """``a / b`` as ``a * (1 / b)``."""

    def operate(self, node, args, t):
        return args[0] * (1 / args[1]) if node.op == "div" else super().operate(node, args, t)


@mutant(
    "bits/synaptic-hard",
    "bits/leaky-soft",
    says=("FMA",),
    shows=bits(call(of(sc.Leaky, beta=0.9, reset="none"), loss=())),
)
class Contracts(Loop):
    """``a b + c`` with one rounding."""

    def operate(self, node, args, t):
        if node.op == "add" and node.args[0].op == "mul" and self.compute == torch.float32:
            a, b = (self.wide[arg] for arg in node.args[0].args)
            return (a * b + args[1].double()).float()
        return super().operate(node, args, t)

    def evaluate(self, root, values, t, like=None):
        value = super().evaluate(root, values, t, like)
        self.wide = getattr(self, "wide", {})
        self.wide[root] = value.double()
        return value


@mutant("forward/eif-hard", "language/exp", shows=at(sc.ops.exp, (0.5, 1.0)))
class ApproximateExponential(Loop):
    """exp to ten bits."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        return value * 1.0005 if node.op == "exp" else value


@mutant("language/round", says=("round",), shows=at(sc.ops.round, (0.5, 2.5)))
class RoundsHalfAway(Loop):
    """Ties of round go away from zero."""

    def operate(self, node, args, t):
        if node.op == "round":
            return torch.sign(args[0]) * torch.floor(args[0].abs() + 0.5)
        return super().operate(node, args, t)


@mutant("robust/subnormal", shows=bits(call(lambda backend: Tiny(backend=backend), loss=())))
class FlushesSubnormals(Loop):
    """Numbers below the smallest normal one are 0."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        return (
            torch.where(value.abs() < 1.1754944e-38, torch.zeros_like(value), value)
            if value.dtype.is_floating_point
            else value
        )


class Tiny(sc.Neuron):
    """Numbers below the smallest normal one."""

    states = {"v": 0.0}

    def dynamics(self, x, s, p):
        return x * 1e-39, {"v": s.v + x * 1e-39}


@mutant("robust/non-finite-if-soft", says=("swallowed",), shows=fed(of(sc.IF, reset="none"), [float("nan")], [0.5]))
class SwallowsNaN(Loop):
    """NaN inputs count as 0."""

    def read(self, x, t):
        return torch.nan_to_num(super().read(x, t), nan=0.0, posinf=float("inf"), neginf=float("-inf"))


@mutant("bits/lif-hard-float16", "forward/lif-hard-float16", shows=call(li(), dtype=HALF, loss=()))
class ArithmeticInSixteenBits(Loop):
    """16-bit inputs are computed with in 16 bits."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        return value.to(self.dtype).to(self.compute) if value.is_floating_point() else value


@mutant("bits/lif-hard-float64", shows=bits(call(li(), dtype=torch.float64, loss=())))
class DoublesInFloat32(Loop):
    """float64 inputs are computed with in float32."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        return value.float().double() if value.dtype == torch.float64 else value


@mutant("forward/plif-hard", "language/sigmoid", shows=at(sc.ops.sigmoid, (0.3, 3.0)))
class ApproximateSigmoid(Loop):
    """A rational function for sigmoid."""

    def operate(self, node, args, t):
        if node.op == "sigmoid":
            return 0.5 + 0.5 * args[0] / (1 + args[0].abs())
        return super().operate(node, args, t)


@mutant("bits/izhikevich-hard", shows=bits(call(lambda backend: Mixed(backend=backend), loss=())))
class AddsInAnotherOrder(Loop):
    """``(a + b) + c`` as ``a + (b + c)``."""

    def evaluate(self, root, values, t, like=None):
        if root.op == "add" and root.args[0].op == "add" and root not in values:
            a, b, c = (self.evaluate(n, values, t, like) for n in (*root.args[0].args, root.args[1]))
            values[root] = a + (b + c)
        return super().evaluate(root, values, t, like)


class Mixed(sc.Neuron):
    """Sums of three."""

    states = {"v": 0.0}
    params = {"bias": 0.1}

    def dynamics(self, x, s, p):
        v = s.v * 0.9 + x + p.bias
        return v, {"v": v}
