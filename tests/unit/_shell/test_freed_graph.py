"""A backward pass through a graph that was freed says what to call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

T, B, C = 4, 2, 3


class TestFreedGraph:
    """A forgotten detach or reset."""

    WAY_OUT = (
        r"^(LIF|LI|Recurrent) goes on from the state .* a second time\)\. Call sc\.detach\(net\).*sc\.reset\(net\)"
    )

    @pytest.mark.parametrize(
        "make",
        [lambda: sc.LIF(step="single"), lambda: sc.Recurrent(sc.LIF(), nn.Linear(C, C), step="single")],
        ids=["LIF", "Recurrent"],
    )
    def test_says_what_to_call(self, make):
        """The second backward names the neuron, and what was forgotten."""
        net, x = make(), torch.rand(T, B, C, requires_grad=True)
        for x_t in x[:2]:
            out = net(x_t)
        out.sum().backward()
        late = net(x[2])
        net(x[3])
        with pytest.raises(RuntimeError, match=self.WAY_OUT):
            late.sum().backward()

    def test_carried(self):
        """Chunks without a detach."""
        lif, x = sc.LIF(), torch.rand(T, B, C, requires_grad=True)
        with sc.carry_state(lif):
            lif(x[:2]).sum().backward()
            with pytest.raises(RuntimeError, match=self.WAY_OUT):
                lif(x[2:]).sum().backward()

    def test_a_graph_that_is_kept(self):
        """With ``retain_graph`` gradients go through."""
        lif, x = sc.LIF(), torch.rand(T, B, C, requires_grad=True)
        with sc.carry_state(lif):
            first = lif(x[:2]).sum()
            first.backward(retain_graph=True)
            lif(x[2:]).sum().backward()
        whole = torch.autograd.grad(lif(x).sum(), x)[0]
        torch.testing.assert_close(x.grad, whole)

    @pytest.mark.skipif(
        not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"),
        reason="this torch does not tell which saved tensors have hooks",
    )
    @pytest.mark.parametrize("retain", [False, True])
    def test_hooks_of_saved_tensors_are_left_alone(self, retain):
        """A look at the graph unpacks nothing that the user has packed."""
        count = []

        def unpack(packed):
            count.append(0)
            return packed

        net = nn.Sequential(nn.Linear(C, C), nn.Tanh(), sc.LIF(learn=("tau",), step="single", backend="torch"))
        x = torch.rand(T, B, C)
        with torch.autograd.graph.saved_tensors_hooks(lambda value: value, unpack):
            net(x[0])
            out = net(x[1])
        out.sum().backward(retain_graph=retain)
        seen = len(count)
        late = net(x[2])
        assert len(count) == seen > 0
        if retain:
            late.sum().backward()
        else:
            with pytest.raises(RuntimeError, match=self.WAY_OUT):
                late.sum().backward()

    def test_never_backward_again(self):
        """A call after backward that never goes backward itself is not disturbed."""
        lif, x = sc.LIF(step="single"), torch.rand(2, B, C, requires_grad=True)
        lif(x[0]).sum().backward()
        out = lif(x[1])
        assert torch.equal(out, sc.LIF()(x)[1])
