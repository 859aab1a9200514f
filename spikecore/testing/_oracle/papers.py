"""One step of neurons of single papers, and its adjoint, by hand.

What :mod:`spikecore.testing._oracle.neurons` says holds here, too.
"""
# what `step` and `back` must do is said in `through_time.Oracle`

from __future__ import annotations

from typing import Any

import numpy as np

from spikecore.testing._oracle.membrane import Membrane, charge, charge_back
from spikecore.testing._oracle.through_time import Array, Cotangents, Oracle, Step


def sigmoid(value: Array) -> Array:
    """``1 / (1 + exp(-value))``."""
    return np.asarray(1 / (1 + np.exp(-value)))


class CLIF(Oracle):
    """``h = v - v / tau + x``, ``m' = m sigmoid(h / tau) + z``, ``v' = h - z (threshold + sigmoid(m'))``."""

    rest = {"v": 0.0, "m": 0.0}
    params = ("tau", "threshold")

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        h = s.v - s.v / p.tau + x[0]
        u, kept = h - p.threshold, sigmoid(h / p.tau)
        z = self.fire(u)
        m = s.m * kept + z
        deep = sigmoid(m)
        after = {"v": h - z * (p.threshold + deep), "m": m}
        return Step(outputs=(z,), next=after, tested=u, h=h, z=z, kept=kept, deep=deep)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_v = g_next.v
        through_m = -g_v * k.z * k.deep * (1 - k.deep)
        g_z = g_out[0] + g_next.m
        if not self.detach:
            g_z = g_z + through_m - g_v * (p.threshold + k.deep)
        g_u = g_z * self.surrogate(k.tested)
        g_m = g_next.m + through_m
        g_inner = g_m * s.m * k.kept * (1 - k.kept)
        g_h = g_v + g_u + g_inner / p.tau
        g_p = {"tau": g_h * s.v / p.tau**2 - g_inner * k.h / p.tau**2, "threshold": -g_v * k.z - g_u}
        return Cotangents((g_h,), {"v": g_h * (1 - 1 / p.tau), "m": g_m * k.kept}, g_p)


class GLIF(Oracle):
    """Gates between two leaks, two inputs and two resets; the spike of the step before resets."""

    rest = {"v": 0.0, "z": 0.0}
    params = ("w_alpha", "w_beta", "w_gamma", "w_tau", "w_leak", "w_threshold", "w_drop", "w_conductance")

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        alpha, beta, gamma = sigmoid(p.w_alpha), sigmoid(p.w_beta), sigmoid(p.w_gamma)
        tau, leak, drop, conductance = sigmoid(p.w_tau), sigmoid(p.w_leak), sigmoid(p.w_drop), sigmoid(p.w_conductance)
        part = 1 - alpha * (1 - tau)
        charged = (part * s.v - (1 - alpha) * leak) + x[0] * (1 - beta * (1 - conductance))
        v = charged - part * s.v * gamma * s.z - (1 - gamma) * drop * s.z
        u = v - sigmoid(p.w_threshold)
        z = self.fire(u)
        gates = {"alpha": alpha, "beta": beta, "gamma": gamma, "tau": tau, "leak": leak, "drop": drop}
        return Step(outputs=(z,), next={"v": v, "z": z}, tested=u, x=x[0], part=part, conductance=conductance, **gates)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_u = (g_out[0] if self.detach else g_out[0] + g_next.z) * self.surrogate(k.tested)
        g = g_next.v + g_u
        g_part = g * s.v * (1 - k.gamma * s.z)
        threshold = sigmoid(p.w_threshold)
        inner = {
            "alpha": (g * k.leak - g_part * (1 - k.tau), k.alpha),
            "beta": (-g * k.x * (1 - k.conductance), k.beta),
            "gamma": (g * s.z * (k.drop - k.part * s.v), k.gamma),
            "tau": (g_part * k.alpha, k.tau),
            "leak": (-g * (1 - k.alpha), k.leak),
            "threshold": (-g_u, threshold),
            "drop": (-g * (1 - k.gamma) * s.z, k.drop),
            "conductance": (g * k.x * k.beta, k.conductance),
        }
        g_p = {f"w_{name}": value * gate * (1 - gate) for name, (value, gate) in inner.items()}
        g_state = {
            "v": g * k.part * (1 - k.gamma * s.z),
            "z": -g * (k.part * s.v * k.gamma + (1 - k.gamma) * k.drop),
        }
        return Cotangents((g * (1 - k.beta * (1 - k.conductance)),), g_state, g_p)


class TCLIF(Membrane):
    """``e = d - sigmoid(c1) v + x``, ``h = v + sigmoid(c2) e``; a soft reset takes gamma from the dendrite, too."""

    rest = {"d": 0.0, "v": "v_reset"}
    params = ("c1", "c2", "gamma", *Membrane.params)

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        down, up = sigmoid(p.c1), sigmoid(p.c2)
        e = s.d - down * s.v + x[0]
        k = self.fired(s.v + up * e, p, e=e, down=down, up=up)
        k.next["d"] = e - k.z * p.gamma if self.reset == "soft" else e
        return k

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_z, g_gamma = g_out[0], np.zeros_like(k.e)
        if self.reset == "soft":
            g_z = g_z if self.detach else g_z - g_next.d * p.gamma
            g_gamma = -g_next.d * k.z
        g_h, g_p = self.fired_back(k, p, g_next.v, g_z)
        g_e = g_next.d + g_h * k.up
        own = {"c1": -g_e * s.v * k.down * (1 - k.down), "c2": g_h * k.e * k.up * (1 - k.up), "gamma": g_gamma}
        return Cotangents((g_e,), {"d": g_e, "v": g_h - g_e * k.down}, {**g_p, **own})


class SEAdLIF(Oracle):
    """Symplectic Euler: the adaptation takes the new potential. The reset carries no gradient."""

    rest = {"v": 0.0, "w": 0.0}
    params = ("tau_u", "tau_w", "a", "b", "q", "threshold")

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        one = np.ones_like(p.tau_u)
        decay_u, decay_w = np.exp(-one / p.tau_u), np.exp(-one / p.tau_w)
        h = decay_u * s.v + (one - decay_u) * (x[0] - s.w)
        u = h - p.threshold
        z = self.fire(u)
        v = np.where(z != 0, np.zeros_like(h), h)
        pull = p.a * v + p.b * z
        after = {"v": v, "w": decay_w * s.w + (one - decay_w) * pull * p.q}
        return Step(outputs=(z,), next=after, tested=u, x=x[0], z=z, v=v, pull=pull, decay_u=decay_u, decay_w=decay_w)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_pull = g_next.w * (1 - k.decay_w) * p.q
        g_u = (g_out[0] + g_pull * p.b) * self.surrogate(k.tested)
        g_h = (g_next.v + g_pull * p.a) * (1 - k.z) + g_u
        g_p = {
            "tau_u": g_h * (s.v - (k.x - s.w)) * k.decay_u / p.tau_u**2,
            "tau_w": g_next.w * (s.w - k.pull * p.q) * k.decay_w / p.tau_w**2,
            "a": g_pull * k.v,
            "b": g_pull * k.z,
            "q": g_next.w * (1 - k.decay_w) * k.pull,
            "threshold": -g_u,
        }
        g_x = g_h * (1 - k.decay_u)
        return Cotangents((g_x,), {"v": g_h * k.decay_u, "w": g_next.w * k.decay_w - g_x}, g_p)


class BRF(Oracle):
    """An oscillator whose damping stays below the boundary of Euler's method; fires on ``>``."""

    rest = {"v": 0.0, "y": 0.0, "q": 0.0}
    params = ("omega", "b", "dt", "gamma", "threshold")
    strict = True

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        omega = np.minimum(p.omega, (1 - 2.0**-20) / p.dt)
        turn = p.dt * omega
        root = np.sqrt(np.ones_like(turn) - turn * turn)
        r = (root - np.ones_like(turn)) / p.dt - p.b - s.q
        v = s.v + r * s.v * p.dt - omega * s.y * p.dt + x[0] * p.dt
        y = s.y + omega * s.v * p.dt + r * s.y * p.dt
        u = v - p.threshold - s.q
        z = self.fire(u)
        return Step(
            outputs=(z,), next={"v": v, "y": y, "q": s.q * p.gamma + z}, tested=u, x=x[0], root=root, r=r, w=omega
        )

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        g_u = (g_out[0] if self.detach else g_out[0] + g_next.q) * self.surrogate(k.tested)
        g_v, g_y = g_next.v + g_u, g_next.y
        g_r = (g_v * s.v + g_y * s.y) * p.dt
        g_turn = -g_r / p.dt * p.dt * k.w / k.root
        to_dt = g_v * (k.r * s.v - k.w * s.y + k.x) + g_y * (k.w * s.v + k.r * s.y)
        g_w = (g_y * s.v - g_v * s.y) * p.dt + g_turn * p.dt
        free = p.omega == k.w
        to_dt = to_dt - np.where(free, 0.0, g_w * k.w / p.dt)
        g_p = {
            "omega": np.where(free, g_w, 0.0),
            "b": -g_r,
            "dt": to_dt + g_turn * k.w - g_r * (k.root - 1) / p.dt**2,
            "gamma": g_next.q * s.q,
            "threshold": -g_u,
        }
        g_state = {
            "v": g_v * (1 + k.r * p.dt) + g_y * k.w * p.dt,
            "y": g_y * (1 + k.r * p.dt) - g_v * k.w * p.dt,
            "q": g_next.q * p.gamma - g_u - g_r,
        }
        return Cotangents((g_v * p.dt,), g_state, g_p)


class TernaryLIF(Membrane):
    """Leaky charge; fires 1 at the threshold, and -1 at its negative."""

    params = ("tau", *Membrane.params)
    decay_input = True

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        h = charge(self.decay_input, x[0], s.v, p.tau, p.v_reset)
        above, below = h - p.threshold, -h - p.threshold
        up, down = self.fire(above), self.fire(below)
        z = up - down
        v = self.after(h, up + down if self.reset == "hard" else z, p, p.threshold)
        return Step(outputs=(z,), next={"v": v}, tested=above, edges=(below,), x=x[0], h=h, z=z, below=below)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        fired = np.abs(k.z) if self.reset == "hard" else k.z
        g_h, g_fired, g_threshold, g_v_reset = self.after_back(k.h, fired, p, p.threshold, g_next.v, np.zeros_like(k.h))
        # what comes through the reset reaches both spikes alike where it is hard, else as the output does
        g_up = (g_out[0] + g_fired) * self.surrogate(k.tested)
        g_down = (g_fired - g_out[0] if self.reset == "hard" else -g_out[0] - g_fired) * self.surrogate(k.below)
        g_x, g_v, g_tau, g_rest = charge_back(self.decay_input, g_h + g_up - g_down, k.x, s.v, p.tau, p.v_reset)
        g_p = {"threshold": g_threshold - g_up - g_down, "v_reset": g_v_reset + g_rest, "tau": g_tau}
        return Cotangents((g_x,), {"v": g_v}, g_p)
