"""Every neuron of spikecore in float64: spikes, states and gradients of all that can be learnt, beside PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import spikecore as sc
import spikecore_jax
from spikecore_jax.tensors import x64

pytestmark = pytest.mark.matrix(turn=0)

T, B, C = 12, 3, 7
#: By how much inputs are larger so that there are spikes.
LOUDER = {"BRF": 60.0, "SEAdLIF": 20.0, "LI": 1.0}
S = sc.surrogate


class Mixed(sc.Neuron):
    """Two inputs, three outputs, states that begin at a parameter and at a number, a surrogate for each spike."""

    inputs = ("x", "gate")
    states = {"v": "start", "w": 0.1}
    params = {"start": 0.3, "a": 0.9, "n": 1.7}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        o = sc.ops
        v = o.tanh(s.v * p.a + x.x) * o.sigmoid(x.gate) + o.where(x.x > 0.0, o.exp(-s.w * s.w), o.sqrt(o.abs(s.w)))
        z, strict = self.spike(v - 0.8, surrogate=S.Sigmoid(3.0)), self.spike(s.w - 0.5, strict=True)
        return (z, strict, v), {"v": v - z * p.n, "w": o.clamp(s.w * p.a + o.erf(x.gate), -1.0, 1.0) + o.detach(z)}


class Stateless(sc.Neuron):
    """No state and no parameter."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return self.spike(x - 1.0), {}


def classes() -> List[str]:
    # a function has a value of a vector by its name in the program, which a neuron has not
    return [*[name for name in sc.neurons.MODELS if not sc.neurons.example(name).vectors], "EscapeNoise"]


def neuron_of(name: str, **options: Any) -> sc.Neuron:
    if name in sc.neurons.MODELS:
        return sc.neurons.example(name, channel_dim=-1, **options)
    return sc.stochastic.EscapeNoise(channel_dim=-1, **options)


def drives(neuron: sc.Neuron, scale: float) -> List[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    draw = torch.rand if isinstance(neuron, sc.stochastic.Stochastic) else torch.randn
    return [draw(T, B, C, generator=generator, dtype=torch.float64) * scale for _ in neuron.program.inputs]


def check(neuron: sc.Neuron, scale: float = 2.0) -> None:
    """Outputs equal, states and gradients to 1e-12."""
    xs = [x.requires_grad_() for x in drives(neuron, scale)]
    with sc.use_backend("torch"):
        outs, final = neuron.run(*xs)
    outs = [outs] if isinstance(outs, torch.Tensor) else list(outs)
    weights = [torch.cos(out.detach() + torch.arange(float(C), dtype=torch.float64)) for out in outs]
    ends = [torch.sin(value.detach()) for value in final.values()]
    learnt = {name: value for name, value in neuron.named_parameters() if name in neuron.program.params}
    grads = torch.autograd.grad(
        [*outs, *final.values()], [*xs, *learnt.values()], [*weights, *ends], materialize_grads=True
    )
    with x64(True):
        f = spikecore_jax.function(neuron)

        def loss(params: Any, given: Any) -> Any:
            found, state = f(params, None, given if len(given) > 1 else given[0])
            found = [found] if len(outs) == 1 else found
            total = sum((out * w.numpy()).sum() for out, w in zip(found, weights))
            return total + sum((state[k] * end.numpy()).sum() for k, end in zip(final, ends)), (found, state)

        of = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        given = [jnp.asarray(x.detach().numpy()) for x in xs]
        (_, (found, state)), (of_params, of_xs) = of(f.params, given)
    assert f.learnt == tuple(name for name in neuron.program.params if name in learnt)
    for out, one in zip(outs, found):
        if set(np.unique(out.detach())) <= {-1.0, 0.0, 1.0}:
            assert np.array_equal(out.detach(), one)
            assert np.any(np.asarray(one) != 0)
        np.testing.assert_allclose(one, out.detach(), rtol=1e-12, atol=1e-12)
    for key, value in final.items():
        np.testing.assert_allclose(state[key], value.detach(), rtol=1e-12, atol=1e-12)
    for wanted, one in zip(grads, [*of_xs, *[of_params[name] for name in learnt]]):
        np.testing.assert_allclose(one, wanted, rtol=1e-12, atol=1e-12 * max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize("name", classes())
def test_all_parameters_are_learnt(name: str) -> None:
    """Gradients of each, those in ranges and those that states begin at included."""
    params = tuple(neuron_of(name).params)
    check(neuron_of(name, learn=params).double(), LOUDER.get(name, 2.0))


OTHERS: Dict[str, Callable[[], sc.Neuron]] = {
    "mixed": lambda: Mixed(learn=("start", "a", "n")).double(),
    "stateless": Stateless,
    "detached reset": lambda: sc.LIF(2.0, detach_reset=True, learn=("tau",)).double(),
    "soft, rest": lambda: sc.LIF(3.0, v_reset=-0.3, reset="soft", learn=("v_reset",)).double(),
    "channels": lambda: sc.LIF(
        torch.linspace(1.5, 3.0, C), threshold=torch.ones(B, C), learn=("tau",), channel_dim=-1
    ).double(),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_other_neurons(name: str) -> None:
    """Neurons that a user writes."""
    check(OTHERS[name]())


@pytest.mark.parametrize("name", [name for name in S.__all__ if name != "Surrogate"])
def test_derivatives_of_spikes(name: str) -> None:
    """The derivative of a spike is the surrogate's formula."""
    check(sc.LIF(2.0, surrogate=getattr(S, name)()))
