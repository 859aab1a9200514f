"""``sc.convert``: every module of a network, looked at once, also those in plain lists that torch does not see."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from spikecore.words import shown
from spikecore_convert import _snntorch, _spikingjelly
from spikecore_convert._swapped import Conversion, Left

#: Change of a module into a converted one: called, it changes the module and returns the description of its neuron.
Change = Callable[[], str]
#: Reason why a parametrized neuron is left, whose class is one that torch made.
PARAMETRIZED = (
    "it is parametrized (torch.nn.utils.parametrize), and its parameters would become those of module.neuron; convert "
    "the network without, and register the parametrization there"
)
#: Packages whose modules are known, and what finds the change for a module: None for one that needs none.
LIBRARIES: Dict[str, Callable[[Any], Optional[Change]]] = {
    "snntorch": _snntorch.change,
    "spikingjelly": _spikingjelly.change,
}


def convert(net: nn.Module, *, strict: bool = False) -> Conversion:
    """Have spikecore compute the neurons of a snnTorch or SpikingJelly network, in place; gives a report back.

    ::

        net = nn.Sequential(layer.Conv2d(1, 8, 3), neuron.LIFNode(), layer.Flatten(), layer.Linear(8 * 26 * 26, 10))
        functional.set_step_mode(net, "m")  # spikingjelly.activation_based
        print(sc.convert(net))  # what was replaced by what, and what was left, with the reason
        sc.set_backend(net, "cupy")  # and all else that takes neurons
        y = net(x)  # [T, B, ...], as before
        functional.reset_net(net)  # as before; sc.reset(net) does the same

    ``forward`` of the network, its loop over time, and calls of the other library on it stay as they are:
    ``spk, mem = lif(x, mem)``, ``utils.reset(net)``, ``functional.set_step_mode(net, "m")``. Spikes are the same, and
    gradients are those of the same equations. Each replaced module becomes one that holds a neuron of spikecore as
    ``module.neuron`` and is still of its class. Its parameters, learnt and fixed, are the same tensors as before, so an
    optimiser made before goes on, and the state that it carries stays. ``state_dict()`` has the same keys, and takes
    checkpoints from before. Reading and setting a number (``v_threshold``, ``beta``) reaches the neuron; what cannot be
    set any more raises, and says what to set. What has another meaning here is left: the module runs as before, and is
    listed with the reason. So is a neuron in a plain list, tuple or dict, which is no part of the network for torch.

    Steps ``"m"`` of SpikingJelly are one call of all steps, and so are neurons in its ``MultiStepContainer`` and in a
    stateful ``StepModeContainer``. What loops over steps one by one gets no faster by this.

    net: any module; it is changed. For one that stays as it is: ``copy.deepcopy(net)`` before.
    strict: raise ValueError with the list if a module would be left, before anything is changed. Otherwise a
        UserWarning has the list.

    The report has ``replaced`` and ``left``, each name -> words, and prints as one line for each module.

    Raises TypeError for what is no module, and ValueError for a network without a module of these libraries. Which
    neurons, arguments and surrogates there are is in docs/convert.md.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"sc.convert: net={shown(net)} must be a network (an nn.Module)")
    changes: List[Tuple[str, nn.Module, Change]] = []
    left: Dict[str, str] = {}
    seen = 0
    for name, module in net.named_modules():
        find = _library(module)
        if find is None:
            continue
        seen += 1
        try:
            change = find(module)
        except Left as reason:
            left[name] = f"{type(module).__name__}: {PARAMETRIZED if is_parametrized(module) else reason}"
            continue
        if change is not None:
            changes.append((name, module, change))
    hidden = {
        place: f"{type(module).__name__}: {why}" for place, module, why in hidden_modules(net) if _is_neuron(module)
    }
    left.update(hidden)
    if not (seen or hidden):
        known = " or ".join(sorted(LIBRARIES))
        raise ValueError(f"sc.convert: no module of {known} in this {type(net).__name__}; there is nothing to convert")
    if left and strict:
        raise ValueError(f"sc.convert: with strict=True nothing was changed\n{Conversion({}, left)}")
    # the name of the class is read before the class changes
    replaced = {name: f"{type(module).__name__} -> {change()}" for name, module, change in changes}
    done = Conversion(replaced, left)
    if left:
        warnings.warn(f"sc.convert left modules as they are\n{Conversion({}, left)}", stacklevel=2)
    return done


def _is_neuron(module: nn.Module) -> bool:
    """True if a module would be replaced, or listed as left."""
    find = _library(module)
    try:
        return find is not None and find(module) is not None
    except Left:
        return True


def _library(module: nn.Module) -> Optional[Callable[[Any], Optional[Change]]]:
    """Function that finds the change of a module: that of its first base in a known library; None without one."""
    for base in type(module).__mro__:
        library = LIBRARIES.get(base.__module__.partition(".")[0])
        if library is not None:
            return library
    return None


# -- modules that a network holds in plain lists, tuples, sets and dicts, where nn.Module does not see them

#: Attributes of every module, which are torch's: what ``_modules`` holds is seen.
_OF_TORCH = frozenset(vars(nn.Module()))


def hidden_modules(net: nn.Module) -> Iterator[Tuple[str, nn.Module, str]]:
    """``(place, module, why torch does not see it)`` of each such module, once."""
    seen = set(map(id, net.modules()))
    for name, holder in net.named_modules():
        for attribute, value in vars(holder).items():
            if attribute in _OF_TORCH:
                continue
            path = f"{name}.{attribute}" if name else attribute
            why = (
                f"nn.Module does not see modules in a plain {type(value).__name__}, as parameters() and sc.reset do "
                f"not; make {path} an {'nn.ModuleDict' if isinstance(value, Mapping) else 'nn.ModuleList'}"
            )
            if isinstance(value, nn.Module):
                why = f"{path} was set past nn.Module, which does not see it, as sc.reset does not; set it as usual"
            for place, module in _contents(path, value, seen):
                yield place, module, why


def _contents(path: str, value: Any, seen: Set[int]) -> Iterator[Tuple[str, nn.Module]]:
    """Modules that are not in ``seen`` by their places: a module and those in it, or those in a container."""
    if isinstance(value, nn.Module):
        for inner, module in value.named_modules():
            if id(module) not in seen:
                seen.add(id(module))
                yield f"{path}.{inner}" if inner else path, module
    elif isinstance(value, (Mapping, list, tuple, deque, set, frozenset)) and id(value) not in seen:
        seen.add(id(value))
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _contents(f"{path}[{key!r}]", item, seen)
