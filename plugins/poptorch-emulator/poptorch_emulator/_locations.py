"""``options.TensorLocations`` and ``options._Popart``: for memory and for the compiler, neither of which is modelled.

Rules of this module:

- The memory that a tensor is in changes no number: its settings are checked as PopTorch checks them, without effect.
- Settings for PopART itself could change any number, so they are refused.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NoReturn, Optional

from ._errors import not_modelled
from ._settings import OptionsDict


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise AssertionError(f"Expected {kind} but got {type(value)}")
    return value


class TensorLocationSettings(OptionsDict):
    """``poptorch.TensorLocationSettings``: the memory that tensors of one kind are in. No effect."""

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(minElementsForOffChip=_checked(min_elements, int))
        return self

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(minElementsForReplicatedTensorSharding=_checked(min_elements, int))
        return self

    def useOnChipStorage(self, use: Optional[bool] = True) -> TensorLocationSettings:
        """No effect."""
        if use is None:
            self.deleteIfExists("onChip")
        else:
            self.createOrSet(onChip=int(_checked(use, bool)))
        return self

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(useReplicatedTensorSharding=int(_checked(use, bool)))
        return self

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(useIOTilesToLoad=int(_checked(use, bool)))
        return self

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(useIOTilesToStore=int(_checked(use, bool)))
        return self


class TensorLocationOptions(OptionsDict):
    """``options.TensorLocations``. No effect."""

    def numIOTiles(self, num_tiles: int) -> TensorLocationOptions:
        """No effect; an even number from 32 to 192."""
        if not 32 <= _checked(num_tiles, int) <= 192 or num_tiles % 2:
            raise AssertionError("numIOTiles must be an even number between 32 and 192.")
        self.createOrSet(numIOTiles=num_tiles)
        return self

    def setActivationLocation(self, location: TensorLocationSettings) -> TensorLocationOptions:
        """No effect."""
        self.createOrSet(location_activation=_checked(location, TensorLocationSettings).toDict())
        return self

    def setWeightLocation(self, location: TensorLocationSettings) -> TensorLocationOptions:
        """No effect."""
        self.createOrSet(location_weight=_checked(location, TensorLocationSettings).toDict())
        return self

    def setOptimizerLocation(self, location: TensorLocationSettings) -> TensorLocationOptions:
        """No effect."""
        self.createOrSet(location_optimizer=_checked(location, TensorLocationSettings).toDict())
        return self

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> TensorLocationOptions:
        """No effect."""
        self.createOrSet(location_accumulator=_checked(location, TensorLocationSettings).toDict())
        return self


class PopartOptions(OptionsDict):
    """``options._Popart``: settings of PopART, which PopTorch passes on unread."""

    def set(self, key: str, value: Any) -> NoReturn:  # type: ignore[override]  # PopTorch's signature
        """Refused: what it changes is not known."""
        self.checkIsFrozen()
        raise not_modelled(f"_Popart.set({key!r}, ...)", "leave it out under the emulator")

    def setPatterns(self, patterns: Mapping[str, bool], level: int = 2) -> NoReturn:
        """Refused: patterns rewrite the graph."""
        self.checkIsFrozen()
        _checked(level, int)
        _checked(patterns, dict)
        raise not_modelled("_Popart.setPatterns", "leave it out under the emulator")

    def setEngineOptions(self, engine_options: Dict[str, str]) -> PopartOptions:
        """No effect: Poplar's engine is not there."""
        self.checkIsFrozen()
        return self
