"""Firing and reset."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.use import call, fed, lif, of
from spikecore.lang import Node, SpikeRule, topological
from spikecore.lang.eager import SpikeFunction
from spikecore.testing._loopback import Loop


def spikes(node: Node) -> bool:
    """Whether a node's value depends on a spike."""
    return any(n.op == "spike" for n in topological([node]))


ONES = fed(of(sc.IF), [1.0], [1.0])


@mutant("exact/lif-hard", "exact/if-soft", "language/spike", says=("compares with >=",), shows=ONES)
class FiresAboveOnly(Loop):
    """``>`` for ``>=``."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            return SpikeFunction(SpikeRule(True, node.attr.derivative, ""))(*args)
        return super().operate(node, args, t)


@mutant(
    "exact/leaky-soft",
    "language/spike-strict",
    says=("compares with >",),
    shows=fed(of(sc.Leaky, beta=0.5), [1.0], [1]),
)
class FiresAtTies(Loop):
    """``>=`` for ``>``."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            return SpikeFunction(SpikeRule(False, node.attr.derivative, ""))(*args)
        return super().operate(node, args, t)


@mutant("forward/lif-hard", "exact/if-hard", "robust/non-finite-lif-hard", shows=call(lif(), loss=()))
class ResetOneStepLate(Loop):
    """The choice of a hard reset is made by the spike of the step before."""

    def operate(self, node, args, t):
        if node.op == "select":
            self.last = torch.zeros_like(args[0]) if t == 0 else self.last
            args, self.last = [self.last, *args[1:]], args[0].detach()
        return super().operate(node, args, t)


@mutant(
    "forward/lif-soft",
    "forward/synaptic-soft",
    "single-step/if-soft",
    says=("of reset='hard'",),
    shows=call(lif(reset="soft"), loss=()),
)
class SoftResetDoneHard(Loop):
    """``h - z threshold`` becomes 0 where z."""

    def evaluate(self, root, values, t, like=None):
        if root.op == "sub" and root in self.program.next and root not in values and spikes(root.args[1]):
            h = self.evaluate(root.args[0], values, t, like)
            z = self.evaluate(next(n for n in topological([root.args[1]]) if n.op == "spike"), values, t, like)
            rest = Node("param", (), "v_reset")
            values[root] = torch.where(z != 0, values[rest] if rest in values else torch.zeros_like(h), h)
        return super().evaluate(root, values, t, like)


@mutant("forward/lif-hard", "exact/if-soft", says=("all values that came are 0",), shows=call(lif(), loss=()))
class NeverFires(Loop):
    """No spike at all."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        return value * 0 if node.op == "spike" else value


@mutant(
    "robust/non-finite-lif-hard",
    "robust/non-finite-klif-hard",
    says=("arithmetic form of a choice",),
    shows=fed(of(sc.IF), [float("inf")], [0.5]),
)
class SelectByArithmetic(Loop):
    """``z a + (1 - z) b`` instead of a choice: infinity times 0."""

    def operate(self, node, args, t):
        if node.op == "select":
            z, a, b = args
            return z * a + (1 - z) * b
        return super().operate(node, args, t)


@mutant("forward/lif-hard", "record/lif-hard", shows=call(lif(), loss=()))
class ResetInTheOutputOnly(Loop):
    """The spike is given out, and the potential goes on as if there was none."""

    def operate(self, node, args, t):
        return args[2] if node.op == "select" else super().operate(node, args, t)


@mutant("forward/if-hard", shows=call(of(sc.IF, v_reset=-0.3), loss=()))
class ResetToZero(Loop):
    """A hard reset goes to 0, whatever ``v_reset`` is."""

    def operate(self, node, args, t):
        return super().operate(node, [args[0], args[1] * 0, args[2]] if node.op == "select" else args, t)
