"""Inputs that broadcast over others, in all ways of a call, beside the same inputs expanded."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

T, B, C = 6, 3, 5
#: Shape -> how torch shows it with all dimensions.
SHAPES: Dict[Tuple[int, ...], Tuple[int, ...]] = {
    (T, 1, C): (T, 1, C),
    (T, B, 1): (T, B, 1),
    (1, B, C): (1, B, C),
    (1, 1, C): (1, 1, C),
    (T,): (T, 1, 1),
    (1,): (1, 1, 1),
    (T, B, C): (T, B, C),
}


class Threshold(sc.Neuron):
    """A leaky neuron whose threshold is an input."""

    inputs = ("x", "threshold")
    states = {"v": 0.0}
    params = {"tau": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = s.v + (x.x - s.v) / p.tau
        z = self.spike(v - x.threshold)
        return z, {"v": sc.ops.select(z, 0.0, v)}


def inputs(*shape: int) -> Tuple[Tensor, Tensor]:
    """A current for all neurons, and a threshold of this shape."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return 3 * torch.rand(T, B, C, generator=generator), 0.3 + torch.rand(shape, generator=generator)


def wide(threshold: Tensor) -> Tensor:
    """The threshold of each neuron at each step."""
    return threshold.view(SHAPES[tuple(threshold.shape)]).expand(T, B, C)


def test_one_neuron_takes_inputs_of_any_of_these_shapes_again_and_again() -> None:
    """Calls of one signature after another: each has its own outputs, state and gradients."""
    neuron, right = Threshold(), Threshold(backend="torch")
    for _ in range(3):
        for shape in SHAPES:
            x, threshold = inputs(*shape)
            x.requires_grad_(), threshold.requires_grad_()
            out, state = neuron.run(x, threshold)
            expected, end = right.run(x, wide(threshold).contiguous())
            assert torch.equal(out, expected)
            assert torch.equal(state["v"], end["v"])
            weights = torch.rand(T, B, C)
            found = torch.autograd.grad((out * weights).sum() + state["v"].sum(), (x, threshold))
            wanted = torch.autograd.grad((expected * weights).sum() + end["v"].sum(), (x, threshold))
            for a, b in zip(found, wanted):
                torch.testing.assert_close(a, b)


def test_repeat_takes_steps_that_broadcast() -> None:
    """Inputs without time: each has the gradient of all its copies."""
    x, threshold = inputs(1, 1, C)
    step, once = x[0].requires_grad_(), threshold[0].requires_grad_()
    Threshold(repeat=T)(step, once).sum().backward()
    found = [step.grad, once.grad]
    step.grad = once.grad = None
    Threshold(backend="torch")(step.expand(T, B, C), once.expand(T, B, C)).sum().backward()
    for a, b in zip(found, (step.grad, once.grad)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(1,), (1, 1, C), (1, B, C)], ids=str)
def test_calls_like_one_before_give_its_gradients(shape: Tuple[int, ...]) -> None:
    """The second and the third call take the short way."""
    (x, _), value = inputs(T, B, C), torch.full(shape, 0.4, requires_grad=True)
    neuron, x = Threshold(), x.requires_grad_()
    first, *others = [torch.autograd.grad(neuron(x, value).square().sum(), (x, value)) for _ in range(3)]
    for grads in others:
        assert all(map(torch.equal, grads, first))


def test_feedback_takes_them() -> None:
    """``Recurrent`` expands what broadcasts, and the input that is added to may."""
    linear = nn.Linear(C, C)
    for into in ("x", "threshold"):
        for shape in ((T, 1, C), (T,), (1, B, C)):
            x, threshold = inputs(*shape)
            threshold.requires_grad_()
            layer = sc.Recurrent(Threshold(), linear, into=into)
            grads: List[Tensor] = []
            outputs = [layer(x, value) for value in (threshold, wide(threshold))]
            for out in outputs:
                grads += torch.autograd.grad(out.sum(), threshold)
            assert torch.equal(*outputs)
            torch.testing.assert_close(*grads)


def test_a_state_of_another_shape_is_refused_after_a_call_with_the_right_one() -> None:
    """A call like one before is one with a state of that shape, too."""
    x, threshold = inputs(T, B, C)
    neuron, start = Threshold(), {"v": torch.zeros(B, C)}
    for _ in range(2):
        neuron.run(x[:, :1], threshold, state=start)
    with pytest.raises(ValueError, match=r"state has v of shape \[1, 5\], one time step of the input has \[3, 5\]"):
        neuron.run(x[:, :1], threshold, state={"v": torch.zeros(1, C)})


def test_inputs_of_two_dtypes_are_of_the_wider_one() -> None:
    """A gradient has the dtype of its input."""
    x, threshold = inputs(T, 1, C)
    narrow = threshold.half().requires_grad_()
    Threshold()(x, narrow).sum().backward()
    assert (narrow.grad.dtype, narrow.grad.shape) == (torch.float16, (T, 1, C))
