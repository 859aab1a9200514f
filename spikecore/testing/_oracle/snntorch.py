"""One step of snnTorch's neurons beside Leaky, and its adjoint, by hand.

What :mod:`spikecore.testing._oracle.neurons` says holds here, too.
"""
# what `step` and `back` must do is said in `through_time.Oracle`

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np

from spikecore.testing._oracle.through_time import Array, Cotangents, Oracle, Step


def limited(value: Array, low: float = 0.0) -> Array:
    """The value in [low, 1]."""
    return np.minimum(np.maximum(value, np.full_like(value, low)), np.ones_like(value))


def within(value: Array, low: float = 0.0) -> Array:
    """1 where a value is its own limit, else 0."""
    return ((value >= low) & (value <= 1)).astype(float)


class Delayed(Oracle):
    """Fires on ``>``; the reset flag is found anew from the potential that the last step left."""

    strict = True
    reset_delay = True

    def cleared(self, u: Array, r: Array, p: Any) -> Array:
        """The potential with the reset of the last step's spike."""
        if self.reset == "soft":
            u = u - r * p.threshold
        return np.where(r != 0, np.zeros_like(u), u) if self.reset == "hard" else u

    def cleared_back(self, g: Array, r: Array) -> Tuple[Array, Array]:
        """Its adjoint: cotangents of u and of the threshold."""
        if self.reset == "soft":
            return g, -g * r
        return (g * (1 - r) if self.reset == "hard" else g), np.zeros_like(g)

    def at_once(self, u: Array, z: Array, r: Array, p: Any) -> Array:
        """The potential after a reset within the step."""
        if self.reset_delay or self.reset == "none":
            return u
        late: Array = (z - r) * (p.threshold if self.reset == "soft" else u)
        return u - late

    def at_once_back(self, k: Any, p: Any, g_v: Array, g_z: Array) -> Tuple[Array, Array]:
        """Its adjoint and that of the spike: cotangents of u and of the threshold."""
        g_u, g_threshold, late = g_v, np.zeros_like(g_v), k.z - k.r
        if not self.reset_delay and self.reset == "soft":
            g_z = g_z if self.detach else g_z - g_v * p.threshold
            g_threshold = -g_v * late
        elif not self.reset_delay and self.reset == "hard":
            g_z = g_z if self.detach else g_z - g_v * k.u
            g_u = g_v * (1 - late)
        g_tested = g_z * self.surrogate(k.tested)
        return g_u + g_tested, g_threshold - g_tested


class SynapticLeaky(Delayed):
    """``i' = a i + x``, ``u = b v + i'``."""

    rest = {"i": 0.0, "v": 0.0}
    params = ("alpha", "beta", "threshold")

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        before = s.v - p.threshold
        r = self.fire(before)
        i = limited(p.alpha) * s.i + x[0]
        u = self.cleared(limited(p.beta) * s.v + i, r, p)
        tested = u - p.threshold
        z = self.fire(tested)
        after = {"i": i, "v": self.at_once(u, z, r, p)}
        return Step(outputs=(z,), next=after, tested=tested, edges=(before,), r=r, u=u, z=z)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_u, g_threshold = self.at_once_back(k, p, g_next.v, g_out[0])
        g_u, more = self.cleared_back(g_u, k.r)
        g_i = g_next.i + g_u
        g_p = {
            "alpha": g_i * s.i * within(p.alpha),
            "beta": g_u * s.v * within(p.beta),
            "threshold": g_threshold + more,
        }
        return Cotangents((g_i,), {"i": g_i * limited(p.alpha), "v": g_u * limited(p.beta)}, g_p)


class Alpha(Delayed):
    """``e = a i_exc + x``, ``n = b i_inh - x``, ``u = tau (e + n)`` with ``tau = log(a) / (log(b) - log(a)) + 1``.

    ``a`` and ``b`` are ``alpha`` and ``beta`` in [1/1024, 1], and ``b`` is 1023/1024 of ``a`` at most.
    """

    least = 2.0**-10

    rest = {"i_exc": 0.0, "i_inh": 0.0, "v": 0.0}
    params = ("alpha", "beta", "threshold")

    def decays(self, p: Any) -> Tuple[Array, Array, Array]:
        """Both decays, and 1 where that of ``beta`` follows ``alpha``."""
        a, b = limited(p.alpha, self.least), limited(p.beta, self.least)
        most = a * (1 - self.least)
        return a, np.minimum(b, most), (b > most).astype(float)

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        (a, b, _), before = self.decays(p), s.v - p.threshold
        r = self.fire(before)
        exc, inh = a * s.i_exc + x[0], b * s.i_inh - x[0]
        tau = np.log(a) / (np.log(b) - np.log(a)) + np.ones_like(a)
        total = exc + inh
        u = tau * total
        kept: Optional[Array] = np.where(r != 0, np.zeros_like(inh), inh)
        if self.reset == "soft":
            exc, inh, u = exc - p.threshold * r, kept, u + s.i_inh * r
        elif self.reset == "hard":
            exc, inh, u = (np.where(r != 0, np.zeros_like(value), value) for value in (exc, inh, u))
        tested = u - p.threshold
        z = self.fire(tested)
        after = {"i_exc": exc, "i_inh": inh, "v": u}
        return Step(outputs=(z,), next=after, tested=tested, edges=(before,), r=r, tau=tau, total=total)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        a, b, follows = self.decays(p)
        g_tested = g_out[0] * self.surrogate(k.tested)
        g_u, g_exc, g_inh, g_threshold = g_next.v + g_tested, g_next.i_exc, g_next.i_inh, -g_tested
        g_old = np.zeros_like(g_u)
        if self.reset == "soft":
            g_threshold, g_inh, g_old = g_threshold - g_exc * k.r, g_inh * (1 - k.r), g_u * k.r
        elif self.reset == "hard":
            g_exc, g_inh, g_u = (g * (1 - k.r) for g in (g_exc, g_inh, g_u))
        g_tau = g_u * k.total
        g_exc, g_inh = g_exc + g_u * k.tau, g_inh + g_u * k.tau
        log_a, log_b = np.log(a), np.log(b)
        slope = g_tau / (log_b - log_a) ** 2
        g_b = g_inh * s.i_inh - slope * log_a / b
        g_a = g_exc * s.i_exc + slope * log_b / a + follows * g_b * (1 - self.least)
        g_p = {
            "alpha": g_a * within(p.alpha, self.least),
            "beta": g_b * (1 - follows) * within(p.beta, self.least),
            "threshold": g_threshold,
        }
        return Cotangents((g_exc - g_inh,), {"i_exc": g_exc * a, "i_inh": g_inh * b + g_old, "v": 0.0 * g_u}, g_p)


class Lapicque(Delayed):
    """``u = x R (1 / (R C)) time_step + (1 - time_step / (R C)) v``."""

    rest = {"v": 0.0}
    params = ("R", "C", "time_step", "threshold")

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        one, before = np.ones_like(p.R * p.C), s.v - p.threshold
        r = self.fire(before)
        u = x[0] * p.R * (one / (p.R * p.C)) * p.time_step + (one - p.time_step / (p.R * p.C)) * s.v
        u = self.cleared(u, r, p)
        tested = u - p.threshold
        z = self.fire(tested)
        return Step(outputs=(z,), next={"v": u}, tested=tested, edges=(before,), x=x[0], r=r, u=u, z=z)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_u, g_threshold = self.at_once_back(k, p, g_next.v, g_out[0])
        g_u, more = self.cleared_back(g_u, k.r)
        # u is x time_step / C + v - v time_step / (R C)
        g_p = {
            "R": g_u * s.v * p.time_step / (p.R**2 * p.C),
            "C": g_u * (s.v / p.R - k.x) * p.time_step / p.C**2,
            "time_step": g_u * (k.x - s.v / p.R) / p.C,
            "threshold": g_threshold + more,
        }
        return Cotangents((g_u * p.time_step / p.C,), {"v": g_u * (1 - p.time_step / (p.R * p.C))}, g_p)
