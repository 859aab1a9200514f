"""A module whose parameters have ranges: checked where they are set, loaded and saved within them."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple

from torch import Tensor

from spikecore import checkpoints, ranges
from spikecore.binding import Bound


class Ranged(Bound):
    """A bound module with parameters and their ranges (see :mod:`spikecore.ranges`)."""

    #: name -> default value.
    params: Mapping[str, Any] = {}
    #: Ranges that parameters must be in and are kept in while they are learnt, ends included: name -> (low, high), with
    #: None for no end; None instead of a pair lifts the range of a base class. Those of base classes hold as well.
    bounds: Mapping[str, Any] = {}
    #: Parameters that must be above 0.
    positive: ClassVar[Tuple[str, ...]] = ()

    def _declared_bounds(self, values: Mapping[str, Any]) -> Dict[str, ranges.Interval]:
        """The ranges of this neuron's parameters, given their values, before ``bounds`` replaces some."""
        return ranges.declared(type(self))

    def _project(self) -> None:
        """Put learnt parameters inside their ranges now."""
        if self._parameters:
            ranges.project(self._parameters, self.bounds)

    def _set_bounds(self, given: Any) -> None:
        owner = type(self).__name__
        self._project()
        values = {name: getattr(self, name) for name in self.params}
        bounds = ranges.overridden(owner, self.params, self._declared_bounds(values), given)
        for name, value in values.items():
            ranges.require(owner, name, value, bounds.get(name))
        self.__dict__["bounds"] = bounds

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        # an optimiser may have stepped since the last call, and what is saved must load again
        self._project()
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
        refused = checkpoints.refused(self, state_dict, prefix)
        if refused:
            error_msgs.extend(refused)
            return
        taken = checkpoints.take(self, state_dict, prefix)
        args = (state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict(*args)
        unexpected_keys[:] = [key for key in unexpected_keys if key not in taken]

    def _foreign(self, name: str, value: Tensor) -> Optional[str]:
        """What an entry of another library's checkpoint means here: None if nothing is known of it, "" if this neuron
        is as it says, else why it is not.
        """
        return None

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__({"bounds": ranges.declared(type(self)), **state})
