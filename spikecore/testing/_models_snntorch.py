"""The neurons of snnTorch that cases are made of, beside Leaky, as :mod:`spikecore.testing._models` says."""

from __future__ import annotations

from typing import Any, Mapping, Tuple

import spikecore as sc
from spikecore.testing._model import QUARTERS, Model, single
from spikecore.testing._oracle import snntorch as oracle

_PROMPT: Mapping[str, Any] = {"reset_delay": False}

SNNTORCH: Tuple[Model, ...] = (
    Model(
        "synaptic-leaky",
        sc.SynapticLeaky,
        oracle.SynapticLeaky,
        single(alpha=0.6, beta=0.7, threshold=1.1),
        (-0.6, 1.0),
        exact_params={"alpha": 0.5, "beta": 0.5, "threshold": 1.0},
        exact_levels=QUARTERS,
    ),
    Model(
        "synaptic-leaky-prompt",
        sc.SynapticLeaky,
        oracle.SynapticLeaky,
        single(alpha=0.6, beta=0.7, threshold=1.1),
        (-0.6, 1.0),
        _PROMPT,
        resets=("hard", "soft"),
        exact_params={"alpha": 0.5, "beta": 0.5, "threshold": 1.0},
        exact_levels=QUARTERS,
        exact_resets=("hard", "soft"),
    ),
    Model(
        "alpha",
        sc.Alpha,
        oracle.Alpha,
        single(alpha=0.85, beta=0.7, threshold=0.6),
        (-1.0, 2.5),
        arithmetic=False,
        # the logarithm of the square is twice the other one to the bit, so tau is 2
        exact_params={"alpha": 0.5, "beta": 0.25, "threshold": 0.25},
        exact_levels=QUARTERS,
        exact_steps=6,
    ),
    Model(
        "lapicque",
        sc.Lapicque,
        oracle.Lapicque,
        single(R=1.3, C=1.7, time_step=0.6, threshold=0.9),
        (-0.8, 3.0),
        exact_params={"R": 2.0, "C": 1.0, "time_step": 1.0, "threshold": 1.0},
        exact_levels=QUARTERS,
    ),
)
