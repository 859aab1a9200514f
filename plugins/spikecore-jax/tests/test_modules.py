"""Modules of Flax and Equinox around a neuron."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import spikecore as sc

X = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0)) * 2


def of_torch() -> tuple[np.ndarray, float]:
    neuron = sc.PLIF()
    out = neuron(X)
    (out * torch.cos(X)).sum().backward()
    return out.detach().numpy(), neuron.w.grad.item()


def test_flax() -> None:
    """What the neuron learns is an nnx.Param; spikes and its gradient are those of PyTorch."""
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    from spikecore_jax.nnx import Neuron

    module, xs = Neuron(sc.PLIF()), jnp.asarray(X.numpy())
    out, grad = of_torch()
    assert np.array_equal(nnx.jit(lambda m, x: m(x))(module, xs), out)
    found = nnx.grad(lambda m: (m(xs) * jnp.cos(xs)).sum())(module)
    assert [*nnx.to_pure_dict(found)] == ["w"]
    np.testing.assert_allclose(found["w"][...], grad, rtol=1e-5)
    module.w[...] = jnp.asarray(1.0)
    assert not np.array_equal(module(xs), out)
    first, state = module.run(xs[:2])
    assert np.array_equal(module.run(xs[2:], state)[0], module(xs)[2:])
    assert np.array_equal(first, module(xs)[:2])


def test_equinox() -> None:
    """The learnt parameters are the arrays of the module."""
    equinox = pytest.importorskip("equinox", reason="equinox is not installed")
    from spikecore_jax.eqx import Neuron

    module, xs = Neuron(sc.PLIF()), jnp.asarray(X.numpy())
    out, grad = of_torch()
    assert np.array_equal(equinox.filter_jit(lambda m, x: m(x))(module, xs), out)
    found = equinox.filter_grad(lambda m: (m(xs) * jnp.cos(xs)).sum())(module)
    np.testing.assert_allclose(found.learnt["w"], grad, rtol=1e-5)
    first, state = module.run(xs[:2])
    assert np.array_equal(jnp.concatenate([first, module.run(xs[2:], state)[0]]), out)
