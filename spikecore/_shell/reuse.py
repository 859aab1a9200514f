"""One neuron at two places of a network: its state would be that of both.

At rest a neuron may be used anywhere, since every call begins anew. A neuron that carries its state belongs to one
place of the network. What is refused:

- It is in one ``nn.Sequential`` twice, which runs what it holds one after the other.
- One call of the outermost module that contains it reaches it through two places of the user's source, or reaches it
  again where an ``nn.ModuleList`` or ``nn.ModuleDict`` holds it twice: a loop over that is one place.

Scripts may call a neuron from wherever they like, and so may two calls of a network. Two steps of one sequence that are
written out look like two places, and are refused as well. A loop or a recursion is one place, whether it goes over time
or over layers that share one activation: where the variables there hold another module in each turn, a warning says so.
"""

from __future__ import annotations

import itertools
import sys
import warnings
import weakref
from types import CodeType, FrameType
from typing import Callable, Dict, List, MutableMapping, NamedTuple, Optional, Tuple

import torch
from torch import nn

from spikecore._base.stacks import Level, Place, innermost_calls, levels, modules_within, token_of, traced
from spikecore._shell.in_turn import in_turn

#: Name of a module twice in one container, as :func:`registered_twice` finds it.
Twice = Dict[nn.Module, Tuple[str, str]]
#: What networks hold twice in lists, with the number of modules they had then.
_listed: MutableMapping[nn.Module, Tuple[int, Twice]] = weakref.WeakKeyDictionary()


class Calls(NamedTuple):
    """The last call of a neuron."""

    #: Frames that tell whether the next call comes from the same places: how far up, code, and place in it.
    path: Tuple[Tuple[int, CodeType, int], ...]
    #: The user's places within the call of the outermost module that contains the neuron, from the inside out.
    places: Tuple[Place, ...]
    #: How far up the frame of that call is, and what identifies it; None if no module calls the neuron.
    outermost: int
    token: Optional[object]
    #: What identifies the graph that was made when torch.compile traced the call, else None.
    graph: Optional[object]
    #: Two names in a list of the outermost module.
    listed: Optional[Tuple[str, str]]
    #: Whether gradients were on.
    grad: bool
    #: The modules in variables at the innermost place of a first call; None after a second one.
    at_hand: Optional[Dict[str, int]] = None


def check_call(module: nn.Module, calls: Optional[Calls]) -> Calls:
    """Note from where ``module.forward`` is called. Raises RuntimeError for a second place."""
    if calls is not None and calls.path:
        try:
            for depth, code, at in calls.path:
                frame = sys._getframe(depth)
                if frame.f_code is not code or frame.f_lasti != at:
                    break
            else:
                if calls.token is None:
                    return calls
                token = token_of(sys._getframe(calls.outermost))
                if token is not calls.token:
                    return calls._replace(token=token, at_hand=None)
                if calls.at_hand is not None:
                    _check_loop(module, calls.at_hand, sys._getframe(calls.path[0][0]))
                    calls = calls._replace(at_hand=None)
                if calls.listed is None:
                    return calls
        except ValueError:
            pass  # the stack is not that deep
    found = _found(module, [*levels(sys._getframe())])
    if calls is not None and found.token is not None and found.token is calls.token:
        _check_place(module, calls, found)
        _check_list(module, found)
    elif found.token is not None and found.places:
        found = found._replace(at_hand=modules_within(sys._getframe(found.path[0][0])))
    return found


def check_traced_call(module: nn.Module, calls: Optional[Calls]) -> Calls:
    """The same while torch.compile traces, which it may do several times for one call."""
    frame = sys._getframe()
    found = _found(module, [*traced(frame), *levels(frame)])
    again = calls is not None and found.graph is not None and found.graph is calls.graph
    if calls is not None and (again or (found.token is not None and found.token is calls.token)):
        _check_place(module, calls, found)
    if again:
        _check_list(module, found)
    return found


def _found(module: nn.Module, stack: List[Level]) -> Calls:
    """What the stack tells about a call of ``module``, whose own frames are the first ones."""
    own = [number for number, level in enumerate(stack) if level.owner is module]
    stack = stack[own[-1] + 1 :] if own else stack
    within: List[Level] = []
    pending: List[Level] = []
    path: List[Level] = []
    graph: Optional[object] = None
    outermost: Optional[Level] = None
    for level in stack:
        if level.place is not None:
            pending.append(level)
        elif level.owner is not None and any(one is module for one in level.owner.modules()):
            _check_in_turn(module, level.owner)
            within += pending
            path += pending
            pending, outermost = [], level
            if level.real is None:
                graph = token_of(level.notes)
    path += pending[:1]  # who calls the outermost
    real = outermost.real if outermost is not None else None
    return Calls(
        tuple([level.real for level in path if level.real is not None]) if graph is None else (),
        tuple([one.place for one in innermost_calls(within) if one.place is not None]),
        real[0] if real is not None else 0,
        token_of(outermost.notes) if outermost is not None else None,
        graph,
        None if outermost is None or outermost.owner is None else _listed_in(outermost.owner).get(module),
        torch.is_grad_enabled(),
    )


def _check_place(module: nn.Module, calls: Calls, found: Calls) -> None:
    """Raise if the two are calls at different places."""
    both = [*zip(reversed(calls.places), reversed(found.places))]
    others = [(before, now) for before, now in both if now.is_other(before)]
    if not others and len(calls.places) != len(found.places):
        others = both[-1:]
    if others:
        before, now = others[0]
        loop = "one loop"
        if found.grad != calls.grad:
            loop += " (steps without gradients: for t, x_t in enumerate(x): with torch.set_grad_enabled(t >= first):)"
        raise RuntimeError(
            f"{type(module).__name__} carries its state and is called at two places, {before.file}:{before.line} and "
            f"{now.file}:{now.line}: each would go on from the other's state. Make a neuron for each; or, if these are "
            f"steps of one sequence, call it in {loop}; or call it at one place with the input chosen before; or give "
            "each its own state: out, state = neuron.run(x, state=state)"
        )


def _check_loop(module: nn.Module, before: Dict[str, int], frame: FrameType) -> None:
    """Warn of a second call at one place where the variables hold other modules than at the first."""
    now = modules_within(frame)
    others = [name for name, number in before.items() if name in now and now[name] != number]
    if others:
        code = frame.f_code
        warnings.warn_explicit(
            f"{type(module).__name__} carries its state and is called for one {others[0]!r} after the other: each goes "
            "on from the state that the one before left. Make a neuron for each of these modules; or, if they are for "
            f"the steps of one sequence, take them by index, with no variable {others[0]!r}, which is not warned of",
            RuntimeWarning,
            code.co_filename,
            frame.f_lineno,
            module=str(frame.f_globals.get("__name__")),
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
        )


def _check_list(module: nn.Module, found: Calls) -> None:
    """Raise if a list holds the module twice, which is called a second time."""
    if found.listed is not None:
        first, second = found.listed
        raise RuntimeError(
            f"{type(module).__name__} carries its state, is in one list twice, as {first!r} and {second!r}, and is "
            "called again: each would go on from the other's state. Make a neuron for each; or, if these are steps of "
            "one sequence, put it in the list once"
        )


def _check_in_turn(module: nn.Module, owner: nn.Module) -> None:
    """Raise if ``owner`` is a sequence that runs the module twice."""
    if in_turn(owner):
        names = [name for name, child in owner._modules.items() if child is not None and module in child.modules()]
        if len(names) > 1:
            raise RuntimeError(
                f"{type(module).__name__} carries its state and is in one {type(owner).__name__} twice, as "
                f"{names[0]!r} and {names[1]!r}: each would go on from the other's state; make a neuron for each place"
            )


def _is_list(container: nn.Module) -> bool:
    return isinstance(container, (nn.Sequential, nn.ModuleList, nn.ModuleDict)) and not in_turn(container)


def registered_twice(net: nn.Module) -> Twice:
    """The modules that one container of ``net`` runs twice, each with two of its names."""
    return _twice(net, in_turn)


def _listed_in(net: nn.Module) -> Twice:
    """The modules that a list of ``net`` holds twice; a loop over it would run them twice."""
    size, found = _listed.get(net, (-1, {}))
    now = sum(1 for _ in net.modules())
    if size != now:
        found = _twice(net, _is_list)
        _listed[net] = now, found
    return found


def _twice(net: nn.Module, wanted: Callable[[nn.Module], bool]) -> Twice:
    names: Dict[nn.Module, List[str]] = {}
    for name, module in net.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    found: Twice = {}
    for module, places in names.items():
        for first, second in itertools.combinations(places, 2):
            if wanted(net.get_submodule(_shared(first, second))):
                found.setdefault(module, (first, second))
    return found


def _shared(first: str, second: str) -> str:
    """The path of the innermost module that contains both."""
    a, b = first.split("."), second.split(".")
    same = 0
    while same < min(len(a), len(b)) - 1 and a[same] == b[same]:
        same += 1
    return ".".join(a[:same])
