"""Numbers of a surrogate are parameters of the program: another value compiles nothing, and every value is right."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import threading
from dataclasses import dataclass, fields
from functools import lru_cache

import pytest
import torch

import spikecore as sc
from spikecore.backend import Spec
from spikecore.lang import Expr, Node, Numbers, ops, trace
from spikecore.testing._oracle.surrogates import OTHER_ARGUMENTS, SURROGATES
from spikecore_torch.backend import TorchBackend

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
S = sc.surrogate
U = torch.tensor([-3.0, -0.7, -0.2, 0.0, 0.3, 0.9, 2.0])


def made(found):
    """The surrogate that an oracle's derivative is of."""
    return getattr(S, found.name)(**dict(found.arguments))


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


def slope_with_constants(surrogate, dtype=torch.float32):
    """The same of a program in which the numbers are constants."""
    program = trace(
        lambda x, s, p: (ops.spike(p.gain * x, surrogate), {}), name="Once", inputs=("x",), states={}, params=("gain",)
    )
    x = U.to(dtype).unsqueeze(0).requires_grad_()
    runner = TorchBackend().compile(program, Spec(dtype, 1, ("number",)))
    (out,), _, _ = runner((x,), None, (1.0,), ())
    out.sum().backward()
    return x.grad[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(SURROGATES))
def test_values_are_those_of_constants(name, dtype):
    """The host computes what it computed, in float64: every surrogate's derivative has the same bits."""
    for found in (SURROGATES[name], OTHER_ARGUMENTS.get(name)):
        if found is not None:
            assert torch.equal(slope(made(found), dtype=dtype), slope_with_constants(made(found), dtype))


@pytest.mark.parametrize("name", sorted(OTHER_ARGUMENTS))
def test_the_program_does_not_depend_on_numbers(name):
    """Other numbers are the same program; a whole number, which counts terms, is part of it."""
    one = sc.LIF(surrogate=getattr(S, name)())
    other = made(OTHER_ARGUMENTS[name])
    whole = [f.name for f in fields(other) if isinstance(f.default, int)]
    assert (one.program == sc.LIF(surrogate=other).program) is not bool(whole)
    assert one.program.numbers or name in ("StraightThrough",)


def test_a_whole_number_for_a_float_is_a_float():
    """``ATan(alpha=2)`` is ``ATan(alpha=2.0)``, in its field as in its program."""
    assert type(S.ATan(alpha=2).alpha) is float
    assert type(S.SquarewaveFourier(n=3).n) is int


def test_a_zero_above_a_division_is_a_constant():
    """So is what float32 may have as a zero: kernels need not look for it at every step. Others are arguments."""
    divided = sc.IF(surrogate=S.SuperSpike(2.5)), sc.IF(surrogate=Loose(1e-45)), sc.IF(surrogate=Loose(0.0))
    assert [neuron.program.numbers for neuron in divided] == [("alpha",), (), ()]
    assert torch.equal(slope(Loose(0.0)), torch.zeros_like(slope(Loose(0.0))))


@dataclass(frozen=True)
class Loose(sc.Surrogate):
    """``alpha / (1 + u^2)`` for any number."""

    alpha: float = 1.0

    def derivative(self, u):
        return self.alpha / (1.0 + u * u)


def test_annealing_compiles_nothing(monkeypatch):
    """A hundred surrogates of one class have one runner, and each has its own gradient."""
    compiled = []
    compile_ = TorchBackend.compile
    monkeypatch.setattr(TorchBackend, "compile", lambda *a: compiled.append(a) or compile_(*a))
    neuron, x = sc.IF(backend="torch", threshold=0.875), U.unsqueeze(0).requires_grad_()
    neuron(x)
    compiled.clear()
    for k in range(100):
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
    for k in range(6):
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


@dataclass(frozen=True)
class Scaled(sc.Surrogate):
    """A surrogate around another."""

    inner: sc.Surrogate
    factor: float = 1.0

    def derivative(self, u):
        return self.factor * self.inner.derivative(u)


class Plain(sc.Surrogate):
    """With attributes and no fields, and arithmetic of every kind."""

    def __init__(self, k):
        self.k = k

    def derivative(self, u):
        k = self.k
        total = +k + abs(-k) * 2 - 3 / k + k**2 + 2**k - (1 - k) + ops.sqrt(k) + k / 4.0 + True * k
        return ops.where(u > 0.0, total, k // 2 + k % 2)


def test_what_python_decides_is_decided_for_every_value():
    """An ``if`` or a function of ``math`` on a number is right for each surrogate."""
    assert torch.equal(slope(Deciding(0.5)), 0.5 * U)
    for alpha in (4.0, 9.0):
        torch.testing.assert_close(slope(Deciding(alpha)), alpha**0.5 / (1 + U * U))


@pytest.mark.parametrize("k", [1.25, 3.0])
def test_arithmetic_is_followed(k):
    """The operators of Python give what they give on floats; what is not followed is a constant."""
    total = k + k * 2 - 3 / k + k**2 + 2**k - (1 - k) + math.sqrt(k) + k / 4.0 + k
    expected = torch.where(U > 0, torch.tensor(total), torch.tensor(k // 2 + k % 2))
    assert torch.equal(slope(Plain(k)), expected)
    # the whole sum is one number that the host computes, and the other branch a constant
    assert len(Once(surrogate=Plain(k)).program.numbers) == 1


def test_surrogates_in_surrogates():
    """The numbers of an inner surrogate are followed as well."""
    one, other = Scaled(S.ATan(3.0), 2.0), Scaled(S.ATan(1.0), 0.5)
    assert Once(surrogate=one).program == Once(surrogate=other).program
    for surrogate in (one, other):
        torch.testing.assert_close(slope(surrogate), slope(surrogate.inner) * surrogate.factor)


class Two(sc.Neuron):
    """Two surrogates of one class, and a parameter that has the name of their field."""

    params = {"alpha": 1.0, "alpha_1": 1.0}
    sharp, flat = S.Sigmoid(8.0), S.Sigmoid(0.5)

    def dynamics(self, x, s, p):
        first = sc.ops.spike(x * p.alpha, self.sharp)
        second = sc.ops.spike(x * p.alpha_1, self.flat)
        third = sc.ops.spike(x, self.sharp)
        return first + second * 10.0 + third * 100.0, {}


def test_two_surrogates_of_one_class_stay_apart():
    """Each spike has the numbers of its own surrogate, under names that no parameter has."""
    program = Two().program
    assert program.params == ("alpha", "alpha_1", *program.numbers)
    assert len(program.numbers) == 2
    sharp, flat = (slope(S.Sigmoid(value)) for value in (8.0, 0.5))
    torch.testing.assert_close(slope(None, Two), sharp + 10.0 * flat + 100.0 * sharp)


def test_equal_surrogates_stay_apart():
    """Whether two surrogates happen to be equal is no part of the program."""
    equal = type("Equal", (Two,), {"flat": S.Sigmoid(8.0)})
    assert equal().program == Two().program


def test_numbers_beyond_float32_are_infinite():
    """As such a constant was."""
    expected = slope_with_constants(S.SuperSpike(1e39))
    assert expected.isinf().all()
    assert torch.equal(slope(S.SuperSpike(1e39)), expected)


def test_copies_have_the_numbers():
    """Of a neuron that was used: a copy, a pickle, and a program of its own."""
    neuron, x = sc.IF(surrogate=S.ATan(5.0), backend="torch"), U.unsqueeze(0).requires_grad_()
    (expected,) = torch.autograd.grad(neuron(x).sum(), x)
    for other in (copy.copy(neuron), copy.deepcopy(neuron), pickle.loads(pickle.dumps(neuron))):
        (found,) = torch.autograd.grad(other(x).sum(), x)
        assert torch.equal(found, expected)
    again = pickle.loads(pickle.dumps(neuron.program))
    assert (again, again.numbers, again.params) == (neuron.program, neuron.program.numbers, neuron.program.params)


def test_another_formula_after_the_first_call():
    """A surrogate of another class, an error, and the first one again: each call has the surrogate of its time."""

    class Broken(sc.Surrogate):
        def derivative(self, u):
            raise RuntimeError("no derivative today")

    neuron, x = Once(surrogate=S.ATan(3.0), backend="torch"), U.unsqueeze(0).requires_grad_()
    for surrogate in (S.ATan(3.0), S.Erf(), S.ATan(2.0)):
        neuron.surrogate = surrogate
        assert torch.equal(torch.autograd.grad(neuron(x).sum(), x)[0][0], slope(surrogate))
        neuron.surrogate = Broken()
        with pytest.raises(RuntimeError, match="no derivative today"):
            neuron(x)


def test_a_number_that_outlives_its_trace_is_a_number():
    """A helper with a memory of its own may hand out the number of an earlier neuron: it is taken by its value."""

    @lru_cache(maxsize=None)
    def doubled(k):
        return 2.0 * k

    class Remembering(S.Surrogate):
        def __init__(self, k):
            self.k = k

        def derivative(self, u):
            return doubled(self.k) * u

    assert torch.equal(slope(Remembering(3.0)), 6.0 * U)
    assert torch.equal(slope(Remembering(3.0)), 6.0 * U)
    kept = doubled(3.0)
    assert type(copy.deepcopy(kept)) is type(pickle.loads(pickle.dumps(kept))) is float


def test_threads_trace_apart():
    """Definitions that are traced at the same time have their own numbers."""
    waiting = threading.Barrier(2)

    class Slow(S.Surrogate):
        def __init__(self, k):
            self.k = k

        def derivative(self, u):
            waiting.wait(timeout=30)
            return (self.k * 1.0) * u

    found = {}
    threads = [threading.Thread(target=lambda k=k: found.update({k: slope(Slow(k))})) for k in (2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(value, k * U) for k, value in found.items())
    assert sorted(found) == [2.0, 3.0]


def test_tensors_get_the_numbers_themselves():
    """``sc.ops.spike`` on tensors, within a trace or not, computes with the surrogate's own floats."""
    asked = []

    class Watching(S.Surrogate):
        def __init__(self):
            self.k = 2.0

        def derivative(self, u):
            asked.append(type(self.k))
            return self.k * u

    u = U.clone().requires_grad_()
    ops.spike(u, Watching()).sum().backward()
    assert torch.equal(u.grad, 2.0 * U)
    assert asked == [float]
    with Numbers().following():
        ops.spike(Expr(Node("input", (), "x")), Watching())
    assert asked[1] is not float
