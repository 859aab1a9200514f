"""Random numbers in equations: their bits, what determines them, and neurons with escape noise."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from escape import check_escape
from spikecore.stochastic import philox, uniform

ONES = 0xFFFFFFFF
#: Counter, key and words: the known answers that Random123 ships for philox4x32 with 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
KEY = torch.tensor([12345, 4000000000])


def words(counter, key):
    """Philox4x32-10 by Python's integers."""
    a, b, c, d = counter
    first, second = key
    for _ in range(10):
        low, high = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (high >> 32) ^ b ^ first, high & ONES, (low >> 32) ^ d ^ second, low & ONES
        first, second = (first + 0x9E3779B9) & ONES, (second + 0xBB67AE85) & ONES
    return a, b, c, d


def drive(*shape, seed=0):
    return 4.0 * torch.rand(*(shape or (12, 3, 5)), generator=torch.Generator().manual_seed(seed)) - 1.0


class TestPhilox:
    @pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
    def test_known_answers(self, counter, key, expected):
        """The words are those of the authors' library; so are those of the oracle of the next test."""
        tensors = [[torch.tensor(word) for word in given] for given in (counter, key)]
        assert tuple(int(word) for word in philox(*tensors)) == expected == words(counter, key)

    @pytest.mark.parametrize("shape", [(2, 7), (5, 1, 4)])
    def test_a_number_is_a_function_of_its_place(self, shape):
        """Number i of step t is word i % 4 of counter (i // 4, stream, t, 0): 24 bits in float32, 32 in float64."""
        for dtype, bits in ((torch.float32, 24), (torch.float64, 32)):
            found = uniform(KEY, 3, shape, 2, dtype)
            assert (found.shape, found.dtype) == ((3, *shape), dtype)
            for t, step in enumerate(found.reshape(3, -1)):
                for i, number in enumerate(step.tolist()):
                    word = words((i // 4, 2, t, 0), KEY.tolist())[i % 4]
                    assert number == (word >> (32 - bits)) / 2**bits


class Loop(sc.stochastic.Stochastic):
    """Two random numbers and what they are, as outputs."""

    inputs, drawn = ("x", "a", "b"), ("a", "b")

    def dynamics(self, x, s, p):
        return (x.a, x.b, x.x), {}


class TestDraws:
    def test_the_seed_determines_the_numbers(self):
        """The same seed gives the same numbers, the next call others; inputs of one call have numbers of their own."""
        neuron, x = Loop(backend="torch"), drive()
        torch.manual_seed(3)
        first, second = neuron(x), neuron(x)
        torch.manual_seed(3)
        again = neuron(x)
        assert all(torch.equal(one, other) for one, other in zip(first, again))
        assert not torch.equal(first[0], second[0])
        assert not torch.equal(first[0], first[1])

    def test_a_generator_goes_with_its_neuron(self):
        """With one, torch's own stream is left alone; copies and pickles go on with the same numbers, independently."""
        neuron, x = Loop(backend="torch", generator=torch.Generator().manual_seed(5)), drive()
        before = torch.get_rng_state()
        neuron(x)
        assert torch.equal(torch.get_rng_state(), before)
        copies = copy.deepcopy(neuron), pickle.loads(pickle.dumps(neuron))
        right = neuron(x)[0]
        assert all(torch.equal(one(x)[0], right) for one in copies)

    def test_given_numbers_are_taken(self):
        """A call that is given the numbers draws none; draw() gives those of the next call."""
        neuron, x = Loop(backend="torch"), drive()
        torch.manual_seed(2)
        given = neuron.draw(x)
        torch.manual_seed(2)
        assert all(torch.equal(one, other) for one, other in zip(neuron(x)[:2], given))
        state = torch.get_rng_state()
        assert all(torch.equal(one, other) for one, other in zip(neuron(x, *given)[:2], given))
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.skipif(torch.__version__ < "2.6", reason="torch.compile takes the torch backend from 2.6 on")
    def test_a_compiled_neuron_draws_anew(self):
        """Numbers are no constants of a compiled graph."""
        neuron, x = Loop(backend="torch"), drive(2, 3)
        compiled = torch.compile(neuron, fullgraph=True, backend="aot_eager")
        first, second = compiled(x)[0], compiled(x)[0]
        assert not torch.equal(first, second)
        with pytest.raises(Exception, match="a compiled or exported graph cannot draw from a torch.Generator"):
            torch.compile(Loop(generator=torch.Generator()), fullgraph=True, backend="aot_eager")(x)


class TestEscapeNoise:
    @pytest.mark.parametrize("decay_input", [True, False])
    @pytest.mark.parametrize("reset", ["hard", "soft", "none"])
    def test_is_the_loop(self, reset, decay_input):
        """Spikes and gradients are those of the equations by hand."""
        check_escape("torch", reset, decay_input)

    def test_the_derivative_is_that_of_the_probability(self):
        """Of one step, by every argument, the gradient is the slope of the probability, by central differences."""

        def chance(x, tau, threshold, rate, delta):
            return 1 - np.exp(-rate * np.exp((x / tau - threshold) / delta))

        point = np.array([1.7, 2.2, 0.9, 0.8, 0.4])
        names = ("tau", "threshold", "rate", "delta")
        neuron = sc.stochastic.EscapeNoise(
            **dict(zip(names, map(torch.tensor, point[1:]))), learn=names, backend="torch"
        )
        x = torch.tensor([[point[0]]], requires_grad=True)
        neuron(x).sum().backward()
        found = [x.grad.item(), *[getattr(neuron, name).grad.item() for name in names]]
        steps = 1e-6 * np.eye(5)
        slopes = [(chance(*(point + step)) - chance(*(point - step))) / 2e-6 for step in steps]
        np.testing.assert_allclose(found, slopes, rtol=1e-6)

    def test_without_noise_it_is_lif(self):
        """Towards delta 0 it fires above the threshold and only there; what is far beyond is finite."""
        x = drive(20, 30)
        sharp, lif = sc.stochastic.EscapeNoise(delta=1e-4, backend="torch"), sc.LIF(backend="torch")
        assert torch.equal(sharp(x), lif(x))
        far = torch.tensor([[1e30, -1e30, 1e4, 2.02]], requires_grad=True)
        sharp(far).sum().backward()
        assert torch.equal(far.grad, torch.zeros(1, 4))

    def test_single_steps(self):
        """In single-step mode the state goes on and every step has a key of its own."""
        single = sc.stochastic.EscapeNoise(step="single", backend="torch")
        whole, x = sc.stochastic.EscapeNoise(backend="torch"), drive()
        torch.manual_seed(0)
        u = torch.stack([single.draw(step)[0] for step in x])
        torch.manual_seed(0)
        assert torch.equal(torch.stack([single(step) for step in x]), whole(x, u))
        assert u[0].unique().numel() == u[0].numel()
        assert not torch.equal(u[0], u[1])


test_refused = refusals.table(__file__, globals(), nn)
