"""Tolerances: one table, per dtype of the input and per quantity.

``|actual - expected| <= rtol |expected| + atol max(1, largest |expected|)``, where the largest is that of the same
neuron over time: what is large in one neuron excuses nothing in another. Spikes have no tolerance. State and
arithmetic are float32 for 16-bit inputs, so only what is rounded to 16 bits at the end is wider there: outputs and
input gradients. A potential of a neuron of ``+ - * /`` has no tolerance either: see the cases ``bits/*``.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Tuple

from spikecore.dtypes import DTYPES, NARROW


class Tolerance(NamedTuple):
    """Relative and absolute."""

    rtol: float
    atol: float


EXACT = Tolerance(0.0, 0.0)

#: The dtypes beside float32: wide ones first, then those that are rounded where they are stored.
OTHER_DTYPES: Tuple[str, ...] = tuple(sorted((name for name in DTYPES if name != "float32"), key=NARROW.__contains__))

_SINGLE, _DOUBLE = Tolerance(1e-5, 1e-6), Tolerance(1e-12, 1e-13)
#: A surrogate may be steep (FastSigmoid: 50 per unit), and its derivative may use approximate division.
_SINGLE_GRADIENT, _DOUBLE_GRADIENT = Tolerance(5e-4, 2e-5), Tolerance(1e-9, 1e-10)

TOLERANCES: Mapping[Tuple[str, str], Tolerance] = {
    **{(dtype, "spikes"): EXACT for dtype in DTYPES},
    ("float32", "output"): _SINGLE,
    ("float64", "output"): _DOUBLE,
    ("float16", "output"): Tolerance(1e-3, 1e-6),
    ("bfloat16", "output"): Tolerance(8e-3, 1e-6),
    **{(dtype, "potential"): _SINGLE for dtype in ("float32", *NARROW)},
    ("float64", "potential"): _DOUBLE,
    ("float32", "input gradient"): _SINGLE_GRADIENT,
    ("float64", "input gradient"): _DOUBLE_GRADIENT,
    ("float16", "input gradient"): Tolerance(2e-3, 2e-5),
    ("bfloat16", "input gradient"): Tolerance(1e-2, 2e-5),
    **{
        (dtype, quantity): _DOUBLE_GRADIENT if dtype == "float64" else _SINGLE_GRADIENT
        for dtype in DTYPES
        for quantity in ("state gradient", "parameter gradient")
    },
    # against a central difference of the oracle's adjoint, whose own error this is
}
#: No tested potential of a margin case is nearer to the threshold, or a gradient's argument nearer to a jump.
MARGIN = 1e-3
#: Steps of an exact case: as many as stay exact even where state has the input's dtype: it fails for ties alone.
EXACT_STEPS: Mapping[str, int] = {"float32": 12, "float64": 12, "float16": 7, "bfloat16": 5}
