"""Neurons and nodes of NIR: each node's numbers from a neuron, and a neuron from them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

from spikecore.neuron import Neuron
from spikecore.nir import _kept
from spikecore.nir._conventions import GAINS, Convention, leak_of, tau_of
from spikecore.nir._forms import FORMS, Unsaid
from spikecore.nir._limits import check_node, check_steps, fitting
from spikecore.nir._neurons import NIRLI, NIRLIF, NIRCubaLI, NIRCubaLIF
from spikecore.nir._package import package

#: What tau and r of a float32 file may be off by where they were rounded, relative: a gain this near 1 is 1.
_ROUNDED = 4.0 * 2.0**-24


@dataclass
class Writing:
    """What one file is written with, and what it cannot hold."""

    dt: float
    discretization: str
    #: NumPy's name of the dtype of every number.
    dtype: str
    #: ``(place, what is not said)``.
    unsaid: List[Tuple[str, Unsaid]] = field(default_factory=list)


@dataclass
class Reading:
    """What one file is read with."""

    convention: Convention
    #: ``(dt, discretization)`` that the file was saved with by spikecore, where it is read with the same.
    own: Optional[Tuple[float, str]]
    #: Arguments that neither the file nor the caller gave.
    lacking: Sequence[str]
    #: Options of the neurons that are made from NIR's numbers.
    options: Dict[str, Any]

    def needed(self, name: str, node: Any) -> Tuple[Convention, float]:
        """The convention and its time step, for a node that depends on them."""
        kind, dt = type(node).__name__, self.convention.dt
        lacking = [each for each in self.lacking if each == "dt" or kind not in ("I", "IF", "Delay")]
        if lacking or dt is None:
            example = {"dt": "dt=1e-3 (seconds)", "discretization": "discretization='euler' or 'exp'"}
            ways = " and ".join(example[each] for each in lacking)
            raise ValueError(
                f"sc.nir.load: node {name!r}, a {kind}, is an equation in continuous time, and the file does not say "
                f"how it becomes steps; give {ways}, or the library that wrote the file, as in convention='snntorch' "
                "(sc.nir.CONVENTIONS)"
            )
        return self.convention, dt


def node_of(name: str, neuron: Neuron, shape: Sequence[int], to: Writing) -> Any:
    """The node of a neuron whose samples have this shape."""
    owner = f"sc.nir.save: {type(neuron).__name__} at {name!r}"
    form = FORMS[type(neuron)](neuron)
    numbers = form.arrays(neuron, shape)
    with np.errstate(all="ignore"):  # what overflows is refused by name
        fields, unsaid = _numbers_of_node(owner, numbers, to.dt, to.discretization)
    to.unsaid += [(name, each) for each in (*form.unsaid, *unsaid)]
    kind = fields.pop("kind")
    try:
        kept = _kept.of_neuron(neuron)
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None
    arrays = {key: fitting(owner, key, value, to.dtype, to.dt) for key, value in fields.items()}
    return getattr(package(), kind)(**arrays, metadata=kept)


def _numbers_of_node(owner: str, of: Mapping[str, Any], dt: float, way: str) -> Tuple[Dict[str, Any], List[Unsaid]]:
    """The fields of the node, its ``kind`` among them, and what it does not say."""
    fires, synaptic = "threshold" in of, "syn_leak" in of
    fields: Dict[str, Any] = {"v_threshold": of["threshold"], "v_reset": of["v_reset"]} if fires else {}
    leak, unsaid = of["leak"], []
    if not np.any(leak) and not synaptic:
        start = of["v_reset"] if fires else 0.0
        if np.any(of["v_leak"] != start):
            unsaid.append(Unsaid("initial_state", "starts at v_leak, for which NIR's IF and I have no word"))
        return {"kind": "IF" if fires else "I", "r": of["gain"] / dt, **fields}, unsaid
    fields["v_leak"] = of["v_leak"]
    if synaptic:
        fields["tau_syn"], fields["w_in"] = _seconds(owner, "syn_", of, dt, way)
        fields["tau_mem"], fields["r"] = _seconds(owner, "", of, dt, way)
        return {"kind": "CubaLIF" if fires else "CubaLI", **fields}, unsaid
    fields["tau"], fields["r"] = _seconds(owner, "", of, dt, way)
    return {"kind": "LIF" if fires else "LI", **fields}, unsaid


def _seconds(owner: str, of: str, numbers: Mapping[str, Any], dt: float, way: str) -> Tuple[Any, Any]:
    """Time constant and resistance of the membrane, or of the synapse (``of="syn_"``)."""
    leak, gain = numbers[f"{of}leak"], numbers[f"{of}gain"]
    what = "synaptic current" if of else "potential"
    if np.any(leak <= 0):
        raise ValueError(
            f"{owner}: its {what} keeps {1 - np.min(leak):g} of itself in a step, and NIR needs less than 1 of every "
            "neuron here, for a finite time constant above 0"
        )
    if np.any(leak > 1):
        raise ValueError(
            f"{owner}: its {what} changes its sign in a step (it keeps {1 - np.max(leak):g} of itself), which no time "
            "constant of NIR does"
        )
    if way == "exp" and np.any(leak >= 1):
        raise ValueError(
            f"{owner}: its {what} keeps nothing of itself in a step, which no time constant above 0 does with "
            "discretization='exp'; save with discretization='euler'"
        )
    return tau_of(leak, dt, way), gain / leak


def neuron_of(name: str, node: Any, how: Reading) -> Neuron:
    """The neuron of a node: the one that was kept, if it gives the node's numbers, else one of NIR's own."""
    kept = _kept.read(node.metadata)
    if kept is not None and how.own is not None:
        built, why = _kept.rebuilt(kept)
        if built is not None:
            again = node_of(name, built, _shape(node), Writing(*how.own, dtype=str(_first(node).dtype)))
            if type(again) is type(node) and _equal(again, node):
                return built
            why = f"no longer has the numbers of the {kept['class']} that spikecore saved"
        warnings.warn(
            f"sc.nir.load: node {name!r} {why}, so it is loaded as NIR's {type(node).__name__}: hard reset, strict "
            "threshold, default surrogate",
            UserWarning,
            stacklevel=4,
        )
    convention, dt = how.needed(name, node)
    check_node(name, node, convention, dt)
    with np.errstate(all="ignore"):  # what overflows is refused by name
        made = _NEURONS[type(node).__name__](node, convention, dt, how.options)
    check_steps(name, node, made, dt)
    return made


def _first(node: Any) -> Any:
    return np.asarray(node.r)


def _shape(node: Any) -> Tuple[int, ...]:
    shape: Tuple[int, ...] = _first(node).shape
    return shape


def _equal(first: Any, second: Any) -> bool:
    fields = [name for name in vars(first) if name not in ("metadata", "input_type", "output_type")]
    return not [name for name in fields if not np.array_equal(getattr(first, name), getattr(second, name))]


def _value(given: Any, rounded: bool, gain: bool = False) -> Any:
    """One value for each neuron as what a neuron takes: a number, ``[C]``, or a tensor of the full shape."""
    array = np.asarray(given, np.float64)
    if gain and rounded:
        array = np.where(np.abs(array - 1) <= _ROUNDED, 1.0, array)
    if array.size and np.all(array == array.flat[0]):
        return float(array.flat[0])
    first = array.reshape(len(array), -1)[:, 0]
    per_channel = np.all(array.reshape(len(array), -1) == first[:, None])
    return torch.from_numpy(np.array(first if per_channel else array)).to(torch.float32 if rounded else torch.float64)


def _membrane(
    tau: Any, resistance: Any, v_leak: Any, rule: str, like: Convention, dt: float, rounded: bool
) -> Dict[str, Any]:
    leak, gain = _part(tau, resistance, rule, like, dt)
    return {
        "decay": _value(1 - leak, rounded),
        "gain": _value(gain, rounded, gain=True),
        "v_leak": _value(v_leak, rounded),
    }


def _part(tau: Any, resistance: Any, rule: str, like: Convention, dt: float) -> Tuple[Any, Any]:
    leak, ratio = leak_of(np.asarray(tau, np.float64), dt, like.discretization)
    return leak, GAINS[rule](np.asarray(resistance, np.float64), 1 - leak, leak, ratio)


def _synapse(node: Any, like: Convention, dt: float, rounded: bool) -> Dict[str, Any]:
    leak, gain = _part(node.tau_syn, node.w_in, like.synapse, like, dt)
    return {"syn_decay": _value(1 - leak, rounded), "syn_gain": _value(gain, rounded, gain=True)}


def _rounded(node: Any) -> bool:
    return bool(_first(node).dtype != np.float64)


def _firing(node: Any, like: Convention) -> Dict[str, Any]:
    rounded = _rounded(node)
    return {
        "threshold": _value(node.v_threshold, rounded),
        "v_reset": _value(node.v_reset, rounded),
        "strict": like.strict,
        "reset": like.reset,
        "reset_delay": like.reset_delay,
        "many": like.many,
    }


def _integrator(node: Any, like: Convention, dt: float, v_leak: Any) -> Dict[str, Any]:
    gain = np.asarray(node.r, np.float64) * (dt if like.integrator == "current" else 1.0)
    rounded = _rounded(node)
    return {"decay": 1.0, "gain": _value(gain, rounded, gain=True), "v_leak": _value(v_leak, rounded)}


def _read_i(node: Any, like: Convention, dt: float, options: Any) -> Neuron:
    return NIRLI(**_integrator(node, like, dt, 0.0), **options)


def _read_if(node: Any, like: Convention, dt: float, options: Any) -> Neuron:
    return NIRLIF(**_integrator(node, like, dt, node.v_reset), **_firing(node, like), **options)


def _read_li(node: Any, like: Convention, dt: float, options: Any) -> Neuron:
    return NIRLI(**_membrane(node.tau, node.r, node.v_leak, like.li, like, dt, _rounded(node)), **options)


def _read_lif(node: Any, like: Convention, dt: float, options: Any) -> Neuron:
    membrane = _membrane(node.tau, node.r, node.v_leak, like.lif, like, dt, _rounded(node))
    return NIRLIF(**membrane, **_firing(node, like), **options)


def _read_cuba_li(node: Any, like: Convention, dt: float, options: Any) -> Neuron:
    rounded = _rounded(node)
    membrane = _membrane(node.tau_mem, node.r, node.v_leak, like.li, like, dt, rounded)
    return NIRCubaLI(**membrane, **_synapse(node, like, dt, rounded), **options)


def _read_cuba_lif(node: Any, like: Convention, dt: float, options: Any) -> Neuron:
    rounded = _rounded(node)
    membrane = _membrane(node.tau_mem, node.r, node.v_leak, like.lif, like, dt, rounded)
    return NIRCubaLIF(**membrane, **_synapse(node, like, dt, rounded), **_firing(node, like), **options)


_NEURONS: Dict[str, Callable[..., Neuron]] = {
    "I": _read_i,
    "IF": _read_if,
    "LI": _read_li,
    "LIF": _read_lif,
    "CubaLI": _read_cuba_li,
    "CubaLIF": _read_cuba_lif,
}
#: Names of the nodes that are neurons.
NEURON_NODES = tuple(_NEURONS)
