"""Neurons with a second variable: a synaptic current, an adaptive threshold; and a read-out that does not fire."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from spikecore._shell import checks
from spikecore.neuron import Neuron
from spikecore.neurons._lif import LIF
from spikecore.neurons._membrane import Membrane

__all__ = ["ALIF", "LI", "Synaptic"]


class Synaptic(Membrane):
    """Current-based leaky integrate-and-fire: the input charges a current, the current charges the potential::

        i' = alpha i + x
        h  = beta v + i'
        z  = [h >= threshold]

    then reset of ``v`` (:class:`Membrane`); the current is not reset. SpikingJelly's ``CUBALIFNode``. (snnTorch's
    ``Synaptic`` fires on ``>`` and resets one step later: :class:`SynapticLeaky`.)

    alpha: part of the current that remains after a time step; 0 to 1.
    beta: part of the potential that remains after a time step; 0 to 1.
    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.

    Shapes, errors and all other arguments are those of every neuron: :class:`spikecore.Neuron`.
    """

    states = {"i": 0.0, "v": "v_reset"}
    params = {"alpha": 0.5, "beta": 0.75, **Membrane.params}
    bounds = {"alpha": (0.0, 1.0), "beta": (0.0, 1.0)}
    reset_states = ("v",)

    def __init__(
        self,
        alpha: Any = params["alpha"],
        beta: Any = params["beta"],
        *,
        threshold: Any = params["threshold"],
        reset: str = "hard",
        v_reset: Any = params["v_reset"],
        **options: Any,
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, threshold=threshold, reset=reset, v_reset=v_reset, **options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        i = s.i * p.alpha + x
        h = s.v * p.beta + i
        z = self.spike(h - p.threshold)
        return z, {"i": i, "v": self.after_spike(h, z, p)}


class ALIF(LIF):
    """LIF with an adaptive threshold (Bellec et al., 2018): each spike raises it by ``beta``, which decays by ``rho``::

        z  = [h >= threshold + beta a]      h as in LIF
        a' = rho a + z

    then reset of ``v`` (:class:`Membrane`); a soft reset subtracts the raised threshold. ``detach_reset`` concerns
    ``v`` only.

    tau: time constant of the potential, in time steps; 1 or above.
    rho: part of the adaptation that remains after a time step; 0 to 1.
    beta: what a spike adds to the threshold, in the unit of the potential; 0 or above.
    decay_input: whether the input is divided by ``tau``, too.
    threshold: where it fires without adaptation; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start, after a hard reset, and that ``v`` leaks to.

    Shapes, errors and all other arguments are those of every neuron: :class:`spikecore.Neuron`.
    """

    states = {"v": "v_reset", "a": 0.0}
    params = {"rho": 0.9, "beta": 0.2, **LIF.params}
    bounds = {"rho": (0.0, 1.0), "beta": (0.0, None)}
    reset_states = ("v",)

    def __init__(
        self, tau: Any = params["tau"], *, rho: Any = params["rho"], beta: Any = params["beta"], **options: Any
    ) -> None:
        super().__init__(tau, rho=rho, beta=beta, **options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = self.charge(x, s, p)
        raised = p.threshold + p.beta * s.a
        z = self.spike(h - raised)
        return z, {"v": self.after_spike(h, z, p, raised), "a": p.rho * s.a + z}


class LI(Neuron):
    """Leaky integrator, a read-out that does not fire: its output is its potential::

        v' = v + (x - (v - v_rest)) / tau      decay_input=True
        v' = v - (v - v_rest) / tau + x        decay_input=False

    SpikingJelly's ``NonSpikingLIFNode`` is the first form with ``v_rest = 0``.

    tau: time constant of the potential, in time steps; 1 or above.
    decay_input: whether the input is divided by ``tau``, too.
    v_rest: the potential at the start, and that ``v`` leaks to.

    Shapes, errors and all other arguments are those of every neuron: :class:`spikecore.Neuron`.
    """

    states = {"v": "v_rest"}
    params = {"tau": 2.0, "v_rest": 0.0}
    configuration = {**Neuron.configuration, "decay_input": checks.flag}
    bounds = {"tau": (1.0, None)}

    def __init__(
        self, tau: Any = params["tau"], *, decay_input: bool = True, v_rest: Any = params["v_rest"], **options: Any
    ) -> None:
        super().__init__(tau=tau, v_rest=v_rest, **options)
        self.decay_input = decay_input

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        if self.decay_input:
            v = s.v + (x - (s.v - p.v_rest)) / p.tau
        else:
            v = s.v - (s.v - p.v_rest) / p.tau + x
        return v, {"v": v}
