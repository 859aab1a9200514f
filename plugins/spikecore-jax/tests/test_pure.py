"""Neurons as pure functions: the numbers of spikecore's reference, under every transformation of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, PartitionSpec

import refusals
import spikecore as sc
import spikecore_jax
from spikecore_jax.tensors import x64

T, B, C = 12, 3, 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    """16 bits in memory with float32 arithmetic, and float64 where JAX has it turned on."""
    neuron = sc.LIF(2.0)
    x = (torch.randn(T, B, C, generator=torch.Generator().manual_seed(0)) * 2).to(dtype)
    out, state = neuron.run(x)
    with x64(dtype == torch.float64):
        f = spikecore_jax.function(neuron)
        found, end = jax.jit(f)(f.params, None, jnp.asarray(x.double().numpy(), str(dtype)[6:]))
        assert str(found.dtype) == str(dtype)[6:]
        assert np.array_equal(out.double(), np.asarray(found, np.float64))
        assert np.array_equal(state["v"], end["v"])


def test_a_state_goes_on_and_steps_are_calls() -> None:
    """Two halves are the whole, and so are twelve steps."""
    f = spikecore_jax.function(sc.ALIF())
    x = jax.random.normal(jax.random.key(0), (T, B, C)) * 2
    outs, end = f(f.params, None, x)
    first, state = f(f.params, None, x[:5])
    second, state = f(f.params, state, x[5:])
    assert np.array_equal(outs, jnp.concatenate([first, second]))
    one, each = f.initial(f.params, (B, C)), []
    for row in x:
        out, one = f.step(f.params, one, row)
        each.append(out)
    assert np.array_equal(outs, jnp.stack(each))
    for key, value in end.items():
        assert np.array_equal(value, state[key])
        assert np.array_equal(value, one[key])


def test_vmap_over_parameters_and_inputs() -> None:
    """Each row is the call by itself, its gradient, too."""
    f = spikecore_jax.function(sc.LIF(2.0))
    taus = jnp.asarray([1.5, 2.0, 3.0])
    xs = jax.random.normal(jax.random.key(0), (3, T, B, C)) * 2

    def loss(tau: Any, x: Any) -> Any:
        return (f({**f.params, "tau": tau}, None, x)[0] * jnp.cos(x)).sum()

    together = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)))(taus, xs)
    for k in range(3):
        value, (of_tau, of_x) = jax.value_and_grad(loss, argnums=(0, 1))(taus[k], xs[k])
        np.testing.assert_allclose(together[0][k], value, rtol=1e-5)
        np.testing.assert_allclose(together[1][0][k], of_tau, rtol=1e-4, atol=1e-5)
        assert np.array_equal(together[1][1][k], of_x)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="before JAX 0.6.1 arrays do not know what they vary over")
def test_shard_map_over_two_devices() -> None:
    """Rows of the batch on two devices: the numbers of one."""
    f = spikecore_jax.function(sc.LIF(2.0))
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("batch",))
    x = jax.random.normal(jax.random.key(0), (T, 4, C)) * 2
    rows = PartitionSpec(None, "batch")
    split = jax.shard_map(lambda x: f(f.params, None, x)[0], mesh=mesh, in_specs=rows, out_specs=rows)
    assert np.array_equal(jax.jit(split)(x), f(f.params, None, x)[0])
    state = f.initial(f.params, (4, C))

    def loss(run: Any) -> Any:
        return jax.grad(lambda params, state, x: (run(params, state, x) * jnp.cos(x)).sum(), argnums=(0, 1, 2))

    def run(params: Any, state: Any, x: Any) -> Any:
        return f(params, state, x)[0]

    specs = (PartitionSpec(), PartitionSpec("batch"), rows)
    found = loss(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=rows))(f.params, state, x)
    whole = loss(run)(f.params, state, x)
    assert np.array_equal(found[2], whole[2])
    assert np.array_equal(found[1]["v"], whole[1]["v"])
    for name, grad in whole[0].items():
        np.testing.assert_allclose(found[0][name], grad, rtol=1e-5)


def test_subnormal_and_odd_inputs_give_no_other_products() -> None:
    """The term that hides products from the compiler is 0, whatever an input begins with."""
    f = spikecore_jax.function(sc.LIF(2.0))
    for first in (0.0, -0.0, np.nan, np.inf, 1e-45):
        x = np.full((2, 4), 0.75, np.float32)
        x[0, 0] = first
        found, _ = jax.jit(f)(f.params, None, jnp.asarray(x))
        assert np.array_equal(np.asarray(found)[:, 1:], sc.LIF(2.0)(torch.from_numpy(x))[:, 1:])


def test_second_derivatives_are_refused() -> None:
    """They are none of the adjoint's, and JAX would give 0 for them."""
    f = spikecore_jax.function(sc.LI())

    def first(tau: Any) -> Any:
        return jax.grad(lambda tau: (f({**f.params, "tau": tau}, None, jnp.ones((3, 2)))[0] ** 2).sum())(tau)

    assert first(2.0) != 0
    with pytest.raises(NotImplementedError, match="first derivatives in JAX"):
        jax.grad(first)(2.0)
    with pytest.raises(TypeError, match="can't apply forward-mode"):
        jax.jvp(first, (2.0,), (1.0,))


def test_arrays_of_numpy_are_taken_and_tensors_are_not() -> None:
    """JAX makes float32 of float64 where that is not turned on."""
    f = spikecore_jax.function(sc.LIF(2.0))
    x = np.random.default_rng(0).random((3, 2, 5)) * 2
    found, _ = f(f.params, None, x)
    assert np.array_equal(found, sc.LIF(2.0)(torch.from_numpy(x).float()))
    with pytest.raises(TypeError, match=r"xs is a torch.Tensor; give an array of JAX or NumPy \[T, \*N\]"):
        f(f.params, None, torch.ones(3, 2))


test_refused = refusals.table(__file__, globals())
