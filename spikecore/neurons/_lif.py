"""Integrate-and-fire: the base of such neurons, its leaky form, leaky forms that learn, and other outputs than a spike.

SpikingJelly's IF, LIF, PLIF, KLIF, TernaryLIF and ILIF.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.core import checkpoints, checks, parameters
from spikecore.core.neuron import Neuron
from spikecore.core.ranges import Interval
from spikecore.lang import ops

__all__ = ["IF", "ILIF", "KLIF", "LIF", "PLIF", "Membrane", "TernaryLIF"]


class Membrane(Neuron):
    """A neuron whose potential ``v`` is charged, fires at the threshold, and is reset by the spike.

    ::

        z = [h >= threshold]
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    ``v`` starts at ``v_reset``. With ``detach_reset`` the spike in the reset carries no gradient.

    threshold: where it fires, in the unit of the potential; 0 or above. Where ``v_reset`` is below 0, as in millivolts,
        ``v_reset`` or above; where such a ``v_reset`` is learnt it has no range.
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.
    """

    states = {"v": "v_reset"}
    params = {"threshold": 1.0, "v_reset": 0.0}
    configuration = {**Neuron.configuration, "reset": checks.reset}
    bounds = {"threshold": (0.0, None)}
    follows = {"threshold": "v_reset where that is below 0, so set v_reset first"}

    def __init__(self, *, reset: str = "hard", **options: Any) -> None:
        super().__init__(**options)
        self.reset = reset

    def _declared_bounds(self, values: Mapping[str, Any]) -> Dict[str, Interval]:
        bounds = super()._declared_bounds(values)
        v_reset = values["v_reset"]
        if isinstance(v_reset, nn.Parameter) or "v_reset" in self.learn:
            # it moves at every update: below 0 no fixed end holds, and what is saved must load again
            lowest = v_reset.detach() if isinstance(v_reset, Tensor) else torch.tensor(float(v_reset))
            v_reset = -math.inf if lowest.device.type != "cpu" or bool((lowest < 0).any()) else 0.0
        elif isinstance(v_reset, Tensor):
            # no wait for a device: there a threshold of any value may be above it
            v_reset = v_reset.min().item() if v_reset.device.type == "cpu" and v_reset.numel() else -math.inf
        if bounds.get("threshold") == Interval(0.0) and isinstance(v_reset, (int, float)) and v_reset < 0:
            bounds["threshold"] = Interval(v_reset)
        return bounds

    def _foreign(self, name: str, value: Tensor) -> Optional[str]:
        if name not in checkpoints.SNNTORCH:
            return None
        return (
            f"is of a neuron of snnTorch, which fires above the threshold and resets one step later, and a "
            f"{type(self).__name__} fires at the threshold and resets at once; load a Leaky into sc.Leaky, a Synaptic "
            "into sc.SynapticLeaky"
        )

    def after_spike(self, h: Any, z: Any, p: Any, threshold: Any = None) -> Any:
        """The potential after the reset. ``threshold`` is what a soft reset subtracts, the neuron's by default."""
        if self.reset == "hard":
            return ops.select(z, p.v_reset, h)
        if self.reset == "soft":
            return h - z * (p.threshold if threshold is None else threshold)
        return h


class IF(Membrane):
    """Integrate-and-fire: the potential is the sum of the inputs since the last spike::

        h = v + x
        z = [h >= threshold]
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    SpikingJelly's ``IFNode``.

    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.
    """

    def __init__(
        self,
        *,
        threshold: Any = Membrane.params["threshold"],
        reset: str = "hard",
        v_reset: Any = Membrane.params["v_reset"],
        **options: Any,
    ) -> None:
        super().__init__(threshold=threshold, reset=reset, v_reset=v_reset, **options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = ops.named("h", s.v + x)
        z = self.spike(h - p.threshold)
        return z, {"v": self.after_spike(h, z, p)}


class LIF(Membrane):
    """Leaky integrate-and-fire with time constant ``tau`` (in time steps), which leaks towards ``v_reset``::

        h = v + (x - (v - v_reset)) / tau      decay_input=True
        h = v - (v - v_reset) / tau + x        decay_input=False
        z = [h >= threshold]
        v' = v_reset where z, else h           reset="hard"
        v' = h - threshold z                   reset="soft"
        v' = h                                 reset="none"

    SpikingJelly's ``LIFNode``.

    tau: time constant of the potential, in time steps; 1 or above: below, the leak overshoots, and ``v`` changes sign
        at each step.
    decay_input: whether the input is divided by ``tau``, too.
    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start, after a hard reset, and that ``v`` leaks to.
    """

    params = {"tau": 2.0, **Membrane.params}
    configuration = {**Membrane.configuration, "decay_input": checks.flag}
    bounds = {"tau": (1.0, None)}
    follows = {**Membrane.follows, "tau": "in time steps; what stays in a step is beta of sc.Leaky"}

    def __init__(
        self,
        tau: Any = params["tau"],
        *,
        decay_input: bool = True,
        threshold: Any = params["threshold"],
        reset: str = "hard",
        v_reset: Any = params["v_reset"],
        **options: Any,
    ) -> None:
        super().__init__(tau=tau, threshold=threshold, reset=reset, v_reset=v_reset, **options)
        self.decay_input = decay_input

    def charge(self, x: Any, s: Any, p: Any) -> Any:
        """The potential before it fires."""
        if self.decay_input:
            return s.v + (x - (s.v - p.v_reset)) / p.tau
        return s.v - (s.v - p.v_reset) / p.tau + x

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = ops.named("h", self.charge(x, s, p))
        z = self.spike(h - p.threshold)
        return z, {"v": self.after_spike(h, z, p)}


class PLIF(Membrane):
    """Leaky integrate-and-fire whose time constant is learnt through ``w``: ``1/tau = sigmoid(w)`` (Fang et al., 2021).

    ::

        h = v + (x - (v - v_reset)) sigmoid(w)      decay_input=True
        h = v - (v - v_reset) sigmoid(w) + x        decay_input=False
        z = [h >= threshold]
        v' = v_reset where z, else h                reset="hard"
        v' = h - threshold z                        reset="soft"
        v' = h                                      reset="none"

    SpikingJelly's ``ParametricLIFNode``.

    tau: time constant at the start, in time steps; above 1. It sets ``w = -log(tau - 1)``, a number without a unit. A
        tensor of shape ``[C]`` gives each channel its own.
    decay_input: whether the input is multiplied by ``sigmoid(w)``, too.
    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start, after a hard reset, and that ``v`` leaks to.
    learn: names of the parameters to learn; ``w`` by default.
    """

    params = {"w": 0.0, **Membrane.params}
    configuration = LIF.configuration
    _computed = ("w",)

    def __init__(
        self,
        tau: Any = 2.0,
        *,
        decay_input: bool = True,
        threshold: Any = params["threshold"],
        reset: str = "hard",
        v_reset: Any = params["v_reset"],
        learn: Any = ("w",),
        **options: Any,
    ) -> None:
        parameters.require("PLIF", "tau", tau, "above 1, since 1/tau = sigmoid(w)", lambda value: value > 1)
        w = 0.0 - (torch.log(tau - 1.0) if isinstance(tau, torch.Tensor) else math.log(tau - 1.0))
        super().__init__(w=w, threshold=threshold, reset=reset, v_reset=v_reset, learn=learn, **options)
        self.decay_input = decay_input

    @property
    def tau(self) -> Any:
        """The time constant that ``w`` stands for now, in time steps."""
        w: Any = self.w
        return 1.0 + (math.exp(-w) if isinstance(w, float) else torch.exp(-w))

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        r = ops.sigmoid(p.w)
        if self.decay_input:
            h = ops.named("h", s.v + (x - (s.v - p.v_reset)) * r)
        else:
            h = ops.named("h", s.v - (s.v - p.v_reset) * r + x)
        z = self.spike(h - p.threshold)
        return z, {"v": self.after_spike(h, z, p)}


class KLIF(LIF):
    """LIF with a learnt gain and a rectified potential (Jiang and Zhang, 2023)::

        h = relu(k charge)      charge is h of LIF
        z = [h >= threshold]
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    With ``scale_reset`` the reset is that of ``h / k``, and a soft one subtracts ``threshold / k``. SpikingJelly's
    ``KLIFNode``.

    tau: time constant of the potential, in time steps; 1 or above.
    k: gain of the potential, a number without a unit; above 0.
    scale_reset: whether the reset acts on ``h / k``.
    decay_input: whether the input is divided by ``tau``, too.
    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start, after a hard reset, and that ``v`` leaks to.
    learn: names of the parameters to learn; ``k`` by default.
    """

    params = {"k": 1.0, **LIF.params}
    configuration = {**LIF.configuration, "scale_reset": checks.flag}
    positive = ("k",)

    def __init__(
        self,
        tau: Any = params["tau"],
        *,
        k: Any = params["k"],
        scale_reset: bool = False,
        learn: Any = ("k",),
        **options: Any,
    ) -> None:
        super().__init__(tau, k=k, learn=learn, **options)
        self.scale_reset = scale_reset

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        gained = p.k * self.charge(x, s, p)
        # the comparison this way round lets a NaN through, and the derivative at 0 is 0
        h = ops.named("h", ops.where(gained <= 0.0, 0.0, gained))
        z = self.spike(h - p.threshold)
        if self.scale_reset:
            return z, {"v": self.after_spike(h / p.k, z, p, p.threshold / p.k)}
        return z, {"v": self.after_spike(h, z, p)}


class TernaryLIF(LIF):
    """LIF with spikes of both signs, -1, 0 and 1 (Guo et al., AAAI 2024, arXiv 2312.06372)::

        h  = as in LIF
        up, down = [h >= threshold], [-h >= threshold]
        z  = up - down
        v' = v_reset where up or down, else h      reset="hard"
        v' = h - threshold z                       reset="soft"
        v' = h                                     reset="none"

    ``up`` and ``down`` have a surrogate each, at ``h - threshold`` and at ``-h - threshold``.

    tau: time constant of the potential, in time steps; 1 or above.
    decay_input: whether the input is divided by ``tau``, too.
    threshold: where it fires on both sides of 0, in the unit of the potential; above 0.
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start, after a hard reset, and that ``v`` leaks to.

    SpikingJelly's ``TernaryLIFNode``. The paper's neuron is the one with ``decay_input=False``, its amplitude of spikes
    a factor behind it.
    """

    positive = ("threshold",)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = ops.named("h", self.charge(x, s, p))
        up, down = self.spike(h - p.threshold), self.spike(-h - p.threshold)
        z = up - down
        if self.reset == "hard":
            return z, {"v": ops.select(up + down, p.v_reset, h)}
        return z, {"v": self.after_spike(h, z, p)}


class ILIF(Neuron):
    """LIF that gives the number of its spikes in a step, from 0 to ``levels`` (Luo et al., ECCV 2024, SpikeYOLO)::

        h  = beta v + x
        z  = round(h / threshold)         rounding="nearest", ties to even
        z  = floor(h / threshold)         rounding="down"
        v' = max(h - threshold z, v_min)

    with ``z`` limited to 0 and ``levels``. Its derivative by ``h / threshold`` is 1 from 0 to ``levels``, else 0; it
    has no surrogate.

    beta: part of the potential that remains after a time step; 0 to 1.
    levels: the largest number of spikes in a step; 1 to 255.
    threshold: potential of a spike; above 0.
    rounding: ``"nearest"``, or ``"down"``: a spike for each time that the threshold was passed.
    v_min: the least potential after a step; None for none.

    ``ILIF(detach_reset=True)`` is the neuron of SpikeYOLO and of the spike-driven transformers. SpikingJelly's
    ``ILIFNode`` has ``tau``, with ``beta = 1 - 1 / tau``. ``ILIF(beta, rounding="down", v_min=-1.0)`` has the values of
    sinabs' ``LIF`` with ``MaxSpike`` (``norm_input=False``), as on Speck and Xylo; ``beta=1`` those of its ``IAF``.
    Derivatives are other ones there. For inference :func:`spikecore.functional.expand_counts` makes spikes of counts.
    """

    states = {"v": 0.0}
    params = {"beta": 0.25, "threshold": 1.0}
    configuration = {
        **Neuron.configuration,
        "levels": checks.levels,
        "rounding": checks.rounding,
        "v_min": checks.number_or_none,
    }
    bounds = {"beta": (0.0, 1.0)}
    positive = ("threshold",)
    follows = {"beta": "what stays in a step; neurons have no size"}

    def __init__(
        self,
        beta: Any = params["beta"],
        *,
        levels: int = 4,
        threshold: Any = params["threshold"],
        rounding: str = "nearest",
        v_min: Optional[float] = None,
        **options: Any,
    ) -> None:
        super().__init__(beta=beta, threshold=threshold, **options)
        self.levels, self.rounding, self.v_min = levels, rounding, v_min

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = ops.named("h", p.beta * s.v + x)
        u = ops.clamp(h / p.threshold, 0.0, float(self.levels))
        count = ops.round if self.rounding == "nearest" else ops.floor
        z = count(u, straight_through=True)
        v = h - (ops.detach(z) if self.detach_reset else z) * p.threshold
        return z, {"v": v if self.v_min is None else ops.clamp(v, self.v_min)}
