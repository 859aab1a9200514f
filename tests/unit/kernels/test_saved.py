"""What a forward kernel saves for backward, and what backward does with tensors that hooks gave back."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import spikecore as sc
from kernel_loop import LAYOUTS, Gated, Loop, bound, channels_last, gradients, image, same, twins
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


def test_input_changed_in_place_is_noticed() -> None:
    """Backward refuses an input that changed since forward."""
    neuron = bound(sc.LIF(), Loop())
    leaf = torch.ones(4, 3, requires_grad=True)
    x = leaf * 1.0
    y = neuron(x)
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


class Restrided:
    """Saved-tensor hooks that give back tensors with other strides, as offloading to the host does."""

    @staticmethod
    def every(tensor: Tensor) -> Tensor:
        return tensor.contiguous()

    @staticmethod
    def apart(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor], -1)[..., 0]

    @staticmethod
    def spaced(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor], 1)[:, 0] if tensor.ndim > 1 else tensor

    @staticmethod
    def late(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor], -1)[..., : tensor.shape[-1]] if tensor.ndim else tensor


@pytest.mark.parametrize("hook", ["every", "apart", "spaced", "late"])
@pytest.mark.parametrize(("layout", "given"), [("contiguous", False), ("channels-last", True), ("one step", False)])
def test_saved_tensor_hooks_may_restride(hook: str, layout: str, given: bool) -> None:
    """Whichever saved tensors come back with other strides, gradients are those without hooks."""
    found = []
    for hooked in (False, True):
        ours, _ = twins(lambda: Gated(tau=torch.full((4,), 2.5), learn=("tau",)), 4)
        xs = [LAYOUTS[layout](image(38, seed=s)).requires_grad_() for s in (0, 1)]
        start = {"v": channels_last(image(1, seed=5))[0], "w": image(1, seed=6)[0]} if given else None
        call = functools.partial(ours.run, *xs, state=start)
        if hooked:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, getattr(Restrided, hook)):
                (z, y), _ = call()
        else:
            (z, y), _ = call()
        cotangents = [channels_last(image(38, seed=8)), image(38, seed=9)]
        results = gradients([z, y], [*xs, ours.tau], cotangents)
        found.append(results)
    same(found[1], found[0], rtol=0, atol=0)


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
