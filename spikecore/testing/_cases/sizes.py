"""More neurons than one grid, one launch or one partial sum can take, many dimensions, and one of everything.

Inputs and cotangents are small whole numbers, so that sums of hundreds of thousands of products are exact in float32 in
whatever order they are made: one neuron left out, or counted twice, shows.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Iterator, Tuple

import numpy as np
import torch

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._inputs import generator
from spikecore.testing._oracle import Array, summed

#: Name -> shape ``[T, *N]``.
SHAPES: Dict[str, Tuple[int, ...]] = {
    "65539-neurons": (1, 65539),
    "131075-neurons": (2, 131075),
    "131075-neurons-in-rows": (1, 5, 26215),
    "batch-of-65537": (1, 65537, 2),
    "rows-of-65537": (1, 2, 65537),
    "five-dimensions": (2, 2, 3, 5, 2, 7),
    "six-dimensions": (2, 2, 3, 1, 2, 5, 3),
    "odd-inner-sizes": (2, 3, 33, 17),
    "one-neuron": (2, 1),
    "one-of-everything": (1, 1, 1, 1),
}
#: Name -> shape, channel_dim.
CHANNELS: Dict[str, Tuple[Tuple[int, ...], int]] = {
    "one-channel": ((2, 3, 1, 5), 1),
    "1025-channels": ((2, 3, 1025), 1),
    "1025-channels-inside": ((2, 2, 1025, 3), 1),
    "1025-channels-last": ((2, 3, 5, 1025), -1),
    "65537-channels-first": ((1, 65537, 2), 0),
    "three-channels-of-65537": ((1, 1, 3, 65537), 1),
    "three-channels-last-of-43693": ((1, 43693, 3), -1),
    "channels-of-five-dimensions": ((2, 2, 3, 5, 2, 7), 2),
}


class Leak(sc.Neuron):
    """``v' = v / 2 + a x``, which is the output."""

    states = {"v": 0.0}
    params = {"a": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """A leak and a gain."""
        v = s.v * 0.5 + x * p.a
        return v, {"v": v}


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of layouts."""
    needs = ("gradients", "parameter_gradients")
    for name, shape in SHAPES.items():
        cases.add(
            f"layouts/size-{name}",
            "layouts",
            "every neuron of this many is computed, and counted once in the gradient of a shared parameter",
            partial(sized, shape=shape),
            needs,
        )
    for name, (shape, dim) in CHANNELS.items():
        cases.add(
            f"layouts/size-{name}",
            "layouts",
            "every neuron of so many channels is computed, and counted once in the gradient of its channel",
            partial(sized, shape=shape, dim=dim),
            (*needs, "channel_parameters"),
        )


def sized(context: Context, shape: Tuple[int, ...], dim: Any = None) -> None:
    """Outputs, final state, and the gradients of input and parameter, to the bit."""
    rng = generator("sizes", shape)
    x, g = (rng.integers(1, 4, size=shape).astype(float) for _ in range(2))
    a: Any = 0.5
    wide: Any = 0.5
    options: Dict[str, Any] = {}
    if dim is not None:
        neurons = shape[1:]
        a = 0.5 + np.arange(neurons[dim]) % 3
        wide = a.reshape([neurons[dim] if i == dim % len(neurons) else 1 for i in range(len(neurons))])
        options["channel_dim"] = dim
    neuron = context.place(Leak(a=torch.tensor(a, dtype=torch.float32), learn=("a",), backend=context.name, **options))
    leaf = context.tensor(x, grad=True)
    output, final = neuron.run(leaf)
    of = f"{neuron!r} on input {list(shape)}"
    v: Array = np.zeros(shape[1:])
    seen = []
    for now in x:
        v = v * 0.5 + now * wide
        seen.append(v)
    axes = "t, " + ", ".join("nklmij"[: len(shape) - 1])
    same("output", of, as_array(output), np.stack(seen), axes=axes)
    same("final v", of, as_array(final["v"]), v, axes=axes[3:])
    backward(of, [output], [context.tensor(g)])
    back, total = np.zeros(shape[1:]), []
    for now in g[::-1]:
        back = now + back * 0.5
        total.append(back)
    reached = np.stack(total[::-1])
    if leaf.grad is None or neuron.a.grad is None:
        raise Mismatch(f"{of}: input or parameter got no gradient")
    same("input gradient", of, as_array(leaf.grad), reached * wide, axes=axes)
    parts = (reached * x).sum(0)
    right = _summed(parts, wide, a)
    came, suspects = as_array(neuron.a.grad), {}
    if not np.array_equal(came, right):
        # sums are exact, so what is only near is another one
        found = ((phrase, _summed(parts * mask, wide, a)) for phrase, mask in _some(shape[1:]))
        suspects = {phrase: partial(np.asarray, some) for phrase, some in found if np.array_equal(some, came)}
    what = "gradient of a, a sum of whole numbers,"
    same(what, of, came, right, axes="channel", suspects=suspects)


def _summed(parts: Array, wide: Any, a: Any) -> Array:
    return np.reshape(summed(parts, parts.shape, np.shape(wide)), np.shape(a))


def _some(shape: Tuple[int, ...]) -> Iterator[Tuple[str, Array]]:
    """Neurons that a sum in blocks may leave out, in words, and 1 for those that it has."""
    number = np.arange(int(np.prod(shape))).reshape(shape)
    count = number.size
    for block in (2**k for k in range(17, 4, -1)):
        if block < count:
            yield f"of the first {block} neurons alone, of {count}: is it summed over all blocks?", number < block
            yield f"of all neurons but the first {block}, of {count}", number >= block
        if block < count and count % block:
            whole = count - count % block
            yield f"of all neurons but the last, incomplete block of {block}", number < whole
            yield f"of the last, incomplete block of {block} neurons alone", number >= whole
    yield f"of all neurons but the last, of {count}", number < count - 1
    yield f"of all neurons but the first, of {count}", number > 0
