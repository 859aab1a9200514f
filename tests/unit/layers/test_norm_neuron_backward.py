"""Backward of calls of a neuron that normalises, where what comes back is not what forward had."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fused_layers import C, Moving, agree, equal, layers, results
from kernel_loop import image
from spikecore.backend import BackendError
from spikecore.layers._batch_norm_stats import BY_KERNELS


class TestBackward:
    """What comes back is not what forward had."""

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("shortcut", [None, "before"])
    def test_second_derivatives_are_refused_and_the_first_is_there(self, shortcut: Any, training: bool) -> None:
        """Under create_graph=True."""
        pair = layers("channels", shortcut)
        given = [image(6), image(6, seed=1)][: 2 if shortcut else 1]
        found = []
        for layer in pair:
            layer.train(training)
            leaves = [value.clone().requires_grad_() for value in given]
            out = layer(*leaves)
            found.append([*torch.autograd.grad(out, [*leaves, *layer.parameters()], torch.cos(out), create_graph=True)])
        equal(*([value.detach() for value in row] for row in found))
        with pytest.raises(BackendError, match="derives first derivatives only"):
            found[0][0].sum().backward()

    @pytest.mark.parametrize("training", [True, False])
    def test_saved_tensors_that_lie_elsewhere_by_now(self, training: bool) -> None:
        """A hook may give back other strides; another dtype is an error."""
        pair = layers("channels")
        for layer in pair:
            layer.train(training)
        swapped = lambda t: t.transpose(0, -1).contiguous().transpose(0, -1)  # noqa: E731 - a hook
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, swapped):
            agree(pair, image(6))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.half()), pytest.raises(
            RuntimeError, match="a saved-tensor hook gave back torch.float16"
        ):
            results(pair[0], image(6))

    @pytest.mark.parametrize("kind", ["parameters", "checkpoints"])
    def test_one_saved_tensor_that_is_another_by_now(self, kind: str) -> None:
        """Of parameters, and of what forward wrote for backward, other strides are taken; another dtype is an error."""
        pair = layers("channels")
        mine = {"parameters": lambda t: t.ndim == 1, "checkpoints": lambda t: t.ndim == 5 and t.shape[0] == 2}[kind]
        twice = lambda t: torch.stack([t, t], -1)[..., 0] if mine(t) else t  # noqa: E731 - a hook
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, twice):
            agree(pair, image(9))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.half() if mine(t) else t), pytest.raises(
            RuntimeError, match="a saved-tensor hook gave back torch.float16"
        ):
            results(pair[0], image(9))

    @pytest.mark.parametrize("what", ["input", "weight"])
    def test_what_changed_since_forward_is_found(self, what: str) -> None:
        """Torch counts the versions of what is saved."""
        layer = layers()[0]
        x = image(6).requires_grad_() * 1
        layer(x)
        out = layer(x)
        with torch.no_grad():
            {"input": x, "weight": layer.norm.weight}[what].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    def test_a_running_mean_that_moved_since_forward_changes_no_gradient(self) -> None:
        """In eval mode backward has a copy of the mean that the call was normalised by."""
        layer, found = layers()[0].eval(), []
        for moves in (False, True):
            x = image(6).requires_grad_()
            out = layer(x)
            if moves:
                layer.norm.running_mean.add_(1)
            found.append(torch.autograd.grad(out.sum(), [x, layer.norm.weight]))
        for before, after in zip(*found):
            assert torch.equal(before, after)

    def test_gradients_of_some(self) -> None:
        """What was not asked for is not computed."""
        layer = layers("scalar", "before")[0]
        given = [image(6).requires_grad_(), image(6, seed=1).requires_grad_()]
        of = [*given, *layer.parameters()]
        wanted = torch.autograd.grad(layer(*given), of, torch.cos(image(6)))
        for source, right in zip(of, wanted):
            (found,) = torch.autograd.grad(layer(*given), source, torch.cos(image(6)))
            assert torch.equal(found, right)

    def test_a_kernel_that_cannot_be_had(self) -> None:
        """The error is the one of every call, and the running statistics have moved once."""

        class Lame(Moving):
            def forward(self, plan: Any) -> Any:
                raise BackendError("no such kernel")

        layer = layers(backend=Lame)[0]
        with pytest.raises(BackendError, match="no such kernel"):
            layer(image(6))
        assert int(layer.norm.num_batches_tracked) == 1


@pytest.mark.skipif(not BY_KERNELS, reason="torch has no increment_version")
def test_autograd_knows_that_running_statistics_moved() -> None:
    """A graph that saved them before is refused."""
    layer = layers()[0]
    results(layer, image(6))
    saved = (layer.norm.running_mean * torch.ones(C, requires_grad=True)).sum()
    layer(image(6))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()
