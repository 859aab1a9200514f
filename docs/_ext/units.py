"""What the gallery says of each parameter of a neuron and each field of a surrogate: its unit, and what it is.

The names that several classes share have a row here; of any other name the docstring of the class says it. Time
constants are in time steps, potentials in the unit that the threshold is given in.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Mapping, Tuple

POTENTIAL, STEPS, FRACTION, NUMBER = "potential", "time steps", "per time step", "number"

#: Parameter of a neuron -> unit, and what it is; ``Class.name`` where a name means another thing there.
PARAMETERS = {
    "tau": (STEPS, "time constant of the potential"),
    "tau_w": (STEPS, "time constant of the recovery current"),
    "threshold": (POTENTIAL, "where the neuron fires"),
    "v_reset": (POTENTIAL, "where a hard reset puts the potential, and where it starts"),
    "v_rest": (POTENTIAL, "where the potential rests"),
    "v_c": (POTENTIAL, "critical potential, above which it grows by itself"),
    "a0": ("1 / potential", "strength of the quadratic charge"),
    "delta_t": (POTENTIAL, "sharpness of the upstroke"),
    "theta_rh": (POTENTIAL, "rheobase potential"),
    "w_rest": (POTENTIAL, "where the recovery current starts"),
    "a": (NUMBER, "how much the potential drives the recovery current"),
    "b": (POTENTIAL, "what a spike adds to the recovery current"),
    "k": (NUMBER, "gain of the potential"),
    "w": (NUMBER, "1/tau is sigmoid(w)"),
    "rho": (FRACTION, "part of the adaptation that remains after a step"),
    "alpha": (FRACTION, "part of the current that remains after a step"),
    "beta": (FRACTION, "part of the potential that remains after a step"),
    "TCLIF.gamma": (POTENTIAL, "what a spike takes from the dendrite"),
    "c1": (NUMBER, "the soma inhibits the dendrite by sigmoid(c1) of its potential; 1 / time step"),
    "c2": (NUMBER, "the dendrite charges the soma by sigmoid(c2) of its potential; 1 / time step"),
    "tau_u": (STEPS, "time constant of the potential"),
    "SEAdLIF.tau_w": (STEPS, "time constant of the adaptation"),
    "SEAdLIF.a": (NUMBER, "how much the potential drives the adaptation"),
    "SEAdLIF.b": (POTENTIAL, "how much a spike drives the adaptation"),
    "q": (NUMBER, "scale of what drives the adaptation"),
    "omega": ("radians per unit of dt", "angular frequency of the oscillation"),
    "BRF.b": ("1 / unit of dt", "distance of the damping from where the oscillation would grow"),
    "dt": ("second, or any other unit", "length of a time step"),
    "gamma": (FRACTION, "part of the refractory variable that remains after a step"),
    "w_alpha": (NUMBER, "sigmoid: gate from the linear to the exponential leak"),
    "w_beta": (NUMBER, "sigmoid: gate from the input as it is to the weighed one"),
    "w_gamma": (NUMBER, "sigmoid: gate from the reset by subtraction to the one to 0"),
    "w_tau": (NUMBER, "sigmoid: part that the exponential leak keeps, per time step"),
    "w_leak": (NUMBER, "sigmoid: what the linear leak takes, potential per time step"),
    "w_threshold": (NUMBER, "sigmoid: where the neuron fires, a potential"),
    "w_drop": (NUMBER, "sigmoid: what the reset by subtraction takes, a potential"),
    "w_conductance": (NUMBER, "sigmoid: weight of the weighed input"),
    "R": ("ohm", "resistance of the membrane"),
    "C": ("farad", "capacity of the membrane"),
    "time_step": ("second", "length of a time step"),
    "Alpha.alpha": (FRACTION, "part of the exciting current that remains after a step"),
    "Alpha.beta": (FRACTION, "part of the inhibiting current that remains after a step"),
    "rate": ("spikes per time step", "how often it fires at the threshold"),
    "delta": (POTENTIAL, "width of the noise"),
    "ALIF.beta": (POTENTIAL, "what a spike adds to the threshold"),
}

#: Field of a surrogate -> unit, and what it is.
FIELDS = {
    "alpha": ("1 / potential", "steepness"),
    "slope": ("1 / potential", "steepness"),
    "gamma": ("1 / potential", "height at the threshold"),
    "width": (POTENTIAL, "half the width of the base"),
    "w": (POTENTIAL, "half the width of the middle piece"),
    "c": ("1 / potential", "height outside"),
    "n": (NUMBER, "terms of the series"),
    "period": (POTENTIAL, "period of the wave"),
    "beta": (NUMBER, "height of the tail above the threshold"),
    "leak": ("1 / potential", "height below the threshold"),
    "k": ("1 / potential", "height above the threshold"),
    "SuperSpike.alpha": ("1 / potential", "height at the threshold"),
    "FakeNumericalGradient.alpha": ("1 / potential", "height at the threshold"),
    "LogTailedReLU.alpha": ("1 / potential", "height below the threshold"),
    "QPseudoSpike.alpha": (NUMBER, "exponent of the tails"),
}


def of_parameter(kind: Any, name: str) -> str:
    """Meaning and unit of a parameter of a neuron."""
    return _of(kind, name, PARAMETERS)


def of_field(kind: Any, name: str) -> str:
    """Meaning and unit of a field of a surrogate."""
    return _of(kind, name, FIELDS)


def _of(kind: Any, name: str, table: Mapping[str, Tuple[str, str]]) -> str:
    """What the table says of a name, or else what the docstring of the class does; a page without is not built."""
    row = table.get(f"{kind.__name__}.{name}") or table.get(name)
    if row is not None:
        return "; ".join(row[::-1])
    entry = re.search(rf"(?m)^(?:\w+, )*{name}(?:, \w+)*: ([^;\n]+)", inspect.cleandoc(kind.__doc__ or ""))
    if entry is None:
        raise LookupError(f"write a line '{name}: what it is' into the docstring of {kind.__name__}")
    return entry.group(1).rstrip(".")
