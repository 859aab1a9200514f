"""Layouts and sizes, beside the rows: more neurons than one grid, one launch or one partial sum can take.

Inputs and cotangents are small whole numbers, so that sums of hundreds of thousands of products are exact in float32 in
whatever order they are made: one neuron left out, or counted twice, shows.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Tuple

import numpy as np
import torch

from spikecore.testing._case import Collection
from spikecore.testing._cases.language import operation
from spikecore.testing._context import Context
from spikecore.testing._inputs import generator
from spikecore.testing._oracle import adjoint, run
from spikecore.testing.compare import Mismatch, as_array, backward, same

CASES = Collection()


#: Name -> shape ``[T, *N]`` and, where the parameter is one per channel, channel_dim.
_SIZES: Dict[str, Tuple[Tuple[int, ...], Any]] = {
    "65539-neurons": ((1, 65539), None),
    "131075-neurons": ((2, 131075), None),
    "131075-neurons-in-rows": ((1, 5, 26215), None),
    "batch-of-65537": ((1, 65537, 2), None),
    "rows-of-65537": ((1, 2, 65537), None),
    "five-dimensions": ((2, 2, 3, 5, 2, 7), None),
    "six-dimensions": ((2, 2, 3, 1, 2, 5, 3), None),
    "odd-inner-sizes": ((2, 3, 33, 17), None),
    "one-neuron": ((2, 1), None),
    "one-of-everything": ((1, 1, 1, 1), None),
    "one-channel": ((2, 3, 1, 5), 1),
    "1025-channels": ((2, 3, 1025), 1),
    "1025-channels-inside": ((2, 2, 1025, 3), 1),
    "1025-channels-last": ((2, 3, 5, 1025), -1),
    "65537-channels-first": ((1, 65537, 2), 0),
    "three-channels-of-65537": ((1, 1, 3, 65537), 1),
    "three-channels-last-of-43693": ((1, 43693, 3), -1),
    "channels-of-five-dimensions": ((2, 2, 3, 5, 2, 7), 2),
}


def _sized(context: Context, shape: Tuple[int, ...], dim: Any) -> None:
    """Outputs, final state, and the gradients of input and parameter of ``v' = v / 2 + x c``, to the bit."""
    rng, neurons = generator("sizes", shape), shape[1:]
    x, g = (rng.integers(1, 4, size=shape).astype(float) for _ in range(2))
    c = np.asarray(0.5) if dim is None else 0.5 + np.arange(neurons[dim]) % 3
    wide = c if dim is None else c.reshape([-1 if i == dim % len(neurons) else 1 for i in range(len(neurons))])
    options: Dict[str, Any] = {} if dim is None else {"channel_dim": dim}
    product = operation("mul")
    made: Any = product.neuron
    made = made(c=torch.tensor(c, dtype=torch.float32), learn=("c",), backend=context.name, **options)
    neuron = context.place(made)
    leaf = context.tensor(x, grad=True)
    output, final = neuron.run(leaf)
    of = f"{neuron!r} on input {list(shape)}"
    backward(of, [output], [context.tensor(g)])
    seen = run(product.oracle(), [x], {"c": wide})
    right = adjoint(seen, [g])
    axes = ", ".join("nklmij"[: len(neurons)])
    for what, value, expected, names in (
        ("output", output, seen.outputs[0], f"t, {axes}"),
        ("final v", final["v"], seen.final["v"], axes),
        ("input gradient", leaf.grad, right.inputs[0], f"t, {axes}"),
        ("gradient of c, a sum of whole numbers,", neuron.c.grad, right.params["c"].reshape(c.shape), "channel"),
    ):
        if value is None:
            raise Mismatch(f"{what} of {of}: there is none")
        same(what, of, as_array(value), expected, axes=names)


for _name, (_shape, _dim) in _SIZES.items():
    _holds = "every neuron of so many is computed, and counted once in the gradient of its parameter"
    _needs = ("gradients", "parameter_gradients", *(() if _dim is None else ("channel_parameters",)))
    _run = partial(_sized, shape=_shape, dim=_dim)
    CASES.add(f"layouts/size-{_name}", "layouts", _holds, _run, _needs)
