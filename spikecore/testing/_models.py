"""The neurons that cases are made of: each with its oracle, its parameters, and the inputs that make it fire.

Every number is one that float32 holds exactly, so that no difference comes from writing it down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import torch
from torch import nn

import spikecore as sc
from spikecore.neuron import Neuron
from spikecore.testing._oracle import Array, Derivative, Oracle
from spikecore.testing._oracle import neurons as oracle

ALL_RESETS = ("hard", "soft", "none")
QUARTERS = tuple(k / 4 for k in range(-1, 5))
HALVES = tuple(k / 2 for k in range(-1, 6))


def single(**values: float) -> Mapping[str, float]:
    """Numbers rounded to what float32 holds."""
    return {name: float(np.float32(value)) for name, value in values.items()}


@dataclass(frozen=True)
class Model:
    """A neuron as a case sees it."""

    name: str
    neuron: Type[Neuron]
    oracle: Type[Oracle]
    params: Mapping[str, float]
    #: Margin inputs are uniform in this.
    drive: Tuple[float, float]
    options: Mapping[str, Any] = field(default_factory=dict)
    resets: Tuple[str, ...] = ALL_RESETS
    #: Parameters and input levels with which nothing is rounded; the steps for which that holds, and the resets.
    exact_params: Mapping[str, float] = field(default_factory=dict)
    exact_levels: Tuple[float, ...] = ()
    exact_steps: int = 12
    exact_resets: Tuple[str, ...] = ALL_RESETS
    #: Made of + - * / and comparisons alone, so every bit of it is fixed.
    arithmetic: bool = True
    #: What each output is, as the table of tolerances calls it.
    outputs: Tuple[str, ...] = ("spikes",)
    #: The surrogate of a drawn neuron; a drawn neuron has one, others that of a configuration.
    surrogate: Any = None

    @property
    def fires(self) -> bool:
        """Whether there are spikes among the outputs."""
        return "spikes" in self.outputs

    def twin(self, reset: str, surrogate: Optional[Derivative] = None, detach: bool = False) -> Oracle:
        """The oracle of this neuron with this reset."""
        return self.oracle(surrogate, reset=reset, detach_reset=detach, **self.options)

    def build(
        self,
        backend: str,
        reset: str,
        values: Mapping[str, Any],
        *,
        surrogate: Optional[sc.Surrogate] = None,
        detach: bool = False,
        learn: Sequence[str] = (),
        **options: Any,
    ) -> Neuron:
        """The neuron, with numbers or tensors as parameters, those in ``learn`` learnable."""
        given = {**self.options, **options, **values}
        if len(self.resets) > 1:
            given["reset"] = reset
        w = given.pop("w", None)
        neuron: Any = self.neuron(
            surrogate=surrogate,
            detach_reset=detach,
            backend=backend,
            **given,
            learn=tuple(n for n in learn if n != "w"),
        )
        if w is not None:
            # PLIF takes tau and stores w, a rounding apart
            neuron.w = nn.Parameter(torch.as_tensor(w, dtype=torch.float32)) if "w" in learn else w
        made: Neuron = neuron
        return made


def spread(value: float, shape: Sequence[int], amount: float = 0.15) -> Array:
    """Values around ``value``, one per element of ``shape``, all different, each held by float32."""
    count = int(np.prod(shape))
    steps = np.linspace(-amount, amount, count) if count > 1 else np.zeros(count)
    return np.asarray(np.float32(value * (1 + steps)) if value else np.float32(steps), float).reshape(tuple(shape))


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
BY_NAME: Mapping[str, Model] = {model.name: model for model in MODELS}
