"""A neuron of one's own, written as in the design: it trains, and its gradients are torch's."""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.lang import TraceError, trace
from spikecore.neurons import MODELS, example

T, B, C = 12, 5, 7


class AdaptiveLIF(sc.Neuron):
    """LIF with an adaptive threshold (Bellec et al., 2018), word for word from the design."""

    states = {"v": 0.0, "a": 0.0}
    params = {"tau": 2.0, "rho": 0.9, "beta": 0.2, "threshold": 1.0}

    def dynamics(self, x, s, p):
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - (p.threshold + p.beta * s.a))
        return z, {"v": sc.ops.select(z, 0.0, h), "a": p.rho * s.a + z}


class Step(torch.autograd.Function):
    """A step from zero on, with the derivative ``1 / (1 + (pi u)^2)``."""

    @staticmethod
    def forward(ctx, u):
        """1 from zero on."""
        ctx.save_for_backward(u)
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx, grad):
        """The stand-in."""
        return grad / (1 + (math.pi * ctx.saved_tensors[0]) ** 2)


def adaptive_loop(x, v, a, tau, rho, beta, threshold):
    """The same neuron as a loop in torch: spikes, potentials, adaptations."""
    spikes, vs, as_ = [], [], []
    for now in x:
        h = v + (now - v) / tau
        z = Step.apply(h - (threshold + beta * a))
        v, a = z * 0.0 + (1 - z) * h, rho * a + z
        spikes.append(z)
        vs.append(v)
        as_.append(a)
    return torch.stack(spikes), torch.stack(vs), torch.stack(as_)


def grads(outputs, wanted, cotangents=None):
    """Gradients, zeros where none arrives."""
    found = torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)
    return [torch.zeros_like(value) if grad is None else grad for value, grad in zip(wanted, found)]


def values(*shape, seed=0):
    """Normal values in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestTwoStates:
    """The neuron of the design's section 3."""

    def test_gradients_agree_with_a_hand_written_loop(self):
        """Values are equal; gradients to input, states and parameters, from spikes, states and both ends, to 1e-10."""
        neuron = AdaptiveLIF(learn=("tau", "rho", "beta", "threshold")).double()
        learnt = dict(neuron.named_parameters())
        x = (1.5 * values(T, B, C) + 0.5).requires_grad_()
        v, a = (0.3 * values(B, C, seed=i).requires_grad_() for i in (1, 2))
        out, final, trace = neuron.run(x, state={"v": v, "a": a}, record=("v", "a"))
        expected = adaptive_loop(x, v, a, **learnt)
        assert torch.equal(out, expected[0])
        assert 0.05 < out.mean() < 0.95
        mine = [out, trace["v"], trace["a"], final["v"], final["a"]]
        theirs = [*expected, expected[1][-1], expected[2][-1]]
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        cotangents = [values(*value.shape, seed=10 + i) for i, value in enumerate(mine)]
        wanted = [x, v, a, *learnt.values()]
        found = torch.autograd.grad(mine, wanted, cotangents)
        torch.testing.assert_close(found, torch.autograd.grad(theirs, wanted, cotangents), rtol=1e-10, atol=1e-10)
        assert all(grad.abs().max() > 1e-3 for grad in found)

    def test_trains(self):
        """In a network, a few steps of Adam on two classes of pictures bring the loss below a third."""
        generator = torch.Generator().manual_seed(0)
        patterns = torch.rand(2, 16, generator=generator)
        labels = torch.arange(32) % 2
        x = (torch.rand(T, 32, 16, generator=generator) < patterns[labels]).float()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 24), AdaptiveLIF(rho=0.95, learn=("tau", "beta")), nn.Linear(24, 2), sc.LI())
        tau = net[1].tau.detach().clone()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x).mean(0), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 3
        assert net[1].tau != tau

    def test_pickles(self):
        """A net with it survives pickle, and gives the same."""
        neuron, x = AdaptiveLIF(tau=3.0), values(T, B, C)
        assert torch.equal(pickle.loads(pickle.dumps(neuron))(x), neuron(x))

    def test_detach_reset_reaches_every_state(self):
        """Unless it says otherwise, no next state of a custom neuron passes the spike's gradient."""
        x = values(T, B, C).requires_grad_()
        _, state = AdaptiveLIF(detach_reset=True).run(x)
        assert torch.autograd.grad(state["a"].sum() + x.sum(), x)[0].unique().tolist() == [1.0]

    def test_reset_states_narrow_it(self):
        """With ``reset_states`` only those named are cut."""

        class Narrow(AdaptiveLIF):
            reset_states = ("v",)

        x = (values(T, B, C) + 1).requires_grad_()
        _, state = Narrow(detach_reset=True).run(x)
        assert torch.autograd.grad(state["a"].sum(), x)[0].abs().max() > 0


class Gated(sc.Neuron):
    """Two inputs, two outputs, a choice by comparison: a gate above zero empties the potential."""

    inputs = ("x", "gate")
    states = {"v": "start"}
    params = {"leak": 0.5, "start": 0.25}

    def dynamics(self, x, s, p):
        h = p.leak * sc.ops.where(x.gate > 0, 0.0, s.v) + x.x
        z = self.spike(h - 1.0)
        return (z, h), {"v": h - z}


class TestInputsAndOutputs:
    """More than one of each."""

    def test_equals_a_loop(self):
        """Inputs arrive by name, outputs come as a tuple, values are those of a loop."""
        x, gate = values(T, B), values(T, B, seed=1)
        spikes, potentials = Gated()(x, gate)
        v = torch.full((B,), 0.25, dtype=torch.float64)
        for t in range(T):
            h = 0.5 * v * (gate[t] <= 0) + x[t]
            z = (h >= 1).double()
            assert torch.equal(spikes[t], z)
            torch.testing.assert_close(potentials[t], h)
            v = h - z

    def test_gradients(self):
        """``where`` passes gradient to the branch taken; the gate, only compared, gets none."""
        x, gate = values(T, B).requires_grad_(), values(T, B, seed=1).requires_grad_()
        neuron = Gated(learn=("leak", "start")).double()
        spikes, potentials = neuron(x, gate)
        v, expected = neuron.start.expand(B), 0
        for t in range(T):
            h = neuron.leak * torch.where(gate[t] > 0, torch.zeros_like(v), v) + x[t]
            z = Step.apply(h - 1)
            expected = expected + (t + 1) * z.sum() - h.sum()
            v = h - z
        weights = torch.arange(1, T + 1).unsqueeze(-1)
        found = (spikes * weights).sum() - potentials.sum()
        wanted = [x, neuron.leak, neuron.start]
        torch.testing.assert_close(
            torch.autograd.grad(found, wanted, retain_graph=True), torch.autograd.grad(expected, wanted)
        )
        (to_gate,) = torch.autograd.grad(found, gate, allow_unused=True)
        assert to_gate is None or not to_gate.any()

    def test_single_step(self):
        """In single-step mode each call takes one step of both, and gives both."""
        x, gate = values(T, B), values(T, B, seed=1)
        single, (spikes, potentials) = Gated(step="single"), Gated()(x, gate)
        for t in range(T):
            z, h = single(x[t], gate[t])
            assert torch.equal(z, spikes[t])
            assert torch.equal(h, potentials[t])

    def test_different_dtypes_meet(self):
        """Inputs of two dtypes are computed, and answered, in the one that holds both."""
        x, gate = values(T, B), values(T, B, seed=1)
        spikes, _ = Gated()(x.half(), gate.float())
        assert spikes.dtype == torch.float32
        assert Gated()(x.half(), gate.bfloat16())[0].dtype == torch.float32

    def test_run_gives_outputs_state_and_trace(self):
        """``run`` gives the tuple of outputs first."""
        (spikes, potentials), state, trace = Gated().run(values(T, B), values(T, B, seed=1), record=("v",))
        torch.testing.assert_close(trace["v"], potentials - spikes)
        assert torch.equal(trace["v"][-1], state["v"])

    def test_gradient_is_wanted_for_the_second_input_too(self):
        """A gradient asked of the second input alone arrives."""

        class Difference(sc.Neuron):
            inputs = ("a", "b")

            def dynamics(self, x, s, p):
                return x.a - 2.0 * x.b, {}

        b = values(T, B, seed=1).requires_grad_()
        Difference()(values(T, B), b).sum().backward()
        assert b.grad.unique().tolist() == [-2.0]


class Choosing(sc.Neuron):
    """A Python decision on a configuration attribute picks the program."""

    states = {"v": 0.0}
    params = {"gain": 2.0}

    def __init__(self, rectify=False, **options):
        super().__init__(**options)
        self.rectify = rectify

    def dynamics(self, x, s, p):
        v = s.v + p.gain * x
        if self.rectify:
            v = sc.ops.maximum(v, 0.0)
        return v, {"v": v}


class TestConfiguration:
    """Attributes that are not parameters."""

    x = torch.tensor([[-1.0], [3.0], [-1.0]])

    def test_each_value_is_a_program(self):
        """Two configurations are two neurons."""
        assert Choosing()(self.x).flatten().tolist() == [-2, 4, 2]
        assert Choosing(rectify=True)(self.x).flatten().tolist() == [0, 6, 4]
        assert Choosing().program != Choosing(rectify=True).program

    def test_a_change_takes_effect(self):
        """Changed after a call, the next call follows it."""
        neuron = Choosing()
        neuron(self.x)
        neuron.rectify = True
        assert neuron(self.x).flatten().tolist() == [0, 6, 4]

    def test_python_decision_on_a_value(self):
        """On a traced value it is refused, with the definition and the way out."""

        class Deciding(Choosing):
            def dynamics(self, x, s, p):
                return (x if x > 0 else -x), {"v": s.v}

        with pytest.raises(TraceError, match=r"in Deciding\.dynamics; .*sc\.ops\.where\(condition, a, b\)"):
            Deciding()(self.x)

    def test_no_states_and_no_parameters(self):
        """A neuron without memory is a function."""

        class Rectifier(sc.Neuron):
            def dynamics(self, x, s, p):
                return sc.ops.maximum(x, 0.0), {}

        assert Rectifier()(self.x).flatten().tolist() == [0, 3, 0]
        assert Rectifier().run(self.x)[1] == {}
        assert Rectifier(step="single")(self.x[1]).tolist() == [3]

    def test_constant_output(self):
        """An output that no input reaches still has the input's shape."""

        class Clock(sc.Neuron):
            states = {"n": 0.0}

            def dynamics(self, x, s, p):
                return 1.0, {"n": s.n + 1.0}

        out, state = Clock().run(torch.zeros(3, 2, 4))
        assert torch.equal(out, torch.ones(3, 2, 4))
        assert torch.equal(state["n"], torch.full((2, 4), 3.0))

    def test_torch_functions_in_a_definition(self):
        """``torch.exp`` and its like on a traced value mean the same as ``sc.ops``."""

        class Bounded(sc.Neuron):
            states = {"v": 0.0}

            def dynamics(self, x, s, p):
                v = torch.tanh(s.v + torch.exp(-abs(x)))
                return v, {"v": v}

        x, v = values(T, B), torch.zeros(B, dtype=torch.float64)
        out = Bounded()(x)
        for t in range(T):
            v = torch.tanh(v + torch.exp(-x[t].abs()))
            torch.testing.assert_close(out[t], v)


class TestByHand:
    """``dynamics`` called with tensors."""

    NEURONS = [
        (AdaptiveLIF(), 1),
        (Gated(), 2),
        (Choosing(rectify=True), 1),
        *((example(name), 1) for name in MODELS if name not in ("PLIF", "KLIF", "CLIF", "GLIF", "TCLIF")),
        (sc.IF(reset="soft"), 1),
        (sc.LIF(3.0), 1),
        (sc.PLIF(3.0).double(), 1),
        (sc.KLIF(k=1.5).double(), 1),
        (sc.Izhikevich(a=0.3, b=0.2), 1),
        (sc.LI(3.0), 1),
        (sc.Leaky(0.9, reset_delay=False), 1),
        (sc.SynapticLeaky(0.6, 0.8, reset_delay=False), 1),
        (sc.Alpha(reset="soft"), 1),
        (sc.CLIF().double(), 1),
        (sc.GLIF().double(), 1),
        (sc.TCLIF().double(), 1),
        (sc.SEAdLIF(q=1.5, threshold=0.4), 1),
        (sc.BRF(1.7, dt=0.5), 1),
        (sc.Lapicque(R=1.5, C=2.5), 1),
    ]

    @pytest.mark.parametrize(
        ("neuron", "count"), NEURONS, ids=lambda v: type(v).__name__ if isinstance(v, sc.Neuron) else ""
    )
    def test_equals_run(self, neuron, count):
        """One step called by hand, on tensors and numbers, equals ``run``, value and gradient."""
        inputs = [values(B, seed=i).requires_grad_() for i in range(count)]
        state = {name: values(B, seed=5 + i).requires_grad_() for i, name in enumerate(neuron.states)}
        x = inputs[0] if count == 1 else SimpleNamespace(**dict(zip(neuron.inputs, inputs)))
        p = SimpleNamespace(**{name: getattr(neuron, name) for name in neuron.params})
        by_hand, after = neuron.dynamics(x, SimpleNamespace(**state), p)
        out, final = neuron.run(*(value.unsqueeze(0) for value in inputs), state=state)
        out = [value[0] for value in (out if isinstance(out, tuple) else (out,))]
        by_hand = list(by_hand if isinstance(by_hand, tuple) else (by_hand,))
        mine, theirs = [*out, *final.values()], [*by_hand, *(after[name] for name in final)]
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        wanted = [inputs[0], *state.values()]
        found = grads([value.sum() for value in mine], wanted)
        hand = grads([value.sum() for value in theirs], wanted)
        torch.testing.assert_close(found, hand, rtol=1e-12, atol=1e-12)


class OwnName(sc.Neuron):
    """Reads its time constant from itself instead of from ``p``."""

    states = {"v": 0.0}
    params = {"tau": 2.0}

    def dynamics(self, x, s, p):
        h = s.v + (x - s.v) / self.tau
        z = self.spike(h - 0.6)
        return z, {"v": sc.ops.select(z, 0.0, h)}


def test_a_parameter_read_from_self_is_the_parameter():
    """In dynamics ``self.tau`` means ``p.tau``: a later value takes effect, and it can be learnt."""
    neuron, x = OwnName(), torch.rand(6, 4) * 2
    assert neuron.program.params[0] == "tau"
    neuron(x)
    neuron.tau = 20.0
    assert torch.equal(neuron(x), OwnName(tau=20.0)(x))
    learnt = OwnName(learn=("tau",))
    learnt(x).sum().backward()
    assert learnt.tau.grad is not None


def test_one_name_means_one_thing():
    """A name cannot be an input and a state, or a state and a parameter."""
    with pytest.raises(TypeError, match="Twice has 'v' more than once among inputs, states and params; rename one"):
        type("Twice", (sc.Neuron,), {"states": {"v": 0.0}, "params": {"v": 1.0}})
    with pytest.raises(TypeError, match="Twice has 'x' more than once"):
        type("Twice", (sc.Neuron,), {"states": {"x": 0.0}})


def test_a_shared_graph_has_a_short_repr():
    """An expression that would be exponentially long written out is not, also within an error."""

    def dynamics(x, s, p):
        for _ in range(40):
            x = x * x
        return x & (x > 0), {"v": x}

    with pytest.raises(sc.TraceError, match="and got a number") as caught:
        trace(dynamics, name="Cell", inputs=("x",), states={"v": 0.0}, params=())
    assert len(str(caught.value)) < 500
