"""A layer of neurons of a library that computes with JAX, for the suites of the field.

Weights, inputs and optimiser are JAX's own, each function is compiled as a whole, and every call waits for its result.
Products of float32 matrices have the precision of float32, where JAX would choose TF32 by itself.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Callable, List, Tuple

from torch import Tensor, tensor

from spikecore_bench.check import Observed

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take the memory that torch needs

jax: Any = import_module("jax")
jnp: Any = jax.numpy
jax.config.update("jax_default_matmul_precision", "highest")

#: Steps that are unrolled in a loop over time: what is fastest on a CPU, and what the Open Neuromorphic benchmark has.
UNROLLED = {"cpu": 1, "cuda": 5}
#: ``[T, B, N] -> [T, B, N]``, with so many steps unrolled.
Spikes = Callable[[Any, int], Any]


def put(x: Tensor) -> Any:
    """The tensor on the device of its kind."""
    kind = "gpu" if x.device.type == "cuda" else "cpu"
    numbers = x.detach().float().cpu().numpy()
    return jax.device_put(jnp.asarray(numbers, dtype=str(x.dtype).replace("torch.", "")), jax.devices(kind)[0])


def get(x: Any, like: Tensor) -> Tensor:
    """A tensor on the device and in the dtype of another."""
    return tensor(jnp.asarray(x, jnp.float32).tolist()).to(like)


def waiting(call: Callable[..., Any], *arguments: Any) -> Callable[[int], Any]:
    """A call that returns when its result is there."""
    return lambda i: jax.block_until_ready(call(*arguments))


def _fires(u: Any) -> Any:
    return (u >= 0).astype(u.dtype)


def _fires_jvp(primals: Any, tangents: Any) -> Any:
    (u,), (du,) = primals, tangents
    return _fires(u), du / (1.0 + (jnp.pi * u) ** 2)


#: 1 where the argument is 0 or more; its derivative is that of ATan(2).
spike: Any = jax.custom_jvp(_fires)
spike.defjvp(_fires_jvp)


class LayerOfJax:
    """The neurons, a linear layer with them, and the classifier; gradients by backpropagation through time."""

    def __init__(self, spikes: Spikes) -> None:
        self._spikes = spikes

    def observe(self, x: Tensor, cotangent: Tensor) -> Observed:
        """Spikes and the input's gradient."""
        spikes, pull = jax.vjp(jax.jit(lambda inputs: self._spikes(inputs, 1)), put(x))
        return Observed(get(spikes, x), get(pull(put(cotangent))[0], x), ())

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Callable[[int], Any], Callable[[int], Any]]:
        """Forward, and forward with the gradients of the weights, of the sum of the spikes."""
        inputs, weights, unrolled = put(x), (put(weight), put(bias)), UNROLLED[x.device.type]

        def layer(weights: Any, inputs: Any) -> Any:
            return self._spikes(inputs @ weights[0].T + weights[1], unrolled)

        both = jax.jit(jax.value_and_grad(lambda weights, inputs: layer(weights, inputs).sum()))
        return waiting(jax.jit(layer), weights, inputs), waiting(both, weights, inputs)

    def classifier(self, weights: List[Tensor], x: Tensor, labels: Tensor, rate: float) -> Callable[[int], float]:
        """A training step with Adam: linear layers with neurons between them, the last one summed over time."""
        optax: Any = import_module("optax")
        inputs, classes, unrolled = put(x), put(labels).astype(jnp.int32), UNROLLED[x.device.type]
        adam = optax.adam(rate)
        parameters = [put(weight) for weight in weights]
        state = [parameters, adam.init(parameters)]

        def loss(parameters: Any, inputs: Any, classes: Any) -> Any:
            for weight in parameters[:-1]:
                inputs = self._spikes(inputs @ weight.T, unrolled)
            scores = (inputs @ parameters[-1].T).sum(0)
            return optax.softmax_cross_entropy_with_integer_labels(scores, classes).mean()

        def step(parameters: Any, moments: Any, inputs: Any, classes: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(parameters, inputs, classes)
            changes, moments = adam.update(gradients, moments, parameters)
            return optax.apply_updates(parameters, changes), moments, value

        compiled = jax.jit(step)

        def call(i: int) -> float:
            state[0], state[1], value = jax.block_until_ready(compiled(*state, inputs, classes))
            return float(value)

        return call
