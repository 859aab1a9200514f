"""Whether the state of an optimiser fits: everything that is missing, too much or of another kind, before it is loaded.

Torch's own ``load_state_dict`` looks at the sizes of groups only. What lacks comes up at the next update, or never.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor

from spikecore._base.errors import a_kind
from spikecore._shell.checks import shown


class _Kept(NamedTuple):
    """What an optimiser keeps for each parameter that had a gradient."""

    numbers: Tuple[str, ...] = ()
    #: Tensors of the parameter's shape.
    tensors: Tuple[str, ...] = ()
    #: Option of the group -> the tensor that it adds, unless it is 0 or False.
    optional: Mapping[str, str] = {}

    def needed(self, group: Mapping[str, Any]) -> Tuple[str, ...]:
        added = [name for option, name in self.optional.items() if _is_on(group.get(option))]
        return (*self.numbers, *self.tensors, *added)

    def none(self, group: Mapping[str, Any]) -> Dict[str, Any]:
        """The entry of a parameter that had no gradient, which differs from one that lost what it had."""
        return {} if self.numbers else dict.fromkeys(self.needed(group))

    def known(self) -> Tuple[str, ...]:
        return (*self.numbers, *self.tensors, *self.optional.values())


_MOMENTS = _Kept(("step",), ("exp_avg", "exp_avg_sq"), {"amsgrad": "max_exp_avg_sq"})
#: Optimisers of ``torch.optim``. What others keep is compared with what the one here has, if it has stepped.
_KEPT: Dict[str, _Kept] = {
    "SGD": _Kept(optional={"momentum": "momentum_buffer"}),
    "Adam": _MOMENTS,
    "AdamW": _MOMENTS,
    "NAdam": _Kept(("step", "mu_product"), ("exp_avg", "exp_avg_sq")),
    "RAdam": _Kept(("step",), ("exp_avg", "exp_avg_sq")),
    "Adamax": _Kept(("step",), ("exp_avg", "exp_inf")),
    "Adagrad": _Kept(("step",), ("sum",)),
    "Adadelta": _Kept(("step",), ("square_avg", "acc_delta")),
    "RMSprop": _Kept(("step",), ("square_avg",), {"momentum": "momentum_buffer", "centered": "grad_avg"}),
    "Rprop": _Kept(("step",), ("prev", "step_size")),
    "ASGD": _Kept(("step", "eta", "mu"), ("ax",)),
}
#: What keeps other names from one step to the next.
_VARYING = ("LBFGS",)
#: Entries of groups that schedulers and ``named_parameters`` make, before or after a state is loaded.
_OF_OTHERS = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr", "param_names")


def check_optimizer_state(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Raise ValueError, naming all that does not fit, unless ``state`` is of an optimiser like this one."""
    faults = list(_faults(optimizer, state))
    if faults:
        told = "; ".join(faults[:20]) + (f"; and {len(faults) - 20} more" if len(faults) > 20 else "")
        raise ValueError(
            f"state['optimizer'] does not fit this {type(optimizer).__name__}: {told}. Make network and optimiser as "
            "they were when it was saved, schedulers after it is loaded. Nothing was loaded"
        )


def complete(optimizer: torch.optim.Optimizer, state: Dict[str, Any]) -> Dict[str, Any]:
    """The state of an optimiser with entries for parameters without a gradient, too: one that lacks is then lost."""
    kept = _kept_by(optimizer)
    if kept is None:
        return state
    entries = dict(state["state"])
    for group in state["param_groups"]:
        entries.update({key: kept.none(group) for key in group["params"] if not entries.get(key)})
    return {**state, "state": entries}


def loadable(optimizer: torch.optim.Optimizer, state: Any) -> Any:
    """The state without the empty entries that :func:`complete` made for parameters without a gradient: torch before
    2.1 asks the first entry of Adam and its kin for its ``step``.
    """
    if _kept_by(optimizer) is None:
        return state
    return {**state, "state": {key: entry for key, entry in state["state"].items() if entry}}


def separate(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Give an optimiser that has loaded ``state`` tensors of its own: torch takes those of ``state`` themselves."""
    entries = state.get("state")
    if not isinstance(entries, Mapping):
        return  # of an optimiser with a form of its own
    given = {id(value) for entry in entries.values() for _, value in _tensors(entry)}
    for entry in optimizer.state.values():
        for name, value in _tensors(entry):
            if id(value) in given:
                entry[name] = value.detach().clone()


def _tensors(entry: Any) -> List[Tuple[str, Tensor]]:
    held = entry.items() if isinstance(entry, Mapping) else ()
    return [(name, value) for name, value in held if isinstance(value, Tensor)]


def _kept_by(optimizer: torch.optim.Optimizer) -> Optional[_Kept]:
    cls = type(optimizer)
    return _KEPT.get(cls.__name__) if getattr(torch.optim, cls.__name__, None) is cls else None


def _faults(optimizer: torch.optim.Optimizer, state: Any) -> Iterator[str]:
    if not isinstance(state, Mapping):
        yield f"it is {a_kind(state)}, and no dict as state_dict() of an optimiser returns"
        return
    mine = optimizer.state_dict()
    yield from _differences("it", mine, state)
    own_form = type(optimizer).state_dict is not torch.optim.Optimizer.state_dict
    if own_form or not all(name in mine and name in state for name in ("state", "param_groups")):
        return
    groups, held = state["param_groups"], optimizer.param_groups
    wrong = _malformed(state["state"], groups)
    if wrong:
        yield wrong
        return
    sizes = [[len(group["params"]) for group in some] for some in (groups, held)]
    if sizes[0] != sizes[1]:
        yield f"it is of groups of {sizes[0]} parameters, and this optimiser has groups of {sizes[1]}"
        return
    filled = _filled(optimizer, groups)
    for place, (group, own) in enumerate(zip(groups, held)):
        where = f"param_groups[{place}]"
        yield from _differences(where, [name for name in own if name not in filled[place]], group, allowed=own)
        for name in own:
            if name in group and name != "params" and not _alike(own[name], group[name]):
                yield f"{where} has {name}={shown(group[name])}, and this optimiser {shown(own[name])}"
    yield from _faults_of_entries(optimizer, state["state"], groups, mine["state"])


def _faults_of_entries(
    optimizer: torch.optim.Optimizer, entries: Mapping[Any, Any], groups: Sequence[Any], mine: Any
) -> Iterator[str]:
    kept, varying = _kept_by(optimizer), type(optimizer).__name__ in _VARYING
    places = [
        (key, p, group)
        for group, own in zip(groups, optimizer.param_groups)
        for key, p in zip(group["params"], own["params"])
    ]
    known = {key for key, _, _ in places}
    for key in entries:
        if key not in known and (kept is not None or key not in mine):
            yield f"it has an entry for {key!r}, which is no parameter of its groups"
    stepped = any(optimizer.state.get(p) for _, p, _ in places)
    for key, p, group in places:
        entry, live = entries.get(key), optimizer.state.get(p)
        needed: Sequence[str] = tuple(live or ()) if kept is None else kept.needed(group)
        if not entry:
            lost = entries and key not in entries and needed and p.requires_grad and (live or not stepped)
            if lost and not varying:
                none = {} if kept is None else kept.none(group)
                yield f"it has no entry for parameter {key} ({none}, if that never had a gradient)"
            elif key in entries and kept is not None and kept.none(group):
                yield from _differences(f"parameter {key}", needed, ())
            continue
        if not isinstance(entry, Mapping):
            yield f"parameter {key} has {shown(entry)}, and no dict"
            continue
        if kept is not None:
            if entry == kept.none(group):
                continue
            given = [name for name in entry if entry[name] is not None]
            yield from _differences(f"parameter {key}", needed, given, allowed=kept.known())
            yield from _shapes(key, p, entry, kept)
        elif live and not varying:
            yield from _differences(f"parameter {key}", needed, entry)
            for name, value in _tensors(entry):
                other = live.get(name)
                if isinstance(other, Tensor) and other.shape != value.shape:
                    yield _of_shape(key, name, value, other)


def _shapes(key: Any, p: Tensor, entry: Mapping[str, Any], kept: _Kept) -> Iterator[str]:
    for name, value in entry.items():
        if name in kept.numbers:
            if not _is_number(value):
                yield f"parameter {key} has {name}={shown(value)}, which is no number"
        elif value is not None and not isinstance(value, Tensor):
            yield f"parameter {key} has {name}={shown(value)}, which is no tensor"
        elif value is not None and value.shape != p.shape:
            yield _of_shape(key, name, value, p)


def _of_shape(key: Any, name: str, value: Tensor, other: Tensor) -> str:
    return f"it has {name} of shape {list(value.shape)} for parameter {key}, where that is {list(other.shape)}"


def _malformed(entries: Any, groups: Any) -> str:
    """What makes these no entries and groups at all; empty if nothing does."""
    if not isinstance(entries, Mapping):
        return f"its 'state' is {a_kind(entries)}, and no dict"
    if not isinstance(groups, (list, tuple)):
        return f"its 'param_groups' is {a_kind(groups)}, and no list of dicts"
    seen: Set[Any] = set()
    for place, group in enumerate(groups):
        if not isinstance(group, Mapping):
            return f"param_groups[{place}] is {a_kind(group)}, and no dict"
        keys = group.get("params", "missing")
        if not isinstance(keys, (list, tuple)) or not all(isinstance(key, (int, str)) for key in keys):
            return f"param_groups[{place}] has no 'params' that is a list of numbers"
        if len(set(keys)) < len(keys) or seen & set(keys):
            return f"param_groups[{place}] has a parameter twice: {shown(keys)}"
        seen |= set(keys)
    return ""


def _differences(where: str, wanted: Any, given: Any, allowed: Any = ()) -> Iterator[str]:
    for name in wanted:
        if name not in given and name not in _OF_OTHERS:
            yield f"{where} has no {name!r}"
    for name in given:
        if name not in wanted and name not in allowed and name not in _OF_OTHERS:
            yield f"{where} has {name!r}, which this optimiser has not"


def _filled(optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]) -> List[Set[str]]:
    """The options of each group that the optimiser's class gives a value where a checkpoint, of an older torch, has
    none.
    """
    twin = object.__new__(type(optimizer))
    copies = [dict(group) for group in groups]
    try:
        twin.__setstate__({"state": {}, "param_groups": copies, "defaults": dict(optimizer.defaults)})
    except Exception:  # of a class of somebody else's, which wants more than this: it gives no values
        return [set() for _ in groups]
    return [set(after) - set(before) for before, after in zip(groups, copies)]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)


def _is_on(option: Any) -> bool:
    return bool(option) if _is_number(option) else option is not None


def _alike(mine: Any, given: Any) -> bool:
    """Whether an option can have this value, as far as the present one tells."""
    if isinstance(mine, (list, tuple)):
        return isinstance(given, (list, tuple)) and len(mine) == len(given) and all(map(_alike, mine, given))
    return _is_number(given) or not _is_number(mine) or isinstance(mine, bool)
