"""Spikes of one neuron with surrogates of their own, and surrogates whose numbers are expressions of parameters."""

from __future__ import annotations

import math

import pytest
import torch

import spikecore as sc

S = sc.surrogate


class Ternary(sc.Neuron):
    """Spikes of +1 and -1."""

    states = {"v": 0.0}
    params = {"tau": 2.0, "above": 1.0, "below": 1.5}
    lower = S.Sigmoid(alpha=2.0)

    def dynamics(self, x, s, p):
        h = s.v + (x - s.v) / p.tau
        up = self.spike(h - p.above)
        down = self.spike(-h - p.below, surrogate=self.lower)
        return up - down, {"v": h - up * p.above + down * p.below}


class Width(sc.Neuron):
    """LIF whose surrogate has a width of its own."""

    states = {"v": 0.0}
    params = {"tau": 2.0, "alpha": 2.0}

    def dynamics(self, x, s, p):
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - 1.0, surrogate=S.ATan(alpha=3.0 * p.alpha / p.tau))
        return z, {"v": h - z}


class Step(torch.autograd.Function):
    """A spike with a derivative that is given."""

    @staticmethod
    def forward(ctx, u, slope):
        ctx.save_for_backward(slope)
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def atan(u, alpha):
    return (alpha / 2 / (1 + (math.pi / 2 * alpha * u) ** 2)).detach()


def logistic(u, alpha):
    s = torch.sigmoid(alpha * u)
    return (alpha * s * (1 - s)).detach()


def drive(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (4.0 * torch.randn(12, 3, 5, generator=generator)).requires_grad_()


def gradients(out, *leaves):
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.cos(torch.arange(out.numel())).view(out.shape))]


class TestTwo:
    def loop(self, x, tau, above, below, sharp):
        v, out = torch.zeros_like(x[0]), []
        for now in x:
            h = v + (now - v) / tau
            up = Step.apply(h - above, atan(h - above, 2.0))
            down = Step.apply(-h - below, logistic(-h - below, sharp))
            v = h - up * above + down * below
            out.append(up - down)
        return torch.stack(out)

    def test_each_spike_has_its_own_derivative(self):
        """Values and gradients are those of a loop with both derivatives, also after one surrogate is exchanged."""
        neuron, x = Ternary(learn=("tau", "above", "below"), backend="torch"), drive()
        for sharp in (2.0, 5.0):
            neuron.lower = S.Sigmoid(alpha=sharp)
            numbers = [parameter.detach().clone().requires_grad_() for parameter in neuron.parameters()]
            right = gradients(self.loop(x, *numbers, sharp), x, *numbers)
            found = gradients(neuron(x), x, *neuron.parameters())
            assert set(found[0].unique().tolist()) == {-1.0, 0.0, 1.0}
            for one, other in zip(found, right):
                torch.testing.assert_close(one, other)

    def test_another_value_is_the_same_program(self):
        """A surrogate under another attribute is annealed as the neuron's own: its numbers are parameters."""
        neuron = Ternary(backend="torch")
        before, runners = neuron.program, neuron._dispatch.runners
        neuron(drive())
        neuron.lower = S.Sigmoid(alpha=7.0)
        neuron.surrogate = S.ATan(alpha=3.0)
        assert neuron.program == before
        assert neuron._dispatch.runners is runners
        assert sorted(neuron._dispatch.numbers.values())[-1] == 7.0

    @pytest.mark.parametrize("wrong", [S.ATan, "ATan", torch.sigmoid])
    def test_what_is_no_surrogate_is_refused(self, wrong):
        """A class, a name and a function are refused by what they are."""
        neuron = Ternary(backend="torch")
        neuron.lower = wrong
        with pytest.raises(TypeError, match=r"spike: surrogate=.* must be a surrogate, such as sc.surrogate.ATan\("):
            neuron(drive())


class TestWidths:
    def loop(self, x, tau, alpha):
        v, out = torch.zeros_like(x[0]), []
        for now in x:
            h = v + (now - v) / tau
            z = Step.apply(h - 1.0, atan(h - 1.0, 3.0 * alpha / tau))
            v = h - z
            out.append(z)
        return torch.stack(out)

    @pytest.mark.parametrize("alpha", [2.5, [0.5, 1.0, 2.0, 4.0, 8.0]], ids=["shared", "per channel"])
    def test_the_width_is_the_parameters_and_takes_no_gradient(self, alpha):
        """Gradients are those of a loop whose derivative is a number: none flows to tau through the width."""
        alpha, x = torch.tensor(alpha), drive()
        neuron = Width(alpha=alpha, learn=("tau",), backend="torch")
        tau = neuron.tau.detach().clone().requires_grad_()
        right = gradients(self.loop(x, tau, alpha), x, tau)
        found = gradients(neuron(x), x, neuron.tau)
        for one, other in zip(found, right):
            torch.testing.assert_close(one, other)

    def test_another_width_is_the_same_program(self):
        """A width is set without compilation: it is an argument."""
        neuron = Width(alpha=torch.tensor(2.0), backend="torch")
        before = neuron.program
        neuron(drive())
        neuron.alpha = torch.tensor(0.5)
        assert neuron.program is before

    def test_only_what_the_equations_read_is_learnt(self):
        """A parameter that only a surrogate reads has no gradient, so that learning it is an error and not a 0."""
        message = r"Width: learn=\('alpha',\): only the derivative of a spike reads 'alpha', and no gradient flows"
        with pytest.raises(ValueError, match=message):
            Width(learn=("alpha",), backend="torch")(drive())

    def test_of_a_state_it_is_refused(self):
        """A width may not depend on a state or an input."""

        class Wrong(Width):
            def dynamics(self, x, s, p):
                return self.spike(x, surrogate=S.ATan(alpha=s.v + 1.0)), {"v": x}

        with pytest.raises(
            sc.lang.TraceError, match="the derivative of ATan depends on state 'v' in .*parameters only"
        ):
            Wrong(backend="torch")(drive())

    def test_a_neurons_own_surrogate_has_numbers(self):
        """A tensor belongs into a parameter, which the surrogate of a spike reads."""
        with pytest.raises(TypeError, match=r"LIF: surrogate=ATan\(.*: alpha must be a number; for one that is learn"):
            sc.LIF(surrogate=S.ATan(alpha=torch.tensor(2.0)))

    def test_by_hand_a_tensor_is_a_number(self):
        """In a call by hand the number of a surrogate is a tensor, of any shape, without a gradient."""
        u = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64, requires_grad=True)
        alpha = torch.linspace(1.0, 5.0, 5, requires_grad=True)
        z = sc.ops.spike(u, S.ATan(alpha=alpha))
        z.sum().backward()
        torch.testing.assert_close(u.grad, atan(u, alpha.double()))
        assert alpha.grad is None

    def test_the_listing_names_the_parameter(self):
        """print(program) calls a parameter in a derivative as it is called in the equations."""
        last = str(Width().program).splitlines()[-1]
        assert last.startswith("  grad  spike'(u) = t1 = 3 * alpha / tau;")
        assert last.endswith("# ATan(alpha=3 * alpha / tau)")
