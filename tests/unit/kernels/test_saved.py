"""Tensors that a forward kernel saves for backward, and backward with tensors that hooks gave back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import spikecore as sc
from kernel_loop import Loop, bound, gradients, image, same, twins
from shell_nets import Counting
from spikecore.kernels import ForwardPlan


def test_inference_saves_nothing() -> None:
    """Without gradients nothing is written for backward; with them, the checkpoints."""
    written = []

    class Watching(Loop):
        def forward(self, plan: ForwardPlan) -> Any:
            written.append(plan.checkpoints)
            return super().forward(plan)

    neuron = bound(sc.LIF(), Watching(chunk=4))
    x = torch.ones(20, 3, requires_grad=True)
    with torch.no_grad():
        assert neuron(x).grad_fn is None
    assert neuron(x.detach()).grad_fn is None
    assert neuron(x).grad_fn is not None
    assert written == [False, True]


@pytest.mark.parametrize("given", [False, True])
def test_forward_saves_the_states_that_backward_reads_and_no_other(given: bool) -> None:
    """Checkpoints are of those states alone, and gradients are right without the others."""
    ours, theirs = twins(lambda: Counting(learn=("tau",)), chunk=4)
    found = []
    for neuron in (ours, theirs):
        x = image(18).requires_grad_()
        state = {n: image(1, seed=2)[0].requires_grad_() for n in neuron.states} if given else None
        out, end, trace = neuron.run(x, state=state, record=("count", "v"))
        results, wanted = [out, *end.values(), *trace.values()], [x, neuron.tau, *(state or {}).values()]
        if neuron is ours:
            checkpoints = out.grad_fn.saved_tensors[len(wanted) :]  # behind what was given
            assert [saved.shape for saved in checkpoints] == [(18 // 4, *x.shape[1:])]
        found.append([*results, *gradients(results, wanted, [torch.ones_like(r) for r in results])])
    same(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "hook", [lambda t: t.half(), lambda t: t[:1], lambda t: t.to("meta")], ids=["half", "cut", "device"]
)
def test_saved_tensor_hooks_may_not_change_numbers(hook: Any) -> None:
    """A hook that gives back another dtype, shape or device is refused in words."""
    neuron = bound(sc.LIF(), Loop(4))
    x = image(9).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, hook):
        y = neuron(x)
    with pytest.raises(
        RuntimeError, match="LIF: a saved-tensor hook gave back .* must have the dtype, shape and device"
    ):
        y.backward(image(9, seed=2))
