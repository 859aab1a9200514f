"""State that a neuron carries from call to call: single steps, carry_state, reset, detach, copies, its one place."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
from torch import nn

import refusals
import spikecore as sc
from shell_nets import Block, network, neurons, values

T, B, C = 10, 3, 4


class TestSingleStep:
    """A call on one step."""

    def test_state_is_readable(self):
        """``state`` has the values that the next call continues from; None at rest."""
        lif = sc.LIF(step="single")
        assert lif.state is None
        lif(torch.tensor([1.0, 5.0]))
        assert lif.state["v"].tolist() == [0.5, 0.0]

    def test_step_can_be_changed(self):
        """A neuron follows a change of its ``step``; back in multi-step mode what it carried plays no part."""
        x, neuron = values(T, B), sc.LI(1.7)
        expected = neuron(x)
        neuron.step = "single"
        assert torch.equal(torch.stack([neuron(now) for now in x]), expected)
        neuron.step = "multi"
        assert torch.equal(neuron(x), expected)
        with sc.carry_state(neuron):
            assert torch.equal(neuron(x), expected)


def partial_set_backend(net):
    sc.set_backend(net, "torch")


class TestResetAndDetach:
    """sc.reset and sc.detach."""

    def test_detach_keeps_values_and_cuts_the_graph(self):
        """In this net only: the values stay, gradient stops."""
        net, other = network("single"), network("single")
        x = values(B, C).requires_grad_()
        for one in (net, other):
            one(x)
        before = [neuron.state["v"].clone() for neuron in neurons(net)]
        sc.detach(net)
        assert not any(neuron.state["v"].requires_grad for neuron in neurons(net))
        assert all(neuron.state["v"].requires_grad for neuron in neurons(other))
        assert all(torch.equal(neuron.state["v"], v) for neuron, v in zip(neurons(net), before))

    def test_net_without_neurons(self):
        """A net without neurons is the wrong one, or another library's: a warning names it, at the caller's line."""
        net = nn.Linear(1, 1)
        for function in (sc.reset, sc.detach, lambda net: sc.carry_state(net).__enter__(), partial_set_backend):
            with pytest.warns(UserWarning, match=r"^sc\.\w+: net=Linear\(.* has no spikecore neuron") as seen:
                function(net)
            assert [warning.filename for warning in seen] == [__file__]

    @pytest.mark.parametrize("where", ["read", "kept"])
    def test_equations_that_detach(self, where):
        """Rules that are local in time, as OTTT's (Xiao et al., 2022): each step goes backward without sc.detach."""

        class Local(sc.Neuron):
            states = {"v": 0.0}
            params = {"decay": 0.5}

            def dynamics(self, x, s, p):
                v = p.decay * (sc.ops.detach(s.v) if where == "read" else s.v) + x
                z = self.spike(v - 1.0)
                return z, {"v": v - z if where == "read" else sc.ops.detach(v - z)}

        found = []
        for detaches in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(3, 3), Local(learn=("decay",), step="single"))
            for x in torch.rand(4, 2, 3) * 3.0:
                net(x).sum().backward()
                if detaches:
                    sc.detach(net)
            found.append([value.grad for value in net.parameters()])
        assert all(map(torch.equal, *found))


class TestCarryState:
    """``with sc.carry_state(net)``."""

    def test_starts_at_rest_and_leaves_nothing(self):
        """The first call in a block starts at rest, and after it so does every call."""
        net, x = Block(), values(T, B, C)
        expected = net(x)
        for _ in range(2):
            with sc.carry_state(net):
                assert torch.equal(net(x), expected)
                assert all(neuron.state is not None for neuron in neurons(net))
            assert all(neuron.state is None for neuron in neurons(net))
        assert torch.equal(net(x), expected)

    def test_blocks_nest(self):
        """The outermost block counts: an inner one, of the net or of a part, neither resets nor ends it."""
        net, x = Block(), values(T, B, C)
        with sc.carry_state(net):
            first = net(x[:3])
            with sc.carry_state(net.inner), sc.carry_state(net):
                second = net(x[3:6])
            third = net(x[6:])
        assert torch.equal(torch.cat([first, second, third]), net(x))

    def test_exception_inside(self):
        """An exception ends the block as leaving it does."""
        net, x = Block(), values(T, B, C)
        expected = net(x)

        def fail():
            with sc.carry_state(net):
                net(x)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert not any(neuron.continues or neuron.state for neuron in neurons(net))
        assert torch.equal(net(x), expected)

    def test_changed_batch(self):
        """Another batch shape on carried state is an error that says sc.reset; the state stays as it was."""
        for net, shape in ((sc.LIF(), (T, 2)), (sc.LIF(step="single"), (2,))):
            with sc.carry_state(net):
                net(values(*shape))
                kept = net.state["v"].clone()
                message = (
                    r"^LIF: the state carried from the last call has v of shape \[2\], one time step of the input has "
                    r"\[3\]; call sc\.reset\(net\) between sequences of different batches$"
                )
                with pytest.raises(ValueError, match=message):
                    net(values(*shape[:-1], 3))
                assert torch.equal(net.state["v"], kept)
                sc.reset(net)
                assert net(values(*shape[:-1], 3)).shape[-1] == 3


class TestPlaces:
    """Where state is, and what it survives."""

    def test_moves_with_the_net(self):
        """``.to(device)`` takes the state along."""
        lif = sc.LIF(torch.tensor(1.7), step="single")
        lif(torch.ones(2))
        lif.to("meta")
        assert lif.state["v"].device.type == "meta"
        assert lif(torch.ones(2, device="meta")).device.type == "meta"


class TestTransforms:
    """``torch.func.vmap`` runs all examples as one call, whose state has a dimension that no later call knows."""

    @pytest.mark.parametrize("recurrent", [False, True])
    def test_no_state_of_vmap_is_kept(self, recurrent):
        """A neuron that carries its state raises, and stays as it was; with the state as an argument it works."""
        lif = sc.LIF(step="single", backend="torch")
        net = sc.Recurrent(sc.LIF(backend="torch"), nn.Identity(), step="single") if recurrent else lif
        x = torch.rand(T, B, C)
        with pytest.raises(
            RuntimeError, match=r"carries its state, which torch\.func\.vmap .*neuron\.run\(x, state=state"
        ):
            torch.func.vmap(net)(x[1])
        assert net.state is None
        stepwise = torch.func.vmap(lambda x_t, v: lif.run(x_t.unsqueeze(0), state={"v": v})[0].squeeze(0))
        lif(x[0])
        torch.testing.assert_close(stepwise(x[1], lif.state["v"]), lif(x[1]))


test_refused = refusals.table(__file__, globals())
