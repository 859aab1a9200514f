"""One step of every neuron of the library, from the papers and the peers.

The order of the operations is the one that the neuron's documentation gives, so that run in float32 a step yields the
bits of a backend that keeps to source order.
"""
# what `step` must do is said in `through_time.Oracle`

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from spikecore.testing._oracle.through_time import Next, Oracle
from spikecore.testing._oracle.values import Value, ops


def charge(decay_input: bool, x: Value, v: Value, tau: Value, rest: Value) -> Value:
    """Leaky charge, in its two forms."""
    return v + (x - (v - rest)) / tau if decay_input else v - (v - rest) / tau + x


class Membrane(Oracle):
    """A potential ``v`` that is charged to ``h``, fires, and is reset."""

    rest = {"v": "v_reset"}
    params: Tuple[str, ...] = ("threshold", "v_reset")

    def after(self, h: Value, z: Value, p: Any, subtracted: Value) -> Value:
        """The potential after the spike."""
        if self.reset == "hard":
            after: Value = ops.select(z, p.v_reset, h)
            return after
        return h - z * subtracted if self.reset == "soft" else h

    def fired(self, h: Value, p: Any) -> Next:
        """The end of a step whose threshold is the parameter and whose only state is the potential."""
        z = self.fire(h - p.threshold)
        return (z,), {"v": self.after(h, z, p, p.threshold)}


class IF(Membrane):
    """``h = v + x``."""

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        return self.fired(s.v + x[0], p)


class LIF(Membrane):
    """Leaky charge with a time constant."""

    params = ("tau", *Membrane.params)
    decay_input = True

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        return self.fired(charge(self.decay_input, x[0], s.v, p.tau, p.v_reset), p)


class PLIF(Membrane):
    """Leaky charge with the rate ``r = sigmoid(w)``."""

    params = ("w", *Membrane.params)
    decay_input = True

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        r = ops.sigmoid(p.w)
        distance = s.v - p.v_reset
        return self.fired(s.v + (x[0] - distance) * r if self.decay_input else s.v - distance * r + x[0], p)


class KLIF(Membrane):
    """Leaky charge ``c``, then ``h = relu(k c)``; with scale_reset, h/k is what is reset, by threshold/k."""

    params = ("tau", "k", *Membrane.params)
    decay_input, scale_reset = True, False

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        h = ops.relu(p.k * charge(self.decay_input, x[0], s.v, p.tau, p.v_reset))
        z = self.fire(h - p.threshold)
        if self.scale_reset:
            return (z,), {"v": self.after(h / p.k, z, p, p.threshold / p.k)}
        return (z,), {"v": self.after(h, z, p, p.threshold)}


class QIF(Membrane):
    """``h = v + (x + a0 (v - v_rest) (v - v_c)) / tau``."""

    params = ("tau", "v_c", "a0", "v_rest", *Membrane.params)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        return self.fired(s.v + (x[0] + p.a0 * (s.v - p.v_rest) * (s.v - p.v_c)) / p.tau, p)


class EIF(Membrane):
    """``h = v + (x + v_rest - v + delta_t e) / tau`` with ``e = exp(min((v - theta_rh) / delta_t, 40))``."""

    params = ("tau", "delta_t", "theta_rh", "v_rest", *Membrane.params)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        e = ops.exp(ops.minimum((s.v - p.theta_rh) / p.delta_t, 40.0))
        return self.fired(s.v + (x[0] + p.v_rest - s.v + p.delta_t * e) / p.tau, p)


class Izhikevich(Membrane):
    """Quadratic charge minus ``w``; ``w' = w + (a (h - v_rest) - w) / tau_w + b z``, whose spike is never detached."""

    rest = {"v": "v_reset", "w": "w_rest"}
    params = ("tau", "v_c", "a0", "v_rest", "w_rest", "tau_w", "a", "b", *Membrane.params)
    reset_states = ("v",)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        h = s.v + (x[0] + p.a0 * (s.v - p.v_rest) * (s.v - p.v_c) - s.w) / p.tau
        (z,), after = self.fired(h, p)
        after["w"] = s.w + (p.a * (h - p.v_rest) - s.w) / p.tau_w + p.b * z
        return (z,), after


class Synaptic(Membrane):
    """``i' = alpha i + x``, ``h = beta v + i'``."""

    rest = {"i": 0.0, "v": "v_reset"}
    params = ("alpha", "beta", *Membrane.params)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        i = s.i * p.alpha + x[0]
        spikes, after = self.fired(s.v * p.beta + i, p)
        return spikes, {**after, "i": i}


class CobaLIF(Membrane):
    """``g' = alpha g + x`` twice; ``h = v + (v_rest - v + ge' (rev_e - v) + gi' (rev_i - v)) / tau``."""

    inputs = ("e", "i")
    rest = {"ge": 0.0, "gi": 0.0, "v": "v_reset"}
    params = ("tau", "alpha_e", "alpha_i", "rev_e", "rev_i", "v_rest", *Membrane.params)
    reset_states: Any = ("v",)
    values, drive = {"alpha_i": 0.75, "v_rest": 0.125, "v_reset": 0.25}, (0.0, 2.0)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        ge, gi = p.alpha_e * s.ge + x[0], p.alpha_i * s.gi + x[1]
        pull = p.v_rest - s.v + ge * (p.rev_e - s.v) + gi * (p.rev_i - s.v)
        spikes, after = self.fired(s.v + pull / p.tau, p)
        return spikes, {**after, "ge": ge, "gi": gi}


class ALIF(Membrane):
    """LIF with threshold ``raised = threshold + beta a``; ``a' = rho a + z``, whose spike is never detached."""

    rest = {"v": "v_reset", "a": 0.0}
    params = ("tau", "rho", "beta", *Membrane.params)
    decay_input = True
    reset_states: Any = ("v",)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        h = charge(self.decay_input, x[0], s.v, p.tau, p.v_reset)
        raised = p.threshold + p.beta * s.a
        z = self.fire(h - raised)
        return (z,), {"v": self.after(h, z, p, raised), "a": p.rho * s.a + z}


class LI(Oracle):
    """Leaky integrator: the output is the potential."""

    rest = {"v": "v_rest"}
    params = ("tau", "v_rest")
    decay_input = True

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        v = charge(self.decay_input, x[0], s.v, p.tau, p.v_rest)
        return (v,), {"v": v}


class TernaryLIF(Membrane):
    """Leaky charge; fires 1 at the threshold, and -1 at its negative."""

    params = ("tau", *Membrane.params)
    decay_input = True

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        h = charge(self.decay_input, x[0], s.v, p.tau, p.v_reset)
        up, down = self.fire(h - p.threshold), self.fire(-h - p.threshold)
        z = up - down
        return (z,), {"v": self.after(h, up + down if self.reset == "hard" else z, p, p.threshold)}


class ILIF(Oracle):
    """A count of spikes with the derivative of a limited potential; the reset subtracts all of them."""

    rest = {"v": 0.0}
    params = ("beta", "threshold")
    levels, rounding, v_min = 4, "nearest", None
    drive = (-1.0, 3.0)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        h = s.v * p.beta + x[0]
        u = ops.clamp(h / p.threshold, 0.0, float(self.levels))
        whole = ops.round(u) if self.rounding == "nearest" else ops.floor(u)
        z = whole + (u - ops.detach(u))
        v = h - (ops.detach(z) if self.detach else z) * p.threshold
        return (z,), {"v": v if self.v_min is None else ops.clamp(v, self.v_min)}


class CLIF(Oracle):
    """``h = v - v / tau + x``, ``m' = m sigmoid(h / tau) + z``, ``v' = h - z (threshold + sigmoid(m'))``."""

    rest = {"v": 0.0, "m": 0.0}
    params = ("tau", "threshold")
    reset_states = ("v",)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        h = s.v - s.v / p.tau + x[0]
        z = self.fire(h - p.threshold)
        m = s.m * ops.sigmoid(h / p.tau) + z
        return (z,), {"v": h - z * (p.threshold + ops.sigmoid(m)), "m": m}


class GLIF(Oracle):
    """Gates between two leaks, two inputs and two resets; the spike of the step before resets."""

    rest = {"v": 0.0, "z": 0.0}
    params = ("w_alpha", "w_beta", "w_gamma", "w_tau", "w_leak", "w_threshold", "w_drop", "w_conductance")

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        alpha, beta, gamma = (ops.sigmoid(w) for w in (p.w_alpha, p.w_beta, p.w_gamma))
        tau, leak, drop, conductance = (ops.sigmoid(w) for w in (p.w_tau, p.w_leak, p.w_drop, p.w_conductance))
        part = 1.0 - alpha * (1.0 - tau)
        charged = (part * s.v - (1.0 - alpha) * leak) + x[0] * (1.0 - beta * (1.0 - conductance))
        v = charged - part * s.v * gamma * s.z - (1.0 - gamma) * drop * s.z
        z = self.fire(v - ops.sigmoid(p.w_threshold))
        return (z,), {"v": v, "z": z}


class TCLIF(Membrane):
    """``e = d - sigmoid(c1) v + x``, ``h = v + sigmoid(c2) e``; a soft reset takes gamma from the dendrite, too."""

    rest = {"d": 0.0, "v": "v_reset"}
    params = ("c1", "c2", "gamma", *Membrane.params)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        e = s.d - ops.sigmoid(p.c1) * s.v + x[0]
        (z,), after = self.fired(s.v + ops.sigmoid(p.c2) * e, p)
        return (z,), {**after, "d": e - z * p.gamma if self.reset == "soft" else e}


class SEAdLIF(Oracle):
    """Symplectic Euler: the adaptation takes the new potential. The reset carries no gradient."""

    rest = {"v": 0.0, "w": 0.0}
    params = ("tau_u", "tau_w", "a", "b", "q", "threshold")
    reset_states = ("v",)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        decay_u, decay_w = ops.exp(-1.0 / p.tau_u), ops.exp(-1.0 / p.tau_w)
        h = decay_u * s.v + (1.0 - decay_u) * (x[0] - s.w)
        z = self.fire(h - p.threshold)
        v = ops.select(ops.detach(z), 0.0, h)
        return (z,), {"v": v, "w": decay_w * s.w + (1.0 - decay_w) * (p.a * v + p.b * z) * p.q}


class BRF(Oracle):
    """An oscillator whose damping stays below the boundary of Euler's method; fires on ``>``."""

    rest = {"v": 0.0, "y": 0.0, "q": 0.0}
    params = ("omega", "b", "dt", "gamma", "threshold")
    strict = True

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        omega = ops.minimum(p.omega, (1 - 2.0**-20) / p.dt)
        turn = p.dt * omega
        r = (ops.sqrt(1.0 - turn * turn) - 1.0) / p.dt - p.b - s.q
        v = s.v + r * s.v * p.dt - omega * s.y * p.dt + x[0] * p.dt
        y = s.y + omega * s.v * p.dt + r * s.y * p.dt
        z = self.fire(v - p.threshold - s.q)
        return (z,), {"v": v, "y": y, "q": s.q * p.gamma + z}


class Delayed(Oracle):
    """snnTorch's: fires on ``>``; the reset flag is found anew from the potential that the last step left."""

    rest = {"v": 0.0}
    strict = True
    reset_delay = True

    def cleared(self, u: Value, r: Value, p: Any) -> Value:
        """The potential with the reset of the last step's spike."""
        if self.reset == "soft":
            u = u - r * p.threshold
        return ops.select(r, 0.0, u) if self.reset == "hard" else u

    def fired_from(self, u: Value, r: Value, p: Any) -> Next:
        """The spike, and the potential after a reset within the step where there is one."""
        z = self.fire(u - p.threshold)
        if not (self.reset_delay or self.reset == "none"):
            return (z,), {"v": u - (z - r) * (p.threshold if self.reset == "soft" else u)}
        return (z,), {"v": u}


class Leaky(Delayed):
    """``u = b v + x``, where a hard reset clears ``v`` before the step."""

    params = ("beta", "threshold")

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        b, r = ops.clamp(p.beta, 0.0, 1.0), self.flag(s.v - p.threshold)
        remaining = ops.select(r, 0.0, s.v) if self.reset == "hard" else s.v
        u = b * remaining + x[0] - r * p.threshold if self.reset == "soft" else b * remaining + x[0]
        return self.fired_from(u, r, p)


class SynapticLeaky(Delayed):
    """``i' = a i + x``, ``u = b v + i'``."""

    rest = {"i": 0.0, "v": 0.0}
    params = ("alpha", "beta", "threshold")

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        r = self.flag(s.v - p.threshold)
        i = ops.clamp(p.alpha, 0.0, 1.0) * s.i + x[0]
        spikes, after = self.fired_from(self.cleared(ops.clamp(p.beta, 0.0, 1.0) * s.v + i, r, p), r, p)
        return spikes, {**after, "i": i}


class Alpha(Delayed):
    """``e = a i_exc + x``, ``n = b i_inh - x``, ``u = tau (e + n)`` with ``tau = log(a) / (log(b) - log(a)) + 1``.

    ``a`` and ``b`` are ``alpha`` and ``beta`` in [1/1024, 1], and ``b`` is 1023/1024 of ``a`` at most.
    """

    least = 2.0**-10
    rest = {"i_exc": 0.0, "i_inh": 0.0, "v": 0.0}
    params = ("alpha", "beta", "threshold")

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        a, b = ops.clamp(p.alpha, self.least, 1.0), ops.clamp(p.beta, self.least, 1.0)
        b = ops.minimum(b, a * (1.0 - self.least))
        r = self.flag(s.v - p.threshold)
        exc, inh = a * s.i_exc + x[0], b * s.i_inh - x[0]
        tau = ops.log(a) / (ops.log(b) - ops.log(a)) + 1.0
        u = tau * (exc + inh)
        if self.reset == "soft":
            exc, inh, u = exc - p.threshold * r, ops.select(r, 0.0, inh), u + s.i_inh * r
        elif self.reset == "hard":
            exc, inh, u = (ops.select(r, 0.0, value) for value in (exc, inh, u))
        z = self.fire(u - p.threshold)
        return (z,), {"i_exc": exc, "i_inh": inh, "v": u}


class Lapicque(Delayed):
    """``u = x R (1 / (R C)) time_step + (1 - time_step / (R C)) v``."""

    params = ("R", "C", "time_step", "threshold")

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        r = self.flag(s.v - p.threshold)
        u = x[0] * p.R * (1.0 / (p.R * p.C)) * p.time_step + (1.0 - p.time_step / (p.R * p.C)) * s.v
        return self.fired_from(self.cleared(u, r, p), r, p)


# Neurons with vectors, whose values have names as in a program: d[0], d[1], ...


def each(values: Any, name: str) -> List[Value]:
    """The values of a vector."""
    return [value for key, value in vars(values).items() if key.partition("[")[0] == name]


def numbered(name: str, values: Sequence[Value]) -> Dict[str, Value]:
    """The values of a vector by their names."""
    return {f"{name}[{k}]": value for k, value in enumerate(values)}


def total(values: Sequence[Value]) -> Value:
    """Their sum, from the first on."""
    first, *others = values
    for value in others:
        first = first + value
    return first


class DHLIF(Oracle):
    """``d' = k d + (1 - k) x`` of each branch, ``h = a v + (1 - a) sum(d') - threshold y``."""

    strict, reset_states = True, ("y",)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        keeps, a = [ops.sigmoid(w) for w in each(p, "w_branch")], ops.sigmoid(p.w_soma)
        d = [k * before + (1.0 - k) * drive for k, before, drive in zip(keeps, each(s, "d"), x)]
        h = a * s.v + (1.0 - a) * total(d) - p.threshold * s.y
        z = self.fire(h - p.threshold)
        return (z,), {**numbered("d", d), "v": h, "y": z}


class SpikingSSM(Membrane):
    """``s' = k s + (1 - k) / rate b x`` with ``k = exp(-dt rate)`` of each state; ``sum(c s') + d x`` charges."""

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        rates = each(p, "rate")
        keeps = [ops.exp(-p.dt * rate) for rate in rates]
        gains = [(1.0 - k) / rate * b for k, rate, b in zip(keeps, rates, each(p, "b"))]
        after = [k * before + gain * x[0] for k, before, gain in zip(keeps, each(s, "s"), gains)]
        y = total([c * value for c, value in zip(each(p, "c"), after)]) + p.d * x[0]
        (z,), rest = self.fired(charge(True, y, s.v, p.tau, p.v_reset), p)
        return (z,), {**rest, **numbered("s", after)}
