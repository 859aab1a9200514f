"""Neurons whose membrane has two variables that turn into each other: TC-LIF, SE-adLIF and BRF."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch
from torch import Tensor

from spikecore.core.neuron import Neuron
from spikecore.lang import ops
from spikecore.neurons._lif import Membrane

__all__ = ["BRF", "TCLIF", "SEAdLIF"]


class TCLIF(Membrane):
    """Two-compartment LIF (Zhang et al., AAAI 2024, arXiv 2308.13250): a dendrite charges the soma, which inhibits it::

        e  = d - sigmoid(c1) v + x
        h  = v + sigmoid(c2) e
        z  = [h >= threshold]
        d', v' = e - gamma z, h - threshold z        reset="soft", the authors' and the default
        d', v' = e, v_reset where z, else h          reset="hard"
        d', v' = e, h                                reset="none"

    ``d`` is the potential of the dendrite and starts at 0, ``v`` that of the soma and starts at ``v_reset``. Neither
    leaks by itself. In the paper's letters ``beta_1 = -sigmoid(c1)``, in (-1, 0), and ``beta_2 = sigmoid(c2)``, in (0,
    1).

    c1: the soma inhibits the dendrite by ``sigmoid(c1)`` of its potential in each time step; any number.
    c2: the dendrite charges the soma by ``sigmoid(c2)`` of its potential in each time step; any number.
    gamma: what a spike takes from the dendrite, in the unit of the potential; 0 or above.
    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"soft"`` by subtraction of ``threshold``, ``"hard"`` to ``v_reset``, or ``"none"``.
    v_reset: the potential of the soma at the start and after a hard reset.
    learn: names of the parameters to learn; ``c1`` and ``c2`` by default.
    """

    states = {"d": 0.0, "v": "v_reset"}
    params = {"c1": 0.0, "c2": 0.0, "gamma": 0.5, **Membrane.params}
    bounds = {"gamma": (0.0, None)}

    def __init__(
        self,
        *,
        c1: Any = params["c1"],
        c2: Any = params["c2"],
        gamma: Any = params["gamma"],
        threshold: Any = params["threshold"],
        reset: str = "soft",
        v_reset: Any = params["v_reset"],
        learn: Any = ("c1", "c2"),
        **options: Any,
    ) -> None:
        values = {"c1": c1, "c2": c2, "gamma": gamma, "threshold": threshold, "v_reset": v_reset}
        super().__init__(reset=reset, learn=learn, **values, **options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        e = s.d - ops.sigmoid(p.c1) * s.v + x
        h = ops.named("h", s.v + ops.sigmoid(p.c2) * e)
        z = self.spike(h - p.threshold)
        return z, {"d": e - z * p.gamma if self.reset == "soft" else e, "v": self.after_spike(h, z, p)}


class SEAdLIF(Neuron):
    """Adaptive LIF by the symplectic Euler method (Baronig et al., Nature Communications 2025, arXiv 2408.07517)::

        h  = exp(-1 / tau_u) v + (1 - exp(-1 / tau_u)) (x - w)
        z  = [h >= threshold]
        v' = 0 where z, else h                                         the reset carries no gradient
        w' = exp(-1 / tau_w) w + (1 - exp(-1 / tau_w)) q (a v' + b z)

    ``w`` is the adaptation current; that it takes the new ``v'``, and not the old ``v``, makes the method symplectic:
    oscillations neither grow nor die by the step alone.

    tau_u: time constant of the potential, in time steps; above 0.
    tau_w: time constant of the adaptation, in time steps; above 0. (The authors draw it from 20 to 200.)
    a: how much the potential drives the adaptation, a number without a unit; 0 to 1.
    b: how much a spike drives the adaptation, in the unit of the potential; 0 to 2. (The authors draw ``a`` and ``b``
        from these ranges, learn them, and keep them within.)
    q: scale of what drives the adaptation, a number without a unit.
    threshold: where it fires, in the unit of the potential; 0 or above.

    ``v`` and ``w`` start at 0. The authors' surrogate is ``PiecewiseExp`` up to a scale. ``detach_reset`` changes
    nothing.
    """

    states = {"v": 0.0, "w": 0.0}
    params = {"tau_u": 20.0, "tau_w": 110.0, "a": 0.5, "b": 1.0, "q": 60.0, "threshold": 1.0}
    positive = ("tau_u", "tau_w")
    bounds = {"a": (0.0, 1.0), "b": (0.0, 2.0), "threshold": (0.0, None)}
    reset_states = ("v",)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        decay_u, decay_w = ops.exp(-1.0 / p.tau_u), ops.exp(-1.0 / p.tau_w)
        h = ops.named("h", decay_u * s.v + (1.0 - decay_u) * (x - s.w))
        z = self.spike(h - p.threshold)
        v = ops.select(ops.detach(z), 0.0, h)
        return z, {"v": v, "w": decay_w * s.w + (1.0 - decay_w) * (p.a * v + p.b * z) * p.q}


class BRF(Neuron):
    """Balanced resonate-and-fire (Higuchi et al., ICML 2024, arXiv 2402.14603): an oscillator that a spike damps::

        w  = min(omega, (1 - 2^-20) / dt)
        r  = (sqrt(1 - (dt w)^2) - 1) / dt - b - q
        v' = v + r v dt - w y dt + x dt
        y' = y + w v dt + r y dt
        z  = [v' > threshold + q]
        q' = gamma q + z

    ``v`` and ``y`` are the real and the imaginary part of the oscillation. The first term of ``r`` is where the step of
    Euler's method would grow without bound; ``b`` and ``q`` keep the damping below it. A spike raises ``q``, and with
    it the threshold and the damping, for some steps; there is no other reset.

    omega: angular frequency, in radians per unit of ``dt``; 0 to ``1 / dt``. (The authors draw and learn one for each
        neuron from 5 to 10.) One that is learnt past ``1 / dt``, where the root has no value, counts as the highest
        frequency, and learns nothing there.
    b: distance of the damping from the boundary, in 1 / unit of ``dt``; 0 or above. (The authors draw and learn it from
        0 to 3.)
    dt: length of a time step, in seconds or any other unit; above 0.
    gamma: part of ``q`` that remains after a time step; 0 to 1.
    threshold: where it fires, in the unit of the potential; 0 or above.

    It fires on ``>``. All states start at 0. With ``detach_reset`` the spike carries no gradient into ``q``.
    """

    states = {"v": 0.0, "y": 0.0, "q": 0.0}
    params = {"omega": 10.0, "b": 1.0, "dt": 0.01, "gamma": 0.9, "threshold": 1.0}
    positive = ("dt",)
    bounds = {"omega": (0.0, None), "b": (0.0, None), "gamma": (0.0, 1.0), "threshold": (0.0, None)}

    def __init__(
        self,
        omega: Any = params["omega"],
        b: Any = params["b"],
        *,
        dt: Any = params["dt"],
        gamma: Any = params["gamma"],
        threshold: Any = params["threshold"],
        **options: Any,
    ) -> None:
        super().__init__(omega=omega, b=b, dt=dt, gamma=gamma, threshold=threshold, **options)
        if self.bounds:
            _check_frequency(self.omega, self.dt)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        # at 1 / dt the root has no derivative, and above no value: a learnt omega may get there
        omega = ops.minimum(p.omega, (1.0 - 2.0**-20) / p.dt)
        turn = p.dt * omega
        boundary = (ops.sqrt(1.0 - turn * turn) - 1.0) / p.dt
        r = boundary - p.b - s.q
        v = s.v + r * s.v * p.dt - omega * s.y * p.dt + x * p.dt
        y = s.y + omega * s.v * p.dt + r * s.y * p.dt
        z = self.spike(v - p.threshold - s.q, strict=True)
        return z, {"v": v, "y": y, "q": s.q * p.gamma + z}


def _check_frequency(omega: Any, dt: Any) -> None:
    """Refuse frequencies for which there is no damping that bounds the oscillation."""
    both = [value.detach() if isinstance(value, Tensor) else value for value in (omega, dt)]
    if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in both):
        return  # no wait for a device
    if not bool(torch.as_tensor(both[0] * both[1] <= 1.0).all()):
        raise ValueError(f"BRF: omega={omega!r} must be at most 1 / dt, with dt={dt!r}: above, it grows without bound")
