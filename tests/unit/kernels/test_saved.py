"""Tensors that a kernel saves for backward, with feedback too, and backward with tensors that hooks gave back."""

from __future__ import annotations

from typing import Any, List, Tuple

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import Loop, bound, gradients, image, same, twins
from shell_nets import Counting
from spikecore.kernels import ForwardPlan
from spikecore.testing import installed


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


def net_of(neuron: Any) -> Any:
    """A recurrent layer, always the same, in one call."""
    torch.manual_seed(4)
    return sc.Recurrent(neuron, nn.Linear(4, 4), fused=True)


def test_what_is_kept_for_backward() -> None:
    """Inputs of the neuron at each step, and states after every root of the steps; the input itself is not."""
    kept: List[Tuple[int, ...]] = []
    net = net_of(sc.ALIF())
    bound(net.neuron, Loop())
    x = torch.randn(400, 2, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        out = net(x)
    # u and the output; v and a after 20, 40, ..., 380 steps; v, a and the last output before the first; weight, bias
    assert sorted(kept) == sorted([(400, 2, 4)] * 2 + [(19, 2, 4)] * 2 + [(2, 4)] * 3 + [(4, 4), (4,)])
    out.sum().backward()
    kept.clear()
    net.linear.requires_grad_(False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        net(x)
    assert kept.count((400, 2, 4)) == 1


def test_backward_within_autocast() -> None:
    """Of a call that was computed without: its products have the dtypes of that call."""
    x, found = torch.randn(6, 3, 4), []
    for inside in (False, True):
        with installed(Loop) as name:
            net = net_of(sc.LIF(1.7, backend=name))
            torch.manual_seed(3)
            state = {key: torch.rand(3, 4).requires_grad_() for key in ("v", "feedback")}
            out = net.run(x, state=state)[0]
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
                found.append(torch.autograd.grad(out.sum(), [*net.parameters(), *state.values()]))
    for plain, within in zip(*found):
        assert torch.equal(plain, within)
