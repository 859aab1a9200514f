"""Neurons with several values under one name: DH-LIF, whose dendrite has branches, and a spiking state-space model."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from spikecore.core.neuron import Neuron
from spikecore.lang import ops, vector
from spikecore.neurons._lif import Membrane

__all__ = ["DHLIF", "SpikingSSM"]


class DHLIF(Neuron):
    """LIF with a dendrite of branches, each with a time constant (Zheng et al., Nature Communications 2024)::

        d' = sigmoid(w_branch) d + (1 - sigmoid(w_branch)) x                   for each branch
        h  = sigmoid(w_soma) v + (1 - sigmoid(w_soma)) sum(d') - threshold y
        z  = [h > threshold]
        v' = h
        y' = z

    ``d`` is a vector, the current of each branch, and so is the input: a call takes ``[T, *N, branches]``, as from
    ``nn.Linear(features, neurons * branches)`` and ``nn.Unflatten(-1, (neurons, branches))``. ``y`` is the last spike,
    whose reset is not leaky. All states start at 0.

    branches: the number of branches; fixed when the neuron is made.
    w_branch: each branch keeps ``sigmoid(w_branch)`` of its current in a time step; any number, ``[branches]`` or ``[C,
        branches]``. (The authors draw it, so that branches differ, and learn it.)
    w_soma: the potential keeps ``sigmoid(w_soma)`` in a time step; any number.
    threshold: where it fires, and what a spike takes from the potential one step later; 0 or above.
    learn: names of the parameters to learn; ``w_branch`` and ``w_soma`` by default.

    With ``detach_reset`` the spike carries no gradient into ``y``.
    """

    sizes = {"branches": 4}
    inputs = {"x": vector("branches")}
    states = {"d": vector("branches"), "v": 0.0, "y": 0.0}
    params = {"w_branch": vector("branches", 2.0), "w_soma": 2.0, "threshold": 1.0}
    bounds = {"threshold": (0.0, None)}
    reset_states = ("y",)

    def __init__(
        self,
        *,
        branches: int = sizes["branches"],
        w_branch: Any = params["w_branch"],
        w_soma: Any = params["w_soma"],
        threshold: Any = params["threshold"],
        learn: Any = ("w_branch", "w_soma"),
        **options: Any,
    ) -> None:
        values = {"w_branch": w_branch, "w_soma": w_soma, "threshold": threshold}
        super().__init__(branches=branches, learn=learn, **values, **options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        keeps, leak = ops.sigmoid(p.w_branch), ops.sigmoid(p.w_soma)
        d = keeps * s.d + (1.0 - keeps) * x
        h = ops.named("h", leak * s.v + (1.0 - leak) * ops.sum(d) - p.threshold * s.y)
        z = self.spike(h - p.threshold, strict=True)
        return z, {"d": d, "v": h, "y": z}


class SpikingSSM(Membrane):
    """A diagonal state-space model that charges a LIF neuron, as in SpikingSSMs (Shen et al., AAAI 2025)::

        k  = exp(-dt rate)
        s' = k s + (1 - k) / rate b x                     n states, S4D with real numbers (Gu et al., 2022)
        y  = sum(c s') + d x
        h  = v + (y - (v - v_reset)) / tau
        z  = [h >= threshold]
        v' = v_reset where z, else h                      reset="hard"

    ``s`` is a vector of n values and starts at 0; ``v`` starts at ``v_reset``.

    n: the number of states of a neuron; fixed when the neuron is made.
    rate: decay of each state, in 1 / unit of ``dt``; above 0, ``[n]`` or ``[C, n]``; by default 1, 2, ..., n.
    b: the part of the input that charges each state, a number without a unit; any, ``[n]`` or ``[C, n]``.
    c: the part of each state that charges the membrane, a number without a unit; any, ``[n]`` or ``[C, n]``.
    d: the part of the input that goes past the states; any number.
    dt: length of a time step, in seconds or any other unit; above 0. (The authors draw one for each channel from 0.001
        to 0.1, and learn it.)
    tau: time constant of the membrane, in time steps; above 0.
    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.
    """

    sizes = {"n": 16}
    states = {"s": vector("n"), **Membrane.states}
    params = {
        "rate": vector("n", 1.0),
        "b": vector("n", 1.0),
        "c": vector("n", 1.0),
        "d": 0.0,
        "dt": 0.1,
        "tau": 2.0,
        **Membrane.params,
    }
    positive = ("rate", "dt", "tau")

    def __init__(self, *, n: int = sizes["n"], rate: Optional[Any] = None, **options: Any) -> None:
        rate = [1.0 + k for k in range(n)] if rate is None and isinstance(n, int) else rate
        super().__init__(n=n, rate=rate, **options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        keeps = ops.exp(-p.dt * p.rate)
        states = keeps * s.s + (1.0 - keeps) / p.rate * p.b * x
        y = ops.sum(p.c * states) + p.d * x
        h = ops.named("h", s.v + (y - (s.v - p.v_reset)) / p.tau)
        z = self.spike(h - p.threshold)
        return z, {"s": states, "v": self.after_spike(h, z, p)}
