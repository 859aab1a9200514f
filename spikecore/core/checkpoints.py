"""Loading of a ``state_dict`` by a neuron: values in their ranges, numbers, and entries of other libraries.

Rules of this module:

- A value outside the range of its parameter is refused, and of that neuron nothing is loaded. (Torch loads the other
  modules all the same, and raises at the end; ``load_state_dict`` of a training step puts them back.)
- A parameter that is a Python number here, or a tensor that is not learnt, takes what a checkpoint has for it: a single
  value for a number stays a number.
- A single value for a tensor parameter of several, learnt or not, is that of all of them.
- Ranges that follow other parameters are those of the values in the checkpoint, whatever their order.
- What a transform of the program stored is in the checkpoint, and replaces that of the neuron if it is of its kind;
  without an entry the transform follows the loaded values.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional

import torch
from torch import Tensor, nn

from spikecore.core import parameters
from spikecore.core.ranges import Interval

#: The name of a transform's entry: that of torch for what is no parameter and no buffer.
TRANSFORM = "_extra_state"
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
    entries = {key[len(prefix) :]: value for key, value in state_dict.items() if key.startswith(prefix)}
    # a tensor on the meta device has no values
    named = [name for name, value in entries.items() if isinstance(value, Tensor) and not value.is_meta]
    ours = {name: entries[name].detach() for name in neuron.params if name in named}
    places = {TRANSFORM, *neuron.params, *neuron._parameters, *neuron._buffers}
    foreign = [name for name in named if name not in places and "." not in name]
    others = {name: neuron._foreign(name, entries[name].detach()) for name in foreign}
    values = {**parameters.current(neuron), **ours}
    after = parameters.ranges_with(neuron, values)
    faults = [_fault(neuron, name, prefix + name, ours.get(name), after) for name in neuron.params]
    faults += [f"{prefix}{name} {why}" for name, why in others.items() if why]
    if any(faults):
        errors.extend(filter(None, faults))
        return
    try:
        transforms, after = parameters.following(neuron, values, after, entries.get(TRANSFORM))
    except ValueError as error:
        errors.append(f"{prefix[:-1] or type(neuron).__name__}: {error}")
        return
    neuron.__dict__["transforms"] = transforms
    parameters.adopt(neuron, after)
    neuron.__dict__["_loading"] = True
    try:
        known = [prefix + name for name, value in ours.items() if _set(neuron, name, value, after.get(name))]
        load_others({**state_dict, **_expanded(neuron, entries, prefix)})
    finally:
        del neuron.__dict__["_loading"]
    if not transforms:
        parameters.adopt(neuron, parameters.ranges_with(neuron, parameters.current(neuron)))
    neuron._redefine()
    known += [prefix + name for name, why in others.items() if why is not None]
    known += [prefix + TRANSFORM] if transforms else []
    unexpected[:] = [key for key in unexpected if key not in known]


def _fault(neuron: Any, name: str, key: str, value: Optional[Tensor], after: Mapping[str, Interval]) -> str:
    """Fault of a parameter's entry (None: no entry) under the ranges ``after`` the checkpoint; "" without one."""
    owner, within = type(neuron).__name__, after.get(name)
    if value is None:
        try:
            if within != neuron.bounds.get(name):
                parameters.require_inside(neuron, name, getattr(neuron, name), after)
        except ValueError as error:
            return f"{key} is not in the checkpoint, and does not fit the rest of it: {error}"
        return ""
    learnt, kind = neuron._parameters.get(name), neuron.vectors.get(name)
    if kind is not None and value.numel() > 1 and value.shape[-1] != kind.n:
        here = list(torch.as_tensor(getattr(neuron, name)).shape) or [kind.n]
        return (
            f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, the shape in current "
            f"model is {torch.Size(here)}."
        )
    if learnt is not None and learnt.ndim == 0 and value.numel() > 1:  # torch before 2.1 would take the first
        return (
            f"{key} has shape {list(value.shape)}, and {name} is one learnt value for all here; make the {owner} "
            f"with {name}=torch.full({tuple(value.shape)}, ...)"
        )
    if within is None or bool(within.holds(value).all()):
        return ""
    outside = value[~within.holds(value)].flatten()
    some = ", ".join(f"{number:g}" for number in outside[:3].tolist()) + (", ..." if outside.numel() > 3 else "")
    return (
        f"{key} holds {some}, and {name} of {owner} must be {within}; to load it all the same, set "
        f"bounds=None on the neuron, or bounds={{{name!r}: (low, high)}} for another range"
    )


def _set(neuron: Any, name: str, value: Tensor, within: Optional[Interval]) -> bool:
    """Set a parameter that ``nn.Module`` cannot load: a number, or a tensor that is not learnt and becomes one of
    another shape. Whether it stays a number, so that the module has no place for the entry.
    """
    buffer = neuron._buffers.get(name)
    if name in neuron._parameters or (buffer is not None and (buffer.shape == value.shape or value.numel() == 1)):
        return False
    number = buffer is None and value.numel() == 1
    if number:
        value = value.cpu().double()
    elif buffer is not None:
        value = value.to(buffer, copy=True)
    else:
        value = value.to(value.dtype if value.is_floating_point() else torch.get_default_dtype(), copy=True)
    # a value that was inside in a 16-bit type may be a rounding outside in a wider one
    value = value if within is None else within.nearest(value)
    setattr(neuron, name, value.item() if number else value)
    return number


def _expanded(neuron: Any, entries: Mapping[str, Any], prefix: str) -> Dict[str, Tensor]:
    """The entries that are a single value for a parameter of which the neuron has several, as that many values."""
    expanded: Dict[str, Tensor] = {}
    for name in neuron.params:
        tensor: Any = neuron._parameters.get(name, neuron._buffers.get(name))
        value: Any = entries.get(name)
        if not (type(value) in (Tensor, nn.Parameter) and type(tensor) in (Tensor, nn.Parameter)):
            continue
        if tensor.ndim > 0 and value.numel() == 1 and value.shape != tensor.shape:
            expanded[prefix + name] = value.detach().reshape(()).expand(tensor.shape).clone()
    return expanded


def of_snntorch(reset: Any, name: str, value: Tensor) -> Optional[str]:
    """Meaning of the buffers that snnTorch keeps beside parameters, for a neuron with snnTorch's resets."""
    if reset is None:
        return None
    if name == "reset_mechanism_val":
        theirs = dict(enumerate(("soft", "hard", "none"))).get(int(value))
        return "" if theirs == reset else f"is {int(value)}, which means reset={theirs!r}, not {reset!r}"
    if name == "graded_spikes_factor" and not bool((value == 1).all()):
        return f"is {value.tolist()}, and spikes are 1 here; multiply the neuron's output by it"
    return "" if name in (*SNNTORCH, *STATES_OF_SNNTORCH) else None
