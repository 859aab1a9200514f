"""Registries of invented entry points."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import Any, Callable, Dict, List

import pytest

from spikecore.backend import Backend, BackendInfo, Capabilities, hookimpl
from spikecore.plugins.registry import Registry

CAN = Capabilities(float32=True, gradients=True)


class Distribution:
    def __init__(self, name: str, version: str) -> None:
        self.metadata = {"Name": name}
        self.version = version


class Point:
    """An entry point that counts how often it was loaded; ``during`` is called then, and may raise."""

    def __init__(
        self,
        name: str,
        plugin: object,
        distribution: str = "",
        version: str = "1.0",
        during: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self.value = f"plugin_{name}"
        self.dist = Distribution(distribution or f"spikecore-{name}", version)
        self.plugin = plugin
        self.during = during
        self.loads = 0

    def load(self) -> object:
        """The plugin."""
        self.loads += 1
        self.during()
        if isinstance(self.plugin, Exception):
            raise self.plugin
        return self.plugin


class World:
    """Makes plugins and built-ins whose factories can be imported, and registries of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.made: List[str] = []
        self.environ: Dict[str, str] = {}

    def info(self, name: str, making: Callable[[], object] = lambda: None, **changes: Any) -> BackendInfo:
        """A good description of a good backend, with changes; ``making`` is called when the backend is made."""

        def build(backend: Any) -> None:
            making()
            self.made.append(name)
            Backend.__init__(backend)

        members = {"name": name, "capabilities": CAN, "__init__": build}
        module = types.ModuleType(f"fake_{name}")
        vars(module).update(Fake=type("Fake", (Backend,), members), NotABackend=dict, Renamed=Backend, fails=fails)
        self.monkeypatch.setitem(sys.modules, module.__name__, module)
        return replace(BackendInfo(name, f"fake_{name}:Fake", ("cpu",), CAN, lambda: None), **changes)

    def plugin(self, name: str, **changes: Any) -> types.ModuleType:
        """A plugin module that describes one good backend, with changes."""
        info = self.info(name, **changes)
        return hooked(lambda: [info])

    def registry(self, *points: Point, **builtins: Any) -> Registry:
        """A registry of these entry points, of the built-in 'torch', and of other built-ins given as modules."""
        modules = {"torch": self.plugin("torch", devices=("*",)), **builtins}
        for name, module in modules.items():
            self.monkeypatch.setitem(sys.modules, f"builtin_{name}", module)
        return Registry({name: f"builtin_{name}" for name in modules}, entry_points=points, environ=self.environ)


def fails() -> Backend:
    """A factory that does."""
    raise OSError("libpoptorch.so: undefined symbol")


def hooked(function: Callable[[], object], name: str = "spikecore_backends") -> types.ModuleType:
    """A plugin module with this hook implementation."""

    def hook() -> object:
        return function()

    hook.__name__ = name
    module = types.ModuleType("plugin")
    setattr(module, name, hookimpl(hook))
    return module


def states(registry: Registry, probe: bool = False) -> Dict[str, str]:
    """Name to state."""
    return {row.name: row.state for row in registry.status(probe)}
