"""The quick forms of step and choice are the slow ones, bit for bit, and what they keep between calls harms nobody."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

import spikecore as sc
from spikecore.lang import _plain as plain
from spikecore.lang._functions import select, spike

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIZES = [12, 2 * plain._MANY]
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, math.nan, math.inf, -math.inf, 1e-45, 3.0)


def drawn(size, dtype, seed=0):
    """Random values of which every other is a special one."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, generator=generator, dtype=torch.float64)
    which = torch.randint(len(SPECIAL), (size,), generator=generator)
    chosen = torch.tensor(SPECIAL, dtype=torch.float64)[which]
    return torch.where(torch.arange(size) % 2 == 0, values, chosen).to(dtype)


def bits(x):
    """The memory of a tensor."""
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def assert_same_bits(a, b):
    """Equal, signs of zeros and kinds of NaN included."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert torch.equal(bits(a), bits(b))


class TestChoice:
    """``choice(z, a, b)`` is ``torch.where(z != 0, a, b)``."""

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("size", SIZES)
    def test_bit_for_bit(self, size, dtype):
        """For any values, small and large."""
        z, a, b = (drawn(size, dtype, seed) for seed in range(3))
        assert_same_bits(plain.choice(z, a, b), torch.where(z != 0, a, b))

    @pytest.mark.parametrize("size", SIZES)
    def test_broadcasts(self, size):
        """A number or one value per channel stands for all, on either side."""
        z, b = drawn(4 * size, torch.float32).view(4, size), drawn(4 * size, torch.float32, 1).view(4, size)
        for a in (torch.tensor(-0.0), torch.tensor([[1.5], [-0.0], [math.nan], [2.0]])):
            assert_same_bits(plain.choice(z, a, b), torch.where(z != 0, a, b))
            assert_same_bits(plain.choice(z, b, a), torch.where(z != 0, b, a))

    @pytest.mark.parametrize("size", SIZES)
    def test_lazily_negated_values(self, size):
        """A view that torch negates when it is read, and one that does not lie densely, count by their values."""
        z, b = drawn(size, torch.float32), torch.arange(float(size))
        negated = torch.complex(b, b).conj().imag
        assert negated.is_neg()
        assert_same_bits(plain.choice(z, negated, b), torch.where(z != 0, -b, b))
        assert_same_bits(plain.choice(z, b, b.flip(0)[::2].repeat(2)), torch.where(z != 0, b, b.flip(0)[::2].repeat(2)))


class TestStep:
    """``step(u, strict)`` is 1 or 0 in the dtype of ``u``."""

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("strict", [True, False])
    def test_values(self, strict, dtype):
        """NaN does not spike; zeros of either sign do unless strict."""
        u = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
        expected = [float(v > 0 or (v == 0 and not strict)) for v in u.double().tolist()]
        assert_same_bits(plain.step(u, strict), torch.tensor(expected, dtype=dtype))


class TestFormsAgree:
    """What torch.func transforms is what runs without it."""

    def test_spike(self):
        """Values and gradients of a spike under vmap and grad are the plain ones."""
        surrogate = sc.surrogate.Sigmoid(4.0)
        u = drawn(SIZES[0], torch.float64).nan_to_num()

        def summed(u):
            return spike(u, False, surrogate.derivative).sum()

        given = u.clone().requires_grad_()
        summed(given).backward()
        assert_same_bits(torch.func.grad(summed)(u), given.grad)
        assert_same_bits(torch.func.vmap(lambda v: spike(v, True, surrogate.derivative))(u), plain.step(u, True))

    def test_select(self):
        """Values and gradients of a choice under vmap and grad are the plain ones; broadcast arguments get sums."""
        z = (drawn(SIZES[1], torch.float64) > 0).double()
        b = drawn(SIZES[1], torch.float64, 1).nan_to_num(posinf=2.0, neginf=-2.0)
        a = torch.tensor(0.25).double()

        def weighed(z, a, b):
            return (select(z, a, b) * torch.arange(float(len(z)))).sum()

        given = [value.clone().requires_grad_() for value in (z, a, b)]
        weighed(*given).backward()
        for mine, theirs in zip(given, torch.func.grad(weighed, argnums=(0, 1, 2))(z, a, b)):
            assert_same_bits(mine.grad, theirs)
        assert_same_bits(torch.func.vmap(select, (0, None, 0))(z, a, b), plain.choice(z, a, b))

    def test_only_what_is_wanted_gets_a_gradient(self):
        """A detached spike leaves the reset without a gradient through it, and the rest has its own."""
        z, b = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0], requires_grad=True)
        select(z, torch.tensor(0.0), b).sum().backward()
        assert b.grad.tolist() == [0.0, 1.0]


class Bounded(sc.Neuron):
    """Every operation that is an autograd.Function."""

    states = {"v": 0.0}

    def dynamics(self, x, s, p):
        v = sc.ops.clamp(sc.ops.minimum(s.v, 2.0) + sc.ops.maximum(x, -1.0), -3.0, 3.0)
        z = self.spike(v - 1.0)
        return z, {"v": sc.ops.select(z, 0.0, v)}


@pytest.mark.parametrize("neuron", [sc.LIF, Bounded])
def test_a_training_step_reads_no_signature(monkeypatch, neuron):
    """Forward and backward never have torch look up how a function is to be called: it took half of the time."""

    def refused(*_):
        raise AssertionError("inspect.signature was called")

    lif, x = neuron(backend="torch"), torch.rand(3, 4, requires_grad=True)
    monkeypatch.setattr(inspect, "signature", refused)
    lif(x).sum().backward()
    assert x.grad is not None


class TestConstants:
    """Numbers are made once where that is safe."""

    def test_once_on_a_cpu(self):
        """The same tensors for each dtype."""
        numbers, like = plain.Constants([1.5, 2.0]), torch.zeros(3)
        assert [float(value) for value in numbers(like)] == [1.5, 2.0]
        assert numbers(like)[0] is numbers(like)[0]
        assert numbers(like.double())[0].dtype == torch.float64

    def test_made_in_inference_mode_they_serve_training(self):
        """A neuron whose first call was in inference mode can be trained afterwards."""
        lif = sc.LIF(surrogate=sc.surrogate.ATan(2.0123), backend="torch")
        with torch.inference_mode():
            lif(torch.rand(2, 3))
            plain.Constants([2.0])(torch.zeros(1))
        numbers = plain.Constants([2.0])
        with torch.inference_mode():
            numbers(torch.zeros(1))
        x = torch.ones(1, requires_grad=True)
        (x * numbers(x.detach())[0]).sum().backward()
        lif(torch.rand(2, 3, requires_grad=True)).sum().backward()

    def test_nothing_of_a_fake_call_is_kept(self):
        """Tensors that stand for shapes alone, as in torch.export, leave none of their kind behind."""
        fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor", reason="torch has no fake tensors")
        numbers = plain.Constants([2.0])
        with fake_tensor.FakeTensorMode():
            numbers(torch.zeros(3))
        assert type(numbers(torch.zeros(3))[0]) is torch.Tensor
        assert float(numbers(torch.zeros(3))[0]) == 2.0
