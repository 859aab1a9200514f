"""Neurons with a second variable: a current, conductances, an adaptive threshold, gates; and a read-out."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from spikecore.core import checks
from spikecore.core.neuron import Neuron
from spikecore.lang import ops
from spikecore.neurons._lif import LIF, Membrane

__all__ = ["ALIF", "CLIF", "GLIF", "LI", "CobaLIF", "Synaptic"]


class Synaptic(Membrane):
    """Current-based leaky integrate-and-fire: the input charges a current, the current charges the potential::

        i' = alpha i + x
        h  = beta v + i'
        z  = [h >= threshold]
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    The current is not reset. SpikingJelly's ``CUBALIFNode``. (snnTorch's ``Synaptic`` fires on ``>`` and resets one
    step later: :class:`SynapticLeaky`.)

    alpha: part of the current that remains after a time step; 0 to 1.
    beta: part of the potential that remains after a time step; 0 to 1.
    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.
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
        h = ops.named("h", s.v * p.beta + i)
        z = self.spike(h - p.threshold)
        return z, {"i": i, "v": self.after_spike(h, z, p)}


class CobaLIF(Membrane):
    """Conductance-based LIF: two inputs charge conductances, which pull the potential to their reversal potentials::

        ge' = alpha_e ge + e
        gi' = alpha_i gi + i
        h   = v + (v_rest - v + ge' (rev_e - v) + gi' (rev_i - v)) / tau
        z   = [h >= threshold]
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    The conductances are not reset. They are in units of the leak conductance. A call takes the excitatory and the
    inhibitory input, both 0 or above: ``neuron(e, i)``. The defaults are those of Vogels and Abbott (J. Neuroscience,
    2005) for steps of 1 ms, with the rest at 0 and the threshold at 1.

    tau: time constant of the potential without input, in time steps; 1 or above.
    alpha_e: part of the excitatory conductance that remains after a time step; 0 to 1.
    alpha_i: part of the inhibitory conductance that remains after a time step; 0 to 1.
    rev_e: excitatory reversal potential, in the unit of the threshold; any number.
    rev_i: inhibitory reversal potential, in the unit of the threshold; any number.
    v_rest: the potential that ``v`` leaks to; any number.
    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.
    """

    inputs = ("e", "i")
    states = {"ge": 0.0, "gi": 0.0, "v": "v_reset"}
    params = {
        "tau": 20.0,
        "alpha_e": 0.8,
        "alpha_i": 0.9,
        "rev_e": 6.0,
        "rev_i": -2.0,
        "v_rest": 0.0,
        **Membrane.params,
    }
    bounds = {"tau": (1.0, None), "alpha_e": (0.0, 1.0), "alpha_i": (0.0, 1.0)}
    reset_states = ("v",)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        ge, gi = p.alpha_e * s.ge + x.e, p.alpha_i * s.gi + x.i
        pull = p.v_rest - s.v + ge * (p.rev_e - s.v) + gi * (p.rev_i - s.v)
        h = ops.named("h", s.v + pull / p.tau)
        z = self.spike(h - p.threshold)
        return z, {"ge": ge, "gi": gi, "v": self.after_spike(h, z, p)}


class ALIF(LIF):
    """LIF with an adaptive threshold (Bellec et al., 2018): each spike raises it by ``beta``, which decays by ``rho``::

        z  = [h >= threshold + beta a]      h as in LIF
        a' = rho a + z
        v' = v_reset where z, else h      reset="hard"
        v' = h - (threshold + beta a) z   reset="soft"
        v' = h                            reset="none"

    ``detach_reset`` concerns ``v`` only. In that paper ``b' = rho b + (1 - rho) z``: its ``beta`` is
    ``beta / (1 - rho)`` here.

    tau: time constant of the potential, in time steps; 1 or above.
    rho: part of the adaptation that remains after a time step; 0 to 1.
    beta: what a spike adds to the threshold, in the unit of the potential; 0 or above.
    decay_input: whether the input is divided by ``tau``, too.
    threshold: where it fires without adaptation; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start, after a hard reset, and that ``v`` leaks to.
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
        h = ops.named("h", self.charge(x, s, p))
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
    ``m'``. SpikingJelly's ``ComplementaryLIFNode``, whose surrogate is ``Rectangular(1.0)``.
    """

    states = {"v": 0.0, "m": 0.0}
    params = {"tau": 2.0, "threshold": 1.0}
    bounds = {"tau": (1.0, None), "threshold": (0.0, None)}
    reset_states = ("v",)

    def __init__(self, tau: Any = params["tau"], *, threshold: Any = params["threshold"], **options: Any) -> None:
        super().__init__(tau=tau, threshold=threshold, **options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = ops.named("h", s.v - s.v / p.tau + x)
        z = self.spike(h - p.threshold)
        m = s.m * ops.sigmoid(h / p.tau) + z
        return z, {"v": h - z * (p.threshold + ops.sigmoid(m)), "m": m}


class GLIF(Neuron):
    """Gated LIF (Yao et al., NeurIPS 2022, arXiv 2210.13768): three gates weigh two forms of leak, input and reset.

    Every parameter is a ``w``, of which the equations take the sigmoid: ``alpha = sigmoid(w_alpha)``, and so on::

        decayed = (1 - alpha (1 - tau)) v
        v'      = decayed - (1 - alpha) leak + x (1 - beta (1 - conductance)) - decayed gamma z - (1 - gamma) drop z
        z'      = [v' >= threshold]

    The reset is that of the spike ``z`` of the step before. Each ``w`` is a number without a unit and has no range.

    w_alpha: gate from a linear leak, by ``leak`` each step, to an exponential one. 0 is a gate of a half. (The authors
        draw the three gates from -0.1 to 0.1.)
    w_beta: gate from the input as it is to one that ``conductance`` weighs.
    w_gamma: gate from a reset by subtraction of ``drop`` to a reset of ``decayed`` to 0.
    w_tau: sigmoid: part of the potential that the exponential leak keeps in a time step. log(1/3) is 0.25.
    w_leak: sigmoid: what the linear leak takes, in potential per time step. -log(15) is 1/16: the authors' threshold /
        (2 T) for T = 4 time steps.
    w_threshold: sigmoid: where it fires, a potential. 0 is 0.5.
    w_drop: sigmoid: what a reset by subtraction takes, a potential. 0 is 0.5.
    w_conductance: sigmoid: weight of the weighed input. 0 is 0.5.
    learn: names of the parameters to learn; all by default.

    A tensor of shape ``[C]`` gives each channel its own. ``v`` and ``z`` start at 0. ``conductance`` is the same at
    every time step; the authors' has a value for each of a fixed number of them, which is an input of a neuron of one's
    own. SpikingJelly has theirs as ``GatedLIFNode``; where those values are equal, it is this one.
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
        decayed = (1.0 - alpha * (1.0 - ops.sigmoid(p.w_tau))) * s.v
        current = x * (1.0 - beta * (1.0 - ops.sigmoid(p.w_conductance)))
        charged = (decayed - (1.0 - alpha) * ops.sigmoid(p.w_leak)) + current
        v = charged - decayed * gamma * s.z - (1.0 - gamma) * ops.sigmoid(p.w_drop) * s.z
        z = self.spike(v - ops.sigmoid(p.w_threshold))
        return z, {"v": v, "z": z}
