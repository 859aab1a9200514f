"""``sc.convert``: every module of a network, looked at once, also those in plain lists that torch does not see."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from spikecore.core.checks import check_network
from spikecore.core.modules import replace_modules
from spikecore_convert import _snntorch, _spikingjelly
from spikecore_convert._spikingjelly_layers import description_of
from spikecore_convert._swapped import Change, Conversion, Left, counterpart

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
    ``spk, mem = self.lif(x, mem)``, ``utils.reset(net)``, ``functional.set_step_mode(net, "m")``. Spikes are the same,
    and gradients are those of the same equations. In the place of each replaced module stands another one of its class,
    which holds a neuron of spikecore as ``module.neuron``; the module itself, where something else refers to it, stays
    as it is. Parameters, learnt and fixed, are the same tensors as before, so an optimiser made before goes on, and the
    state that was carried stays. ``state_dict()`` has the same keys, and takes checkpoints from before. Reading and
    setting a number (``v_threshold``, ``beta``) reaches the neuron; what cannot be set any more raises, and says what
    to set. What has another meaning here is left: the module runs as before, and is listed with the reason. So is a
    neuron in a plain list, tuple or dict, which is no part of the network for torch, even where it is elsewhere.

    Steps ``"m"`` of SpikingJelly are one call of all steps, and so are neurons in its ``MultiStepContainer`` and in a
    stateful ``StepModeContainer``. What loops over steps one by one gets no faster by this.

    net: any module; it is changed. For one that stays as it is: ``copy.deepcopy(net)`` before.
    strict: raise ValueError with the list if a module would be left, before anything is changed. Otherwise a
        UserWarning has the list.

    The report has ``replaced`` and ``left``, each name -> words, and prints as one line for each module.

    Raises TypeError for what is no module, and ValueError for a network without a module of these libraries, or that is
    itself such a neuron. Which neurons, arguments and surrogates there are is in docs/convert.md.
    """
    check_network("sc.convert", net)
    changes: List[Tuple[str, nn.Module, Change]] = []
    left: Dict[str, str] = {}
    seen = 0
    parts: Set[nn.Module] = set()  # of modules that change as a whole
    for name, module in net.named_modules():
        find = _library(module)
        if find is None or module in parts:
            continue
        seen += 1
        try:
            change = find(module)
        except Left as reason:
            left[name] = f"{type(module).__name__}: {PARAMETRIZED if is_parametrized(module) else reason}"
            continue
        if change is not None:
            changes.append((name, module, change))
            parts.update(() if isinstance(module, nn.Sequential) else module.modules())
    changing = {id(module) for _, module, _ in changes}
    hidden = [row for row in hidden_modules(net, changing) if _is_neuron(row[1])]
    left.update({place: f"{type(module).__name__}: {why}" for place, module, why in hidden})
    # a list would keep the module, and the network would have another one
    changing.difference_update(id(module) for _, module, _ in hidden)
    changes = [change for change in changes if id(change[1]) in changing]
    if not (seen or hidden):
        known = " or ".join(sorted(LIBRARIES))
        raise ValueError(f"sc.convert: no module of {known} in this {type(net).__name__}; there is nothing to convert")
    if left and strict:
        raise ValueError(f"sc.convert: with strict=True nothing was changed\n{Conversion({}, left)}")
    if id(net) in changing:
        raise ValueError(
            f"sc.convert: net is itself a {type(net).__name__}, and another module is to stand in its place; give a "
            "network that contains it, net = nn.Sequential(net)"
        )
    replaced = {}
    for name, module, change in changes:
        made, words = change()
        replace_modules(net, {module: made})
        replaced[name] = f"{type(module).__name__} -> {words}"
    _replace_layers(net)
    done = Conversion(replaced, left)
    if left:
        warnings.warn(f"sc.convert left modules as they are\n{Conversion({}, left)}", stacklevel=2)
    return done


def _replace_layers(net: nn.Module) -> None:
    """Have layers without state say to a reader of networks what they compute; parts of a module before it.

    One that a plain list holds as well stays: the list would keep it, and the network would have another one.
    """
    layers = [module for module in net.modules() if module is not net and description_of(module) is not None]
    hidden = {id(module) for _, module, _ in hidden_modules(net, set(map(id, layers)))}
    for module in reversed(layers):
        if id(module) not in hidden:
            replace_modules(net, {module: counterpart(module, description_of(module))})


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


def hidden_modules(net: nn.Module, changing: Set[int]) -> Iterator[Tuple[str, nn.Module, str]]:
    """``(place, module, why torch does not see it)`` of each such module, once. changing: ids of modules that are
    listed even if they are parts of the network, too.
    """
    parts = set(map(id, net.modules()))
    seen = parts - changing
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
            for place, module in _contents(path, value, seen, parts):
                yield place, module, why


def _contents(path: str, value: Any, seen: Set[int], parts: Set[int]) -> Iterator[Tuple[str, nn.Module]]:
    """Modules that are not in ``seen`` by their places: a module and those in it, or those in a container. Those in one
    of the parts of the network are parts, too.
    """
    if isinstance(value, nn.Module):
        for inner, module in [("", value)] if id(value) in parts else value.named_modules():
            if id(module) not in seen:
                seen.add(id(module))
                yield f"{path}.{inner}" if inner else path, module
    elif isinstance(value, (Mapping, list, tuple, deque, set, frozenset)) and id(value) not in seen:
        seen.add(id(value))
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _contents(f"{path}[{key!r}]", item, seen, parts)
