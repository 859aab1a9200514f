"""Modules of Flax and Equinox around a neuron, and weights that cross over."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import spikecore as sc
from spikecore_jax import weights

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


def test_weights_cross_over(tmp_path: Path) -> None:
    """By a file of safetensors: names as the table says, dimensions as the library has them."""
    files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Conv2d(2, 4, (3, 1)), sc.PLIF())
    files.save_file(net.state_dict(), tmp_path / "net.safetensors")
    names = {"0.weight": "hidden.kernel", "0.bias": "hidden.bias", "1.weight": "conv.kernel", "2.w": "neuron.w"}
    found = weights.load(tmp_path / "net.safetensors", names)
    assert {name: value.shape for name, value in found.items()} == {
        "hidden.kernel": (3, 5), "hidden.bias": (5,), "conv.kernel": (3, 1, 2, 4), "neuron.w": ()
    }  # fmt: skip
    assert np.array_equal(found["hidden.kernel"], net[0].weight.detach().numpy().T)
    assert np.array_equal(found["conv.kernel"][2, 0, 1, 3], net[1].weight[3, 1, 2, 0].item())
    kept = weights.renamed(net.state_dict(), {"1.weight": "conv.weight"}, flax=False)
    assert np.array_equal(kept["conv.weight"], net[1].weight.detach().numpy())
    with pytest.raises(KeyError, match=r"there is no '3.weight'; the network has 0.bias, 0.weight"):
        weights.load(tmp_path / "net.safetensors", {"3.weight": "x"})
