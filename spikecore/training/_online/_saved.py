"""The saved state of an online step: whether it is one of this network and rule, before anything is loaded."""

from __future__ import annotations

from typing import Any, Mapping

from torch import Tensor, nn

from spikecore._base.errors import a_kind
from spikecore._shell.state import Stateful, names_of_state

_PARTS = ("states", "traces", "feedback", "gradients")


def check_online(net: nn.Module, online: Mapping[str, Any], rule: str) -> None:
    """Raise ValueError, with the entry, unless this is the state of a step of this network and rule."""
    fault = _fault(net, online, rule)
    if fault:
        raise ValueError(f"state['online'] {fault}. Nothing was loaded")


def _fault(net: nn.Module, online: Mapping[str, Any], rule: str) -> str:
    missing = [name for name in ("rule", *_PARTS) if name not in online]
    if missing:
        return f"has no {' and no '.join(map(repr, missing))}"
    if online["rule"] != rule:
        return f"is of rule={online['rule']!r}, and this step has rule={rule!r}"
    modules, parameters = dict(net.named_modules()), dict(net.named_parameters())
    for part in _PARTS:
        if not isinstance(online[part], Mapping):
            return f"has {a_kind(online[part])} for {part!r}, and no dict"
        for key, value in online[part].items():
            if part == "states":
                fits = _is_state(modules.get(key), value)
            elif not isinstance(value, Tensor):
                fits = False
            elif part == "gradients":
                fits = key in parameters and parameters[key].shape == value.shape
            elif part == "feedback":
                fits = str(key).rpartition("/")[0] in modules and value.ndim == 2
            else:
                fits = isinstance(key, tuple) and _is_trace(
                    modules, online["states"].get(key[:1] and key[0]), key, value
                )
            if not fits:
                return f"has {key!r}, which the network lacks or which does not fit it, in {part!r}"
    return ""


def _is_state(module: Any, state: Any) -> bool:
    if not (isinstance(module, Stateful) and isinstance(state, Mapping)):
        return False
    return {*state} == {*(names_of_state(module) or state)} and all(isinstance(v, Tensor) for v in state.values())


def _is_trace(modules: Mapping[str, Any], state: Any, key: Any, value: Tensor) -> bool:
    """Whether a neuron in this state may have a trace: one for each weight, or each neuron, of each sample."""
    _, kind, *names = (*key, "", "", "")
    if kind in ("parameter", "shift"):
        return names[1] in (state or {}) and state[names[1]].shape == value.shape
    layer, of_layer = modules.get(names[0].lstrip(".")), names[1] in ("weight", "bias", "eligibility")
    if kind == "layer" and of_layer:
        weight = getattr(layer, names[1].replace("eligibility", "weight"), None)
        return bool(state) and weight is not None and weight.shape == value.shape[1:]
    return bool(state) and (kind == "post" or layer is not None)
