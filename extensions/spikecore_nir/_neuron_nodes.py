"""Neurons and nodes of NIR: a node's numbers from a neuron, and a neuron from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor

from spikecore.core import parameters
from spikecore.core.neuron import Neuron
from spikecore.neurons import IF, LI, LIF, PLIF, Leaky, Synaptic, SynapticLeaky
from spikecore.surrogate import ATan
from spikecore.words import a_kind
from spikecore_nir._conventions import GAINS, Convention, leak_of, tau_of
from spikecore_nir._file import Refused, content_of, fields, metadata_of_neuron, package, rebuilt
from spikecore_nir.modules import NIRLI, NIRLIF, NIRCubaLI, NIRCubaLIF

#: Relative error of tau and r of a float32 file by rounding: a gain this near 1 is 1.
_ROUNDED = 4.0 * 2.0**-24
#: Nodes that are neurons -> what they are loaded as.
NEURON_NODES: Dict[str, Any] = {"I": NIRLI, "IF": NIRLIF, "LI": NIRLI, "LIF": NIRLIF}
NEURON_NODES.update(CubaLI=NIRCubaLI, CubaLIF=NIRCubaLIF)


class Unsaid(NamedTuple):
    """Property of a neuron that NIR cannot express: the name that ``keep`` takes, and a sentence."""

    name: str
    sentence: str


@dataclass
class Writing:
    """Settings of a file that is written, and the properties that it cannot hold."""

    dt: float
    discretization: str
    #: NumPy's name of the dtype of every number.
    dtype: str
    #: ``(place, what is not said)``.
    unsaid: List[Tuple[str, Unsaid]] = field(default_factory=list)


@dataclass
class Reading:
    """Settings of a file that is read."""

    convention: Convention
    #: ``(dt, discretization)`` that the file was saved with by spikecore, where it is read with the same.
    saved: Optional[Tuple[float, str]]
    #: Arguments that neither the file nor the caller gave.
    lacking: Sequence[str]
    #: Options of the neurons that are made from NIR's numbers.
    options: Dict[str, Any]
    #: Bytes that the past of one sample may take, for a delay.
    max_bytes: int
    #: Warnings for the caller.
    warnings: List[str] = field(default_factory=list)

    def needed(self, name: str, node: Any) -> Tuple[Convention, float]:
        """The convention and its time step, for a node that depends on them."""
        kind, dt = type(node).__name__, self.convention.dt
        lacking = [each for each in self.lacking if each == "dt" or kind not in ("I", "IF", "Delay")]
        if lacking or dt is None:
            example = {"dt": "dt=1e-3 (seconds)", "discretization": "discretization='euler' or 'exp'"}
            ways = " and ".join(example[each] for each in lacking)
            raise Refused(
                f"node {name!r}, {a_kind(node)}, is an equation in continuous time, and the file does not say "
                f"how it becomes steps; give {ways}, or the library that wrote the file, as in convention='snntorch' "
                "(sc.nir.CONVENTIONS)"
            )
        return self.convention, dt


# a neuron as v' = v + leak (v_leak - v) + gain x, which may fire


@dataclass
class Form:
    """A neuron as ``v' = v + leak (v_leak - v) + gain x``, which may fire; values are numbers or tensors."""

    leak: Any
    gain: Any
    v_leak: Any = 0.0
    #: None: it does not fire.
    threshold: Any = None
    v_reset: Any = 0.0
    #: Leak and gain of a synaptic current before it.
    synapse: Optional[Tuple[Any, Any]] = None
    unsaid: Sequence[Unsaid] = ()

    def arrays(self, neuron: Neuron, shape: Sequence[int]) -> Dict[str, Any]:
        """Every value in float64, one for each neuron."""
        values = {"leak": self.leak, "gain": self.gain, "v_leak": self.v_leak}
        if self.threshold is not None:
            values.update(threshold=self.threshold, v_reset=self.v_reset)
        if self.synapse is not None:
            values.update(syn_leak=self.synapse[0], syn_gain=self.synapse[1])
        placed, _ = parameters.place(type(neuron).__name__, list(values.items()), (1, *shape), neuron.channel_dim)
        arrays = [value.numpy() if isinstance(value, Tensor) else np.float64(value) for value in placed]
        return {name: np.ascontiguousarray(np.broadcast_to(each, (1, *shape))[0]) for name, each in zip(values, arrays)}


def _exact(neuron: Neuron, name: str) -> Any:
    """A parameter as it is used, in float64."""
    value = getattr(neuron, name)
    return value.detach().cpu().double() if isinstance(value, Tensor) else value


def _double(neuron: Neuron, name: str) -> Tensor:
    return torch.as_tensor(_exact(neuron, name), dtype=torch.float64, device="cpu")


def unsaid_surrogate(neuron: Any) -> List[Unsaid]:
    """A surrogate other than the default."""
    sentence = f"has surrogate={neuron.surrogate!r}, which NIR has no word for"
    return [] if neuron.surrogate == ATan() else [Unsaid("surrogate", sentence)]


def _unsaid_of(neuron: Any) -> List[Unsaid]:
    late = getattr(neuron, "reset_delay", False) and neuron.reset != "none"
    facts = (
        (neuron.reset == "soft", "soft_reset", "resets by subtraction (reset='soft'), NIR resets to v_reset"),
        (neuron.reset == "none", "no_reset", "is not reset (reset='none'), NIR resets to v_reset"),
        (late, "delayed_reset", "is reset one step after it fired (reset_delay=True), NIR resets it at once"),
        (neuron.detach_reset, "detach_reset", "has detach_reset=True, a rule for gradients that NIR has no word for"),
        (neuron.gradient != "surrogate", "gradient", f"has gradient={neuron.gradient!r}, which NIR has no word for"),
        (getattr(neuron, "many", False), "many_spikes", "may fire several spikes in a step (many=True), in NIR one"),
    )
    return [*(Unsaid(name, sentence) for holds, name, sentence in facts if holds), *unsaid_surrogate(neuron)]


def _firing(neuron: Any, leak: Any, gain: Any, v_leak: Any, synapse: Optional[Tuple[Any, Any]] = None) -> Form:
    threshold, v_reset = _exact(neuron, "threshold"), _exact(neuron, "v_reset") if "v_reset" in neuron.params else 0.0
    return Form(leak, gain, v_leak, threshold, v_reset, synapse, _unsaid_of(neuron))


def _if(neuron: Any) -> Form:
    return _firing(neuron, 0.0, 1.0, _exact(neuron, "v_reset"))


def _lif(neuron: Any) -> Form:
    leak = torch.sigmoid(_double(neuron, "w")) if isinstance(neuron, PLIF) else 1.0 / _exact(neuron, "tau")
    return _firing(neuron, leak, leak if neuron.decay_input else 1.0, _exact(neuron, "v_reset"))


def _li(neuron: Any) -> Form:
    leak = 1.0 / _exact(neuron, "tau")
    return Form(leak, leak if neuron.decay_input else 1.0, _exact(neuron, "v_rest"))


def _leaky(neuron: Any) -> Form:
    """The equations limit what stays of a potential or current to [0, 1]."""
    leak = 1.0 - _double(neuron, "beta").clamp(0, 1)
    synaptic = isinstance(neuron, SynapticLeaky)
    synapse = (1.0 - _double(neuron, "alpha").clamp(0, 1), 1.0) if synaptic else None
    return _firing(neuron, leak, 1.0, 0.0, synapse)


def _synaptic(neuron: Any) -> Form:
    form = _firing(neuron, 1.0 - _exact(neuron, "beta"), 1.0, 0.0, (1.0 - _exact(neuron, "alpha"), 1.0))
    if bool((torch.as_tensor(form.v_reset) != 0).any()):
        start = Unsaid("initial_state", "starts at v_reset and leaks to 0, in NIR it starts where it leaks to")
        form.unsaid = [*form.unsaid, start]
    return form


def _nir(neuron: Any) -> Form:
    parts = 1.0 - _exact(neuron, "decay"), _exact(neuron, "gain"), _exact(neuron, "v_leak")
    form = _firing(neuron, *parts) if isinstance(neuron, NIRLIF) else Form(*parts)
    if "syn_decay" in neuron.params:
        form.synapse = 1.0 - _exact(neuron, "syn_decay"), _exact(neuron, "syn_gain")
    return form


#: The neurons that NIR can say, by their exact class; another class is refused.
FORMS: Dict[Type[Neuron], Callable[[Any], Form]] = {
    IF: _if,
    LI: _li,
    Synaptic: _synaptic,
    **dict.fromkeys((LIF, PLIF), _lif),
    **dict.fromkeys((Leaky, SynapticLeaky), _leaky),
    **dict.fromkeys((NIRLI, NIRLIF, NIRCubaLI, NIRCubaLIF), _nir),
}


# from a neuron to its node


_NEVER_FIRES = (
    "give a neuron that never fires a finite threshold, which its potential does not reach; one whose output is its "
    "potential is an LI, CubaLI or I"
)


def checked_node_of(name: str, neuron: Neuron, shape: Sequence[int], to: Writing) -> Any:
    """Node of :func:`node_of`. Raises ValueError for numbers that :func:`neuron_of` refuses in a file."""
    node = node_of(name, neuron, shape, to)
    for key, value in fields(node):
        wrong = ~np.isfinite(value) | (key.startswith("tau") & (value <= 0))
        if np.any(wrong):
            finite = all(bool(torch.isfinite(_double(neuron, each)).all()) for each in neuron.params)
            way_out = f"that is beyond {to.dtype}: save net.double(), or with another dt"
            if not finite:
                way_out = _NEVER_FIRES if key == "v_threshold" else "it must be finite"
            number = value.flat[int(np.argmax(wrong))]
            raise ValueError(f"{type(neuron).__name__} at {name!r} would have {key}={number} in the file; {way_out}")
    return node


def node_of(name: str, neuron: Neuron, shape: Sequence[int], to: Writing) -> Any:
    """The node of a neuron whose samples have this shape."""
    owner = f"{type(neuron).__name__} at {name!r}"
    form = FORMS[type(neuron)](neuron)
    with np.errstate(all="ignore"):  # what overflows is infinite in the file
        kind, numbers, unsaid = _numbers_of_node(owner, form.arrays(neuron, shape), to.dt, to.discretization)
        arrays = {key: np.asarray(value, np.float64).astype(to.dtype) for key, value in numbers.items()}
    to.unsaid += [(name, each) for each in (*form.unsaid, *unsaid)]
    return getattr(package(), kind)(**arrays, metadata=metadata_of_neuron(owner, neuron))


def _numbers_of_node(
    owner: str, of: Mapping[str, Any], dt: float, way: str
) -> Tuple[str, Dict[str, Any], List[Unsaid]]:
    """The kind of the node, its fields, and what it does not say."""
    fires, synaptic = "threshold" in of, "syn_leak" in of
    numbers: Dict[str, Any] = {"v_threshold": of["threshold"], "v_reset": of["v_reset"]} if fires else {}
    if not np.any(of["leak"]) and not synaptic:
        moved = np.any(of["v_leak"] != (of["v_reset"] if fires else 0.0))
        start = Unsaid("initial_state", "starts at v_leak, for which NIR's IF and I have no word")
        return "IF" if fires else "I", {"r": of["gain"] / dt, **numbers}, [start] if moved else []
    numbers["v_leak"] = of["v_leak"]
    if synaptic:
        numbers["tau_syn"], numbers["w_in"] = _seconds(owner, "syn_", of, dt, way)
    numbers["tau_mem" if synaptic else "tau"], numbers["r"] = _seconds(owner, "", of, dt, way)
    return ("Cuba" if synaptic else "") + ("LIF" if fires else "LI"), numbers, []


def _seconds(owner: str, of: str, numbers: Mapping[str, Any], dt: float, way: str) -> Tuple[Any, Any]:
    """Time constant and resistance of the membrane, or of the synapse (``of="syn_"``)."""
    leak, gain = numbers[f"{of}leak"], numbers[f"{of}gain"]
    least, most, why = np.min(leak), np.max(leak), ""
    if least <= 0:
        why = (
            f"keeps {1 - least:g} of itself in a step, and NIR needs less than 1 of every neuron here, for a finite "
            "time constant above 0"
        )
    elif most > 1:
        why = f"changes its sign in a step (it keeps {1 - most:g} of itself), which no time constant of NIR does"
    elif way == "exp" and most == 1:
        why = (
            "keeps nothing of itself in a step, which no time constant above 0 does with discretization='exp'; save "
            "with discretization='euler'"
        )
    if why:
        raise ValueError(f"{owner}: its {'synaptic current' if of else 'potential'} {why}")
    return tau_of(leak, dt, way), gain / leak


# from a node to a neuron


def neuron_of(name: str, node: Any, how: Reading) -> Neuron:
    """The neuron of a node: the one that was kept, if it gives the node's numbers, else one of NIR's own."""
    content = content_of(node.metadata)
    if content is not None and how.saved is not None:
        built, why = rebuilt(content, FORMS)
        if built is not None:
            r = np.asarray(node.r)
            again = node_of(name, built, r.shape, Writing(*how.saved, dtype=str(r.dtype)))
            if type(again) is type(node) and all(
                np.array_equal(value, getattr(node, key)) for key, value in fields(again)
            ):
                return built
            why = f"no longer has the numbers of the {content['class']} that spikecore saved"
        how.warnings.append(
            f"node {name!r} {why}, so it is loaded as NIR's {type(node).__name__}: hard reset, strict threshold, "
            "default surrogate"
        )
    convention, dt = how.needed(name, node)
    _check_numbers(name, node, convention, dt)
    with np.errstate(all="ignore"):  # what overflows is refused by name
        neuron = _from_numbers(node, convention, dt, how.options)
    _check_steps(name, node, neuron, dt)
    return neuron


def _from_numbers(node: Any, like: Convention, dt: float, options: Mapping[str, Any]) -> Neuron:
    kind, rounded = type(node).__name__, np.asarray(node.r).dtype != np.float64
    fires, synaptic = hasattr(node, "v_threshold"), hasattr(node, "tau_syn")
    numbers: Dict[str, Any] = {}
    settings: Dict[str, Any] = {}
    if kind in ("I", "IF"):
        gain = np.asarray(node.r, np.float64) * (dt if like.integrator == "current" else 1.0)
        numbers.update(decay=1.0, gain=gain, v_leak=node.v_reset if fires else 0.0)
    else:
        leak, gain = _leak_and_gain(
            node.tau_mem if synaptic else node.tau, node.r, like.lif if fires else like.li, like, dt
        )
        numbers.update(decay=1 - leak, gain=gain, v_leak=node.v_leak)
    if synaptic:
        leak, gain = _leak_and_gain(node.tau_syn, node.w_in, like.synapse, like, dt)
        numbers.update(syn_decay=1 - leak, syn_gain=gain)
    if fires:
        numbers.update(threshold=node.v_threshold, v_reset=node.v_reset)
        settings = {key: getattr(like, key) for key in ("strict", "reset", "reset_delay", "many")}
    values = {key: _value(value, rounded, key.endswith("gain")) for key, value in numbers.items()}
    neuron: Neuron = NEURON_NODES[kind](**values, **settings, **options)
    return neuron


def _leak_and_gain(tau: Any, resistance: Any, rule: str, like: Convention, dt: float) -> Tuple[Any, Any]:
    leak, ratio = leak_of(np.asarray(tau, np.float64), dt, like.discretization)
    return leak, GAINS[rule](np.asarray(resistance, np.float64), 1 - leak, leak, ratio)


def _value(numbers: Any, rounded: bool, is_gain: bool) -> Any:
    """One value for each neuron as what a neuron takes: a number, ``[C]``, or a tensor of the full shape."""
    array = np.asarray(numbers, np.float64)
    if is_gain and rounded:
        array = np.where(np.abs(array - 1) <= _ROUNDED, 1.0, array)
    if array.size and np.all(array == array.flat[0]):
        return float(array.flat[0])
    first = array.reshape(len(array), -1)[:, 0]
    per_channel = np.all(array.reshape(len(array), -1) == first[:, None])
    return torch.from_numpy(np.array(first if per_channel else array)).to(torch.float32 if rounded else torch.float64)


def _check_numbers(name: str, node: Any, like: Convention, dt: float) -> None:
    """Refuse numbers from which no step follows."""
    for key, value in fields(node):
        array = np.asarray(value, np.float64)
        finite, is_tau = np.isfinite(array), key.startswith("tau")
        if not np.all(finite):
            way_out = "a neuron that does not leak must be an IF or I, whose numbers are finite" if is_tau else ""
            if key == "v_threshold":
                way_out = _NEVER_FIRES
            number = array.flat[int(np.argmin(finite))]
            raise Refused(f"node {name!r}, {a_kind(node)}, has {key}={number}; {way_out or 'it must be finite'}")
        shortest = float(array.min()) if is_tau and array.size else dt
        if shortest <= 0:
            raise Refused(f"node {name!r} has {key}={shortest:g}, which must be above 0")
        if like.discretization == "euler" and dt / shortest > 1 + 1e-6:
            raise Refused(
                f"node {name!r} has {key}={shortest:g}, shorter than the time step dt={dt:g}, so that "
                "Euler's 1 - dt/tau is below 0; give the dt of its writer (in the unit of the file's tau), or "
                "discretization='exp'"
            )


def _check_steps(name: str, node: Any, neuron: Neuron, dt: float) -> None:
    """Refuse a neuron with numbers that float32, in which it computes, does not hold."""
    largest = float(np.finfo(np.float64 if np.asarray(node.r).dtype == np.float64 else np.float32).max)
    for key in neuron.params:
        array = np.abs(np.asarray(_exact(neuron, key), np.float64))
        if not np.all(array <= largest):
            raise Refused(
                f"node {name!r}, {a_kind(node)}, has {key}={array.max():g} in steps of "
                f"dt={dt:g}, which is too large; give the dt of its writer (in the unit of the file's tau)"
            )
