"""Translates a torch optimiser into PopTorch's: with the same parameters, groups and hyperparameters.

Hyperparameters are read again when they change.

Rules of this module:

- PopTorch runs no optimiser's ``step``. It reads hyperparameters when a model is wrapped, and again only when it is
  told to (``setOptimizer``): :meth:`Translated.hand_over` does that.
- What PopTorch would silently compute differently (``maximize``), or update although it is in no group, is refused.
- Every number that torch's optimiser has is given to PopTorch's, which makes it a variable of the compiled program: a
  schedule may change it. What is off in all groups (a momentum of 0, for one) stays a constant, and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type

import torch
from torch import nn

from spikecore.backend import Unsupported
from spikecore_ipu.sdk import poptorch

#: Hyperparameters that PopTorch's optimiser of the same name takes, and the value at which each is off, if any.
ACCEPTED: Mapping[Type[torch.optim.Optimizer], Mapping[str, Any]] = {
    torch.optim.SGD: {"lr": None, "momentum": 0, "weight_decay": 0, "nesterov": False},
    torch.optim.Adam: {"lr": None, "betas": None, "eps": None, "weight_decay": 0},
    torch.optim.AdamW: {"lr": None, "betas": None, "eps": None, "weight_decay": None},
    torch.optim.RMSprop: {
        "lr": None,
        "alpha": None,
        "eps": None,
        "weight_decay": 0,
        "momentum": 0,
        "centered": False,
    },
}
#: Options of torch's optimisers with which PopTorch's updates would differ from torch's: name -> why.
_REFUSED = {
    "amsgrad": "PopTorch has only non-amsgrad Adam and AdamW",
    "dampening": "PopTorch damps the first step, too, and steps without momentum, where torch does not",
    "maximize": "PopTorch ignores it and would minimise; give the negative of the loss",
}

Hyperparameters = Tuple[Tuple[Tuple[str, Any], ...], ...]


@dataclass
class Translated:
    """PopTorch's optimiser for one of torch's, or one of PopTorch's itself."""

    #: Optimiser of the user.
    source: torch.optim.Optimizer
    #: Optimiser for PopTorch; the same object if it was one of PopTorch's.
    target: torch.optim.Optimizer
    #: The hyper-parameters that PopTorch was given last.
    seen: Hyperparameters
    #: The ids of the parameters of each group.
    parameter_ids: Tuple[Tuple[int, ...], ...]
    #: The names of the hyper-parameters that are variables of the program.
    used: Tuple[str, ...] = ()

    def hand_over(self, executor: Any) -> None:
        """Have the executor take the hyperparameters, if they have changed since the last time.

        Raises :class:`~spikecore.backend.Unsupported` for what a compiled program cannot follow.
        """
        why = self.outdated()
        if why:
            raise Unsupported(
                f"{why} since the program was compiled, which cannot follow; call destroy() first: the next call "
                "compiles anew, with the optimiser's state from the start"
            )
        if self.refreshed():
            executor.setOptimizer(self.target)

    def outdated(self) -> str:
        """Sentence that names a changed setting of the compiled program; empty if none has."""
        if _parameter_ids(self.source) != self.parameter_ids:
            return "the optimiser's groups hold other parameters"
        _check_groups(self.source)
        if self.target is not self.source:
            for group, values in zip(self.target.param_groups, _hyperparameters(self.source)):
                for name, value in values:
                    if name not in self.used and value != group[name]:
                        return f"the optimiser's {name}, {group[name]!r} in all groups, has become {value!r}"
        return ""

    def refreshed(self) -> bool:
        """True if hyperparameters have changed since the last time; they are then in ``target``."""
        hyperparameters = _hyperparameters(self.source)
        if hyperparameters == self.seen:
            return False
        if self.target is not self.source:
            for group, values in zip(self.target.param_groups, hyperparameters):
                group.update(values)
        self.seen = hyperparameters
        return True

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """The state of PopTorch's optimiser. Its hyperparameters go to the user's optimiser, too, and count from there.

        Those that PopTorch saved from the device are left out: they are older than the groups if a schedule moved since
        the last call. PopTorch keeps what is missing as it is.
        """
        self.target.load_state_dict({**state, "ipu_param": {}})
        if self.target is not self.source:
            accepted = ACCEPTED[type(self.source)]
            for mine, theirs in zip(self.source.param_groups, self.target.param_groups):
                mine.update({name: theirs[name] for name in accepted if name in theirs})
        self.seen = _hyperparameters(self.source)


def translated(optimizer: torch.optim.Optimizer, net: nn.Module) -> Translated:
    """The optimiser for PopTorch.

    Raises :class:`~spikecore.backend.Unsupported` for an optimiser or an option that PopTorch does not have, ValueError
    for a parameter that is not the network's, or one of the network's that would be trained and is in no group.
    """
    _check_parameters(optimizer, net)
    if _is_poptorch(optimizer):
        return Translated(optimizer, optimizer, _hyperparameters(optimizer), _parameter_ids(optimizer))
    accepted = ACCEPTED.get(type(optimizer))
    if accepted is None:
        known = ", ".join(kind.__name__ for kind in ACCEPTED)
        raise Unsupported(
            f"optimizer is {type(optimizer).__name__}, which PopTorch cannot run; use torch.optim's {known}, or one "
            "of poptorch.optim, such as LAMB"
        )
    _check_groups(optimizer)
    used = [
        name
        for name, off in accepted.items()
        if off is None or any(group[name] != off for group in (*optimizer.param_groups, optimizer.defaults))
    ]
    groups = [
        {"params": group["params"], **{name: _number(group[name]) for name in used}} for group in optimizer.param_groups
    ]
    kind = getattr(poptorch().optim, type(optimizer).__name__)
    # as arguments as well as in the groups: that is what makes them variables
    shared = {name: _number(optimizer.defaults[name]) for name in used}
    target = kind(groups, **shared)
    return Translated(optimizer, target, _hyperparameters(optimizer), _parameter_ids(optimizer), tuple(used))


def _is_poptorch(optimizer: torch.optim.Optimizer) -> bool:
    library = poptorch().optim
    kinds = tuple(getattr(library, name) for name in ("SGD", "Adam", "AdamW", "RMSprop", "LAMB"))
    return isinstance(optimizer, kinds)


def _hyperparameters(optimizer: torch.optim.Optimizer) -> Hyperparameters:
    """Those that PopTorch reads, by group; of an optimiser of PopTorch's, all."""
    accepted: Optional[Mapping[str, Any]] = ACCEPTED.get(type(optimizer))
    groups = []
    for group in optimizer.param_groups:
        names = [name for name in group if name != "params" and (accepted is None or name in accepted)]
        groups.append(tuple((name, _number(group[name])) for name in names))
    return tuple(groups)


def _parameter_ids(optimizer: torch.optim.Optimizer) -> Tuple[Tuple[int, ...], ...]:
    return tuple(tuple(id(parameter) for parameter in group["params"]) for group in optimizer.param_groups)


def _number(value: Any) -> Any:
    """A learning rate may be a tensor, and PopTorch takes betas in a tuple only."""
    if isinstance(value, torch.Tensor):
        return value.item()
    return tuple(value) if isinstance(value, list) else value


def _check_groups(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for name, why in _REFUSED.items():
            if group.get(name):
                raise Unsupported(f"optimizer has {name}={group[name]!r} in a group: {why}")


def _check_parameters(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    names: Dict[int, str] = {id(parameter): name for name, parameter in net.named_parameters()}
    known: List[int] = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    foreign = [key for key in known if key not in names]
    if foreign:
        raise ValueError(
            f"optimizer holds {len(foreign)} parameters that are not the network's, which PopTorch cannot update; make "
            "it from net.parameters()"
        )
    left_out = [name for name, value in net.named_parameters() if value.requires_grad and id(value) not in known]
    if left_out:
        raise ValueError(
            f"optimizer holds no {', '.join(left_out)}, which PopTorch would train all the same; freeze what is not to "
            "be trained with requires_grad_(False), or add it to the optimiser"
        )
