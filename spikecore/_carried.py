"""The carried state of a network as tensors by name, and back: to stop a stream, save it, and go on elsewhere."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Set

from torch import Tensor, nn

from spikecore._base.words import a_kind
from spikecore._shell.checks import shown
from spikecore._shell.state import Stateful, keep, names_of_state
from spikecore.functional import check_places

_CONTINUES = "sc.set_step(net, 'single'), or call it within sc.carry_state(net), where multi-step calls continue"


def state_dict_of_state(net: nn.Module) -> Dict[str, Tensor]:
    """The state that the next call of ``net`` continues from, by name, as a flat dict of tensors for ``torch.save``.

    The keys are ``"<name of the module>.<name of the state>"``, such as ``"1.v"``, with names as ``state_dict()`` has
    them; the values are copies without a graph, on the device of the state. A neuron at rest has no entry, so that a
    network after ``sc.reset(net)`` gives ``{}``. Parameters are not among them: ``net.state_dict()`` has those.
    :func:`load_state_dict_of_state` puts them back.

    Raises RuntimeError if nothing in ``net`` would continue from its state, ValueError for a neuron at two places of
    the network, TypeError for what is no module.
    """
    found: Dict[str, Tensor] = {}
    for prefix, module in _carriers("state_dict_of_state", net).items():
        for name, value in (module.state or {}).items():
            found[prefix + name] = value.detach().clone()
    return found


def load_state_dict_of_state(net: nn.Module, state: Mapping[str, Tensor], strict: bool = True) -> None:
    """Have the next call of ``net`` continue from ``state``, as :func:`state_dict_of_state` gave it.

    Tensors are copied, and stay on their device (``torch.load(file, map_location=...)``); the next call says if it is
    another one than that of its input, or if the shapes do not fit it. ``{}`` puts every neuron to rest. With
    ``strict=False`` neurons without any entry begin at rest.

    Nothing is changed if something does not fit. KeyError names the keys that are missing, and those that ``net`` has
    no state for; ValueError names states of one neuron whose shapes differ; TypeError what is no floating-point tensor,
    or no dict. Otherwise raises as :func:`state_dict_of_state`.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state={shown(state)} is {a_kind(state)}; give what sc.state_dict_of_state(net) gave")
    carriers = _carriers("load_state_dict_of_state", net)
    missing: List[str] = []
    taken: Dict[str, Dict[str, Tensor]] = {}
    for prefix, module in carriers.items():
        known = _known(module, prefix, state)
        given = {name: state[prefix + name] for name in known if prefix + name in state}
        if given or (strict and state and not module.may_rest):
            missing += [prefix + name for name in known if name not in given]
        taken[prefix] = given
    used = {prefix + name for prefix, given in taken.items() for name in given}
    unexpected = [key for key in state if key not in used]
    if missing or unexpected:
        lacks = f"missing: {', '.join(missing)}" if missing else ""
        more = f"unexpected: {', '.join(map(str, unexpected))}" if unexpected else ""
        raise KeyError(
            f"the state does not fit the network, {'; '.join(filter(None, (lacks, more)))}. Give the state of a "
            "network with these modules, or strict=False if those without any entry are to begin at rest"
        )
    for prefix, given in taken.items():
        _check(prefix, given, names_of_state(carriers[prefix]) or {})
    for prefix, module in carriers.items():
        keep(module, {name: value.detach().clone() for name, value in taken[prefix].items()} or None)


def _carriers(function: str, net: nn.Module) -> Dict[str, Stateful]:
    """The modules that carry a state of their own, by the prefix of their keys."""
    check_places(net)
    found: Dict[str, Stateful] = {}
    inner: Set[nn.Module] = set()
    for name, module in net.named_modules():
        if isinstance(module, Stateful):
            inner.update(part for part in module.modules() if part is not module)
            found[f"{name}." if name else ""] = module
    found = {prefix: module for prefix, module in found.items() if module not in inner}
    if not any(module.continues for module in found.values()):
        raise RuntimeError(
            f"sc.{function}: no neuron of net={shown(net)} continues from its last state: each call begins at rest. "
            f"Use {_CONTINUES}"
        )
    return {prefix: module for prefix, module in found.items() if module.continues}


def _known(module: Stateful, prefix: str, state: Mapping[str, Any]) -> Collection[str]:
    """The names of the states of a module; of a class that does not declare them, those that are given."""
    names = names_of_state(module)
    if names is not None:
        return names
    keys = [str(key) for key in state]
    return [key[len(prefix) :] for key in keys if key.startswith(prefix) and "." not in key[len(prefix) :]]


def _check(prefix: str, given: Mapping[str, Any], of_step: Mapping[str, bool]) -> None:
    shapes = {}
    for name, value in given.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            what = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{prefix}{name} must be a floating-point tensor, got {what}")
        if of_step.get(name):
            shapes[name] = tuple(value.shape)
    if len(set(shapes.values())) > 1:
        told = ", ".join(f"{prefix}{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"the states of one neuron must have one shape, that of a time step, got {told}")
