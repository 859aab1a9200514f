"""The neurons that cases are made of: each with its oracle, its parameters, and the inputs that make it fire.

Every number is one that float32 holds exactly, so that no difference comes from writing it down.
"""

from __future__ import annotations

from typing import Any, Mapping, Tuple

import spikecore as sc
from spikecore.testing._model import ALL_RESETS, HALVES, QUARTERS, Model, single, spread
from spikecore.testing._models_papers import PAPERS
from spikecore.testing._models_snntorch import SNNTORCH
from spikecore.testing._oracle import neurons as oracle

__all__ = ["ALL_RESETS", "BY_NAME", "HALVES", "MODELS", "QUARTERS", "Model", "single", "spread"]

_PROMPT: Mapping[str, Any] = {"reset_delay": False}
_NO_DECAY: Mapping[str, Any] = {"decay_input": False}
_LIF = single(tau=2.7, threshold=0.9, v_reset=0.1)
_EXACT_LIF = {"tau": 2.0, "threshold": 1.0, "v_reset": 0.0}
_QUADRATIC = single(tau=2.3, v_c=0.7, a0=0.9, v_rest=0.05, threshold=1.1, v_reset=-0.2)
_EXACT_QUADRATIC = {"tau": 2.0, "v_c": 0.5, "a0": 0.5, "v_rest": 0.0, "threshold": 1.0, "v_reset": 0.0}

MODELS: Tuple[Model, ...] = (
    Model(
        "if",
        sc.IF,
        oracle.IF,
        single(threshold=1.1, v_reset=-0.2),
        (-0.6, 1.0),
        exact_params={"threshold": 1.0, "v_reset": 0.0},
        exact_levels=QUARTERS,
    ),
    Model("lif", sc.LIF, oracle.LIF, _LIF, (-1.0, 4.5), exact_params=_EXACT_LIF, exact_levels=HALVES),
    Model(
        "lif-nodecay",
        sc.LIF,
        oracle.LIF,
        _LIF,
        (-0.4, 1.4),
        _NO_DECAY,
        exact_params=_EXACT_LIF,
        exact_levels=QUARTERS,
    ),
    Model(
        "plif",
        sc.PLIF,
        oracle.PLIF,
        single(w=-0.4, threshold=0.9, v_reset=0.1),
        (-1.0, 4.5),
        arithmetic=False,
        exact_params={"w": 0.0, "threshold": 1.0, "v_reset": 0.0},
        exact_levels=HALVES,
    ),
    Model(
        "plif-nodecay",
        sc.PLIF,
        oracle.PLIF,
        single(w=-0.4, threshold=0.9, v_reset=0.1),
        (-0.4, 1.4),
        _NO_DECAY,
        arithmetic=False,
        exact_params={"w": 0.0, "threshold": 1.0, "v_reset": 0.0},
        exact_levels=QUARTERS,
    ),
    Model(
        "klif",
        sc.KLIF,
        oracle.KLIF,
        {**_LIF, **single(k=1.3)},
        (-1.0, 3.5),
        exact_params={**_EXACT_LIF, "k": 2.0},
        exact_levels=QUARTERS,
    ),
    Model(
        "klif-nodecay",
        sc.KLIF,
        oracle.KLIF,
        {**_LIF, **single(k=1.2)},
        (-0.6, 1.0),
        _NO_DECAY,
        exact_params={**_EXACT_LIF, "k": 1.0},
        exact_levels=QUARTERS,
    ),
    Model(
        "klif-scaled",
        sc.KLIF,
        oracle.KLIF,
        {**_LIF, **single(k=1.3)},
        (-1.0, 3.5),
        {"scale_reset": True},
        exact_params={**_EXACT_LIF, "k": 2.0},
        exact_levels=QUARTERS,
    ),
    Model(
        "qif",
        sc.QIF,
        oracle.QIF,
        _QUADRATIC,
        (-2.0, 3.0),
        exact_params=_EXACT_QUADRATIC,
        exact_levels=(0.0, 2.0, 4.0),
        exact_steps=3,
    ),
    Model(
        "eif",
        sc.EIF,
        oracle.EIF,
        single(tau=2.3, delta_t=0.9, theta_rh=0.7, v_rest=0.05, threshold=1.1, v_reset=-0.2),
        (-2.0, 2.5),
        arithmetic=False,
        # the potential is 0 after every step, where exp is exact
        exact_params={"tau": 2.0, "delta_t": 1.0, "theta_rh": 0.0, "v_rest": 0.0, "threshold": 1.0, "v_reset": 0.0},
        exact_levels=(-1.0, 1.0),
        exact_resets=("hard", "soft"),
    ),
    Model(
        "izhikevich",
        sc.Izhikevich,
        oracle.Izhikevich,
        {**_QUADRATIC, **single(w_rest=0.1, tau_w=3.1, a=0.3, b=0.2)},
        (-2.0, 3.0),
        exact_params={**_EXACT_QUADRATIC, "w_rest": 0.0, "tau_w": 2.0, "a": 0.5, "b": 0.25},
        exact_levels=(0.0, 2.0, 4.0),
        exact_steps=3,
    ),
    Model(
        "synaptic",
        sc.Synaptic,
        oracle.Synaptic,
        single(alpha=0.6, beta=0.7, threshold=1.1, v_reset=-0.2),
        (-0.8, 1.0),
        exact_params={"alpha": 0.5, "beta": 0.5, "threshold": 1.0, "v_reset": 0.0},
        exact_levels=QUARTERS,
    ),
    Model(
        "alif",
        sc.ALIF,
        oracle.ALIF,
        {**_LIF, **single(rho=0.8, beta=0.3)},
        (-1.0, 5.0),
        exact_params={**_EXACT_LIF, "rho": 0.5, "beta": 0.25},
        exact_levels=HALVES,
        exact_steps=8,
    ),
    Model(
        "alif-nodecay",
        sc.ALIF,
        oracle.ALIF,
        {**_LIF, **single(rho=0.8, beta=0.3)},
        (-0.4, 1.5),
        _NO_DECAY,
        exact_params={**_EXACT_LIF, "rho": 0.5, "beta": 0.25},
        exact_levels=QUARTERS,
        exact_steps=8,
    ),
    Model(
        "li",
        sc.LI,
        oracle.LI,
        single(tau=2.7, v_rest=0.1),
        (-2.0, 3.0),
        resets=("none",),
        outputs=("output",),
        exact_params={"tau": 2.0, "v_rest": 0.0},
        exact_levels=HALVES,
        exact_resets=("none",),
    ),
    Model(
        "li-nodecay",
        sc.LI,
        oracle.LI,
        single(tau=2.7, v_rest=0.1),
        (-1.0, 1.5),
        _NO_DECAY,
        resets=("none",),
        outputs=("output",),
        exact_params={"tau": 2.0, "v_rest": 0.0},
        exact_levels=QUARTERS,
        exact_resets=("none",),
    ),
    Model(
        "leaky",
        sc.Leaky,
        oracle.Leaky,
        single(beta=0.85, threshold=1.1),
        (-0.4, 1.2),
        exact_params={"beta": 0.5, "threshold": 1.0},
        exact_levels=QUARTERS,
    ),
    Model(
        "leaky-prompt",
        sc.Leaky,
        oracle.Leaky,
        single(beta=0.85, threshold=1.1),
        (-0.4, 1.2),
        _PROMPT,
        resets=("hard", "soft"),
        exact_params={"beta": 0.5, "threshold": 1.0},
        exact_levels=QUARTERS,
        exact_resets=("hard", "soft"),
    ),
    *SNNTORCH,
    *PAPERS,
)
BY_NAME: Mapping[str, Model] = {model.name: model for model in MODELS}
