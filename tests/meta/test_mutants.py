"""Deliberately wrong backends: the suite must find each of them, with the case that is there for it.

A mutant is the suite's own control backend with one thing changed, installed in this process as a plugin is.
``caught_by`` names the cases that must fail, and ``says`` what their messages must contain to lead to the bug.
"""

from __future__ import annotations

import time
from typing import Any, List, Tuple

import pytest
import torch

from spikecore.lang import Node, SpikeRule, topological
from spikecore.lang.eager import SpikeFunction
from spikecore.registry import default_registry
from spikecore.testing import CASES, check_backend
from spikecore.testing.loopback import Loop, Loopback, installed

MUTANTS: List[type] = []


def mutant(*caught_by: str, says: Tuple[str, ...] = ()) -> Any:
    """Make a mutated Loop into a backend, and list it."""

    def listed(cls: type) -> type:
        changed = {"loop": cls} if issubclass(cls, Loop) else {}
        base = Loopback if changed else cls
        made = type(cls.__name__, (base,), {"name": "mutant", "__doc__": cls.__doc__, **changed})
        made.caught_by, made.says = caught_by, says
        MUTANTS.append(made)
        return cls

    return listed


def spikes(node: Node) -> bool:
    """Whether a node's value depends on a spike."""
    return any(n.op == "spike" for n in topological([node]))


# -- firing and reset


@mutant("exact/lif-hard", "exact/if-soft", "language/spike", says=("compares with >=",))
class FiresAboveOnly(Loop):
    """``>`` for ``>=``."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            return SpikeFunction(SpikeRule(True, node.attr.derivative, ""))(*args)
        return super().operate(node, args, t)


@mutant("exact/leaky-soft", "language/spike-strict", says=("compares with >",))
class FiresAtTies(Loop):
    """``>=`` for ``>``."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            return SpikeFunction(SpikeRule(False, node.attr.derivative, ""))(*args)
        return super().operate(node, args, t)


@mutant("forward/lif-hard", "exact/if-hard", "robust/non-finite-lif-hard")
class ResetOneStepLate(Loop):
    """The choice of a hard reset is made by the spike of the step before."""

    def operate(self, node, args, t):
        if node.op == "select":
            self.last = torch.zeros_like(args[0]) if t == 0 else self.last
            args, self.last = [self.last, *args[1:]], args[0].detach()
        return super().operate(node, args, t)


@mutant("forward/lif-soft", "forward/synaptic-soft", "single-step/if-soft", says=("of reset='hard'",))
class SoftResetDoneHard(Loop):
    """``h - z threshold`` becomes 0 where z."""

    def evaluate(self, root, values, t, like=None):
        if root.op == "sub" and root in self.program.next and root not in values and spikes(root.args[1]):
            h = self.evaluate(root.args[0], values, t, like)
            z = self.evaluate(next(n for n in topological([root.args[1]]) if n.op == "spike"), values, t, like)
            rest = Node("param", (), "v_reset")
            values[root] = torch.where(z != 0, values[rest] if rest in values else torch.zeros_like(h), h)
        return super().evaluate(root, values, t, like)


@mutant("forward/lif-hard", "exact/if-soft", says=("all values that came are 0",))
class NeverFires(Loop):
    """No spike at all."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        return value * 0 if node.op == "spike" else value


@mutant("robust/non-finite-lif-hard", "robust/non-finite-klif-hard", says=("arithmetic form of a choice",))
class SelectByArithmetic(Loop):
    """``z a + (1 - z) b`` instead of a choice: infinity times 0."""

    def operate(self, node, args, t):
        if node.op == "select":
            z, a, b = args
            return z * a + (1 - z) * b
        return super().operate(node, args, t)


# -- state


@mutant("state/rest", says=("third call",))
class StateLeaks(Loop):
    """The next call starts where the last one ended."""

    def start(self, state, known, like):
        kept = getattr(self, "kept", None)
        if state is None and kept is not None and kept[0].shape == like.shape[1:]:
            return kept
        return super().start(state, known, like)

    def carry(self, before, now, t):
        self.kept = [value.detach() for value in now]
        return now


@mutant("forward/lif-hard", "state/given-lif-hard", "state/carried", says=("final state v",))
class FinalStateOneStepEarly(Loop):
    """The final state is that before the last step."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)
        if len(inputs[0]) > 1:
            final = super().__call__(tuple(x[:-1] for x in inputs), state, params, ())[1]
        return outputs, final, trace


@mutant("record/lif-hard", "record/alif-soft", says=("one step late",))
class RecordsBeforeTheStep(Loop):
    """The trace has the states at the start of each step."""

    def recorded(self, before, now):
        return before


@mutant("state/long-17", "state/long-33", "state/long-40", says=("chunk of 16 steps",))
class ForgetsAtTheBorderOfAChunk(Loop):
    """State is dropped after 16 steps."""

    def carry(self, before, now, t):
        return [torch.zeros_like(value) for value in now] if t == 15 else now


@mutant("state/long-33-gradient", "state/long-17-gradient", says=("input gradient",))
class GradientStopsAtTheBorderOfAChunk(Loop):
    """Values pass after 16 steps, gradients do not."""

    def carry(self, before, now, t):
        return [value.detach() for value in now] if t == 15 else now


@mutant("state/gradient-lif-hard", "state/initial-alone", says=("there is none",))
class NoGradientToTheInitialState(Loop):
    """The given state is detached."""

    def start(self, state, known, like):
        return [value.detach() for value in super().start(state, known, like)]


@mutant("layouts/no-steps-state")
class NoStepsNoState(Loop):
    """Without steps the state is at rest."""

    def start(self, state, known, like):
        return super().start(state if len(like) else None, known, like)


# -- gradients


@mutant("gradient/lif-hard", "surrogate/erf", says=("of the surrogate StraightThrough",))
class SurrogateIgnored(Loop):
    """Straight through."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            return SpikeFunction(SpikeRule(node.attr.strict, Node("const", (), 1.0), ""))(*args)
        return super().operate(node, args, t)


@mutant("gradient/lif-hard", "gradient/leaky-soft")
class SurrogateScaled(Loop):
    """One per cent too much."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            more = Node("mul", (node.attr.derivative, Node("const", (), 1.01)))
            return SpikeFunction(SpikeRule(node.attr.strict, more, ""))(*args)
        return super().operate(node, args, t)


@mutant("gradient/lif-hard-detach", "gradient/alif-soft-detach", says=("of detach_reset=False",))
class DetachIgnored(Loop):
    """``detach`` lets the gradient through."""

    def operate(self, node, args, t):
        return args[0] if node.op == "detach" else super().operate(node, args, t)


@mutant("gradient/lif-soft", "gradient/if-hard", says=("of detach_reset=True",))
class ResetAlwaysDetached(Loop):
    """The spike in a reset never carries a gradient."""

    def evaluate(self, root, values, t, like=None):
        if root in self.program.next and root not in values:
            inner = {k: (v.detach() if k.op == "spike" else v) for k, v in values.items()}
            values[root] = super().evaluate(root, inner, t, like)
        return super().evaluate(root, values, t, like)


@mutant("parameters/gradient-lif-hard", "parameters/gradient-alone")
class ParameterGradientDoubled(Loop):
    """Twice the gradient."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        return made * 2 - made.detach()


@mutant("parameters/gradient-lif-hard", "parameters/many", "parameters/full-1x7")
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


@mutant("parameters/gradient-plif-hard", says=("there is none",))
class ParameterGradientIgnored(Loop):
    """Declared, but parameters are detached."""

    def parameter(self, value, kind, like):
        return super().parameter(value, kind, like).detach()


@mutant("robust/double-backward")
class FirstDerivativeIsAConstant(Loop):
    """The surrogate's derivative is not differentiated again."""

    def operate(self, node, args, t):
        if isinstance(node.attr, SpikeRule):
            frozen = SpikeRule(node.attr.strict, Node("detach", (node.attr.derivative,)), "")
            return SpikeFunction(frozen)(*args)
        return super().operate(node, args, t)


@mutant("language/maximum-gradient", "language/minimum-gradient")
class TieGivesAllToOne(Loop):
    """The gradient at a tie of maximum and minimum goes to the first."""

    def operate(self, node, args, t):
        if node.op in ("maximum", "minimum"):
            a, b = torch.broadcast_tensors(*args)
            return torch.where(a >= b if node.op == "maximum" else a <= b, a, b)
        return super().operate(node, args, t)


# -- parameters


@mutant("parameters/channel-lif", "parameters/channel-dim1", says=("spikes of LIF",))
class ChannelsAlongTheWrongDimension(Loop):
    """A per-channel value is taken by the position in the batch."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if kind == "channel":
            rows = like.shape[1]
            flat = made.reshape(-1)
            made = flat[torch.arange(rows) % len(flat)].view(rows, *[1] * (like.ndim - 2))
        return made


@mutant("parameters/channel-forward", "parameters/full-forward")
class OneValueForAll(Loop):
    """A tensor parameter's option is ignored: its mean is used."""

    def parameter(self, value, kind, like):
        return super().parameter(value, kind, like).mean()


@mutant("parameters/changed", says=("in place",))
class ParameterRemembered(Loop):
    """A tensor parameter's value is read once."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if isinstance(value, torch.Tensor):
            self.kept = getattr(self, "kept", {})
            made = self.kept.setdefault(id(value), made.detach().clone())
        return made


# -- arithmetic and dtypes


@mutant("forward/lif-hard-float16", "forward/leaky-hard-bfloat16", says=("has dtype torch.float32",))
class OutputInFloat32(Loop):
    """16-bit inputs give float32 spikes."""

    def written(self, output):
        return output


@mutant("bits/lif-hard-float16", "bits/alif-soft-bfloat16", "state/carried-16-bit")
class StateInTheInputsDtype(Loop):
    """16-bit inputs have 16-bit state."""

    def carry(self, before, now, t):
        return [value.to(self.dtype).to(self.compute) for value in now]


@mutant("bits/lif-hard", "bits/lif-nodecay-soft", says=("source order",))
class Reassociated(Loop):
    """``(a - b) / c`` as ``a / c - b / c``."""

    def evaluate(self, root, values, t, like=None):
        if root.op == "div" and root.args[0].op == "sub" and root not in values:
            (a, b), c = root.args[0].args, root.args[1]
            over = [self.evaluate(node, values, t, like) for node in (a, b, c)]
            values[root] = over[0] / over[2] - over[1] / over[2]
        return super().evaluate(root, values, t, like)


@mutant("bits/lif-hard", "bits/li", says=("divide where the source divides",))
class DividesByTheReciprocal(Loop):
    """``a / b`` as ``a * (1 / b)``."""

    def operate(self, node, args, t):
        return args[0] * (1 / args[1]) if node.op == "div" else super().operate(node, args, t)


@mutant("bits/synaptic-hard", "bits/leaky-soft", says=("FMA",))
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


@mutant("forward/eif-hard", "language/exp")
class ApproximateExponential(Loop):
    """exp to ten bits."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        return value * 1.0005 if node.op == "exp" else value


@mutant("language/round", says=("round",))
class RoundsHalfAway(Loop):
    """Ties of round go away from zero."""

    def operate(self, node, args, t):
        if node.op == "round":
            return torch.sign(args[0]) * torch.floor(args[0].abs() + 0.5)
        return super().operate(node, args, t)


@mutant("robust/subnormal")
class FlushesSubnormals(Loop):
    """Numbers below the smallest normal one are 0."""

    def operate(self, node, args, t):
        value = super().operate(node, args, t)
        return (
            torch.where(value.abs() < 1.1754944e-38, torch.zeros_like(value), value)
            if value.dtype.is_floating_point
            else value
        )


@mutant("robust/non-finite-if-soft", says=("swallowed",))
class SwallowsNaN(Loop):
    """NaN inputs count as 0."""

    def read(self, x, t):
        return torch.nan_to_num(super().read(x, t), nan=0.0, posinf=float("inf"), neginf=float("-inf"))


# -- shapes and layouts


def linear(x: torch.Tensor) -> torch.Tensor:
    """What a kernel sees that takes the memory of x for a contiguous tensor."""
    memory = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())[x.storage_offset() :]
    flat = torch.zeros(x.numel(), dtype=x.dtype, device=x.device)
    flat[: min(len(memory), len(flat))] = memory[: len(flat)]
    return flat.view(x.shape)


@mutant("layouts/input-strided", "layouts/input-channels-last", "layouts/input-expanded")
class InputStridesIgnored(Loop):
    """Inputs are read as if contiguous."""

    def __call__(self, inputs, state, params, record):
        return super().__call__(tuple(linear(x.detach()) for x in inputs), state, params, record)


@mutant("layouts/input-channels-last", "layouts/channels-last-channel")
class ChannelsLastMisread(Loop):
    """Only images in channels-last go wrong."""

    def __call__(self, inputs, state, params, record):
        x = inputs[0]
        if x.ndim == 5 and x.stride(2) == 1:
            inputs = (linear(x.detach()),)
        return super().__call__(inputs, state, params, record)


class _ReadLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out):
        """The same."""
        return out.clone()

    @staticmethod
    def backward(ctx, grad):
        """The memory as if contiguous."""
        return linear(grad)


@mutant("layouts/incoming-expanded", "layouts/incoming-transposed", "layouts/sum", says=("input gradient",))
class IncomingStridesIgnored(Loop):
    """The incoming gradient is read as if contiguous."""

    def written(self, output):
        return _ReadLinear.apply(super().written(output))


@mutant("layouts/one-step", "single-step/lif-hard")
class OneStepIsNone(Loop):
    """T = 1 gives zeros."""

    def written(self, output):
        return super().written(output) * (0 if len(output) == 1 else 1)


@mutant("layouts/odd", "forward/lif-hard", says=("only the last neuron differs",))
class OddTailForgotten(Loop):
    """The last neuron of an odd number is not computed."""

    def written(self, output):
        made = super().written(output)
        if made.numel() and made[0].numel() % 2:
            mask = torch.ones_like(made[0]).reshape(-1)
            mask[-1] = 0
            made = made * mask.view(made.shape[1:])
        return made


# -- around a computation


@mutant("state/inputs-stay", says=("the input after the call",))
class WritesToItsInput(Loop):
    """The input is scratch memory."""

    def __call__(self, inputs, state, params, record):
        result = super().__call__(inputs, state, params, record)
        with torch.no_grad():
            inputs[0].data.zero_()
        return result


@mutant("robust/deterministic", says=("computed again",))
class Random(Loop):
    """Sums in an order of its own, every time."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        noise = 1 + 1e-6 * torch.rand(())
        return made * noise + made.detach() * (1 - noise) if made.requires_grad else made


@mutant("robust/threads", says=("in a thread",))
class SharedScratch(Loop):
    """One buffer for all threads."""

    def read(self, x, t):
        self.scratch = super().read(x, t)
        time.sleep(0.0005)
        return self.scratch


@mutant("robust/nothing-kept", says=("kept alive",))
class KeepsItsInput(Loop):
    """The last input is remembered."""

    def __call__(self, inputs, state, params, record):
        self.last = inputs
        return super().__call__(inputs, state, params, record)


@mutant("robust/autocast", says=("under autocast",))
class AutocastLeaksIn(Loop):
    """Under autocast the state is bfloat16."""

    def carry(self, before, now, t):
        probe = torch.eye(2) @ torch.eye(2)  # autocast lowers a product of matrices
        return [v.bfloat16().float() for v in now] if probe.dtype == torch.bfloat16 else now


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out):
        """The same."""
        ctx.used = False
        return out.clone()

    @staticmethod
    def backward(ctx, grad):
        """Nothing the second time."""
        ctx.used, again = True, ctx.used
        return grad * (not again)


@mutant("robust/backward-twice", says=("backward number 2",))
class BackwardOnce(Loop):
    """The second backward through a kept graph gives zeros."""

    def written(self, output):
        return _Once.apply(super().written(output))


# -- backends


@mutant("custom/same-name", "custom/configured")
class CompiledByName(Loopback):
    """Programs are told apart by the neuron's name."""

    def compile(self, program, spec):
        self.made = getattr(self, "made", {})
        return self.made.setdefault((program.name, spec), super().compile(program, spec))


@mutant("forward/lif-hard", "gradient/lif-hard", "exact/if-soft", "bits/lif-hard", says=("compute in its place",))
class DeadDispatch(Loopback):
    """Nothing of this backend is ever used: torch computes."""

    def compile(self, program, spec):
        return default_registry().get("torch", "a mutant").compile(program, spec)


@mutant("forward/lif-hard-float16", says=("never fall back",))
class FallsBackInFloat16(Loopback):
    """torch computes where this backend cannot."""

    def compile(self, program, spec):
        if spec.dtype != torch.float16:
            return super().compile(program, spec)
        return default_registry().get("torch", "a mutant").runner(program, spec)


@mutant("language/atan", says=("refused",))
class RefusesWhatItDeclares(Loopback):
    """atan cannot be lowered, and no capability says so."""

    def compile(self, program, spec):
        from spikecore import Unsupported

        if any(node.op == "atan" for node in program.nodes):
            raise Unsupported("backend 'mutant' has no atan")
        return super().compile(program, spec)


@pytest.mark.parametrize("backend", MUTANTS, ids=lambda cls: cls.__name__)
def test_mutant_is_caught(backend: Any) -> None:
    """Each case that is there for this error fails, as a difference and not as a crash, and says what must be said."""
    with installed(backend) as name:
        results = check_backend(name, cases=backend.caught_by)
    missed = [result.id for result in results if result.outcome != "failed"]
    assert not missed, (
        f"{backend.__doc__} is not caught by {missed}: {next(r for r in results if r.id in missed).message}"
    )
    for words in backend.says:
        assert any(words in result.message for result in results), "\n\n".join(result.message for result in results)


def test_there_are_enough_mutants() -> None:
    """Sixteen at least, each with a case that exists."""
    assert len(MUTANTS) >= 16
    assert len({cls.__name__ for cls in MUTANTS}) == len(MUTANTS)
    assert all(CASES.get(id) for cls in MUTANTS for id in cls.caught_by)


def test_control_passes_everything() -> None:
    """The backend that the mutants are made from passes every case, through the way of a plugin."""
    with installed(Loopback) as name:
        results = check_backend(name)
    wrong = [f"{result.id}: {result.message}" for result in results if not result.ok]
    assert not wrong, "\n\n".join(wrong)
    assert {result.outcome for result in results if result.tier != "compile"} == {"passed"}
