"""What the oracles of integrate-and-fire neurons share: firing, resetting and leaky charge, forward and back."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np

from spikecore.testing._oracle.through_time import Array, Oracle, Step


class Membrane(Oracle):
    """A potential ``v`` that is charged to ``h``, fires, and is reset."""

    rest = {"v": "v_reset"}
    params: Tuple[str, ...] = ("threshold", "v_reset")

    def after(self, h: Array, z: Array, p: Any, subtracted: Array) -> Array:
        """The potential after the spike."""
        if self.reset == "hard":
            return np.where(z != 0, p.v_reset, h)
        return h - z * subtracted if self.reset == "soft" else h

    def after_back(
        self, h: Array, z: Array, p: Any, subtracted: Array, g_v: Array, g_z: Array
    ) -> Tuple[Array, Array, Array, Array]:
        """Cotangents of h, z, subtracted, v_reset: the adjoint of ``z v_reset + (1 - z) h`` or ``h - z subtracted``."""
        none = np.zeros_like(h)
        if self.reset == "hard":
            to_z = none if self.detach else g_v * (p.v_reset - h)
            return np.where(z != 0, 0.0, g_v), g_z + to_z, none, np.where(z != 0, g_v, 0.0)
        if self.reset == "soft":
            to_z = none if self.detach else -g_v * subtracted
            return g_v, g_z + to_z, -g_v * z, none
        return g_v, g_z, none, none

    def fired(self, h: Array, p: Any, **more: Any) -> Step:
        """The end of a step whose threshold is the parameter and whose only other states are in ``more``."""
        u = h - p.threshold
        z = self.fire(u)
        return Step(outputs=(z,), next={"v": self.after(h, z, p, p.threshold)}, tested=u, h=h, z=z, **more)

    def fired_back(self, k: Any, p: Any, g_v: Array, g_z: Array) -> Tuple[Array, Dict[str, Array]]:
        """The adjoint of :meth:`fired`: the cotangent of h, and those of threshold and v_reset."""
        g_h, g_z, g_threshold, g_v_reset = self.after_back(k.h, k.z, p, p.threshold, g_v, g_z)
        g_u = g_z * self.surrogate(k.tested)
        return g_h + g_u, {"threshold": g_threshold - g_u, "v_reset": g_v_reset}


def charge(decay_input: bool, x: Array, v: Array, tau: Array, rest: Array) -> Array:
    """Leaky charge, in its two forms."""
    return v + (x - (v - rest)) / tau if decay_input else v - (v - rest) / tau + x


def charge_back(
    decay_input: bool, g: Array, x: Array, v: Array, tau: Array, rest: Array
) -> Tuple[Array, Array, Array, Array]:
    """Cotangents of x, v, tau and rest."""
    g_v, g_rest = g * (1 - 1 / tau), g / tau
    if decay_input:
        return g / tau, g_v, -g * (x - (v - rest)) / tau**2, g_rest
    return g, g_v, g * (v - rest) / tau**2, g_rest
