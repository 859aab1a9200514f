"""The saved state of an online step: whether it is one of this network and rule, before anything is loaded."""

from __future__ import annotations

from typing import Any, Mapping

from torch import Tensor, nn

from spikecore.core.state import Stateful, names_of_state
from spikecore.words import a_kind

_PARTS = ("states", "traces", "feedback", "gradients")


def check_online(net: nn.Module, online: Mapping[str, Any], rule: str) -> None:
    """Raise ValueError, with the entry, unless this is the state of a step of this network and rule."""
    faults = [f"has no {name!r}" for name in ("rule", *_PARTS) if name not in online]
    if not faults and online["rule"] != rule:
        faults = [f"is of rule={online['rule']!r}, and this step has rule={rule!r}"]
    for part in () if faults else _PARTS:
        entries = online[part]
        if not isinstance(entries, Mapping):
            faults.append(f"has {a_kind(entries)} for {part!r}, and no dict")
            continue
        strange = [key for key, value in entries.items() if not _fits(net, online["states"], part, key, value)]
        faults += [f"has {key!r}, which the network lacks or which does not fit it, in {part!r}" for key in strange]
    if faults:
        raise ValueError(f"state['online'] {' and '.join(faults[:3])}. Nothing was loaded")


def _fits(net: nn.Module, states: Any, part: str, key: Any, value: Any) -> bool:
    modules, parameters = dict(net.named_modules()), dict(net.named_parameters())
    if part == "states":
        module = modules.get(key)
        if not (isinstance(module, Stateful) and isinstance(value, Mapping)):
            return False
        return {*value} == {*(names_of_state(module) or value)} and all(isinstance(v, Tensor) for v in value.values())
    if not isinstance(value, Tensor):
        return False
    if part == "gradients":
        return key in parameters and parameters[key].shape == value.shape
    if part == "feedback":
        return value.ndim == 2 and str(key).rpartition("/")[0] in modules
    # a trace, of a neuron that is not at rest
    neuron, kind, *names = (*key, "", "", "", "") if isinstance(key, tuple) else ("",) * 5
    state = states.get(neuron) if isinstance(states, Mapping) else None
    if not isinstance(state, Mapping):
        return False
    if kind != "layer":
        return kind == "post" or getattr(state.get(names[1]), "shape", None) == value.shape
    layer = modules.get(names[0].lstrip("."))
    if names[1] in ("weight", "bias", "eligibility"):
        weight = getattr(layer, names[1].replace("eligibility", "weight"), None)
        return weight is not None and weight.shape == value.shape[1:]
    return layer is not None
