"""How a neuron reads a ``state_dict``: values in their ranges, numbers, and entries of other libraries.

Rules of this module:

- A value outside the range of its parameter is refused, and of that neuron nothing is loaded. (Torch loads the other
  modules all the same, and raises at the end; ``load_state_dict`` of a training step puts them back.)
- A parameter that is a Python number here, or a tensor that is not learnt, takes what a checkpoint has for it: a single
  value for a number stays a number.
- A single value for a tensor parameter of several, learnt or not, is that of all of them.
- Ranges that follow other parameters are those of the values in the checkpoint, whatever their order.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Set

import torch
from torch import Tensor, nn

from spikecore._shell import parameters, ranges
from spikecore._shell.ranges import Interval

#: Buffers that every neuron of snnTorch has.
SNNTORCH = ("reset_mechanism_val", "graded_spikes_factor")
#: States of snnTorch's neurons, which were in ``state_dict`` before 0.9. A loaded network begins at rest without them.
STATES_OF_SNNTORCH = ("spk", "syn", "syn_exc", "syn_inh", "mem")


def load(
    neuron: Any,
    state_dict: Mapping[str, Any],
    prefix: str,
    load_others: Callable[[Mapping[str, Any]], None],
    unexpected: List[str],
    errors: List[str],
) -> None:
    """Load a neuron's entries, or none of them; ``load_others`` is what ``nn.Module`` does."""
    entries = {name: _entry(state_dict, prefix + name) for name in neuron.params}
    values = {name: getattr(neuron, name) if value is None else value for name, value in entries.items()}
    after = parameters.ranges_with(neuron, values)
    refused = _refused(neuron, state_dict, prefix, after)
    if refused:
        errors.extend(refused)
        return
    parameters.adopt(neuron, after)
    neuron.__dict__["_loading"] = True
    try:
        taken = _take(neuron, state_dict, prefix)
        load_others(_spread(neuron, state_dict, prefix))
    finally:
        del neuron.__dict__["_loading"]
    parameters.adopt(neuron, parameters.ranges_with(neuron, parameters.now(neuron)))
    neuron._follow_limits()
    unexpected[:] = [key for key in unexpected if key not in taken]


def _refused(neuron: Any, state_dict: Mapping[str, Any], prefix: str, after: Mapping[str, Interval]) -> List[str]:
    """What one neuron refuses of a checkpoint, with the ranges ``after`` it is loaded, one sentence for each entry."""
    found: List[str] = []
    for name in neuron.params:
        value = _entry(state_dict, prefix + name)
        if value is not None:
            found += _faults(neuron, name, prefix + name, value, after.get(name))
        elif after.get(name) != neuron.bounds.get(name):
            try:
                ranges.require(
                    type(neuron).__name__, name, getattr(neuron, name), after.get(name), neuron.follows.get(name, "")
                )
            except ValueError as error:
                found.append(f"{prefix}{name} is not in the checkpoint, and does not fit the rest of it: {error}")
    for name, value in _foreign(neuron, state_dict, prefix).items():
        why = neuron._foreign(name, value)
        if why:
            found.append(f"{prefix}{name} {why}")
    return found


def _take(neuron: Any, state_dict: Mapping[str, Any], prefix: str) -> Set[str]:
    """Set the parameters that are plain numbers, which ``nn.Module`` cannot load, and return the keys of these."""
    taken: Set[str] = set()
    for name in neuron.params:
        value = _entry(state_dict, prefix + name)
        if value is None or name in neuron._parameters:
            continue
        held, held_to = neuron._buffers.get(name), neuron.bounds.get(name)
        if held is None and value.numel() == 1:
            setattr(neuron, name, _inside(value.cpu().double(), held_to).item())
            taken.add(prefix + name)
        elif held is None:
            dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
            setattr(neuron, name, _inside(value.to(dtype, copy=True), held_to))
        elif held.shape != value.shape and value.numel() != 1:
            setattr(neuron, name, _inside(value.to(held, copy=True), held_to))
    for name, value in _foreign(neuron, state_dict, prefix).items():
        if neuron._foreign(name, value) is not None:
            taken.add(prefix + name)
    return taken


def _spread(neuron: Any, state_dict: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    """The entries; a single value for a parameter of which the neuron has several is expanded to that many."""
    found = {}
    for name in neuron.params:
        held: Any = neuron._parameters.get(name, neuron._buffers.get(name))
        value: Any = state_dict.get(prefix + name)
        if not (type(value) in (Tensor, nn.Parameter) and type(held) in (Tensor, nn.Parameter)):
            continue
        if held.ndim > 0 and value.numel() == 1 and value.shape != held.shape:
            found[prefix + name] = value.detach().reshape(()).expand(held.shape).clone()
    return {**state_dict, **found} if found else state_dict


def of_snntorch(reset: Any, name: str, value: Tensor) -> Optional[str]:
    """What the buffers mean that snnTorch keeps beside parameters, for a neuron that resets as snnTorch's do."""
    if name not in (*SNNTORCH, *STATES_OF_SNNTORCH) or reset is None:
        return None
    if name in STATES_OF_SNNTORCH:
        return ""
    if name == "reset_mechanism_val":
        theirs = dict(enumerate(("soft", "hard", "none"))).get(int(value))
        return "" if theirs == reset else f"is {int(value)}, which means reset={theirs!r}, not {reset!r}"
    one = bool((value == 1).all())
    return "" if one else f"is {value.tolist()}, and spikes are 1 here; multiply the neuron's output by it"


def _entry(state_dict: Mapping[str, Any], key: str) -> Optional[Tensor]:
    value = state_dict.get(key)
    return value.detach() if isinstance(value, Tensor) and value.device.type != "meta" else None


def _foreign(neuron: Any, state_dict: Mapping[str, Any], prefix: str) -> Mapping[str, Tensor]:
    """Entries under the neuron's name that it has no place for."""
    names = [key[len(prefix) :] for key in state_dict if key.startswith(prefix)]
    places = {*neuron.params, *neuron._parameters, *neuron._buffers}
    entries = {name: _entry(state_dict, prefix + name) for name in names if name not in places}
    return {name: value for name, value in entries.items() if value is not None and "." not in name}


def _faults(neuron: Any, name: str, key: str, value: Tensor, held_to: Optional[Interval]) -> List[str]:
    held = neuron._parameters.get(name)
    if held is not None and held.ndim == 0 and value.numel() > 1:
        # torch before 2.1 would take the first
        shape = list(value.shape)
        return [
            f"{key} has shape {shape}, and {name} is one learnt value for all here; make the {type(neuron).__name__} "
            f"with {name}=torch.full({tuple(shape)}, ...)"
        ]
    inside = None if held_to is None else held_to.holds(value)
    if inside is None or bool(inside.all()):
        return []
    outside = value[~inside].flatten()
    some = ", ".join(f"{one:g}" for one in outside[:3].tolist()) + (", ..." if outside.numel() > 3 else "")
    return [
        f"{key} holds {some}, and {name} of {type(neuron).__name__} must be {held_to}; to load it all the same, set "
        f"bounds=None on the neuron, or bounds={{{name!r}: (low, high)}} for another range"
    ]


def _inside(value: Tensor, held_to: Optional[Interval]) -> Tensor:
    # a value that was inside in a 16-bit type may be a rounding outside in a wider one
    return value if held_to is None else held_to.nearest(value)
