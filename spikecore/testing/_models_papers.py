"""The neurons of single papers that cases are made of, as :mod:`spikecore.testing._models` says."""

from __future__ import annotations

from typing import Tuple

import spikecore as sc
from spikecore.testing._model import HALVES, QUARTERS, Model, single
from spikecore.testing._oracle import papers as oracle

PAPERS: Tuple[Model, ...] = (
    Model(
        "clif",
        sc.CLIF,
        oracle.CLIF,
        single(tau=2.3, threshold=0.9),
        (-0.5, 1.6),
        resets=("none",),
        arithmetic=False,
        exact_resets=(),
    ),
    Model(
        "glif",
        sc.GLIF,
        oracle.GLIF,
        single(
            w_alpha=0.3,
            w_beta=-0.2,
            w_gamma=0.4,
            w_tau=0.5,
            w_leak=-1.5,
            w_threshold=0.2,
            w_drop=-0.3,
            w_conductance=0.6,
        ),
        (-0.5, 1.6),
        resets=("none",),
        arithmetic=False,
        # a sigmoid of 0 is exact
        exact_params={
            "w_alpha": 0.0,
            "w_beta": 0.0,
            "w_gamma": 0.0,
            "w_tau": 0.0,
            "w_leak": 0.0,
            "w_threshold": 0.0,
            "w_drop": 0.0,
            "w_conductance": 0.0,
        },
        exact_levels=(0.0, 1.0, 2.0),
        exact_steps=4,
        exact_resets=("none",),
    ),
    Model(
        "tclif",
        sc.TCLIF,
        oracle.TCLIF,
        single(c1=0.4, c2=-0.3, gamma=0.4, threshold=0.9, v_reset=0.1),
        (-0.6, 1.2),
        arithmetic=False,
        exact_params={"c1": 0.0, "c2": 0.0, "gamma": 0.5, "threshold": 1.0, "v_reset": 0.0},
        exact_levels=HALVES,
        exact_steps=5,
    ),
    Model(
        "se-adlif",
        sc.SEAdLIF,
        oracle.SEAdLIF,
        single(tau_u=3.1, tau_w=7.3, a=0.4, b=0.7, q=1.5, threshold=0.5),
        (-0.8, 3.0),
        resets=("none",),
        arithmetic=False,
        exact_resets=(),
    ),
    Model(
        "brf",
        sc.BRF,
        oracle.BRF,
        single(omega=1.7, b=0.4, dt=0.35, gamma=0.8, threshold=0.6),
        (-2.5, 4.0),
        resets=("none",),
        arithmetic=False,
        # without a rotation the square root is that of 1
        exact_params={"omega": 0.0, "b": 0.5, "dt": 0.5, "gamma": 0.5, "threshold": 1.0},
        exact_levels=(0.0, 1.0, 2.0),
        exact_steps=4,
        exact_resets=("none",),
    ),
    Model(
        "ternary",
        sc.TernaryLIF,
        oracle.TernaryLIF,
        single(tau=2.7, threshold=0.9, v_reset=0.1),
        (-4.0, 4.5),
        exact_params={"tau": 2.0, "threshold": 1.0, "v_reset": 0.0},
        exact_levels=HALVES,
    ),
    Model(
        "ternary-nodecay",
        sc.TernaryLIF,
        oracle.TernaryLIF,
        single(tau=2.7, threshold=0.9, v_reset=0.1),
        (-1.4, 1.6),
        {"decay_input": False},
        exact_params={"tau": 2.0, "threshold": 1.0, "v_reset": 0.0},
        exact_levels=QUARTERS,
    ),
)
