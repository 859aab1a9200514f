"""State that a neuron carries from call to call: single steps, carry_state, reset, detach, copies and moves."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch._dynamo.testing
from torch import nn

import spikecore as sc
from shell_nets import Block, grads, network, neurons, values

T, B, C = 10, 3, 4


class TestSingleStep:
    """A call on one step."""

    def test_carries_until_reset(self):
        """Calls in a row equal one multi-step call, and after sc.reset again."""
        x, net = values(T, B, C), Block(step="single")
        expected = Block()(x)
        for _ in range(2):
            assert torch.equal(torch.stack([net(now) for now in x]), expected)
            sc.reset(net)

    def test_gradient_flows_through_carried_state(self):
        """Without sc.detach, backpropagation reaches all steps since the last reset."""
        x = values(T, B, C).requires_grad_()
        net = network(step="single")
        stepwise = torch.autograd.grad(torch.stack([net(now) for now in x]).sum(), [x, *net.parameters()])
        torch.testing.assert_close(stepwise, grads(network(), x), rtol=1e-12, atol=1e-12)

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

    def test_reset_reaches_this_net_only(self):
        """Every neuron inside, however nested, and none outside."""
        net, other = Block(step="single"), Block(step="single")
        both = nn.ModuleList([net, other])
        for one in both:
            one(values(B, C))
        sc.reset(net)
        assert [neuron.state is None for neuron in neurons(both)] == [True] * 3 + [False] * 3
        sc.reset(both)
        assert all(neuron.state is None for neuron in neurons(both))

    def test_reset_takes_a_neuron(self):
        """A neuron is a net of one."""
        lif = sc.LIF(step="single")
        lif(torch.ones(1))
        sc.reset(lif)
        assert lif.state is None

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

    @pytest.mark.parametrize("function", [sc.reset, sc.detach, lambda net: sc.carry_state(net).__enter__()])
    @pytest.mark.parametrize("net", [None, "net", [sc.LIF()], sc.LIF])
    def test_no_module(self, function, net):
        """Anything but a module is named."""
        with pytest.raises(TypeError, match=r"^net=.* is a \w+; give the network or neuron itself \(an nn\.Module\)$"):
            function(net)

    def test_net_without_neurons(self):
        """A net without neurons is the wrong one, or another library's: a warning names it, at the caller's line."""
        net = nn.Linear(1, 1)
        for function in (sc.reset, sc.detach, lambda net: sc.carry_state(net).__enter__(), partial_set_backend):
            with pytest.warns(UserWarning, match=r"^sc\.\w+: net=Linear\(.* has no spikecore neuron") as seen:
                function(net)
            assert [warning.filename for warning in seen] == [__file__]


class TestCarryState:
    """``with sc.carry_state(net)``."""

    def test_equals_one_long_call(self):
        """Chunks in a row, of any lengths, equal the whole."""
        net, x = Block(), values(T, B, C)
        with sc.carry_state(net):
            parts = [net(chunk) for chunk in x.split([1, 0, 5, 4])]
        assert torch.equal(torch.cat(parts), net(x))

    def test_gradient_flows_across_calls(self):
        """Backpropagation goes through the chunks to the first."""
        net, x = network(), values(T, B, C).requires_grad_()
        with sc.carry_state(net):
            out = torch.cat([net(chunk) for chunk in x.split(4)])
        found = torch.autograd.grad(out.sum(), [x, *net.parameters()])
        torch.testing.assert_close(found, grads(net, x), rtol=1e-12, atol=1e-12)

    def test_truncated_backpropagation(self):
        """With sc.detach between chunks each has its own backward pass, from the state as a constant."""
        net, x = network(), values(T, B, C)
        first, second = (chunk.clone().requires_grad_() for chunk in x.split(5))
        with sc.carry_state(net):
            net(first).sum().backward()
            sc.detach(net)
            net(second).sum().backward()
        hand = network()
        with torch.no_grad():
            middle = hand[0](first)
            spikes, lif_state = hand[1].run(middle)
            _, leaky_state = hand[3].run(hand[2](spikes))
        again = second.detach().requires_grad_()
        spikes, _ = hand[1].run(hand[0](again), state=lif_state)
        hand[3].run(hand[2](spikes), state=leaky_state)[0].sum().backward()
        torch.testing.assert_close(second.grad, again.grad, rtol=1e-12, atol=1e-12)

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

    def test_of_a_part(self):
        """Around a part, the rest of the net still starts at rest."""
        net, x = nn.Sequential(sc.LIF(1.7), sc.LIF(1.7)), values(T, B) + 1
        with sc.carry_state(net[0]):
            parts = torch.cat([net(chunk) for chunk in x.split(5)])
        expected = torch.cat([net[1](chunk) for chunk in net[0](x).split(5)])
        assert torch.equal(parts, expected)

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

    def test_reset_inside(self):
        """sc.reset starts a new sequence, and a new batch shape, within the block."""
        net, x = Block(), values(T, B, C)
        with sc.carry_state(net):
            net(x)
            sc.reset(net)
            assert torch.equal(net(x[:, :1]), Block()(x[:, :1]))

    def test_single_step_neurons_keep_theirs(self):
        """What a single-step neuron carries is neither cleared nor dropped by a block."""
        lif = sc.LIF(step="single")
        lif(torch.tensor([1.0]))
        with sc.carry_state(lif):
            lif(torch.tensor([1.0]))
        assert lif.state["v"].tolist() == [0.75]

    def test_copy_made_inside_is_not_inside(self):
        """A copy taken in the block starts at rest, in the block and after."""
        lif, x = sc.LIF(1.7), values(T, B)
        expected = lif(x)
        with sc.carry_state(lif):
            lif(x)
            for twin in (copy.deepcopy(lif), pickle.loads(pickle.dumps(lif))):
                assert twin.state is None
                assert not twin.continues
                assert torch.equal(twin(x), expected)
                assert torch.equal(twin(x), expected)

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

    def test_changed_device(self):
        """So is another device."""
        lif = sc.LIF(step="single")
        lif(torch.zeros(2))
        with pytest.raises(
            ValueError, match=r"carried from the last call has v on cpu, the input is on meta; call sc\.reset"
        ):
            lif(torch.zeros(2, device="meta"))


class TestPlaces:
    """Where state is, and what it survives."""

    def stateful(self):
        """A single-step net with state."""
        net = network(step="single")
        net(values(B, C).requires_grad_())
        return net

    def test_is_no_buffer_and_in_no_state_dict(self):
        """state_dict and buffers have what is learnt or given, never state."""
        net = self.stateful()
        assert sorted(net.state_dict()) == ["0.bias", "0.weight", "1.tau", "2.bias", "2.weight"]
        assert list(net.buffers()) == []
        assert list(sc.LIF(step="single").state_dict()) == []

    def test_loading_leaves_it_alone(self):
        """load_state_dict changes parameters only."""
        net = self.stateful()
        before = net[1].state["v"].clone()
        net.load_state_dict(network().state_dict())
        assert torch.equal(net[1].state["v"], before)

    @pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
    def test_survives_copies(self, how):
        """A copy has the values without the graph, goes on alike, and is independent."""
        net = self.stateful()
        if how == "deepcopy":
            twin = copy.deepcopy(net)
        elif how == "pickle":
            twin = pickle.loads(pickle.dumps(net))
        else:
            file = io.BytesIO()
            torch.save(net, file)
            file.seek(0)
            options = {} if torch.__version__ < "2.1" else {"weights_only": False}
            twin = torch.load(file, **options)
        for mine, theirs in zip(neurons(net), neurons(twin)):
            assert torch.equal(mine.state["v"], theirs.state["v"])
            assert mine.state["v"].requires_grad
            assert not theirs.state["v"].requires_grad
        x = values(B, C, seed=1)
        assert torch.equal(net(x), twin(x))
        sc.reset(twin)
        assert net[1].state is not None
        assert repr(twin[1]) == repr(net[1])

    def test_copy_of_a_used_neuron_computes(self):
        """Bound backends and compiled programs are found anew in a copy."""
        lif, x = (
            sc.LIF(1.7, surrogate=sc.surrogate.Erf(), detach_reset=True, channel_dim=-1, backend="torch"),
            values(T, B),
        )
        expected = lif(x)
        twin = pickle.loads(pickle.dumps(lif))
        assert torch.equal(twin(x), expected)
        assert twin.extra_repr() == lif.extra_repr()
        assert twin.channel_dim == -1

    def test_moves_with_the_net(self):
        """``.to(device)`` takes the state along."""
        lif = sc.LIF(torch.tensor(1.7), step="single")
        lif(torch.ones(2))
        lif.to("meta")
        assert lif.state["v"].device.type == "meta"
        assert lif(torch.ones(2, device="meta")).device.type == "meta"

    @pytest.mark.parametrize("convert", [lambda n: n.half(), lambda n: n.to(torch.bfloat16), lambda n: n.double()])
    def test_keeps_its_dtype_and_every_bit(self, convert):
        """Turning the parameters into another dtype leaves the state's as it is, and its values exact."""
        lif = sc.LIF(1.7, learn=("tau",), step="single")
        lif(torch.full((2,), 1 / 3))
        before = lif.state["v"]
        convert(lif)
        assert lif.tau.dtype != torch.float32
        assert lif.state["v"].dtype == torch.float32
        assert torch.equal(lif.state["v"], before)

    def test_moving_keeps_the_graph(self):
        """A conversion between two steps does not cut backpropagation."""
        neuron, x = sc.LI(step="single"), torch.ones(2, requires_grad=True)
        neuron(x)
        neuron.half()
        neuron.state["v"].sum().backward()
        assert x.grad.tolist() == [0.5, 0.5]


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
            net = nn.Sequential(nn.Linear(3, 3), kind(learn=("decay",), step="single", backend=backend))
            for x in torch.rand(4, 2, 3) * 3.0:
                net(x).sum().backward()
                if detaches:
                    sc.detach(net)
            found.append([value.grad for value in net.parameters()])
        assert all(map(torch.equal, *found))
