"""Neurons with a nonlinear charge: quadratic, exponential, and Izhikevich's with a recovery current."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from spikecore.lang import ops
from spikecore.neurons._lif import Membrane

__all__ = ["EIF", "QIF", "Izhikevich"]


class QIF(Membrane):
    """Quadratic integrate-and-fire: near the threshold the potential grows by itself::

        h = v + (x + a0 (v - v_rest) (v - v_c)) / tau
        z = [h >= threshold]
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    Above ``v_c`` and without a hard reset ``v`` grows without bound, so that potentials and gradients become infinite
    and NaN. SpikingJelly's ``QIFNode``.

    tau: time constant of the potential, in time steps; above 0.
    v_c: critical potential, above which ``v`` grows by itself.
    a0: strength of the quadratic charge, in 1 / potential; above 0.
    v_rest: the potential at rest.
    threshold: where it fires, in the unit of the potential; any number.
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.
    """

    params = {"tau": 2.0, "v_c": 0.8, "a0": 1.0, "v_rest": 0.0, **Membrane.params, "v_reset": -0.1}
    positive = ("tau", "a0")
    bounds = {"threshold": None}

    def __init__(
        self,
        tau: Any = params["tau"],
        *,
        v_c: Any = params["v_c"],
        a0: Any = params["a0"],
        v_rest: Any = params["v_rest"],
        threshold: Any = params["threshold"],
        reset: str = "hard",
        v_reset: Any = params["v_reset"],
        **options: Any,
    ) -> None:
        super().__init__(
            tau=tau, v_c=v_c, a0=a0, v_rest=v_rest, threshold=threshold, reset=reset, v_reset=v_reset, **options
        )

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = ops.named("h", s.v + (x + p.a0 * (s.v - p.v_rest) * (s.v - p.v_c)) / p.tau)
        z = self.spike(h - p.threshold)
        return z, {"v": self.after_spike(h, z, p)}


class EIF(Membrane):
    """Exponential integrate-and-fire: near the threshold the potential shoots up (Fourcaud-Trocme et al., 2003)::

        h = v + (x + v_rest - v + delta_t exp(min((v - theta_rh) / delta_t, 40))) / tau
        z = [h >= threshold]
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    AdEx adds a current that adapts; the page "A neuron of your own" has it.
    SpikingJelly's ``EIFNode``, but for the limit of the exponent: an upstroke of exp(40) is far above any threshold,
    and without a limit it is infinite for a small ``delta_t``, or where nothing resets the potential, and gradients
    are NaN.

    tau: time constant of the potential, in time steps; 1 or above.
    delta_t: sharpness of the upstroke, in the unit of the potential; above 0.
    theta_rh: rheobase potential, where the upstroke begins.
    v_rest: the potential at rest.
    threshold: where it fires, in the unit of the potential; any number.
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.
    """

    params = {"tau": 2.0, "delta_t": 1.0, "theta_rh": 0.8, "v_rest": 0.0, **Membrane.params, "v_reset": -0.1}
    positive = ("delta_t",)
    bounds = {"tau": (1.0, None), "threshold": None}

    def __init__(
        self,
        tau: Any = params["tau"],
        *,
        delta_t: Any = params["delta_t"],
        theta_rh: Any = params["theta_rh"],
        v_rest: Any = params["v_rest"],
        threshold: Any = params["threshold"],
        reset: str = "hard",
        v_reset: Any = params["v_reset"],
        **options: Any,
    ) -> None:
        super().__init__(
            tau=tau,
            delta_t=delta_t,
            theta_rh=theta_rh,
            v_rest=v_rest,
            threshold=threshold,
            reset=reset,
            v_reset=v_reset,
            **options,
        )

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        # e^40 times itself is finite in float32, as a norm of gradients needs it
        upstroke = p.delta_t * ops.exp(ops.minimum((s.v - p.theta_rh) / p.delta_t, 40.0))
        h = ops.named("h", s.v + (x + p.v_rest - s.v + upstroke) / p.tau)
        z = self.spike(h - p.threshold)
        return z, {"v": self.after_spike(h, z, p)}


class Izhikevich(Membrane):
    """Quadratic charge with a recovery current ``w`` (Izhikevich, 2003)::

        h  = v + (x + a0 (v - v_rest) (v - v_c) - w) / tau
        z  = [h >= threshold]
        w' = w + (a (h - v_rest) - w) / tau_w + b z
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    ``detach_reset`` concerns ``v`` only: the spike's push on ``w`` keeps its gradient. As of :class:`QIF`, ``v`` grows
    without bound where the reset is not ``"hard"``. SpikingJelly's ``IzhikevichNode``.

    tau: time constant of the potential, in time steps; above 0.
    v_c: critical potential, above which ``v`` grows by itself.
    a0: strength of the quadratic charge, in 1 / potential; above 0.
    v_rest: the potential at rest.
    w_rest: the recovery current at the start.
    tau_w: time constant of the recovery current, in time steps; 1 or above.
    a: how much the potential drives the recovery current, a number without a unit.
    b: what a spike adds to the recovery current, in the unit of the potential.
    threshold: where it fires, in the unit of the potential; any number.
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.
    """

    states = {"v": "v_reset", "w": "w_rest"}
    params = {
        "tau": 2.0,
        "v_c": 0.8,
        "a0": 1.0,
        "v_rest": -0.1,
        "w_rest": 0.0,
        "tau_w": 2.0,
        "a": 0.0,
        "b": 0.0,
        **Membrane.params,
    }
    reset_states = ("v",)
    positive = ("tau", "a0")
    bounds = {"tau_w": (1.0, None), "threshold": None}

    def __init__(
        self,
        tau: Any = params["tau"],
        *,
        v_c: Any = params["v_c"],
        a0: Any = params["a0"],
        v_rest: Any = params["v_rest"],
        w_rest: Any = params["w_rest"],
        tau_w: Any = params["tau_w"],
        a: Any = params["a"],
        b: Any = params["b"],
        threshold: Any = params["threshold"],
        reset: str = "hard",
        v_reset: Any = params["v_reset"],
        **options: Any,
    ) -> None:
        super().__init__(
            tau=tau,
            v_c=v_c,
            a0=a0,
            v_rest=v_rest,
            w_rest=w_rest,
            tau_w=tau_w,
            a=a,
            b=b,
            threshold=threshold,
            reset=reset,
            v_reset=v_reset,
            **options,
        )

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = ops.named("h", s.v + (x + p.a0 * (s.v - p.v_rest) * (s.v - p.v_c) - s.w) / p.tau)
        z = self.spike(h - p.threshold)
        w = s.w + (p.a * (h - p.v_rest) - s.w) / p.tau_w + p.b * z
        return z, {"v": self.after_spike(h, z, p), "w": w}
