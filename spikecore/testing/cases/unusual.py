"""Programs as nobody writes them by hand: names that a kernel might use for itself, and hundreds of operations."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np
import torch

import spikecore as sc
from spikecore.testing.case import Collection
from spikecore.testing.compare import as_array, backward, same
from spikecore.testing.context import Context
from spikecore.testing.naming import Naming, awkward, namings, results, usable
from spikecore.testing.tolerances import TOLERANCES

#: Names of kernels' own values, of C, Python, NumPy, CUDA and Triton: as many for each of the five roles.
NAMES = "j i t0 n N T out grad_x sum count begin at M_PI INFINITY tl np math auto range float32".split()
_NEEDS = (
    "gradients", "parameter_gradients", "state_gradients", "channel_parameters", "full_parameters", "record",
    "several_outputs", "several_inputs",
)  # fmt: skip


class Deep(sc.Neuron):
    """Hundreds of operations, one in the other, of inputs and of parameters alone.

    ``y = r^220 x + (1 + r + ... + r^219) v`` and ``v' = (1 + 1/4 + ... + 1/4^60) a x``.
    """

    states = {"v": 0.0}
    params = {"a": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """Both sums, term by term."""
        y, c = x, p.a
        for k in range(220):
            y = y * RATIO + s.v
            c = c * 0.25 + p.a if k < 60 else c
        return y, {"v": x * c}


#: Of one term to the next in :class:`Deep`.
RATIO = 0.99


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of the language."""
    cases.add("language/names", "language", "a user's names may be those of anything in a kernel", names, _NEEDS)
    long = "names may be long, beyond ASCII, and no identifiers for a class"
    cases.add("language/long-names", "language", long, long_names, _NEEDS[:-1])
    needs = ("gradients", "parameter_gradients", "channel_parameters")
    cases.add("language/deep", "language", "hundreds of operations, one in the other, are computed", deep, needs)


def names(context: Context) -> None:
    """Every name in every role: local variable, parameter, state, input, field of a surrogate."""
    for naming in namings(usable(NAMES), len(NAMES)):
        _as_under_harmless_names(context, naming)


def long_names(context: Context) -> None:
    """500 letters, Greek and German ones, and a class whose name has quotes and a line break."""
    _as_under_harmless_names(context, awkward())


def _as_under_harmless_names(context: Context, naming: Naming) -> None:
    device = str(context.device)
    found, expected = results(naming, context.name, device), results(naming.harmless(), context.name, device)
    for (what, value), (_, right) in zip(found.items(), expected.items()):
        kind = "parameter gradient" if what.startswith("gradient") else "output"
        same(
            f"{what}, as under other names,",
            repr(naming),
            as_array(value),
            as_array(right),
            TOLERANCES["float32", kind],
        )


def deep(context: Context) -> None:
    """Values and gradients against the closed form. Python's parser, for one, stops at 200 parentheses."""
    x = np.random.default_rng(0).random((3, 2, 3))
    a = np.asarray([0.25, 0.5, 0.75])
    neuron = context.place(Deep(a=torch.tensor(a, dtype=torch.float32), learn=("a",), backend=context.name))
    leaf = context.tensor(x, grad=True)
    output, end = neuron.run(leaf)
    backward(repr(neuron), [output, end["v"]], [torch.ones_like(output), torch.ones_like(end["v"])])
    whole, quarters = (1 - RATIO**220) / (1 - RATIO), (1 - 0.25**61) / 0.75
    before = np.concatenate([np.zeros((1, 2, 3)), x[:-1] * a * quarters])
    # v' reaches the next output, or is the final state
    reaches = np.asarray([whole, whole, 1.0]).reshape(3, 1, 1)
    rows = [
        ("output", output, RATIO**220 * x + whole * before, "output"),
        ("final v", end["v"], x[-1] * a * quarters, "output"),
        ("gradient of x", leaf.grad, RATIO**220 + a * quarters * reaches, "input gradient"),
        ("gradient of a", neuron.a.grad, (quarters * x * reaches).sum((0, 1)), "parameter gradient"),
    ]
    for what, ours, right, kind in rows:
        same(what, repr(neuron), as_array(ours), np.broadcast_to(right, ours.shape), TOLERANCES["float32", kind])
