"""One step of every neuron, and its adjoint, by hand.

The order of the operations in ``step`` is the one that the neuron's documentation gives, so that run in float32 it
yields the bits of a backend that keeps to source order. ``g`` with a name after it is the cotangent of that name. What
``step`` and ``back`` must do is said in :class:`~spikecore.testing._oracle.through_time.Oracle`.
"""
# said there

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import numpy as np

from spikecore.testing._oracle.membrane import Membrane, charge, charge_back
from spikecore.testing._oracle.through_time import Array, Cotangents, Oracle, Step


class IF(Membrane):
    """``h = v + x``."""

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        return self.fired(s.v + x[0], p)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_h, g_p = self.fired_back(k, p, g_next.v, g_out[0])
        return Cotangents((g_h,), {"v": g_h}, g_p)


class LIF(Membrane):
    """Leaky charge with a time constant."""

    params = ("tau", *Membrane.params)
    decay_input = True

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        return self.fired(charge(self.decay_input, x[0], s.v, p.tau, p.v_reset), p, x=x[0])

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_h, g_p = self.fired_back(k, p, g_next.v, g_out[0])
        g_x, g_v, g_tau, g_rest = charge_back(self.decay_input, g_h, k.x, s.v, p.tau, p.v_reset)
        return Cotangents((g_x,), {"v": g_v}, {**g_p, "tau": g_tau, "v_reset": g_p["v_reset"] + g_rest})


class PLIF(Membrane):
    """Leaky charge with the rate ``r = sigmoid(w)``; ``dr/dw = r (1 - r)``."""

    params = ("w", *Membrane.params)
    decay_input = True

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        r = 1 / (1 + np.exp(-p.w))
        distance = s.v - p.v_reset
        h = s.v + (x[0] - distance) * r if self.decay_input else s.v - distance * r + x[0]
        return self.fired(h, p, x=x[0], r=r)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_h, g_p = self.fired_back(k, p, g_next.v, g_out[0])
        distance = s.v - p.v_reset
        g_r = g_h * (k.x - distance) if self.decay_input else -g_h * distance
        g_x = g_h * k.r if self.decay_input else g_h
        g_p = {**g_p, "w": g_r * k.r * (1 - k.r), "v_reset": g_p["v_reset"] + g_h * k.r}
        return Cotangents((g_x,), {"v": g_h * (1 - k.r)}, g_p)


class KLIF(Membrane):
    """Leaky charge ``c``, then ``h = relu(k c)``; with scale_reset, h/k is what is reset, by threshold/k."""

    params = ("tau", "k", *Membrane.params)
    decay_input, scale_reset = True, False

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        c = charge(self.decay_input, x[0], s.v, p.tau, p.v_reset)
        gained = p.k * c
        h = np.where(gained <= 0, np.zeros_like(gained), gained)
        u = h - p.threshold
        z = self.fire(u)
        if self.scale_reset:
            v = self.after(h / p.k, z, p, p.threshold / p.k)
        else:
            v = self.after(h, z, p, p.threshold)
        return Step(outputs=(z,), next={"v": v}, tested=u, edges=(gained,), x=x[0], c=c, gained=gained, h=h, z=z)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_v = g_next.v
        if self.scale_reset:
            scaled, subtracted = k.h / p.k, p.threshold / p.k
            g_scaled, g_z, g_sub, g_v_reset = self.after_back(scaled, k.z, p, subtracted, g_v, g_out[0])
            g_h, g_threshold = g_scaled / p.k, g_sub / p.k
            g_k = -g_scaled * k.h / p.k**2 - g_sub * p.threshold / p.k**2
        else:
            g_h, g_z, g_threshold, g_v_reset = self.after_back(k.h, k.z, p, p.threshold, g_v, g_out[0])
            g_k = np.zeros_like(k.h)
        g_u = g_z * self.surrogate(k.tested)
        g_gained = np.where(k.gained > 0, g_h + g_u, 0.0)
        g_c = g_gained * p.k
        g_x, g_v, g_tau, g_rest = charge_back(self.decay_input, g_c, k.x, s.v, p.tau, p.v_reset)
        g_p = {
            "threshold": g_threshold - g_u,
            "v_reset": g_v_reset + g_rest,
            "k": g_k + g_gained * k.c,
            "tau": g_tau,
        }
        return Cotangents((g_x,), {"v": g_v}, g_p)


class QIF(Membrane):
    """``h = v + (x + a0 (v - v_rest) (v - v_c)) / tau``."""

    params = ("tau", "v_c", "a0", "v_rest", *Membrane.params)

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        driven = x[0] + p.a0 * (s.v - p.v_rest) * (s.v - p.v_c)
        return self.fired(s.v + driven / p.tau, p, driven=driven)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_h, g_p = self.fired_back(k, p, g_next.v, g_out[0])
        g_driven = g_h / p.tau
        g_v, more = quadratic_back(g_driven, s.v, p)
        return Cotangents((g_driven,), {"v": g_h + g_v}, {**g_p, **more, "tau": -g_h * k.driven / p.tau**2})


def quadratic_back(g: Array, v: Array, p: Any) -> Tuple[Array, Dict[str, Array]]:
    """The adjoint of ``a0 (v - v_rest) (v - v_c)``: the cotangent of v, and those of its parameters."""
    return g * p.a0 * (2 * v - p.v_rest - p.v_c), {
        "a0": g * (v - p.v_rest) * (v - p.v_c),
        "v_rest": -g * p.a0 * (v - p.v_c),
        "v_c": -g * p.a0 * (v - p.v_rest),
    }


class EIF(Membrane):
    """``h = v + (x + v_rest - v + delta_t e) / tau`` with ``e = exp(min((v - theta_rh) / delta_t, 40))``."""

    params = ("tau", "delta_t", "theta_rh", "v_rest", *Membrane.params)

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        e = np.exp(np.minimum((s.v - p.theta_rh) / p.delta_t, 40.0))
        driven = x[0] + p.v_rest - s.v + p.delta_t * e
        return self.fired(s.v + driven / p.tau, p, driven=driven, e=e)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_h, g_p = self.fired_back(k, p, g_next.v, g_out[0])
        g = g_h / p.tau
        above = (s.v - p.theta_rh) / p.delta_t
        steep = k.e * (above < 40.0)
        g_p = {
            **g_p,
            "v_rest": g,
            "theta_rh": -g * steep,
            "delta_t": g * (k.e - steep * above),
            "tau": -g_h * k.driven / p.tau**2,
        }
        return Cotangents((g,), {"v": g_h + g * (steep - 1)}, g_p)


class Izhikevich(Membrane):
    """Quadratic charge minus ``w``; ``w' = w + (a (h - v_rest) - w) / tau_w + b z``, whose spike is never detached."""

    rest = {"v": "v_reset", "w": "w_rest"}
    params = ("tau", "v_c", "a0", "v_rest", "w_rest", "tau_w", "a", "b", *Membrane.params)

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        driven = x[0] + p.a0 * (s.v - p.v_rest) * (s.v - p.v_c) - s.w
        k = self.fired(s.v + driven / p.tau, p, driven=driven)
        k.pull = p.a * (k.h - p.v_rest) - s.w
        k.next["w"] = s.w + k.pull / p.tau_w + p.b * k.z
        return k

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_w = g_next.w
        g_h, g_p = self.fired_back(k, p, g_next.v, g_out[0] + g_w * p.b)
        g_pull = g_w / p.tau_w
        g_h = g_h + g_pull * p.a
        g_driven = g_h / p.tau
        g_v, more = quadratic_back(g_driven, s.v, p)
        more["v_rest"] = more["v_rest"] - g_pull * p.a
        own = {"tau": -g_h * k.driven / p.tau**2, "tau_w": -g_w * k.pull / p.tau_w**2}
        own.update(a=g_pull * (k.h - p.v_rest), b=g_w * k.z)
        return Cotangents((g_driven,), {"v": g_h + g_v, "w": g_w - g_pull - g_driven}, {**g_p, **more, **own})


class Synaptic(Membrane):
    """``i' = alpha i + x``, ``h = beta v + i'``."""

    rest = {"i": 0.0, "v": "v_reset"}
    params = ("alpha", "beta", *Membrane.params)

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        i = s.i * p.alpha + x[0]
        k = self.fired(s.v * p.beta + i, p)
        k.next["i"] = i
        return k

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_h, g_p = self.fired_back(k, p, g_next.v, g_out[0])
        g_i = g_next.i + g_h
        return Cotangents(
            (g_i,), {"i": g_i * p.alpha, "v": g_h * p.beta}, {**g_p, "alpha": g_i * s.i, "beta": g_h * s.v}
        )


class ALIF(Membrane):
    """LIF with threshold ``raised = threshold + beta a``; ``a' = rho a + z``, whose spike is never detached."""

    rest = {"v": "v_reset", "a": 0.0}
    params = ("tau", "rho", "beta", *Membrane.params)
    decay_input = True

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        h = charge(self.decay_input, x[0], s.v, p.tau, p.v_reset)
        raised = p.threshold + p.beta * s.a
        u = h - raised
        z = self.fire(u)
        after = {"v": self.after(h, z, p, raised), "a": p.rho * s.a + z}
        return Step(outputs=(z,), next=after, tested=u, x=x[0], h=h, z=z, raised=raised)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_h, g_z, g_raised, g_v_reset = self.after_back(k.h, k.z, p, k.raised, g_next.v, g_out[0] + g_next.a)
        g_u = g_z * self.surrogate(k.tested)
        g_raised = g_raised - g_u
        g_x, g_v, g_tau, g_rest = charge_back(self.decay_input, g_h + g_u, k.x, s.v, p.tau, p.v_reset)
        g_p = {
            "threshold": g_raised,
            "beta": g_raised * s.a,
            "rho": g_next.a * s.a,
            "tau": g_tau,
            "v_reset": g_v_reset + g_rest,
        }
        return Cotangents((g_x,), {"v": g_v, "a": g_next.a * p.rho + g_raised * p.beta}, g_p)


class LI(Oracle):
    """Leaky integrator: the output is the potential."""

    rest = {"v": "v_rest"}
    params = ("tau", "v_rest")
    decay_input = True

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        v = charge(self.decay_input, x[0], s.v, p.tau, p.v_rest)
        return Step(outputs=(v,), next={"v": v}, x=x[0])

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_x, g_v, g_tau, g_rest = charge_back(self.decay_input, g_next.v + g_out[0], k.x, s.v, p.tau, p.v_rest)
        return Cotangents((g_x,), {"v": g_v}, {"tau": g_tau, "v_rest": g_rest})


class Leaky(Oracle):
    """snnTorch's: the reset acts on the next step, found anew from the potential; fires on ``>``."""

    rest = {"v": 0.0}
    params = ("beta", "threshold")
    strict = True
    reset_delay = True

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        b = np.minimum(np.maximum(p.beta, np.zeros_like(p.beta)), np.ones_like(p.beta))
        before = s.v - p.threshold
        r = self.fire(before)
        kept = np.where(r != 0, np.zeros_like(s.v), s.v) if self.reset == "hard" else s.v
        u = b * kept + x[0] - r * p.threshold if self.reset == "soft" else b * kept + x[0]
        tested = u - p.threshold
        z = self.fire(tested)
        v: Optional[Array] = None
        if self.reset_delay or self.reset == "none":
            v = u
        elif self.reset == "soft":
            v = u - (z - r) * p.threshold
        else:
            v = u - (z - r) * u
        return Step(outputs=(z,), next={"v": v}, tested=tested, edges=(before,), b=b, r=r, kept=kept, u=u, z=z)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_v, g_z, g_threshold, late = g_next.v, g_out[0], np.zeros_like(k.u), k.z - k.r
        g_u = g_v
        if not self.reset_delay and self.reset == "soft":
            g_z = g_z if self.detach else g_z - g_v * p.threshold
            g_threshold = -g_v * late
        elif not self.reset_delay and self.reset == "hard":
            g_z = g_z if self.detach else g_z - g_v * k.u
            g_u = g_v * (1 - late)
        g_tested = g_z * self.surrogate(k.tested)
        g_u, g_threshold = g_u + g_tested, g_threshold - g_tested
        if self.reset == "soft":
            g_threshold = g_threshold - g_u * k.r
        inside = (p.beta >= 0) & (p.beta <= 1)
        g_beta = np.where(inside, g_u * k.kept, 0.0)
        g_state = g_u * k.b * (1 - k.r) if self.reset == "hard" else g_u * k.b
        return Cotangents((g_u,), {"v": g_state}, {"beta": g_beta, "threshold": g_threshold})
