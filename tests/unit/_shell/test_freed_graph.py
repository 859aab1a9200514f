"""A backward pass through a graph that was freed says what to call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

T, B, C = 4, 2, 3


class Read(sc.Neuron):
    """Reads its potential without a gradient, as OTTT does (Xiao et al., 2022), and keeps one of the input's."""

    states = {"v": 0.0, "count": 0.0}
    params = {"decay": 0.5}

    def dynamics(self, x, s, p):
        v = p.decay * sc.ops.detach(s.v) + x
        z = self.spike(v - 1.0)
        return z, {"v": v - sc.ops.detach(z), "count": s.count + 1.0}


class Kept(Read):
    """Keeps its potential without a gradient."""

    def dynamics(self, x, s, p):
        v = p.decay * s.v + x
        z = self.spike(v - 1.0)
        return z, {"v": sc.ops.detach(v - z), "count": sc.ops.detach(s.count + z)}


class Counting(Read):
    """Detaches a trace only: the potential has its gradient."""

    def dynamics(self, x, s, p):
        v = p.decay * s.v + x
        z = self.spike(v - 1.0)
        return z, {"v": v - z, "count": sc.ops.detach(s.count + z)}


@pytest.fixture(params=["torch", "numba"])
def backend(request):
    if request.param == "numba":
        pytest.importorskip("spikecore_numba", reason="needs the plugin spikecore-numba")
    return request.param


class TestEquationsThatDetach:
    """Rules that are local in time: no gradient passes from step to step, and nobody calls ``sc.detach``."""

    @pytest.mark.parametrize("kind", [Read, Kept])
    def test_each_step_goes_backward(self, backend, kind):
        """Gradients are those that ``sc.detach`` after each step gives."""
        found = []
        for detaches in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(C, C), kind(learn=("decay",), step="single", backend=backend))
            for x in torch.rand(T, B, C) * 3.0:
                net(x).sum().backward()
                if detaches:
                    sc.detach(net)
            found.append([value.grad for value in net.parameters()])
        assert all(map(torch.equal, *found))

    def test_others_are_refused_as_before(self, backend):
        """One state with a gradient is enough."""
        net = Counting(step="single", backend=backend)
        x = torch.rand(T, B, C, requires_grad=True)
        net(x[0]).sum().backward()
        with pytest.raises(RuntimeError, match=r"^Counting goes on from .* Call sc\.detach\(net\)"):
            net(x[1]).sum().backward()


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
