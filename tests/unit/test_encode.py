"""Encoders: spike trains against loops in NumPy, chances against the binomial law, streams that survive a copy."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch

import refusals
import spikecore as sc
from spikecore.encode import Constant, Delta, Latency, Phase, Poisson, Population

DTYPES = [torch.bfloat16, torch.float32]


def values(*shape, seed=0, dtype=torch.float32):
    """Uniform values in [0, 1)."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seeded(seed=0):
    """A generator on the CPU."""
    return torch.Generator().manual_seed(seed)


class TestEvery:
    """Properties of all encoders."""

    @pytest.mark.parametrize("encoder", [Poisson(6), Latency(6), Latency(6, linear=True), Constant(6), Phase(6)])
    @pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3)])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_adds_time_in_front(self, encoder, shape, dtype):
        """[*N] becomes [steps, *N] in the same dtype and on the same device."""
        out = encoder(values(*shape).to(dtype))
        assert (out.shape, out.dtype, out.device.type) == ((6, *shape), dtype, "cpu")


class TestPoisson:
    """Bernoulli spikes, step by step."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rate_is_the_probability(self, dtype):
        """Over 20 000 steps each rate is its probability within five standard deviations, in every dtype."""
        p = torch.tensor([0.001, 0.02, 0.3, 0.5, 0.77, 0.99]).to(dtype)
        steps = 20_000
        rate = Poisson(steps, generator=seeded())(p).double().mean(0)
        deviation = (p.double() * (1 - p.double()) / steps).sqrt()
        assert ((rate - p.double()).abs() < 5 * deviation).all()

    def test_zero_is_certain_even_when_zero_is_drawn(self, monkeypatch):
        """Uniform numbers include 0, one in 2^24 of them: probability 0 does not spike there."""
        monkeypatch.setattr(torch, "rand", lambda size, **kwargs: torch.zeros(size))
        assert Poisson(2)(torch.tensor([0.0, 1e-6])).tolist() == [[0, 1], [0, 1]]

    def test_gain_and_offset(self):
        """The probability is gain * x + offset, clamped to [0, 1]."""
        x = torch.tensor([-1.0, 0.0, 0.25, 0.5, 1.0])
        found = Poisson(50, gain=0.5, offset=0.25, generator=seeded(4))(x)
        expected = Poisson(50, generator=seeded(4))(torch.tensor([0.0, 0.25, 0.375, 0.5, 0.75]))
        assert torch.equal(found, expected)

    def test_generator_decides(self):
        """The same seed gives the same spikes, the next call others, and the global stream is left alone."""
        torch.manual_seed(0)
        undisturbed = torch.get_rng_state()
        x, one, two = values(50), Poisson(20, generator=seeded(7)), Poisson(20, generator=seeded(7))
        first = one(x)
        assert torch.equal(first, two(x))
        assert not torch.equal(first, one(x))
        assert not torch.equal(first, Poisson(20, generator=seeded(8))(x))
        assert torch.equal(torch.get_rng_state(), undisturbed)

    @pytest.mark.parametrize(
        "clone", [copy.deepcopy, copy.copy, lambda e: pickle.loads(pickle.dumps(e))], ids=["deepcopy", "copy", "pickle"]
    )
    def test_stream_survives_a_copy(self, clone):
        """A copy goes on with the same stream from where the original was, and neither disturbs the other."""
        x, encoder = values(50), Poisson(20, gain=0.8, generator=seeded(9))
        encoder(x)
        twin = clone(encoder)
        later = [encoder(x), encoder(x)]
        assert torch.equal(twin(x), later[0])
        assert torch.equal(twin(x), later[1])
        assert repr(twin) == repr(encoder)
        assert twin.generator is not encoder.generator


def latency_by_hand(x, steps, threshold=0.01, tau=1.0, normalize=False, linear=False, clip=False):
    """Spike trains of a vector, element by element, in float64."""
    times = []
    for value in x:
        if linear:
            scale = steps - 1 if normalize else tau
            times.append(min(scale * (1 - value), scale * (1 - threshold)))
        else:
            reached = max(value, threshold + 1e-7)
            times.append(tau * math.log(reached / (reached - threshold)))
    if normalize and not linear:
        times = [t * (steps - 1) / max(times) for t in times]
    out = np.zeros((steps, len(x)))
    for i, (value, t) in enumerate(zip(x, times)):
        if round(t) < steps and not (clip and value < threshold):
            out[round(t), i] = 1.0
    return out


class TestLatency:
    """The larger the value, the earlier its one spike."""

    @pytest.mark.parametrize("normalize", [False, True])
    @pytest.mark.parametrize("linear", [False, True])
    @pytest.mark.parametrize("clip", [False, True])
    @pytest.mark.parametrize(("threshold", "tau"), [(0.01, 1.0), (0.6, 3.0)])
    def test_equals_its_equation(self, normalize, linear, clip, threshold, tau):
        """Spikes are at the rounded times of the docstring's equations, computed in float64 by hand."""
        x = torch.cat((values(200, seed=5, dtype=torch.float64), torch.tensor([0.0, threshold / 2, 1.0]).double()))
        settings = {"threshold": threshold, "tau": tau, "normalize": normalize, "linear": linear, "clip": clip}
        found = Latency(4, **settings)(x)
        np.testing.assert_array_equal(found.numpy(), latency_by_hand(x.tolist(), 4, **settings))


class TestDelta:
    """Spikes of change."""

    @pytest.mark.parametrize("off_spikes", [False, True])
    @pytest.mark.parametrize("padding", [False, True])
    def test_equals_its_equation(self, off_spikes, padding):
        """Each element is compared with itself one step before, whatever the other dimensions."""
        x = torch.randn(8, 3, 2, generator=seeded(6), dtype=torch.float64)
        expected = np.zeros((8, 3, 2))
        for t, i, j in np.ndindex(8, 3, 2):
            before = x[t - 1, i, j] if t else (x[0, i, j] if padding else 0.0)
            change = float(x[t, i, j] - before)
            expected[t, i, j] = 1 if change >= 0.4 else (-1 if off_spikes and change <= -0.4 else 0)
        assert set(expected.ravel()) == ({-1, 0, 1} if off_spikes else {0, 1})
        np.testing.assert_array_equal(Delta(0.4, off_spikes=off_spikes, padding=padding)(x).numpy(), expected)


class TestConstant:
    """The value at every step."""

    def test_repeats(self):
        """Each step is x, in memory of its own."""
        x = values(3, 4)
        out = Constant(5)(x)
        assert all(torch.equal(step, x) for step in out)
        out[0] += 1
        assert torch.equal(out[1], x)


test_refused = refusals.table(__file__, globals())


class TestPhase:
    """Binary digits, by arithmetic."""

    @pytest.mark.parametrize("period", [1, 3, 8, 30])
    def test_weighted_spikes_of_a_period_are_the_value(self, period):
        """The sum of ``2^-(1 + t)`` over spikes is the value, rounded down to a multiple of ``2^-period``."""
        x = torch.cat([values(50, dtype=torch.float64), torch.tensor([0.0, 0.5, 1.0, -3.0, 2.0], dtype=torch.float64)])
        spikes = Phase(2 * period + 1, period=period)(x)
        assert set(spikes.unique().tolist()) <= {0.0, 1.0}
        weights = 0.5 ** torch.arange(1, period + 1, dtype=torch.float64)
        expected = np.minimum(np.floor(x.clamp(0, 1).numpy() * 2**period), 2**period - 1) / 2**period
        np.testing.assert_array_equal((weights[:, None] * spikes[:period]).sum(0).numpy(), expected)
        assert torch.equal(spikes[period : 2 * period], spikes[:period])
        assert torch.equal(spikes[-1], spikes[0])

    def test_the_example_of_the_paper(self):
        rows = {192: "11000000", 1: "00000001", 128: "10000000", 255: "11111111"}
        for number, digits in rows.items():
            assert Phase(8)(torch.tensor(number / 256)).tolist() == [float(digit) for digit in digits]


class TestPopulation:
    """Gaussian fields, against loops, and what stands behind them."""

    def test_activities(self):
        """Of every feature, of values without and with time, and the gradient of all three."""
        fields, x = Population(3, 4, low=-1.0, high=2.0, width=0.75).double(), values(5, 2, 3, dtype=torch.float64)
        expected = [math.exp(-(((v - c) / 0.75) ** 2) / 2) for v in x.flatten().tolist() for c in (-1.0, 0.0, 1.0, 2.0)]
        np.testing.assert_allclose(fields(x).detach().numpy().ravel(), expected, rtol=1e-12)
        assert fields(x).shape == (5, 2, 12)
        assert Population(1, 5, low=0.0, high=2.0).width.unique().tolist() == [0.5]

        def activity(x, center, width):
            return torch.func.functional_call(fields, {"center": center, "width": width}, (x,))

        leaves = [leaf.detach().clone().requires_grad_() for leaf in (x[0, 0], fields.center, fields.width)]
        assert torch.autograd.gradcheck(activity, leaves)

    def test_spikes_behind_it(self):
        """An integrator fires at the rates of the activities, and a training step learns the fields."""
        net = torch.nn.Sequential(Population(2, 6), sc.IF(threshold=0.999, reset="soft", repeat=200))
        x = values(7, 2)
        np.testing.assert_allclose(net(x).mean(0).detach(), net[0](x).detach(), atol=0.006)
        net(x).sum().backward()
        assert net[0].center.grad.abs().sum() > 0
        assert net[0].width.grad.abs().sum() > 0
        drawn = torch.nn.Sequential(Population(2, 6), Poisson(2000, generator=seeded()))
        np.testing.assert_allclose(drawn(x).mean(0).detach(), net[0](x).detach(), atol=0.06)


test_refused = refusals.table(__file__, globals())
