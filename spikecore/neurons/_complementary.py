"""Leaky neurons with gates: CLIF's complementary potential, and GLIF, whose gates weigh two forms of each part."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from spikecore.lang import ops
from spikecore.neuron import Neuron

__all__ = ["CLIF", "GLIF"]


class CLIF(Neuron):
    """Complementary LIF (Huang et al., ICML 2024, arXiv 2402.04663): a second potential remembers spikes and resets::

        h  = v - v / tau + x
        z  = [h >= threshold]
        m' = m sigmoid(h / tau) + z
        v' = h - z (threshold + sigmoid(m'))

    Each spike raises the complementary potential ``m``, which a high ``h`` lets decay slowly, so that the reset is the
    deeper the more the neuron fired. A gradient comes through ``m`` where that of ``v`` has vanished.

    tau: time constant of the potential, in time steps; 1 or above.
    threshold: where it fires, in the unit of the potential; 0 or above.

    ``v`` and ``m`` start at 0. With ``detach_reset`` the spike carries no gradient in ``v'``, neither by itself nor in
    ``m'``. SpikingJelly's ``ComplementaryLIFNode``, whose surrogate is ``Rectangular(1.0)``. Shapes, errors and all
    other arguments are those of every neuron: :class:`spikecore.Neuron`.
    """

    states = {"v": 0.0, "m": 0.0}
    params = {"tau": 2.0, "threshold": 1.0}
    bounds = {"tau": (1.0, None), "threshold": (0.0, None)}
    reset_states = ("v",)

    def __init__(self, tau: Any = params["tau"], *, threshold: Any = params["threshold"], **options: Any) -> None:
        super().__init__(tau=tau, threshold=threshold, **options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = s.v - s.v / p.tau + x
        z = self.spike(h - p.threshold)
        m = s.m * ops.sigmoid(h / p.tau) + z
        return z, {"v": h - z * (p.threshold + ops.sigmoid(m)), "m": m}


class GLIF(Neuron):
    """Gated LIF (Yao et al., NeurIPS 2022, arXiv 2210.13768): three gates weigh two forms of leak, input and reset.

    Every parameter is a ``w``, of which the equations take the sigmoid: ``alpha = sigmoid(w_alpha)``, and so on::

        kept = (1 - alpha (1 - tau)) v
        v'   = kept - (1 - alpha) leak + x (1 - beta (1 - conductance)) - kept gamma z - (1 - gamma) drop z
        z'   = [v' >= threshold]

    The reset is that of the spike ``z`` of the step before. Each ``w`` is a number without a unit and has no range.

    w_alpha: gate from a linear leak, by ``leak`` each step, to an exponential one. 0 is a gate of a half. (The authors
        draw the three gates from -0.1 to 0.1.)
    w_beta: gate from the input as it is to one that ``conductance`` weighs.
    w_gamma: gate from a reset by subtraction of ``drop`` to a reset of ``kept`` to 0.
    w_tau: sigmoid: part of the potential that the exponential leak keeps in a time step. log(1/3) is 0.25.
    w_leak: sigmoid: what the linear leak takes, in potential per time step. -log(15) is 1/16: the authors' threshold /
        (2 T) for T = 4 time steps.
    w_threshold: sigmoid: where it fires, a potential. 0 is 0.5.
    w_drop: sigmoid: what a reset by subtraction takes, a potential. 0 is 0.5.
    w_conductance: sigmoid: weight of the weighed input. 0 is 0.5.
    learn: names of the parameters to learn; all by default.

    A tensor of shape ``[C]`` gives each channel its own. ``v`` and ``z`` start at 0. ``conductance`` is the same at
    every time step; the authors' has a value for each of a fixed number of them. SpikingJelly has theirs as
    ``GatedLIFNode``; where those values are equal, it is this one. Shapes, errors and all other arguments are those of
    every neuron: :class:`spikecore.Neuron`.
    """

    states = {"v": 0.0, "z": 0.0}
    params = {
        "w_alpha": 0.0,
        "w_beta": 0.0,
        "w_gamma": 0.0,
        "w_tau": -1.0986123085021973,  # log(1/3) and -log(15), in float32
        "w_leak": -2.70805025100708,
        "w_threshold": 0.0,
        "w_drop": 0.0,
        "w_conductance": 0.0,
    }

    def __init__(self, *, learn: Any = tuple(params), **options: Any) -> None:
        super().__init__(learn=learn, **options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        alpha, beta, gamma = ops.sigmoid(p.w_alpha), ops.sigmoid(p.w_beta), ops.sigmoid(p.w_gamma)
        part = 1.0 - alpha * (1.0 - ops.sigmoid(p.w_tau))
        current = x * (1.0 - beta * (1.0 - ops.sigmoid(p.w_conductance)))
        charged = (part * s.v - (1.0 - alpha) * ops.sigmoid(p.w_leak)) + current
        v = charged - part * s.v * gamma * s.z - (1.0 - gamma) * ops.sigmoid(p.w_drop) * s.z
        z = self.spike(v - ops.sigmoid(p.w_threshold))
        return z, {"v": v, "z": z}
