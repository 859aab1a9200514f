"""Values of parameters that no float32 holds, and parameters of other dtypes than the input."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from spikecore.dtypes import DTYPES
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._inputs import rounded
from spikecore.testing._models import spread
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import Tolerance
from spikecore.testing._turning import SWAP

#: Name -> a number that float32 does not hold, or not to the last digit.
NUMBERS: Mapping[str, float] = {
    "tenth": 0.1,
    "third": 1 / 3,
    "past-2-to-24": 16777217.0,
    "small": 1e-30 / 3,
    "half-way": 1 + 2**-24 + 2**-50,
}
#: dtype of the parameter, dtype of the input.
DTYPE_PAIRS = (
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float64", "float32"),
    ("float16", "float16"),
    ("bfloat16", "float16"),
    ("float32", "float16"),
    ("float16", "float64"),
    ("float32", "float64"),
    ("float64", "float64"),
)
#: Shape of one time step, and those of a parameter.
_STEP = (3, 5)
KINDS: Mapping[str, Sequence[int]] = {"scalar": (), "channel": (5,), "full": (3, 5)}
_NEAR = {"float16": Tolerance(2e-3, 2e-5), "bfloat16": Tolerance(1e-2, 2e-5)}


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of parameters."""
    for name, number in NUMBERS.items():
        for dtype, holds in (
            ("float32", "a number that float32 does not hold is rounded to float32 once"),
            ("float64", "with float64 inputs a number counts with all its digits"),
        ):
            cases.add(
                f"parameters/number-{name}-{dtype}",
                "parameters",
                holds,
                partial(numbered, number=number, dtype=dtype),
                dtype=dtype,
            )
    more: Dict[str, Sequence[str]] = {"scalar": (), "channel": ("channel_parameters",), "full": ("full_parameters",)}
    for held, dtype in DTYPE_PAIRS:
        for kind in KINDS:
            cases.add(
                f"parameters/{kind}-{held}-on-{dtype}",
                "parameters",
                "a tensor of another dtype counts as rounded to that of arithmetic; its gradient is in its own dtype",
                partial(held_in, held=held, dtype=dtype, kind=kind),
                ("gradients", "parameter_gradients", *more[kind]),
                dtype=dtype,
            )


def numbered(context: Context, number: float, dtype: str) -> None:
    """To the bit, outputs and final state."""
    s = Subject(context, SWAP, "none", shape=(6, *_STEP), dtype=dtype, values={"leak": number})
    output, final = s.neuron.run(s.x())
    s.check_outputs(output, f" with the number {number!r}", exact=True)
    s.check_states(final, s.bits().final, f"final state, with the number {number!r},", exact=True)


def held_in(context: Context, held: str, dtype: str, kind: str) -> None:
    """Outputs, and the gradient of the parameter, learnt."""
    value = rounded(spread(0.7, KINDS[kind]), DTYPES[held])
    s = Subject(context, SWAP, "none", shape=(6, *_STEP), dtype=dtype, values={"leak": np.asarray(value)})
    neuron: Any = s.neuron
    neuron.leak = leaf = nn.Parameter(context.tensor(value, DTYPES[held]))
    x = s.x(grad=True)
    output = neuron(x)
    s.check_outputs(output, f" with a {kind} parameter in {held}")
    cotangent = s.cotangent(output)
    backward(s.of, [output], [cotangent])
    expected = s.gradients(cotangent)
    s.check("input gradient", x.grad, expected.inputs[0])
    if leaf.grad is None or leaf.grad.dtype != DTYPES[held]:
        found = None if leaf.grad is None else leaf.grad.dtype
        raise Mismatch(f"the gradient of leak, {DTYPES[held]}, of {s.of} is {found}")
    wide = Tolerance(1e-9, 1e-10) if (held, dtype) == ("float64", "float64") else Tolerance(5e-4, 2e-5)
    right = expected.params["leak"]
    what = f"gradient of leak, a {kind} parameter in {held},"
    same(what, s.of, as_array(leaf.grad), right, _NEAR.get(held, wide), axes="n")
    if held == "float16" and dtype != "float64":
        _overflow(context, s, leaf, kind)


def _overflow(context: Context, s: Subject, leaf: Any, kind: str) -> None:
    """A sum past 65504 is infinite in the parameter's dtype; it was finite while it was summed."""
    leaf.grad = None
    output = s.neuron(s.x())
    large = torch.full_like(output, 3e4 if s.dtype == torch.float16 else 3e6)
    backward(s.of, [output], [large])
    right = s.gradients(large).params["leak"]
    with np.errstate(over="ignore"):
        wanted = np.asarray(np.float16(right), float)
    clear = np.abs(np.abs(right) - 65520) > 700  # not where rounding decides
    what = f"gradient of leak, a {kind} parameter in float16, past what it holds,"
    found = as_array(leaf.grad)
    same(what, s.of, np.where(clear, found, 0.0), np.where(clear, wanted, 0.0), Tolerance(2e-3, 2e-5), axes="n")
