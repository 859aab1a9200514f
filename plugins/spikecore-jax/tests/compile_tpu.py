"""Compile every neuron for a TPU that need not be there, and write what was compiled, as JSON.

python compile_tpu.py v5e 16 scalar       a kind of TPU, steps, and "scalar" or "channel" parameters, all learnt

The answer has for each neuron the seconds of its compilation, and the operations of the compiled text, counted. What is
compiled gives outputs and states, and the gradients of a loss of them by inputs, initial states and parameters.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from functools import partial
from typing import Any, Dict, Tuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

import spikecore as sc
import spikecore_jax

#: Neurons of a step: a row of the batch, and channels.
SHAPE = (8, 128)


def compiled(neuron: sc.Neuron, device: Any, steps: int, kind: str) -> Tuple[float, Dict[str, int]]:
    """Seconds of the compilation, and operations."""
    f = spikecore_jax.function(neuron)

    def loss(params: Any, state: Any, xs: Any) -> Any:
        outs, final = f(params, state, xs)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((outs, final))), (outs, final)

    def numbers(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=SingleDeviceSharding(device))

    inputs = tuple(numbers(steps, *SHAPE) for _ in neuron.program.inputs)
    params = {name: numbers(*SHAPE[1:] if kind == "channel" else ()) for name in f.params}
    state = {name: numbers(*SHAPE) for name in neuron.program.states}
    began = time.perf_counter()
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
    text = step.lower(params, state, inputs if len(inputs) > 1 else inputs[0]).compile().as_text()
    operations = re.findall(r"^ *(?:ROOT )?%\S+ = .*? ([a-z][a-z-]*)\(", text, re.MULTILINE)
    return time.perf_counter() - began, Counter(operations)


def main() -> None:
    """All neurons; of stochastic ones the random numbers are an input."""
    target, steps, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    device = topologies.get_topology_desc(platform="tpu", topology_name=f"{target}:2x2").devices[0]
    answers = {}
    for name in [*sc.neurons.MODELS, "EscapeNoise"]:
        make = partial(sc.neurons.example, name) if name in sc.neurons.MODELS else sc.stochastic.EscapeNoise
        neuron = make(learn=tuple(make().params), channel_dim=-1)
        seconds, operations = compiled(neuron, device, steps, kind)
        answers[name] = {"seconds": seconds, "operations": operations, "kind": device.device_kind}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
