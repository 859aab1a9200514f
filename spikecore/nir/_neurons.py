"""The neurons of NIR in time steps. Graphs of other libraries are loaded as these."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from spikecore._shell import checks
from spikecore.lang import ops
from spikecore.neuron import Neuron


class NIRLI(Neuron):
    """NIR's LI, and I with ``decay=1``: a leaky integrator, whose output is its potential::

        v' = v_leak + (v - v_leak) decay + gain x

    ``v`` starts at ``v_leak``. ``decay`` is ``1 - dt/tau`` or ``exp(-dt/tau)``, ``gain`` is ``R (1 - decay)``, see
    :class:`spikecore.nir.Convention`.
    """

    states = {"v": "v_leak"}
    params = {"decay": 0.5, "gain": 1.0, "v_leak": 0.0}

    def charge(self, x: Any, s: Any, p: Any) -> Any:
        """The potential after a step of input ``x``."""
        return p.v_leak + (s.v - p.v_leak) * p.decay + p.gain * x

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        v = self.charge(x, s, p)
        return v, {"v": v}


class NIRLIF(NIRLI):
    """NIR's LIF, and IF with ``decay=1``: :class:`NIRLI` with a threshold::

        h = v_leak + (v - v_leak) decay + gain x
        z = [h > threshold]                         strict=True, NIR's meaning
        z = [h >= threshold]                        strict=False
        v' = v_reset where z, else h                reset="hard"
        v' = h - threshold z                        reset="soft"

    With ``reset_delay`` a spike resets the potential at the start of the next step, before it decays, without a
    gradient: ``h = v_leak + (v - v_leak) decay + gain x - r threshold`` (soft), or from ``v = v_reset`` where ``r``
    (hard), with ``r = [v > threshold]``. With ``many`` (and a soft reset at once)
    ``z = floor(h / threshold)`` where that is 1 or above.
    """

    params = {**NIRLI.params, "threshold": 1.0, "v_reset": 0.0}
    configuration = {
        **Neuron.configuration,
        "reset": checks.reset,
        "reset_delay": checks.flag,
        "strict": checks.flag,
        "many": checks.flag,
    }
    reset_states = ("v",)

    def __init__(
        self,
        *,
        strict: bool = True,
        reset: str = "hard",
        reset_delay: bool = False,
        many: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if reset == "none":
            raise ValueError(f"{type(self).__name__}: reset='none' must be 'hard' or 'soft'")
        if many and (reset_delay or reset != "soft"):
            raise ValueError(f"{type(self).__name__}: many=True needs reset='soft' and reset_delay=False")
        self.strict = strict
        self.reset = reset
        self.reset_delay = reset_delay
        self.many = many

    def fire(self, v: Any, charged: Any, p: Any) -> Tuple[Any, Any]:
        """Spikes and the next potential; ``charged`` makes the charged potential of the last one, ``v``."""
        if self.reset_delay:
            r = ops.detach(self.spike(v - p.threshold, strict=self.strict))
            if self.reset == "soft":
                h = charged(v) - r * p.threshold
            else:
                h = charged(ops.select(r, p.v_reset, v))
            return self.spike(h - p.threshold, strict=self.strict), h
        h = charged(v)
        z = self.spike(h - p.threshold, strict=self.strict)
        if self.many:
            z = z * ops.maximum(ops.floor(h / p.threshold), 1.0)
        return z, (h - z * p.threshold if self.reset == "soft" else ops.select(z, p.v_reset, h))

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        z, v = self.fire(s.v, lambda before: p.v_leak + (before - p.v_leak) * p.decay + p.gain * x, p)
        return z, {"v": v}


class NIRCubaLI(NIRLI):
    """NIR's CubaLI: a synaptic current that charges a leaky integrator::

        i' = i syn_decay + syn_gain x
        v' = v_leak + (v - v_leak) decay + gain i'

    ``i`` starts at 0, ``v`` at ``v_leak``.
    """

    states = {"i": 0.0, "v": "v_leak"}
    params = {"syn_decay": 0.5, "syn_gain": 1.0, **NIRLI.params}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        i = s.i * p.syn_decay + p.syn_gain * x
        v = self.charge(i, s, p)
        return v, {"i": i, "v": v}


class NIRCubaLIF(NIRLIF):
    """NIR's CubaLIF: a synaptic current, ``i' = i syn_decay + syn_gain x``, that charges a :class:`NIRLIF`.

    The potential is charged by the current of the same step, ``i'``. A spike does not reset the current.
    """

    states = {"i": 0.0, "v": "v_leak"}
    params = {"syn_decay": 0.5, "syn_gain": 1.0, **NIRLIF.params}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        i = s.i * p.syn_decay + p.syn_gain * x
        z, v = self.fire(s.v, lambda before: p.v_leak + (before - p.v_leak) * p.decay + p.gain * i, p)
        return z, {"i": i, "v": v}
