"""What a failure's message says leads to the fault, and to no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from spikecore.lang import Node, SpikeRule
from spikecore.lang.eager import SpikeFunction
from spikecore.testing import check_backend
from spikecore.testing._compare import Mismatch, same
from spikecore.testing._hints import different, hints
from spikecore.testing._loopback import Loop, Loopback, installed
from spikecore.testing._tolerances import EXACT, Tolerance

RNG = np.random.default_rng(7)
RIGHT = RNG.normal(size=(6, 4, 4))
SINGLE = Tolerance(1e-5, 1e-6)


def said(actual: Any, expected: Any = RIGHT, tolerance: Tolerance = SINGLE, **more: Any) -> str:
    """The hints of a comparison."""
    with pytest.raises(Mismatch) as failure:
        same("output", "a neuron", np.asarray(actual), np.asarray(expected), tolerance, **more)
    return "\n".join(line for line in str(failure.value).splitlines() if "hint:" in line)


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (RIGHT[::-1], "in wrong places: along t came those of index 5, 4, 3, 2, 1, 0"),
        (RIGHT[:, [0, 2, 1, 3]], "in wrong places: along axis 1 came those of index 0, 2, 1, 3"),
        (np.roll(RIGHT, 1, 0), "one step late"),
        (np.roll(RIGHT, -1, 0), "one step early"),
        (np.broadcast_to(RIGHT[..., -1:], RIGHT.shape), "along axis 2 came those of index 3, 3, 3, 3"),
        (2 * RIGHT, "everything is 2 times"),
        (0 * RIGHT, "all values that came are 0"),
        (RIGHT.astype(np.float16).astype(float), "the values are rounded to float16"),
        (RIGHT + 3e-5 * np.abs(RIGHT) * (RIGHT > 1), None),
    ],
)
def test_patterns(actual: Any, words: Any) -> None:
    """Each has its words, and a difference of no pattern has none."""
    assert words in said(actual) if words else said(actual) == ""


def test_a_large_value_excuses_its_own_neuron_alone() -> None:
    """Beside 1e3 small numbers of other neurons must be right; those of the same neuron may be off by its rounding."""
    right = np.asarray([[1e3, 2e-4, 3e-4]] * 4)
    wrong = different(right * 0 + [1e3, -2e-4, 0.0], right, SINGLE)
    assert wrong.all(axis=0).tolist() == [False, True, True]
    assert not different(right[0], right[0] + 5e-7, SINGLE, time=False).any()
    beyond = np.asarray([1e30, 1.0])
    assert different(beyond * 0 + [1e30, 2.0], beyond, SINGLE, time=False).tolist() == [False, True]
    over_time = np.asarray([[1e3], [2e-4], [np.inf]])
    assert not different(over_time + 5e-4, over_time, SINGLE).any()
    assert different(over_time + np.asarray([[0.0], [5e-4], [0.0]]), over_time, SINGLE, time=False).tolist() == [
        [False],
        [True],
        [False],
    ]
    with pytest.raises(Mismatch, match="2 of 3 differ"):
        same("final v", "a neuron", np.asarray([1e3, -2e-4, 0.0]), right[0], SINGLE, axes="n")


def test_flush_to_zero() -> None:
    """Only where every difference is a subnormal that came as 0; nothing else is said then."""
    tiny = np.asarray([[1e-39, 2.0], [3.0, -2e-40]])
    assert said(np.where(np.abs(tiny) < 1e-38, 0, tiny), tiny, EXACT).count("hint:") == 1
    assert "flushed to zero" in said(np.where(np.abs(tiny) < 1e-38, 0, tiny), tiny, EXACT)
    assert "flushed to zero" not in said(np.zeros_like(tiny), tiny, EXACT)


def test_a_suspect_that_is_right_as_well_is_none() -> None:
    """Values that are off by a rounding are not those of a suspect that gives the right ones."""
    near = RIGHT * (1 + 3e-5)
    assert "of another neuron" not in said(near, suspects={"of another neuron": lambda: RIGHT})
    assert "of another neuron" in said(2 * RIGHT, suspects={"of another neuron": lambda: 2 * RIGHT})


def test_a_hint_that_cannot_be_found_hides_no_difference() -> None:
    """The difference is told, and what went wrong with the hint."""
    text = said(2 * RIGHT, suspects={"of one": lambda: 1 / 0})
    assert text == "  hint: none: looking for one raised ZeroDivisionError: division by zero"


def test_one_suspect_is_named() -> None:
    """The first, which is the likeliest; patterns of the same values are left out."""
    text = said(RIGHT[::-1], suspects={"of one": lambda: RIGHT[::-1], "of two": lambda: RIGHT[::-1]})
    assert text == "  hint: the values are those of one"


def test_patterns_that_hold_for_the_right_values_are_none() -> None:
    """A constant is its own reverse."""
    flat = np.ones((5, 3))
    wrong = flat != flat * 1.5
    assert hints(flat * 1.5, flat, wrong, tolerance=SINGLE, axes=("t", "n")) == [
        "everything is 1.5 times what it should be"
    ]


class Other(Loop):
    """A backend with one fault, by name."""

    fault = ""

    def __call__(self, inputs: Any, state: Any, params: Any, record: Any) -> Any:
        """Faults of whole calls."""
        outputs, final, trace = super().__call__(inputs, state, params, record)
        if self.fault == "output is the input":
            outputs = (inputs[0].clone(),)
        if self.fault == "output is a state":
            trace_v = super().__call__(inputs, state, params, ("v",))[2][0]
            outputs = (trace_v.clone(),)
        if self.fault in _BACKWARD:
            outputs = (_BACKWARD[self.fault].apply(outputs[0]),)
        return outputs, final, trace

    def parameter(self, value: Any, kind: str, like: Any) -> Any:
        """Faults of parameters."""
        made = super().parameter(value, kind, like)
        if kind == "channel" and self.fault == "first channel for all":
            made = made.reshape(-1)[:1]
        if self.fault == "gradient of the first of the batch" and made.requires_grad:
            mask = torch.zeros(like.shape[1:])
            mask[0] = 1
            full = made.expand(like.shape[1:])
            made = full * mask + full.detach() * (1 - mask)
        return made

    def operate(self, node: Any, args: Any, t: int) -> Any:
        """Faults of the surrogate."""
        if isinstance(node.attr, SpikeRule) and self.fault == "surrogate's default":
            alpha = Node("const", (), 2.0)
            u = next(n for n in _nodes(node.attr.derivative) if n.op not in ("const", "param") and not n.args)
            half_pi = Node("const", (), float(np.pi / 2))
            scaled = Node("mul", (Node("mul", (half_pi, alpha)), u))
            below = Node("add", (Node("const", (), 1.0), Node("mul", (scaled, scaled))))
            return SpikeFunction(SpikeRule(node.attr.strict, Node("div", (Node("const", (), 1.0), below)), ""))(args[0])
        return super().operate(node, args, t)


def _nodes(root: Any) -> Any:
    yield root
    for arg in root.args:
        yield from _nodes(arg)


def _backward(change: Any) -> Any:
    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, out: Any) -> Any:
            return out.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return change(grad)

    return Changed


_BACKWARD = {
    "cotangent is scratch": _backward(lambda grad: grad.mul_(0.5).mul(2.0)),
    "cotangent late": _backward(lambda grad: grad.roll(1, 0)),
}


@pytest.mark.parametrize(
    ("fault", "case", "words"),
    [
        ("output is the input", "forward/lif-hard", "those of the input x: does the result share its memory?"),
        ("output is a state", "forward/lif-hard", "of the state v: does the result share its memory?"),
        ("cotangent is scratch", "gradient/lif-hard", "the gradient that came in of LIF"),
        ("cotangent is scratch", "language/exp-gradient", "clone it before"),
        ("cotangent late", "gradient/lif-soft", "incoming gradient one step late"),
        ("first channel for all", "parameters/channel-lif", "the first value of tau, threshold, v_reset for all"),
        ("gradient of the first of the batch", "parameters/gradient-lif-hard", "of the first of the batch alone"),
    ],
)
def test_faults_are_led_to(fault: str, case: str, words: str) -> None:
    """By the message of a case, in the words of the fault."""
    loop = type("Faulty", (Other,), {"fault": fault})
    with installed(type("Faulty", (Loopback,), {"name": "faulty", "loop": loop})) as name:
        (result,) = check_backend(name, cases=[case])
    assert result.outcome == "failed", result
    assert words in result.message, result.message


def test_one_number_is_half_of_another_only_where_it_is() -> None:
    """One number is always some multiple of another."""
    assert "0.5 times" in said(np.asarray(131396.5), np.asarray(262793.0))
    assert said(np.asarray(131324.0), np.asarray(262793.0)) == ""


def test_a_surrogate_at_its_default_is_not_taken_for_another() -> None:
    """``ATan(alpha=3.5)`` computed with 2 is named as that, and no other class is."""
    loop = type("Faulty", (Other,), {"fault": "surrogate's default"})
    with installed(type("Faulty", (Loopback,), {"name": "faulty", "loop": loop})) as name:
        (result,) = check_backend(name, cases=["surrogate/atan"])
    assert result.outcome == "failed", result
    assert "those of the surrogate ATan(alpha=2)" in result.message, result.message
    assert result.message.count("of the surrogate") == 1
