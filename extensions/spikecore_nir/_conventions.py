"""Conventions: steps for the continuous time of NIR, and the meaning of files of other libraries.

A node of NIR is a differential equation. ``tau dv/dt = (v_leak - v) + R x`` becomes::

    v' = v_leak + decay (v - v_leak) + gain x

With ``"euler"`` ``decay = 1 - dt/tau``, with ``"exp"`` ``decay = exp(-dt/tau)``, which is the exact solution for an
input that is constant during the step. Gains are those of :data:`GAINS`. Numbers are computed in float64.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

#: The ways from ``tau`` to the part of a potential that remains after a step.
DISCRETIZATIONS = ("euler", "exp")
#: ``(resistance, decay, leak, dt/tau) -> gain``, with ``leak = 1 - decay``; by the name that a convention has for it.
GAINS: Dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    # the input is a current that flows during the step: NIR's own meaning
    "current": lambda resistance, decay, leak, ratio: resistance * leak,
    # the input is a charge that arrives at once
    "jump": lambda resistance, decay, leak, ratio: resistance,
    # a charge that arrives at once, and decays within the step
    "decayed": lambda resistance, decay, leak, ratio: resistance * decay,
    # Euler's gain, whatever the decay
    "rate": lambda resistance, decay, leak, ratio: resistance * ratio,
    # Euler's gain of a writer that multiplied it by the decay
    "rate/decay": lambda resistance, decay, leak, ratio: resistance * ratio / decay,
}


@dataclass(frozen=True)
class Convention:
    r"""Discretisation of a file's equations, which NIR does not contain. See :data:`CONVENTIONS` for those of
    libraries.

    ::

        v' = v_leak + decay (v - v_leak) + gain x        decay = 1 - dt/tau    discretization="euler"
        z  = [v' > v_threshold]                          decay = exp(-dt/tau)  discretization="exp"
        v'' = v_reset where z, else v'

    discretization: ``"euler"`` or ``"exp"``.
    dt: the time step in the unit of the file's time constants, seconds in NIR.
    strict: whether neurons fire above the threshold only (``>``, NIR's meaning) or at the threshold, too (``>=``).
    reset: ``"hard"`` (to ``v_reset``, NIR's meaning) or ``"soft"`` (``v'' = v' - v_threshold z``).
    reset_delay: whether the reset acts at the start of the next step instead, as in :class:`spikecore.Leaky`.
    many: whether a neuron may fire ``z = floor(v' / v_threshold)`` spikes in a step.
    lif, li, integrator, synapse: the gain of the input of LIF (CubaLIF's membrane included), LI (CubaLI's), IF and I,
        and of the synapse of CubaLIF and CubaLI, in which ``R`` is ``w_in``:
        ``"current"`` is ``R dt/tau`` with Euler and ``R (1 - decay)`` with exp (NIR's meaning; ``R dt`` of IF and I),
        ``"jump"`` ``R``, ``"decayed"`` ``R decay``, ``"rate"`` ``R dt/tau``, ``"rate/decay"`` ``R dt/tau / decay``.
    """

    discretization: str
    dt: Optional[float] = None
    strict: bool = True
    reset: str = "hard"
    reset_delay: bool = False
    many: bool = False
    lif: str = "current"
    li: str = "current"
    integrator: str = "current"
    synapse: str = "current"

    def __post_init__(self) -> None:
        check_discretization("Convention", self.discretization)
        if self.dt is not None:
            check_dt("Convention", self.dt)
        for name, right in (("reset", ("hard", "soft")), *[(name, tuple(GAINS)) for name in ("lif", "li", "synapse")]):
            if getattr(self, name) not in right:
                raise ValueError(f"Convention: {name}={getattr(self, name)!r} must be one of {', '.join(right)}")
        if self.integrator not in ("current", "jump"):
            raise ValueError(f"Convention: integrator={self.integrator!r} must be 'current' or 'jump'")
        if self.many and (self.reset_delay or self.reset != "soft"):
            raise ValueError("Convention: many=True needs reset='soft' and reset_delay=False, as in sinabs")


def check_discretization(owner: str, value: Any) -> None:
    """Raise unless it is the name of one."""
    if value not in DISCRETIZATIONS:
        raise ValueError(
            f"{owner}: discretization={value!r} must be 'euler' (decay = 1 - dt/tau) or 'exp' (decay = exp(-dt/tau))"
        )


def check_dt(owner: str, value: Any) -> None:
    """Raise unless it is a time step."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{owner}: dt={value!r} must be a number, the time step in seconds, such as 1e-3")
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"{owner}: dt={value!r} must be above 0 and finite: the time step in seconds, such as 1e-3")


def leak_of(tau: Any, dt: float, discretization: str) -> Tuple[Any, Any]:
    """``(leak, dt/tau)``: the part of a potential that is lost in a step; ``tau`` and the result are float64."""
    ratio = dt / tau
    return (ratio if discretization == "euler" else -np.expm1(-ratio)), ratio


def tau_of(leak: Any, dt: float, discretization: str) -> Any:
    """The time constant that loses this part in a step."""
    return dt / leak if discretization == "euler" else -dt / np.log1p(-leak)


#: The libraries' own ways with the files that they write, their default neurons taken. ``dataclasses.replace`` has
#: others: ``replace(CONVENTIONS["sinabs"], many=False, reset="hard")`` for sinabs' ``SingleSpike, MembraneReset()``.
CONVENTIONS: Dict[str, Convention] = {
    # export_to_nir has dt=1e-4 in its text; reset_mechanism="subtract", reset_delay=True
    "snntorch": Convention("euler", 1e-4, reset="soft", reset_delay=True),
    # to_nir (1.1) writes dt / tau_mem_inv, which is tau times its dt of 1e-3; input jumps onto currents and IAF
    "norse": Convention("euler", 1e-6, integrator="jump", synapse="jump"),
    # tau in time steps; norm_input=True, MultiSpike, MembraneSubtract
    "sinabs": Convention("exp", 1.0, strict=False, reset="soft", many=True),
    # r = tau exp(-dt/tau) / dt, w_in = 1; its modules have dt=1e-3
    "rockpool": Convention(
        "exp", 1e-3, strict=False, reset="soft", many=True, lif="rate/decay", li="rate", synapse="decayed"
    ),
    # export_to_nir(dt=1e-4); fires at the threshold, refuses a soft reset
    "spikingjelly": Convention("euler", 1e-4, strict=False),
}
