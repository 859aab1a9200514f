"""A spiking network in JAX alone: handwritten digits, neurons defined once, several seeds trained at the same time.

The same network in PyTorch, with the weights that JAX has found, gives the same spikes; and how long a training step
takes is measured beside it. Needs scikit-learn for the images.

    python examples/digits.py --seeds 4 --epochs 20
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable, Dict, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import spikecore as sc
import spikecore_jax

STEPS, HIDDEN, BATCH, RATE = 8, 128, 64, 2e-3
#: What crosses over: PyTorch's name -> name in the tree of arrays.
NAMES = {"0.weight": "w1", "0.bias": "b1", "2.weight": "w2", "2.bias": "b2"}
NEURON = sc.LIF(tau=2.0)
LIF = spikecore_jax.function(NEURON)
Params = Dict[str, jax.Array]


def initial(key: Any) -> Params:
    """Weights as PyTorch begins with them."""
    keys = iter(jax.random.split(key, 4))
    sizes = {"w1": (64, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, 10), "b2": (10,)}
    return {
        name: jax.random.uniform(next(keys), size, minval=-1, maxval=1) * (64 if name[1] == "1" else HIDDEN) ** -0.5
        for name, size in sizes.items()
    }


def logits(params: Params, x: jax.Array) -> jax.Array:
    """The mean over time of the read-out, of images ``[B, 64]`` that are shown at every step."""
    current = jnp.broadcast_to(x @ params["w1"] * 4 + params["b1"], (STEPS, x.shape[0], HIDDEN))
    spikes, _ = LIF(LIF.params, None, current)
    return (spikes @ params["w2"] + params["b2"]).mean(0)


def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Cross entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], 1).mean()


def updated(params: Params, moments: Any, count: Any, x: jax.Array, y: jax.Array) -> Tuple[Params, Any]:
    """One step of Adam (Kingma and Ba, 2015)."""
    grads = jax.grad(loss)(params, x, y)
    first, second = (
        jax.tree.map(lambda m, g, b=b, k=k: b * m + (1 - b) * g**k, moment, grads)
        for moment, b, k in zip(moments, (0.9, 0.999), (1, 2))
    )
    scale = RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    return jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), params, first, second), (first, second)


def trained(seeds: int, epochs: int, x: np.ndarray, y: np.ndarray) -> Params:
    """Networks of so many seeds, trained together: the first dimension of every array is the seed."""
    keys = jax.random.split(jax.random.key(0), seeds)
    params = jax.vmap(initial)(keys)
    moments = (jax.tree.map(jnp.zeros_like, params),) * 2
    step = jax.jit(jax.vmap(updated, in_axes=(0, 0, None, None, None)))
    order, count = np.random.default_rng(0), 0
    for _ in range(epochs):
        for rows in np.array_split(order.permutation(len(x)), len(x) // BATCH):
            count += 1
            params, moments = step(params, moments, float(count), x[rows[:BATCH]], y[rows[:BATCH]])
    return params


def in_torch(params: Params) -> nn.Sequential:
    """The same network in PyTorch, with these weights."""
    net = nn.Sequential(nn.Linear(64, HIDDEN), NEURON, nn.Linear(HIDDEN, 10))
    arrays = {theirs: torch.from_numpy(np.array(params[ours])) for theirs, ours in NAMES.items()}
    net.load_state_dict({name: value.T if value.ndim > 1 else value for name, value in arrays.items()})
    return net


def spikes_of(net: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """The spikes of the hidden layer."""
    current = x @ net[0].weight.T * 4 + net[0].bias
    out: torch.Tensor = net[1](current.expand(STEPS, *current.shape))
    return out


def seconds(call: Callable[[], Any], count: int = 30) -> float:
    """The shortest of some calls."""
    call()
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return min(found)


def of_torch(params: Params, backend: str, x: np.ndarray, y: np.ndarray) -> float:
    """Seconds of a training step in PyTorch."""
    net = in_torch(params)
    sc.set_backend(net, backend)
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    images, labels = torch.from_numpy(x), torch.from_numpy(y)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net[2](spikes_of(net, images)).mean(0), labels).backward()
        optimizer.step()

    return seconds(step)


def main() -> None:
    """Train, compare, measure."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype(np.float32), labels.astype(np.int64)
    begun = time.perf_counter()
    params = jax.block_until_ready(trained(args.seeds, args.epochs, x[:1437], y[:1437]))
    took = time.perf_counter() - begun
    found = jax.vmap(lambda one: (logits(one, x[1437:]).argmax(-1) == y[1437:]).mean())(params)
    print(f"test accuracy of {args.seeds} seeds: {' '.join(f'{100 * one:.1f}' for one in found)} %, {took:.1f} s")

    # multiples of 2^-10: sums of products are exact in any order, so that nothing is left to rounding
    one = jax.tree.map(lambda value: jnp.round(value[0] * 1024) / 1024, params)
    current = jnp.broadcast_to(x @ one["w1"] * 4 + one["b1"], (STEPS, len(x), HIDDEN))
    ours = np.asarray(jax.jit(LIF)(LIF.params, None, current)[0])
    with torch.no_grad():
        theirs = spikes_of(in_torch(one), torch.from_numpy(x)).numpy()
    print(f"spikes in JAX and in PyTorch with the same weights: {int((ours != theirs).sum())} of {ours.size:,} differ")

    batch = x[:BATCH], y[:BATCH]
    moments = (jax.tree.map(jnp.zeros_like, one),) * 2
    step = jax.jit(updated)
    print("training step, ms:", end="")
    print(f" jax {1e3 * seconds(lambda: jax.block_until_ready(step(one, moments, 1.0, *batch))):.2f}", end="")
    for backend in ("numba", "torch"):
        print(f", PyTorch on {backend} {1e3 * of_torch(one, backend, *batch):.2f}", end="")
    print()


if __name__ == "__main__":
    main()
