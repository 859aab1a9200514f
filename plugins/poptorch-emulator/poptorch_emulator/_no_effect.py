"""Options of files, logs, names and profiles, which change nothing that the emulator computes."""

from __future__ import annotations

from typing import List, Optional, TypeVar

from ._settings import OptionsDict

_Self = TypeVar("_Self", bound="OptionsWithoutEffect")


class OptionsWithoutEffect(OptionsDict):
    """Setters that check what PopTorch checks, and keep what can be read as an attribute."""

    def enableExecutableCaching(self: _Self, path: Optional[str]) -> _Self:
        """No effect."""
        return self._without_effect()

    def enableProfiling(self: _Self, profile_dir: Optional[str] = None) -> _Self:
        """No effect."""
        return self._without_effect()

    def logCycleCount(self: _Self, log_cycle_count: bool) -> _Self:
        """No effect: cycles are not modelled."""
        return self._without_effect()

    def logDir(self: _Self, log_dir: str) -> _Self:
        """No effect."""
        self.set(log_dir=log_dir)
        return self

    def modelName(self: _Self, name: str) -> _Self:
        """No effect."""
        self.createOrSet(model_name=name)
        return self

    def showCompilationProgressBar(self: _Self, show: bool = True) -> _Self:
        """No effect: no progress bar is shown."""
        return self._without_effect()

    def disableModuleNamescope(self: _Self) -> _Self:
        """No effect: it is about names in PopART's graph."""
        return self._without_effect()

    def sourceLocationExcludes(self: _Self, excludes: List[str]) -> _Self:
        """No effect: it is about source lines in PopART's graph."""
        return self._without_effect()

    def appendToLocationExcludes(self: _Self, *excludes: str) -> _Self:
        """No effect: it is about source lines in PopART's graph."""
        return self._without_effect()

    def _without_effect(self: _Self) -> _Self:
        self.checkIsFrozen()
        return self
