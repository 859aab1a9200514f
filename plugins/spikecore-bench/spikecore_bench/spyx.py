"""Spyx for the suites of the field: its ``nn.LIF`` in ``lax.scan``."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Tuple

from spikecore_bench.jax_layers import jax, jnp

axn: Any = import_module("spyx.axn")
neurons: Any = import_module("spyx.nn")
rngs: Any = import_module("flax.nnx").Rngs


def spikes(x: Any, unrolled: int) -> Any:
    """Of a layer ``[T, B, N]``."""
    atan = axn.custom(lambda u: 1.0 / (1.0 + (jnp.pi * u) ** 2))  # ATan(2)
    neuron = neurons.LIF((x.shape[-1],), beta=0.5, activation=atan, rngs=rngs(0))

    def step(v: Any, now: Any) -> Tuple[Any, Any]:
        fired, v = neuron(now, v)
        return v, fired.astype(x.dtype)

    return jax.lax.scan(step, neuron.initial_state(x.shape[1]), x, unroll=unrolled)[1]
