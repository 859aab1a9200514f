"""snnTorch's leaky integrate-and-fire neurons: Leaky, Synaptic, Alpha and Lapicque."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from spikecore.core import checks, parameters
from spikecore.core.neuron import Neuron
from spikecore.lang import ops

__all__ = ["Alpha", "Lapicque", "Leaky", "SynapticLeaky"]


class LateReset:
    """Base of snnTorch's neurons, which fire above the threshold, and are reset by the spike of the step before."""

    reset: str
    reset_delay: bool
    spike: Any

    def fired(self, v: Any, p: Any) -> Any:
        """``R``: whether the potential at the start of the step was above the threshold; it carries no gradient."""
        return ops.detach(self.spike(v - p.threshold, strict=True))

    def less(self, u: Any, r: Any, p: Any) -> Any:
        """The new potential, reset by the spike of the step before."""
        if self.reset == "soft":
            return u - r * p.threshold
        return ops.select(r, 0.0, u) if self.reset == "hard" else u

    def fire(self, u: Any, r: Any, p: Any) -> Tuple[Any, Any]:
        """The spike, and the potential behind it, which ``reset_delay=False`` resets at once."""
        z = self.spike(u - p.threshold, strict=True)
        if self.reset_delay or self.reset == "none":
            return z, u
        late = z - r
        return z, u - late * (p.threshold if self.reset == "soft" else u)


class Leaky(LateReset, Neuron):
    """Leaky integrate-and-fire with decay ``beta``, bit for bit as ``snntorch.Leaky`` 1.0 computes it.

    With ``b = min(max(beta, 0), 1)``, and ``R = [u > threshold]`` of the potential at the start of the step, which
    carries no gradient::

        u' = b u + x - R threshold      reset="soft"  (snnTorch: "subtract")
        u' = b (1 - R) u + x            reset="hard"  ("zero"): the old potential goes, the new input stays
        u' = b u + x                    reset="none"
        z  = [u' > threshold]

    The potential that fired is thus visible for one step. With ``reset_delay=False`` the reset acts within the step,
    and its gradient flows: ``u'' = u' - (z - R) threshold`` (soft) or ``u' - (z - R) u'`` (hard).

    It fires on ``>``, unlike the other neurons here. The state is ``v``, the membrane potential, and starts at 0.

    beta: part of the potential that remains after a time step; 0 to 1. (With ``bounds=None`` the equation still limits
        it, and outside it learns nothing, as in snnTorch.)
    threshold: where it fires, in the unit of the potential; 0 or above.
    reset: ``"soft"`` (snnTorch: "subtract"), ``"hard"`` ("zero") or ``"none"``.
    reset_delay: True resets in the step after the spike, False in the same step.

    A ``state_dict`` of ``snntorch.Leaky`` loads, fixed ``beta`` and ``threshold`` included, which are buffers there.
    """

    states = {"v": 0.0}
    params = {"beta": 0.9, "threshold": 1.0}
    configuration = {**Neuron.configuration, "reset": checks.reset, "reset_delay": checks.flag}
    bounds = {"beta": (0.0, 1.0), "threshold": (0.0, None)}
    follows = {"beta": "what stays in a step; neurons have no size"}

    def __init__(
        self,
        beta: Any,
        *,
        threshold: Any = params["threshold"],
        reset: str = "soft",
        reset_delay: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(beta=beta, threshold=threshold, **options)
        self.reset = reset
        self.reset_delay = reset_delay

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        b = ops.clamp(p.beta, 0.0, 1.0)
        r = self.fired(s.v, p)
        if self.reset == "hard":  # the old potential goes, and the input of the step stays
            u = b * ops.select(r, 0.0, s.v) + x
        else:
            u = self.less(b * s.v + x, r, p)
        z, v = self.fire(u, r, p)
        return z, {"v": v}


class SynapticLeaky(LateReset, Neuron):
    """Leaky integrate-and-fire with a synaptic current, bit for bit as ``snntorch.Synaptic`` 1.0 computes it.

    With ``a``, ``b`` the parameters ``alpha``, ``beta`` limited to 0 to 1, and ``R = [v > threshold]`` of the potential
    at the start of the step, which carries no gradient::

        i' = a i + x
        u  = b v + i' - R threshold        reset="soft"  (snnTorch: "subtract")
        u  = (1 - R) (b v + i')            reset="hard"  ("zero"): the input of the step goes, too; the current stays
        u  = b v + i'                      reset="none"
        z  = [u > threshold]
        v' = u

    With ``reset_delay=False`` the reset acts within the step, and its gradient flows: ``v' = u - (z - R) threshold``
    (soft) or ``v' = u - (z - R) u`` (hard). ``i`` and ``v`` start at 0. :class:`Synaptic` resets in the step that
    fires.

    alpha: part of the current that remains after a time step; 0 to 1.
    beta: part of the potential that remains after a time step; 0 to 1.
    threshold: where it fires, in the unit of the potential; 0 or above.
    reset: ``"soft"`` (snnTorch: "subtract"), ``"hard"`` ("zero") or ``"none"``.
    reset_delay: True resets in the step after the spike, False in the same step.

    ``sc.Recurrent(SynapticLeaky(...), linear)`` is ``snntorch.RSynaptic``, to rounding, and with ``alpha=0``
    ``snntorch.RLeaky``, whose ``"zero"`` clears the input, as here. A ``state_dict`` of ``snntorch.Synaptic`` loads.
    """

    states = {"i": 0.0, "v": 0.0}
    params = {"alpha": 0.9, "beta": 0.8, "threshold": 1.0}
    configuration = {**Neuron.configuration, "reset": checks.reset, "reset_delay": checks.flag}
    bounds = {"alpha": (0.0, 1.0), "beta": (0.0, 1.0), "threshold": (0.0, None)}
    reset_states = ("v",)

    def __init__(
        self,
        alpha: Any = params["alpha"],
        beta: Any = params["beta"],
        *,
        threshold: Any = params["threshold"],
        reset: str = "soft",
        reset_delay: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, threshold=threshold, **options)
        self.reset = reset
        self.reset_delay = reset_delay

    def current(self, x: Any, s: Any, p: Any) -> Any:
        """The synaptic current after the input of a step."""
        return ops.clamp(p.alpha, 0.0, 1.0) * s.i + x

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        r = self.fired(s.v, p)
        i = self.current(x, s, p)
        u = self.less(ops.clamp(p.beta, 0.0, 1.0) * s.v + i, r, p)
        z, v = self.fire(u, r, p)
        return z, {"i": i, "v": v}


class Alpha(Neuron):
    """Potential in the form of an alpha function, the difference of two currents, as ``snntorch.Alpha`` 1.0 has it.

    With ``R = [v > threshold]`` of the potential at the start of the step, which carries no gradient::

        a   = alpha in [1/1024, 1];  b = min(beta in [1/1024, 1], 1023/1024 a)
        tau = log(a) / (log(b) - log(a)) + 1
        e   = a i_exc + x
        n   = b i_inh - x
        u   = tau (e + n)
        i_exc', i_inh', v' = (1 - R) e, (1 - R) n, (1 - R) u                    reset="hard"  (snnTorch: "zero")
        i_exc', i_inh', v' = e - R threshold, (1 - R) n, u + R i_inh            reset="soft"  ("subtract")
        i_exc', i_inh', v' = e, n, u                                            reset="none"
        z   = [v' > threshold]

    All states start at 0. There is no reset within the step.

    alpha: part of the exciting current that remains after a time step; 1/1024 to 1, since ``tau`` has no derivative at
        0.
    beta: part of the inhibiting current that remains after a time step; 1/1024 to 1 and below ``alpha``, so that a
        positive input raises the potential. Where learning brings it nearer to ``alpha`` than a 1024th, or above, the
        equations take 1023/1024 of ``alpha`` for it, and it learns nothing: where they are equal snnTorch divides by 0.
    threshold: where it fires, in the unit of the potential; 0 or above.
    reset: ``"hard"`` (snnTorch: "zero"), ``"soft"`` ("subtract") or ``"none"``.

    Bit for bit where the logarithm is torch's, on the torch backend; to its rounding elsewhere. A ``state_dict`` of
    ``snntorch.Alpha`` loads.
    """

    states = {"i_exc": 0.0, "i_inh": 0.0, "v": 0.0}
    params = {"alpha": 0.9, "beta": 0.8, "threshold": 1.0}
    configuration = {**Neuron.configuration, "reset": checks.reset}
    bounds = {"alpha": (2.0**-10, 1.0), "beta": (2.0**-10, 1.0), "threshold": (0.0, None)}

    def __init__(
        self,
        alpha: Any = params["alpha"],
        beta: Any = params["beta"],
        *,
        threshold: Any = params["threshold"],
        reset: str = "hard",
        **options: Any,
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, threshold=threshold, **options)
        self.reset = reset
        if self.bounds:
            _check_order(self.alpha, self.beta)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        # a learnt beta may have reached alpha, or 0: tau and its derivatives stay finite
        a = ops.clamp(p.alpha, 2.0**-10, 1.0)
        b = ops.minimum(ops.clamp(p.beta, 2.0**-10, 1.0), (1.0 - 2.0**-10) * a)
        r = ops.detach(self.spike(s.v - p.threshold, strict=True))
        exc = a * s.i_exc + x
        inh = b * s.i_inh - x
        tau = ops.log(a) / (ops.log(b) - ops.log(a)) + 1.0
        u = tau * (exc + inh)
        if self.reset == "soft":
            exc, inh, u = exc - p.threshold * r, ops.select(r, 0.0, inh), u + s.i_inh * r
        elif self.reset == "hard":
            exc, inh, u = ops.select(r, 0.0, exc), ops.select(r, 0.0, inh), ops.select(r, 0.0, u)
        return self.spike(u - p.threshold, strict=True), {"i_exc": exc, "i_inh": inh, "v": u}


def _check_order(alpha: Any, beta: Any) -> None:
    """Refuse decays of Alpha with which a positive input would not raise the potential."""
    both = [value.detach() if isinstance(value, Tensor) else value for value in (alpha, beta)]
    if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in both):
        return  # no wait for a device
    if not bool(torch.as_tensor((1.0 - 2.0**-10) * both[0] >= both[1]).all()):
        raise ValueError(
            f"Alpha: beta={beta!r} must be below alpha={alpha!r}, by a 1024th of it or more: the potential is their "
            "difference"
        )


class Lapicque(Neuron):
    """Leaky integrate-and-fire as a circuit of a resistance and a capacity, bit for bit as ``snntorch.Lapicque`` 1.0.

    With ``S = [v > threshold]`` of the potential at the start of the step, which carries no gradient::

        u  = x R (1 / (R C)) time_step + (1 - time_step / (R C)) v
        v' = u - S threshold               reset="soft"  (snnTorch: "subtract")
        v' = (1 - S) u                     reset="hard"  ("zero"): the input of the step goes, too
        v' = u                             reset="none"
        z  = [v' > threshold]

    ``v`` starts at 0. There is no reset within the step.

    beta: gives what of ``R`` and ``C`` is missing (``R`` is 1 if both are): ``R C = time_step / log(1 / beta)``;
        between 0 and 1. The part that remains after one step then is ``1 - log(1 / beta)``, and not ``beta``, which is
        so in snnTorch, too.
    R: resistance of the membrane, in ohm; above 0. 1 if None.
    C: capacity of the membrane, in farad; above 0. 1.44 if None.
    time_step: length of a time step, in seconds; above 0. Above ``R C`` the leak overshoots.
    threshold: where it fires, in volt; 0 or above.
    reset: ``"soft"`` (snnTorch: "subtract"), ``"hard"`` ("zero") or ``"none"``.

    A ``state_dict`` of ``snntorch.Lapicque`` loads; its ``beta`` says what ``R`` and ``C`` say, and is not read.
    """

    states = {"v": 0.0}
    params = {"R": 1.0, "C": 1.44, "time_step": 1.0, "threshold": 1.0}
    configuration = {**Neuron.configuration, "reset": checks.reset}
    positive = ("R", "C", "time_step")
    bounds = {"threshold": (0.0, None)}

    def __init__(
        self,
        beta: Any = None,
        *,
        R: Any = None,
        C: Any = None,
        time_step: Any = params["time_step"],
        threshold: Any = params["threshold"],
        reset: str = "soft",
        **options: Any,
    ) -> None:
        if beta is not None:
            R, C = _circuit(beta, R, C, time_step)
        R, C = self.params["R"] if R is None else R, self.params["C"] if C is None else C
        super().__init__(R=R, C=C, time_step=time_step, threshold=threshold, **options)
        self.reset = reset

    def _foreign(self, name: str, value: Tensor) -> Optional[str]:
        return "" if name == "beta" else super()._foreign(name, value)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        r = ops.detach(self.spike(s.v - p.threshold, strict=True))
        u = x * p.R * (1.0 / (p.R * p.C)) * p.time_step + (1.0 - p.time_step / (p.R * p.C)) * s.v
        if self.reset == "soft":
            u = u - r * p.threshold
        elif self.reset == "hard":
            u = ops.select(r, 0.0, u)
        return self.spike(u - p.threshold, strict=True), {"v": u}


def _circuit(beta: Any, R: Any, C: Any, time_step: Any) -> Tuple[Any, Any]:
    """Resistance and capacity of a decay, in the dtype in which snnTorch computes them."""
    if R is not None and C is not None:
        raise ValueError(f"Lapicque: beta={beta!r} follows from R={R!r} and C={C!r}; give two of the three")
    parameters.require(
        "Lapicque", "beta", beta, "between 0 and 1, both excluded", lambda value: (value > 0) & (value < 1)
    )
    rate = torch.log(1 / torch.as_tensor(beta))
    if C is not None:
        return _plain(time_step / (C * rate)), C
    R = 1.0 if R is None else R
    return R, _plain(time_step / (R * rate))


def _plain(value: Tensor) -> Any:
    """A single value as a number, as it would have been given."""
    return value if value.ndim or value.requires_grad else value.item()
