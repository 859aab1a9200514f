"""Surrogates of a neuron: their numbers are arguments of its program, and each spike may have its own."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import pytest
import torch

import spikecore as sc
from spikecore_torch.backend import TorchBackend

S = sc.surrogate
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
U = torch.tensor([-3.0, -0.7, -0.2, 0.0, 0.3, 0.9, 2.0])


class Once(sc.Neuron):
    """One spike of the input."""

    params = {"gain": 1.0}

    def dynamics(self, x, s, p):
        return self.spike(p.gain * x), {}


def slope(surrogate, neuron=Once, dtype=torch.float32):
    """The derivative of a neuron's output by its input at U."""
    x = U.to(dtype).unsqueeze(0).requires_grad_()
    neuron(surrogate=surrogate, backend="torch")(x).sum().backward()
    return x.grad[0]


def test_numbers_are_no_part_of_the_program():
    """Another number is the same program; a whole number, which counts terms, is part of it."""
    for one, other in (
        (S.ATan(), S.ATan(5.0)),
        (S.PiecewiseExp(), S.PiecewiseExp(3.0)),
        (S.Triangular(), S.Triangular(0.3)),
    ):
        assert sc.LIF(surrogate=one).program == sc.LIF(surrogate=other).program
    assert sc.LIF(surrogate=S.SquarewaveFourier(n=2)).program != sc.LIF(surrogate=S.SquarewaveFourier(n=3)).program
    assert type(S.ATan(alpha=2).alpha) is float
    assert type(S.SquarewaveFourier(n=3).n) is int


def test_annealing_compiles_nothing(monkeypatch):
    """Surrogates of one class have one runner, and each has its own gradient."""
    compiled = []
    compile_ = TorchBackend.compile
    monkeypatch.setattr(TorchBackend, "compile", lambda *a: compiled.append(a) or compile_(*a))
    neuron, x = sc.IF(backend="torch", threshold=0.875), U.unsqueeze(0).requires_grad_()
    neuron(x)
    compiled.clear()
    for k in range(10):
        alpha = 1.0 + k / 7
        neuron.surrogate = S.ATan(alpha=alpha)
        (grad,) = torch.autograd.grad(neuron(x).sum(), x)
        u = U.double() - 0.875
        expected = alpha / 2 / (1 + (math.pi / 2 * alpha * u) ** 2)
        torch.testing.assert_close(grad[0].double(), expected, rtol=1e-5, atol=0)
    assert compiled == []


@pytest.mark.skipif(TORCH < (2, 6) or sys.version_info >= (3, 14), reason="this torch does not compile a neuron")
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
def test_annealing_under_torch_compile():
    """A compiled net follows its surrogate, and is compiled no more than once again for all its values."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    neuron, x = sc.LIF(backend="torch"), torch.rand(3, 4).mul(3).requires_grad_()
    neuron(x)
    compiled = torch.compile(neuron, backend=counter, fullgraph=True)
    for k in range(3):
        neuron.surrogate = S.ATan(alpha=2.0 + k)
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
        (expected,) = torch.autograd.grad(sc.LIF(surrogate=S.ATan(alpha=2.0 + k), backend="torch")(x).sum(), x)
        torch.testing.assert_close(found, expected)
    assert counter.frame_count <= 2


@dataclass(frozen=True)
class Deciding(sc.Surrogate):
    """Another formula above 1, and a function of Python's."""

    alpha: float = 1.0

    def derivative(self, u):
        if self.alpha > 1.0:
            return math.sqrt(self.alpha) / (1.0 + u * u)
        return self.alpha * u


def test_what_python_decides_is_decided_for_every_value():
    """An ``if`` or a function of ``math`` on a number is right for each surrogate."""
    assert torch.equal(slope(Deciding(0.5)), 0.5 * U)
    for alpha in (4.0, 9.0):
        torch.testing.assert_close(slope(Deciding(alpha)), alpha**0.5 / (1 + U * U))


@dataclass(frozen=True)
class Asking(sc.Surrogate):
    """Another formula for what is no float, and a table of numbers."""

    alpha: float = 1.0
    table: int = 0

    def derivative(self, u):
        if self.table:
            return {1.0: 3.0, 2.0: 5.0}[self.alpha] * u
        return (self.alpha if isinstance(self.alpha, float) else 100.0) * u


def test_a_number_is_a_float_to_its_derivative():
    """A type is asked for, or a table, where a traced value would be another one, or none."""
    for alpha, entry in ((1.0, 3.0), (2.0, 5.0)):
        assert torch.equal(slope(Asking(alpha)), alpha * U)
        assert torch.equal(slope(Asking(alpha, table=1)), entry * U)


class Ternary(sc.Neuron):
    """Spikes of +1, whose surrogate has a width from parameters, and of -1 with a surrogate of their own."""

    states = {"v": 0.0}
    params = {"tau": 2.0, "above": 1.0, "alpha": 2.0}
    lower = S.Sigmoid(alpha=2.0)

    def dynamics(self, x, s, p):
        h = s.v + (x - s.v) / p.tau
        up = self.spike(h - p.above, surrogate=S.ATan(alpha=3.0 * p.alpha / p.tau))
        down = self.spike(-h - 1.5, surrogate=self.lower)
        return up - down, {"v": h - up * p.above + down * 1.5}


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


def drawn(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (4.0 * torch.randn(12, 3, 5, generator=generator)).requires_grad_()


def gradients(out, *leaves):
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.cos(torch.arange(out.numel())).view(out.shape))]


class TestOfSpikes:
    """Spikes of one neuron with surrogates of their own, and numbers that are expressions of parameters."""

    @pytest.mark.parametrize("alpha", [2.5, [0.5, 1.0, 2.0, 4.0, 8.0]], ids=["shared", "per channel"])
    def test_each_spike_has_its_own_derivative(self, alpha):
        """Those of a loop, also after one surrogate is exchanged; no gradient flows to tau through the width."""
        alpha, x = torch.tensor(alpha), drawn()
        neuron = Ternary(alpha=alpha, learn=("tau", "above"), backend="torch")
        for sharp in (2.0, 5.0):
            neuron.lower = S.Sigmoid(alpha=sharp)
            tau, above = (parameter.detach().clone().requires_grad_() for parameter in neuron.parameters())
            v, out = torch.zeros_like(x[0]), []
            for now in x:
                h = v + (now - v) / tau
                up = Step.apply(h - above, atan(h - above, 3.0 * alpha / tau))
                down = Step.apply(-h - 1.5, logistic(-h - 1.5, sharp))
                v = h - up * above + down * 1.5
                out.append(up - down)
            right = gradients(torch.stack(out), x, tau, above)
            found = gradients(neuron(x), x, *neuron.parameters())
            assert set(found[0].unique().tolist()) == {-1.0, 0.0, 1.0}
            for one, other in zip(found, right):
                torch.testing.assert_close(one, other)

    def test_only_what_the_equations_read_is_learnt(self):
        """A parameter that only a surrogate reads has no gradient, so that learning it is an error and not a 0."""
        message = r"Ternary: learn=\('alpha',\): only the derivative of a spike reads 'alpha', and no gradient flows"
        with pytest.raises(ValueError, match=message):
            Ternary(learn=("alpha",), backend="torch")(drawn())

    def test_of_a_state_it_is_refused(self):
        """A width may not depend on a state or an input."""

        class Wrong(Ternary):
            def dynamics(self, x, s, p):
                return self.spike(x, surrogate=S.ATan(alpha=s.v + 1.0)), {"v": x}

        with pytest.raises(
            sc.lang.TraceError, match="the derivative of ATan depends on state 'v' in .*parameters only"
        ):
            Wrong(backend="torch")(drawn())

    def test_a_neurons_own_surrogate_has_numbers(self):
        """A tensor belongs into a parameter, which the surrogate of a spike reads."""
        with pytest.raises(TypeError, match=r"LIF: surrogate=ATan\(.*: alpha must be a number; for one that is learn"):
            sc.LIF(surrogate=S.ATan(alpha=torch.tensor(2.0)))
