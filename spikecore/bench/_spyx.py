"""Spyx for the suites of the field: its ``nn.LIF`` under ``jax.jit``, and every call waits for its result.

Its weights, inputs and optimiser are JAX's own. Products of float32 matrices have the precision of float32, where JAX
would choose TF32 by itself.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Callable, List, Tuple

from torch import Tensor, tensor

from spikecore.bench._check import Observed

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take the memory that torch needs

jax: Any = import_module("jax")
jnp, optax, nnx = jax.numpy, import_module("optax"), import_module("flax.nnx")
axn, neurons = import_module("spyx.axn"), import_module("spyx.nn")

#: Steps that are unrolled in a scan over time, as the Open Neuromorphic benchmark has it.
UNROLLED = 5


def _neuron(width: int) -> Any:
    atan = axn.custom(lambda u: 1.0 / (1.0 + (jnp.pi * u) ** 2))  # ATan(2)
    return neurons.LIF((width,), beta=0.5, activation=atan, rngs=nnx.Rngs(0))


def _spikes(x: Any) -> Any:
    """Of a layer ``[T, B, N]``."""
    neuron = _neuron(x.shape[-1])

    def step(v: Any, now: Any) -> Tuple[Any, Any]:
        spikes, v = neuron(now, v)
        return v, spikes.astype(x.dtype)

    return jax.lax.scan(step, neuron.initial_state(x.shape[1]), x, unroll=UNROLLED)[1]


def _put(x: Tensor) -> Any:
    """The tensor on the device of its kind."""
    kind = "gpu" if x.device.type == "cuda" else "cpu"
    numbers = x.detach().float().cpu().numpy()
    return jax.device_put(jnp.asarray(numbers, dtype=str(x.dtype).replace("torch.", "")), jax.devices(kind)[0])


def _get(x: Any, like: Tensor) -> Tensor:
    return tensor(jnp.asarray(x, jnp.float32).tolist()).to(like)


class Layer:
    """The layer, the linear layer with it, and the classifier."""

    def observe(self, x: Tensor, cotangent: Tensor) -> Observed:
        """Spikes and the input's gradient."""
        spikes, pull = jax.vjp(jax.jit(_spikes), _put(x))
        return Observed(_get(spikes, x), _get(pull(_put(cotangent))[0], x), ())

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Callable[[int], Any], Callable[[int], Any]]:
        """Forward, and forward with the gradients of the weights, of the sum of the spikes."""
        inputs, weights = _put(x), (_put(weight), _put(bias))

        def layer(weights: Any, inputs: Any) -> Any:
            return _spikes(_product(inputs, weights[0]) + weights[1])

        forward = jax.jit(layer)
        both = jax.jit(jax.value_and_grad(lambda weights, inputs: layer(weights, inputs).sum()))
        return (
            lambda i: jax.block_until_ready(forward(weights, inputs)),
            lambda i: jax.block_until_ready(both(weights, inputs)),
        )

    def classifier(self, weights: List[Tensor], x: Tensor, labels: Tensor, rate: float) -> Callable[[int], float]:
        """A training step with Adam: linear layers with neurons between them, the last one summed over time."""
        inputs, classes = _put(x), _put(labels).astype(jnp.int32)
        adam = optax.adam(rate)
        parameters = [_put(weight) for weight in weights]
        state = [parameters, adam.init(parameters)]

        def loss(parameters: Any, inputs: Any, classes: Any) -> Any:
            for weight in parameters[:-1]:
                inputs = _spikes(_product(inputs, weight))
            scores = _product(inputs, parameters[-1]).sum(0)
            return optax.softmax_cross_entropy_with_integer_labels(scores, classes).mean()

        def step(parameters: Any, kept: Any, inputs: Any, classes: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(parameters, inputs, classes)
            changes, kept = adam.update(gradients, kept, parameters)
            return optax.apply_updates(parameters, changes), kept, value

        compiled = jax.jit(step)

        def call(i: int) -> float:
            state[0], state[1], value = jax.block_until_ready(compiled(*state, inputs, classes))
            return float(value)

        return call


def _product(x: Any, weight: Any) -> Any:
    return jnp.matmul(x, weight.T, precision=jax.lax.Precision.HIGHEST)
