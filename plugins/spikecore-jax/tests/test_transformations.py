"""A pure function within what JAX does with functions: the numbers of the call alone."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import spikecore as sc
import spikecore_jax

T, B, C = 6, 4, 5
X = jax.random.normal(jax.random.key(0), (T, B, C)) * 2


def made() -> spikecore_jax.Function:
    return spikecore_jax.function(sc.LIF(2.0, v_reset=-0.25, learn=("tau",)))


def loss(f: Any, params: Any, state: Any, x: Any) -> Any:
    out, end = f(params, state, x)
    return (out * jnp.cos(x)).sum() + jnp.sin(end["v"]).sum()


def close(ours: Any, theirs: Any) -> None:
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def in_parts(f: Any, params: Any, state: Any, x: Any) -> Any:
    """Calls of two steps, in a scan."""
    first = f.initial(params, (B, C)) if state is None else state
    end, out = jax.lax.scan(lambda now, row: f(params, now, row)[::-1], first, x.reshape(3, 2, B, C))
    return out.reshape(T, B, C), end


def in_steps(f: Any, params: Any, state: Any, x: Any) -> Any:
    first = f.initial(params, (B, C)) if state is None else state
    end, out = jax.lax.scan(lambda now, row: f.step(params, now, row)[::-1], first, x)
    return out, end


@pytest.mark.parametrize("within", ["checkpoint", "parts", "steps", "checkpointed parts"])
@pytest.mark.parametrize("rest", [False, True])
def test_gradients_within(within: str, rest: bool) -> None:
    """``jax.checkpoint`` and ``lax.scan`` around the function change no gradient."""
    f = made()
    state = None if rest else f.initial(f.params, (B, C))
    whole = jax.grad(loss, argnums=(1, 3))(f, f.params, state, X)
    of = {"checkpoint": f, "parts": None, "steps": None}.get(within)
    run = of or (lambda *given: (in_steps if within == "steps" else in_parts)(f, *given))
    run = jax.checkpoint(run) if within.startswith("checkpoint") else run
    found = jax.jit(jax.grad(lambda params, x: loss(run, params, state, x), argnums=(0, 1)))(f.params, X)
    close(found, whole)


@pytest.mark.parametrize("shape", [(0, B, C), (T, 0, C), (1, B, C), (T,), (0, 0)])
def test_odd_sizes(shape: Any) -> None:
    """No step, one, no neuron, and a neuron alone: as in PyTorch, gradients included."""
    neuron = sc.LIF(2.0, v_reset=-0.25, learn=("tau",))
    f, x = spikecore_jax.function(neuron), torch.ones(shape)
    out, end = neuron.run(x)
    found, state = jax.jit(f)(f.params, None, jnp.ones(shape))
    assert found.shape == tuple(shape)
    assert np.array_equal(found, out.detach())
    assert np.array_equal(state["v"], end["v"].detach())
    of_tau = jax.grad(lambda params: f(params, None, jnp.ones(shape))[0].sum())(f.params)["tau"]
    wanted = torch.autograd.grad(out.sum(), neuron.tau)[0] if shape[0] else 0.0  # PyTorch's has no graph of no step
    np.testing.assert_allclose(of_tau, wanted, rtol=1e-6)


def test_copies_and_pickles_are_equal() -> None:
    """So that trees of Equinox and Flax with copies in them are trees of one structure."""
    f = made()
    assert copy.deepcopy(f) is f
    again = pickle.loads(pickle.dumps(f))
    assert again == f == made()
    assert hash(again) == hash(f)
    assert np.array_equal(again(f.params, None, X)[0], f(f.params, None, X)[0])
    assert f != spikecore_jax.function(sc.LIF(2.5, v_reset=-0.25, learn=("tau",)))
    assert f != spikecore_jax.function(sc.LIF(2.0, v_reset=-0.25))
    assert f != spikecore_jax.function(sc.LIF(2.0, v_reset=-0.25, learn=("tau",), bounds=None))


def test_parameters_stay_in_their_ranges() -> None:
    """They do as learnt ones of PyTorch under ``torch.func``: the nearest value inside, with derivative 1."""
    neuron = sc.LIF(2.0, learn=("tau",), bounds={"tau": (1.5, 4.0)})
    f, x = spikecore_jax.function(neuron), torch.from_numpy(np.array(X))

    def in_torch(tau: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(neuron, {"tau": tau}, (x,))
        return (out * torch.cos(x)).sum()

    def in_jax(tau: Any) -> Any:
        return (f({**f.params, "tau": tau}, None, X)[0] * jnp.cos(X)).sum()

    for tau in (-1.0, 1.5, 1.75, 4.0, 9.0):
        wanted, found = torch.func.grad_and_value(in_torch)(torch.tensor(tau)), jax.value_and_grad(in_jax)(tau)
        np.testing.assert_allclose(found[::-1], wanted, rtol=1e-5)
    assert in_jax(-1.0) == in_jax(1.5) != in_jax(1.75)
    leaky = spikecore_jax.function(sc.BRF(learn=("omega",), bounds=None))
    assert np.array_equal(leaky.params["omega"], sc.BRF().omega)


def test_what_the_dynamics_does_not_say_is_refused() -> None:
    """A normalisation in front of the neuron, and a ``forward`` around it, would be left out."""

    class Tripled(sc.LIF):
        def forward(self, *xs: Any) -> Any:
            return super().forward(*[3 * x for x in xs])

    with pytest.raises(TypeError, match="neuron=Tripled has a forward of its own, which would not be called"):
        spikecore_jax.function(Tripled())
    neuron = sc.LIF()
    neuron.run = None
    with pytest.raises(TypeError, match="neuron=LIF has a run of its own"):
        spikecore_jax.function(neuron)
    with pytest.raises(TypeError, match="must be a spikecore neuron"):
        spikecore_jax.function(sc.layers.NormNeuron(nn.BatchNorm1d(C), sc.LIF()))


def test_random_numbers_are_inputs() -> None:
    """Escape noise gets them by a key of JAX, and gives the spikes that PyTorch gives with the same."""
    neuron = sc.stochastic.EscapeNoise(2.0)
    f = spikecore_jax.function(neuron)
    with pytest.raises(ValueError, match=r"EscapeNoise has the inputs x, u; .* jax.random.uniform\(key, x.shape\)"):
        f(f.params, None, X)
    u = jax.random.uniform(jax.random.key(1), X.shape)
    found, _ = f(f.params, None, (X, u))
    assert np.array_equal(found, neuron(*(torch.from_numpy(np.array(one)) for one in (X, u))))


def test_shapes_of_parameters_follow_the_rules_of_pytorch() -> None:
    """One dimension lies along ``channel_dim``, and along no other."""
    x = np.ones((3, 2, 5, 7), np.float32)
    for size in (2, 5, 7, 1):
        neuron = sc.LIF(torch.linspace(1.5, 3.0, size))
        f = spikecore_jax.function(neuron)
        if size in (1, 5):
            assert np.array_equal(f(f.params, None, x)[0], neuron(torch.from_numpy(x)))
            continue
        with pytest.raises(
            ValueError, match=rf"'tau' has shape \[{size}\], .* a parameter \[C\] lies along dimension 1"
        ):
            f(f.params, None, x)
        with pytest.raises(ValueError, match="does not fit dimension channel_dim=1"):
            neuron(torch.from_numpy(x))


@pytest.mark.parametrize("name", ["Lapicque", "QIF"])
def test_parameters_that_the_compiler_knows_are_computed_with_as_others(name: str) -> None:
    """XLA folds products of numbers that it knows, and moved potentials and gradients by a unit in the last place."""
    neuron = getattr(sc, name)(channel_dim=-1)
    f, x = spikecore_jax.function(neuron), torch.randn(24, 8, 16, generator=torch.Generator().manual_seed(1)) * 2
    given = x.requires_grad_()
    out, end = neuron.run(given)
    (grad,) = torch.autograd.grad((out * torch.cos(torch.arange(16.0))).sum(), given)
    xs, weights = jnp.asarray(x.detach().numpy()), jnp.asarray(torch.cos(torch.arange(16.0)).numpy())

    def both(xs: Any) -> Any:
        (found, state), back = jax.vjp(lambda z: f(f.params, None, z), xs)
        zeros = jax.tree.map(jnp.zeros_like, state)
        return found, state["v"], back((jnp.broadcast_to(weights, found.shape), zeros))[0]

    for ours, theirs in zip(jax.jit(both)(xs), (out, end["v"], grad)):
        assert np.array_equal(ours, theirs.detach())
