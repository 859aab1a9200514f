"""Recurrent: the last output comes back through a layer, step by step."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.neurons import Recurrent

T, B, C = 9, 3, 4


def values(*shape, seed=0, dtype=torch.float64):
    """Normal values around 0.5."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).add(0.5).to(dtype)


def layer(dtype=torch.float64):
    """A feedback layer, always the same."""
    torch.manual_seed(0)
    return nn.Linear(C, C).to(dtype)


def recurrent(neuron=None, dtype=torch.float64, **options):
    """Feedback around a LIF that learns, or around another neuron."""
    return Recurrent(neuron or sc.LIF(1.7, learn=("tau",)), layer(dtype), **options).to(dtype)


def by_hand(x, linear, tau, v=None, y=None):
    """Feedback around ``LIF(tau)`` as a loop in torch: outputs, potentials."""

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u):
            ctx.save_for_backward(u)
            return (u >= 0).to(u.dtype)

        @staticmethod
        def backward(ctx, grad):
            return grad / (1 + (torch.pi * ctx.saved_tensors[0]) ** 2)

    v = torch.zeros_like(x[0]) if v is None else v
    y = torch.zeros_like(x[0]) if y is None else y
    ys, vs = [], []
    for now in x:
        h = v + (now + linear(y) - v) / tau
        y = Step.apply(h - 1)
        v = (1 - y) * h
        ys.append(y)
        vs.append(v)
    return torch.stack(ys), torch.stack(vs)


class TestValues:
    """Against a loop written by hand."""

    def test_equals_a_loop(self):
        """Outputs and recorded states are those of the loop, and the feedback is felt."""
        net, x = recurrent(), values(T, B, C)
        out, state, trace = net.run(x, record=("v",))
        ys, vs = by_hand(x, net.linear, net.neuron.tau)
        assert torch.equal(out, ys)
        torch.testing.assert_close(trace["v"], vs, rtol=1e-12, atol=1e-12)
        assert torch.equal(state["v"], trace["v"][-1])
        assert torch.equal(state["feedback"], out[-1])
        assert torch.equal(net(x), out)
        assert not torch.equal(out, net.neuron(x + net.linear.bias))

    def test_gradients_equal_those_of_a_loop(self):
        """To input, layer, parameters and initial state, through outputs, states and both ends."""
        net, x = recurrent(), values(T, B, C).requires_grad_()
        v, y = values(B, C, seed=1).requires_grad_(), values(B, C, seed=2).requires_grad_()
        out, state, trace = net.run(x, state={"v": v, "feedback": y}, record=("v",))
        ys, vs = by_hand(x, net.linear, net.neuron.tau, v, y)
        mine, theirs = [out, trace["v"], state["v"], state["feedback"]], [ys, vs, vs[-1], ys[-1]]
        cotangents = [values(*value.shape, seed=3 + i) for i, value in enumerate(mine)]
        wanted = [x, v, y, *net.parameters()]
        found = torch.autograd.grad(mine, wanted, cotangents)
        torch.testing.assert_close(found, torch.autograd.grad(theirs, wanted, cotangents), rtol=1e-11, atol=1e-12)

    def test_without_feedback_it_is_the_neuron(self):
        """A layer that gives zero leaves the neuron as it is."""
        linear = nn.Linear(C, C, bias=False).double()
        nn.init.zeros_(linear.weight)
        x = values(T, B, C)
        assert torch.equal(Recurrent(sc.ALIF(), linear)(x), sc.ALIF()(x))

    def test_any_module_that_keeps_the_shape(self):
        """A convolution, an elementwise gain, an identity."""
        x = values(T, B, C, 5, dtype=torch.float32)
        for module in (
            nn.Conv1d(C, C, 3, padding=1),
            nn.PReLU(),
            nn.Identity(),
            nn.Sequential(nn.Linear(5, 5), nn.Tanh()),
        ):
            net = Recurrent(sc.LIF(), module)
            out, y = [], torch.zeros(B, C, 5)
            lif = sc.LIF(step="single")
            for now in x:
                y = lif(now + module(y))
                out.append(y)
            assert torch.equal(net(x), torch.stack(out))

    def test_analogue_output(self):
        """A neuron that does not fire feeds its potential back."""
        gain = nn.Linear(1, 1, bias=False)
        nn.init.constant_(gain.weight, 0.5)
        out = Recurrent(sc.LI(2.0), gain)(torch.tensor([[[1.0]], [[0.0]]]))
        assert out.flatten().tolist() == [0.5, 0.25 + 0.125]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_dtypes(self, dtype):
        """Output and input gradient have the input's dtype, the potential that of arithmetic."""
        net, x = Recurrent(sc.LIF(), nn.Identity()), values(T, B, C, dtype=dtype).requires_grad_()
        out, state, trace = net.run(x, record=("v",))
        compute = torch.float64 if dtype == torch.float64 else torch.float32
        assert (out.dtype, state["v"].dtype, trace["v"].dtype) == (dtype, compute, compute)
        out.sum().backward()
        assert x.grad.dtype == dtype


class TestState:
    """The state of the neuron, and the last output."""

    def test_round_trip(self):
        """Two runs, the state handed over, equal one."""
        net, x = recurrent(sc.ALIF()), values(T, B, C)
        out, end = net.run(x)
        first, middle = net.run(x[:4])
        second, after = net.run(x[4:], state=middle)
        assert sorted(middle) == ["a", "feedback", "v"]
        assert torch.equal(torch.cat([first, second]), out)
        torch.testing.assert_close(after, end, rtol=0, atol=0)

    def test_run_is_pure(self):
        """``run`` neither reads nor writes what is carried."""
        net, x = recurrent(step="single"), values(T, B, C)
        net(x[0])
        kept = {name: value.clone() for name, value in net.state.items()}
        assert torch.equal(net.run(x)[0], recurrent()(x))
        torch.testing.assert_close(net.state, kept, rtol=0, atol=0)

    def test_every_call_starts_at_rest(self):
        """A multi-step call leaves nothing behind, in it or in its neuron."""
        net, x = recurrent(), values(T, B, C)
        first = net(x)
        assert torch.equal(net(x), first)
        assert net.state is None
        assert net.neuron.state is None

    def test_single_steps_equal_one_call(self):
        """Step by step until sc.reset, gradients included."""
        x = values(T, B, C).requires_grad_()
        single, multi = recurrent(step="single"), recurrent()
        for _ in range(2):
            out = torch.stack([single(now) for now in x])
            assert torch.equal(out, multi(x))
            found = torch.autograd.grad(out.sum(), [x, *single.parameters()])
            expected = torch.autograd.grad(multi(x).sum(), [x, *multi.parameters()])
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            sc.reset(nn.Sequential(single))
            assert single.state is None

    def test_carry_state(self):
        """Chunks equal the whole; the block starts at rest and leaves nothing; sc.detach cuts."""
        net, x = nn.Sequential(recurrent()), values(T, B, C)
        with sc.carry_state(net):
            parts = [net(chunk) for chunk in x.split([2, 0, 3, 4])]
            assert net[0].state["v"].requires_grad
            sc.detach(net)
            assert not any(value.requires_grad for value in net[0].state.values())
        assert net[0].state is None
        assert torch.equal(torch.cat(parts), net(x))

    def test_no_steps(self):
        """Without a step the output and the trace are empty, and the state is that of rest, or the one given."""
        net, none = recurrent(sc.LIF(v_reset=-0.5)), torch.zeros(0, B, C, dtype=torch.float16)
        out, state, trace = net.run(none, record=("v",))
        assert (out.shape, out.dtype) == ((0, B, C), torch.float16)
        assert (trace["v"].shape, trace["v"].dtype) == ((0, B, C), torch.float32)
        assert torch.equal(state["v"], torch.full((B, C), -0.5))
        assert not state["feedback"].any()
        assert net(none).shape == (0, B, C)
        given = {"v": values(B, C).float(), "feedback": torch.ones(B, C)}
        after = net.run(none, state=given)[1]
        assert torch.equal(after["v"], given["v"])
        assert torch.equal(after["feedback"].float(), given["feedback"])

    def test_no_neurons(self):
        """An empty batch gives an empty output."""
        assert recurrent()(values(T, 0, C)).shape == (T, 0, C)

    def test_copies(self):
        """A copy carries the values on without the graph."""
        net, x = recurrent(step="single"), values(2, B, C)
        net(x[0])
        for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert not twin.state["feedback"].requires_grad
            assert torch.equal(twin(x[1]), copy.deepcopy(net)(x[1]))
        assert sorted(net.state_dict()) == ["linear.bias", "linear.weight", "neuron.tau"]

    def test_set_backend_reaches_the_neuron(self):
        """What is asked of the net is asked of the neuron inside."""
        net = recurrent()
        sc.set_backend(net, "torch")
        assert "backend=torch" in repr(net.neuron)
        assert net(values(T, B, C)).shape == (T, B, C)

    def test_trains(self):
        """Gradients reach the layer, and a step of descent lowers the loss."""
        net, x = recurrent(sc.LI()), values(T, B, C)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses == sorted(losses, reverse=True)


class TwoInputs(sc.Neuron):
    """A neuron that cannot be fed back."""

    inputs = ("x", "y")

    def dynamics(self, x, s, p):
        return x.x + x.y, {}


class TestErrors:
    """Each names the argument."""

    @pytest.mark.parametrize("neuron", [nn.ReLU(), None, sc.LIF])
    def test_no_neuron(self, neuron):
        """Feedback goes around a spikecore neuron."""
        with pytest.raises(TypeError, match="^Recurrent: neuron=.* must be a spikecore neuron$"):
            Recurrent(neuron, layer())

    @pytest.mark.parametrize("linear", [None, torch.zeros(C, C), nn.Linear])
    def test_no_module(self, linear):
        """And through a module."""
        with pytest.raises(
            TypeError, match=r"^Recurrent: linear=[\s\S]* must be a module, such as nn\.Linear\(C, C\)$"
        ):
            Recurrent(sc.LIF(), linear)

    def test_neuron_whose_own_forward_would_not_be_called(self):
        """Steps are those of its dynamics."""
        twice = type("Twice", (sc.LIF,), {"forward": lambda self, x: super(sc.LIF, self).forward(2 * x)})
        hooked = sc.LIF()
        hooked.register_forward_pre_hook(lambda module, args: (2 * args[0],))
        for neuron, name in ((twice(), "Twice"), (hooked, "LIF")):
            with pytest.raises(ValueError, match=f"^Recurrent: this {name} has a forward of its own or a forward pre-"):
                sc.Recurrent(neuron, nn.Linear(3, 3))

    def test_two_inputs(self):
        """One input, one output."""
        with pytest.raises(ValueError, match="^Recurrent: TwoInputs must have one input and one output to feed back$"):
            Recurrent(TwoInputs(), layer())

    @pytest.mark.parametrize("step", ["multi", "single"])
    @pytest.mark.parametrize("part", [sc.LI, sc.layers.SequenceDropout, lambda: Recurrent(sc.LIF(), layer())])
    def test_state_within_the_layer(self, part, step):
        """A module of several steps took the batch of a step for time, and mixed its rows; it is refused, as are
        single steps, whose state no call, ``reset`` or ``run`` of Recurrent would know of.
        """
        inner = sc.set_step(part(), step)
        name = type(inner).__name__
        with pytest.raises(ValueError, match=f"^Recurrent: linear is {name}, whose state would be no part of that of"):
            Recurrent(sc.LIF(), inner)
        with pytest.raises(ValueError, match=f"^Recurrent: linear is Sequential with {name} in it, whose state would"):
            Recurrent(sc.LIF(), nn.Sequential(layer(), inner))
        net = Recurrent(sc.LIF(), nn.Sequential(layer()))
        net.linear.append(inner)
        with pytest.raises(ValueError, match=f"^Recurrent: linear is Sequential with {name} in it, whose state would"):
            net(values(T, B, C))

    def test_time_within_the_layer(self):
        """What knows of time gets one step, and says so where it was set for all of them."""
        folds = sc.layers.TimeBatched(nn.Conv1d(C, C, 1))
        with pytest.raises(ValueError, match=r"^Recurrent: linear is TimeBatched with step='multi', which would take"):
            Recurrent(sc.LIF(), folds)
        x = values(T, B, C, 2, dtype=torch.float32)
        single = Recurrent(sc.LIF(), sc.set_step(folds, "single"))
        assert torch.equal(single(x), Recurrent(sc.LIF(), folds.module)(x))
        folds.step = "multi"
        with pytest.raises(ValueError, match=r"^Recurrent: linear is TimeBatched with step='multi', which would take"):
            single(x)

    def test_single_step_neuron(self):
        """The step mode belongs to Recurrent."""
        with pytest.raises(
            ValueError, match=r"^Recurrent: neuron has step='single'; give the step mode to Recurrent\(step="
        ):
            Recurrent(sc.LIF(step="single"), layer())

    def test_a_state_called_feedback(self):
        """The state of Recurrent has that name already."""
        cls = type("Mine", (sc.LI,), {"states": {"v": 0.0, "feedback": 0.0}})
        cls.dynamics = lambda self, x, s, p: (x + s.feedback, {"v": s.v, "feedback": x})
        with pytest.raises(ValueError, match="^Recurrent: Mine has a state 'feedback', as the last output is called"):
            sc.Recurrent(cls(), torch.nn.Identity())

    def test_step(self):
        """A step mode that is none."""
        with pytest.raises(ValueError, match="^Recurrent: step='all' must be 'multi'"):
            Recurrent(sc.LIF(), layer(), step="all")

    @pytest.mark.parametrize("module", [nn.Linear(C, 1), nn.Linear(C, 2 * C), nn.Flatten(0)])
    def test_layer_changes_the_shape(self, module):
        """A layer that does not keep the shape of one time step is refused, never broadcast."""
        message = (
            r"^Recurrent: linear gives shape \[.*\], one time step of the input has \[3, 4\]; give a module that keeps"
        )
        with pytest.raises(ValueError, match=message):
            Recurrent(sc.LIF(), module)(values(T, B, C, dtype=torch.float32))

    @pytest.mark.parametrize("step", ["multi", "single"])
    @pytest.mark.parametrize("x", [[1.0], None])
    def test_input(self, x, step):
        """Input that is no tensor."""
        with pytest.raises(TypeError, match=f"^Recurrent: x is a {type(x).__name__}; give a tensor$"):
            recurrent(step=step)(x)

    def test_state(self):
        """A state without the last output; one of another batch; a changed batch."""
        net, x = recurrent(), values(T, B, C)
        with pytest.raises(ValueError, match=r"^Recurrent: state has \['v'\]; give a value for each of v, feedback"):
            net.run(x, state={"v": values(B, C)})
        with pytest.raises(
            ValueError, match=r"^Recurrent: state has feedback of shape \[4\], one time step .* \[3, 4\]"
        ):
            net.run(x, state={"v": values(B, C), "feedback": values(C)})
        single = recurrent(step="single")
        single(x[0])
        with pytest.raises(ValueError, match=r"^Recurrent: the state carried .* call sc\.reset\(net\) between"):
            single(x[0, :2])

    def test_record(self):
        """Recorded are the states of the neuron."""
        with pytest.raises(ValueError, match="^Recurrent: record names 'u', which is no state; states: v$"):
            recurrent().run(values(T, B, C), record=("u",))
        with pytest.raises(TypeError, match="^Recurrent: record='v' must be a tuple of state names"):
            recurrent().run(values(T, B, C), record="v")
