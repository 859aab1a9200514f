"""Deliberately wrong backends that the generated tier must find, with a message that names the factor."""

from __future__ import annotations

import re
from typing import List, Tuple

import pytest
import torch

from plain_loop import Loop, Plain
from spikecore.testing import CASES, installed
from spikecore.testing._runner import prepare, run_case

MUTANTS: List[Tuple[type, str]] = []


def mutant(takes: str) -> object:
    """List a wrong loop; ``takes`` is what the message must say that the failure takes."""

    def listed(cls: type) -> type:
        MUTANTS.append((cls, takes))
        return cls

    return listed


def linear(x):
    """The memory of a tensor from its first number on, read as if it were contiguous."""
    flat = torch.as_strided(x, (x.numel(),), (1,), x.storage_offset()) if spans(x) else x.reshape(-1)
    return flat.reshape(x.shape)


def spans(x):
    """Whether so many numbers lie behind the first one."""
    return x.untyped_storage().nbytes() // x.element_size() - x.storage_offset() >= x.numel()


class Scaled(torch.autograd.Function):
    """The same value, whose gradient is multiplied by what ``factor`` says of it."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor(g), None


@mutant(r"shape=(64|100|250)x")
class WrongBeyondFortySteps(Loop):
    """The state of the 41st step is lost."""

    def carry(self, before, now, t):
        return before if t == 40 else now


@mutant(r"learn=")
class ParameterGradientsOfTenStepsOnly(Loop):
    """The gradients of learnt parameters leave out what comes before the last ten steps."""

    def __call__(self, inputs, state, params, record):
        self.steps = len(inputs[0])
        return super().__call__(inputs, state, params, record)

    def evaluate(self, roots, values, t, x):
        made = super().evaluate(roots, values, t, x)
        if self.steps - t > 10 and any(node.op == "next_grad" for node in values):
            first = len(self.program.inputs) + len(self.program.states)
            made[first:] = [0 * value for value in made[first:]]
        return made


@mutant(r"shape=\d+x(131101|2x3x21851)")
class WrongPastTwoToTheSeventeen(Loop):
    """Neurons from 2^17 on are those before."""

    def stack(self, rows, x):
        values = super().stack(rows, x)
        neurons = values[0].numel() if len(values) else 0
        if neurons > 1 << 17:
            values = values.reshape(-1, neurons)[:, torch.arange(neurons) % (1 << 17)].reshape(values.shape)
        return values


@mutant(r"x2=same|x2=(transposed|strided|expanded-steps)")
class SecondInputReadAsContiguous(Loop):
    """Whatever its strides are."""

    def __call__(self, inputs, state, params, record):
        return super().__call__((inputs[0], *map(linear, inputs[1:])), state, params, record)


@mutant(r"state_layout=(transposed|strided)")
class StateReadAsContiguous(Loop):
    """A given one."""

    def __call__(self, inputs, state, params, record):
        return super().__call__(inputs, None if state is None else [*map(linear, state)], params, record)


@mutant(r"param_layout=(transposed|strided|one-number)")
class ParametersReadAsContiguous(Loop):
    """Those that are tensors."""

    def parameter(self, value, kind, x):
        if isinstance(value, torch.Tensor) and kind == "full":
            value = linear(value)
        return super().parameter(value, kind, x)


@mutant(r"generated/")
class NumbersRoundedToHalf(Loop):
    """Python numbers are passed as float16."""

    def parameter(self, value, kind, x):
        return super().parameter(float(torch.tensor(value).half()) if kind == "number" else value, kind, x)


@mutant(r"param_dtype=float16")
class HalfParametersReadAsBfloat(Loop):
    """16 bits are 16 bits."""

    def parameter(self, value, kind, x):
        if isinstance(value, torch.Tensor) and value.dtype == torch.float16:
            value = value.bfloat16()
        return super().parameter(value, kind, x)


@mutant(r"given=[^,]*final")
class FinalStateAloneHasNoGradient(Loop):
    """Nothing comes back from the state that is handed out."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)
        return outputs, tuple(v.detach() for v in final), trace


@mutant(r"g_trace=(one-number|expanded-steps)")
class ExpandedTraceCotangentReadOnce(Loop):
    """A cotangent of a trace whose strides are 0 counts for its first step only."""

    def __call__(self, inputs, state, params, record):
        outputs, final, trace = super().__call__(inputs, state, params, record)

        def first(g):
            mask = torch.ones_like(g, memory_format=torch.contiguous_format)
            if g.stride(0) == 0 and len(g) > 1:
                mask[1:] = 0
            return mask

        return outputs, final, tuple(Scaled.apply(v, first) for v in trace)


@mutant(r"cotangents=huge")
class HalfGradientsSaturate(Loop):
    """Where float16 overflows they are its largest number."""

    def backward(self, tensors, record, grads):
        return [
            g.clamp(-65504.0, 65504.0) if g is not None and g.dtype == torch.float16 else g
            for g in super().backward(tensors, record, grads)
        ]


@mutant(r"cotangents=nan")
class NanInGradientsIsZero(Loop):
    """As clipping would have it."""

    def backward(self, tensors, record, grads):
        first = len(self.program.inputs)
        made = super().backward(tensors, record, grads)
        return [*(g.nan_to_num(nan=0.0) for g in made[:first]), *made[first:]]


@mutant(r"x2=same")
class OneInputTwiceCountsOnce(Loop):
    """The gradient of an input that is given twice is that of the first."""

    def __call__(self, inputs, state, params, record):
        if len(inputs) > 1 and inputs[0] is inputs[1]:
            inputs = (inputs[0], inputs[1].detach())
        return super().__call__(inputs, state, params, record)


@mutant(r"model=(swap|turn)")
class StatesWrittenInOrder(Loop):
    """A state that becomes another one reads it after that was written."""

    def carry(self, before, now, t):
        names = self.program.states
        return [
            now[names.index(root.attr)] if root.op == "state" else value for root, value in zip(self.program.next, now)
        ]


@mutant(r"shape=\d+x2x3x1x2x3")
class FiveDimensionsAreTransposed(Loop):
    """Tensors of many dimensions are read with the last two exchanged."""

    def read(self, x, t):
        y = super().read(x, t)
        return y.transpose(-1, -2).reshape(y.shape) if y.ndim == 5 else y


def affected(takes: str) -> List[str]:
    """Ids of calls to run: all of them, those first whose text has what the message must name."""
    return sorted((case.id for case in CASES.select(ids=["generated/*=*"])), key=lambda id: not re.search(takes, id))


@pytest.mark.parametrize(("loop", "takes"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_each_planted_fault_is_found_and_named(loop, takes):
    """By a call of the release; the message has the simplest call that fails, with the factors that it takes."""
    backend = type("Wrong", (Plain,), {"name": "wrong", "loop": loop})
    with installed(backend):
        bench = prepare("wrong")
        for id in affected(takes):
            result = run_case(CASES.get(id), bench)
            if result.outcome == "failed":
                break
        assert result.outcome == "failed", "no call failed"
        again = re.search(r"--case (generated/\S*)", result.message)[1]
        assert re.search(takes, again), result.message
        repeated = run_case(CASES.get(again), bench)
        assert repeated.outcome == "failed"
        assert repeated.message.splitlines()[0] == result.message.splitlines()[0]
