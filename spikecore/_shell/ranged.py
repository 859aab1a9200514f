"""A module whose parameters have ranges: checked where they are set, loaded and saved within them."""

from __future__ import annotations

from typing import Any, ClassVar, Collection, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore._shell import checkpoints, checks, parameters, processes, ranges
from spikecore._shell.binding import Bound
from spikecore._shell.graphed import Graphed


class Ranged(Graphed):
    """A bound module with parameters and their ranges (see :mod:`spikecore._shell.ranges`)."""

    #: Ranges that parameters must be in and are kept in while they are learnt, ends included: name -> (low, high), with
    #: None for no end; None instead of a pair lifts the range of a base class. Those of base classes hold as well.
    bounds: Mapping[str, Any] = {}
    #: Parameters that must be above 0.
    positive: ClassVar[Tuple[str, ...]] = ()
    #: What a range that follows another parameter is made of, for errors: name -> words.
    follows: ClassVar[Mapping[str, str]] = {}

    #: The ranges now; ``bounds`` shows them. A plain dict, which torch.compile can guard and calls read quickly.
    _ranges: Dict[str, ranges.Interval]
    #: ``bounds`` as it was given, which stays when declared ranges follow other values.
    _given: Any
    #: Tensors that are not learnt -> the version of each that was found inside its range.
    _inside: Dict[str, Tuple[Tensor, int]]
    #: Whether several values are set, which only together need to be inside.
    _loading = False

    def _declared_bounds(self, values: Mapping[str, Any]) -> Dict[str, ranges.Interval]:
        """The ranges of this neuron's parameters, given their values, before ``bounds`` replaces some."""
        return ranges.declared(type(self))

    def _now(self) -> Dict[str, Any]:
        """The parameters, without those that were deleted: torch.nn.utils takes one away and sets another."""
        return {name: getattr(self, name) for name in self.params if hasattr(self, name)}

    def _following(self, values: Mapping[str, Any]) -> Dict[str, ranges.Interval]:
        """The ranges with these values of the parameters; without some of them, the ranges that follow no values."""
        whole = len(values) == len(self.params)
        declared = self._declared_bounds(values) if whole else ranges.declared(type(self))
        return ranges.overridden(type(self).__name__, self.params, declared, self._given)

    def _adopt(self, found: Dict[str, ranges.Interval]) -> None:
        self.__dict__.update(_ranges=found, bounds=ranges.Shown(found), _inside={})

    def _first_bounds(self, values: Mapping[str, Any], given: Any) -> None:
        """The ranges of a neuron that gets these values."""
        self.__dict__["_given"] = given if given is None or not isinstance(given, Mapping) else dict(given)
        self._adopt(self._following(values))

    def _set_bounds(self, given: Any) -> None:
        put_inside(self)
        before, values = self._given, self._now()
        self.__dict__["_given"] = given if given is None or not isinstance(given, Mapping) else dict(given)
        try:
            found = self._following(values)
            for name, value in values.items():
                self._require(name, value, found)
        except BaseException:
            self.__dict__["_given"] = before
            raise
        self._adopt(found)

    def _require(self, name: str, value: Any, found: Mapping[str, ranges.Interval]) -> None:
        ranges.require(type(self).__name__, name, value, found.get(name), self.follows.get(name, ""))

    def _checked_value(self, name: str, value: Any) -> Any:
        """A parameter's new value, which is inside its range and leaves the other parameters inside theirs."""
        owner = type(self).__name__
        value = parameters.checked(owner, name, value)
        if self._loading or "_request" not in self.__dict__:  # the latter while the neuron is being made
            found = self._ranges
        else:
            found = self._following({**self._now(), name: value})
        self._require(name, value, found)
        if found != self._ranges:
            for other in self.params:
                if other != name and found.get(other) != self._ranges.get(other):
                    try:
                        self._require(other, getattr(self, other), found)
                    except ValueError as error:
                        raise ValueError(f"{owner}: {name} cannot be set to this value first; {error}") from None
            self._adopt(found)
        return value

    def _swapped_value(self, name: str, value: Any) -> Any:
        """A parameter of another kind than the one before: FSDP puts its gathered copy in the place of a shard before a
        call, which projects the copy. The optimiser steps on the shard, which is projected here.
        """
        held = self._parameters.get(name)
        if name in self._ranges and processes.is_shard(held):
            ranges.project({name: held}, {name: self._ranges[name]})
        return parameters.checked(type(self).__name__, name, value)

    def _own_names(self) -> Collection[str]:
        return tuple(dict.fromkeys((*self.params, *self.configuration, *checks.COMMON)))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.params:
            self._set_parameter(name, value)
        elif name == "bounds":
            self._set_bounds(value)
        elif name == "learn" and "learn" in self.__dict__:
            raise AttributeError(
                "learn is fixed when a neuron is made; make a new one, or set a parameter to an nn.Parameter"
            )
        else:
            super().__setattr__(name, value)

    def _set_parameter(self, name: str, value: Any) -> None:
        swapped = isinstance(value, nn.Parameter) and type(self._parameters.get(name, value)) is not type(value)
        value = self._swapped_value(name, value) if swapped else self._checked_value(name, value)
        if isinstance(value, nn.Parameter):
            super().__setattr__(name, value)
            return
        value = parameters.for_parametrization(self, name, value)
        held = self._parameters.get(name, self._buffers.get(name))
        if isinstance(value, float) and held is not None:
            with torch.no_grad():
                held.fill_(value)
        elif isinstance(value, Tensor) and isinstance(self.__dict__.get(name), float):
            del self.__dict__[name]  # a number before; as a buffer it moves with the neuron
            self.register_buffer(name, value)
        else:
            if "_cache" in self.__dict__:
                self._cache.quick = {}  # noted calls compare numbers by value, and -0.0 == 0.0
            # past Bound.__setattr__: a program takes its parameters as arguments, so nothing is traced again
            super(Bound, self).__setattr__(name, value)

    def _check_tensors(self) -> None:
        """Raise ValueError for a tensor that is not learnt and was changed in place to what is outside its range."""
        changed = ranges.changed(self._buffers, self.params, self._inside)
        if changed:
            found = self._following(self._now())
            for name in self.params:
                if name not in self._parameters:
                    self._require(name, getattr(self, name), found)
            self._adopt(found)
            self._inside.update(changed)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        # an optimiser may have stepped since the last call, and what is saved must load again
        put_inside(self)
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        after = self._following(checkpoints.values_after(self, state_dict, prefix))
        refused = checkpoints.refused(self, state_dict, prefix, after, self._foreign)
        if refused:
            error_msgs.extend(refused)
            return
        self._adopt(after)
        self.__dict__["_loading"] = True
        try:
            taken = checkpoints.take(self, state_dict, prefix, self._foreign)
            state_dict = checkpoints.spread(self, state_dict, prefix)
            args = (state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
            super()._load_from_state_dict(*args)
        finally:
            del self.__dict__["_loading"]
        self._adopt(self._following(self._now()))
        unexpected_keys[:] = [key for key in unexpected_keys if key not in taken]

    def _foreign(self, name: str, value: Tensor) -> Optional[str]:
        """What an entry of another library's checkpoint means here: None if nothing is known of it, "" if this neuron
        is as it says, else why it is not.
        """
        return checkpoints.of_snntorch(getattr(self, "reset", None), name, value)

    def __getstate__(self) -> Dict[str, Any]:
        state = super().__getstate__()
        return {**{name: value for name, value in state.items() if name != "_inside"}, "bounds": dict(self._ranges)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        # pickles of before there were ranges have no bounds, those of before ranges followed values no _given
        bounds = state.get("bounds", ranges.declared(type(self)))
        given = {name: bounds.get(name) for name in self.params}
        super().__setstate__({"_given": given, **state})
        self._adopt(dict(bounds))


def put_inside(module: Ranged) -> None:
    """Put every learnt parameter of ``module`` that left its range back to the nearest value inside, in place."""
    if module._parameters:
        ranges.project(module._parameters, module._ranges)
