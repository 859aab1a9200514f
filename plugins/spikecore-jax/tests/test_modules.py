"""Modules of Flax and Equinox around a neuron."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, List, Tuple

import jax
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
    """Learnt parameters are each an nnx.Param; spikes and its gradient are those of PyTorch."""
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


class Net(torch.nn.Module):
    """A layer, a neuron with learnt decay, a layer: the logits are a mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.neuron, self.out = torch.nn.Linear(5, 8), sc.PLIF(), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.neuron(self.hidden(x))).mean(0)
        return found


#: Layers that cross over, of PyTorch and of JAX.
NAMES = {name: name for name in ("hidden", "neuron", "out")}
STEPS, RATE = 5, 0.5


def trained_in_torch(net: Net) -> List[float]:
    """Losses of some steps of gradient descent."""
    optimizer, losses = torch.optim.SGD(net.parameters(), RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = ((net(X) - 1.0) ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


def saved(tmp_path: Path) -> Tuple[Net, Path]:
    files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    torch.manual_seed(1)
    net = Net()
    with torch.no_grad():
        net.hidden.weight.mul_(4)
    files.save_file(net.state_dict(), tmp_path / "net.safetensors")
    return net, tmp_path / "net.safetensors"


def same_training(net: Net, losses: List[float], arrays: Any, library: str) -> None:
    """The losses of PyTorch, and its weights after them, by way of its own ``state_dict``."""
    np.testing.assert_allclose(losses, trained_in_torch(net), rtol=1e-4)
    assert losses[-1] < 0.9 * losses[0]
    again = Net()
    assert not again.load_state_dict(weights.state_dict(arrays, net, NAMES, library), strict=False).missing_keys
    for key, value in again.state_dict().items():
        torch.testing.assert_close(value, net.state_dict()[key], rtol=1e-4, atol=1e-5)
    assert net.neuron.w.item() != sc.PLIF().w.item()


def test_training_with_flax_is_that_of_pytorch(tmp_path: Path) -> None:
    """From the same file: losses, and weights after training, a neuron's own included."""
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    from spikecore_jax import nnx as ours

    class Same(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.hidden, self.out = nnx.Linear(5, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)
            self.neuron = ours.Neuron(sc.PLIF())

        def __call__(self, x: Any) -> Any:
            return self.out(self.neuron(self.hidden(x))).mean(0)

    net, path = saved(tmp_path)
    model, xs = Same(), jnp.asarray(X.numpy())
    arrays = weights.load(path, net, NAMES)
    ours.put(model, arrays)
    assert np.array_equal(model.neuron(xs), net.neuron(X).detach())

    @nnx.jit
    def step(model: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda m: ((m(xs) - 1.0) ** 2).mean())(model)
        state = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda value, grad: value - RATE * grad, state, grads))
        return loss

    losses = [float(step(model)) for _ in range(STEPS)]
    same_training(net, losses, ours.take(model, arrays), "flax")
    with pytest.raises(KeyError, match=r"there is no 'hidden\.scale' in Same: 'scale' is not there"):
        ours.put(model, {"hidden.scale": xs})
    with pytest.raises(ValueError, match=r"'hidden\.bias' has shape \[6, 3, 5\], in the module \[8\]"):
        ours.put(model, {"hidden.bias": xs})


def test_training_with_equinox_is_that_of_pytorch(tmp_path: Path) -> None:
    """The same."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    from spikecore_jax import eqx as ours

    class Same(eqx.Module):
        hidden: Any
        neuron: Any
        out: Any

        def __call__(self, x: Any) -> Any:
            hidden = jax.vmap(jax.vmap(self.hidden))(x)
            return jax.vmap(jax.vmap(self.out))(self.neuron(hidden)).mean(0)

    keys = jax.random.split(jax.random.key(0))
    net, path = saved(tmp_path)
    model = Same(eqx.nn.Linear(5, 8, key=keys[0]), ours.Neuron(sc.PLIF()), eqx.nn.Linear(8, 2, key=keys[1]))
    arrays, xs = weights.load(path, net, NAMES, "equinox"), jnp.asarray(X.numpy())
    model = ours.put(model, arrays)

    @eqx.filter_jit
    def step(model: Any) -> Any:
        loss, grads = eqx.filter_value_and_grad(lambda m: ((m(xs) - 1.0) ** 2).mean())(model)
        return loss, eqx.apply_updates(model, jax.tree.map(lambda grad: -RATE * grad, grads))

    losses = []
    for _ in range(STEPS):
        loss, model = step(model)
        losses.append(float(loss))
    same_training(net, losses, ours.take(model, arrays), "equinox")
    copied = copy.deepcopy(model)
    assert eqx.tree_equal(model, copied)
    with pytest.raises(KeyError, match=r"there is no 'neuron\.learnt\.tau' in Same"):
        ours.put(model, {"neuron.learnt.tau": xs})


def test_a_learnt_name_that_a_module_of_flax_has_is_refused() -> None:
    """It would replace a method."""
    pytest.importorskip("flax.nnx", reason="flax is not installed")
    from spikecore_jax.nnx import Neuron

    class Perturbed(sc.Neuron):
        states, params = {"v": 0.0}, {"perturb": 0.5}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            v = s.v * p.perturb + x
            return self.spike(v - 1.0), {"v": v}

    with pytest.raises(ValueError, match="neuron=Perturbed learns 'perturb', a name that"):
        Neuron(Perturbed(learn=("perturb",)))
