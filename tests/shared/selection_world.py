"""Backends that are installed and chosen in a registry of a test's own."""

from __future__ import annotations

import sys
import types
from typing import Any, Dict, List, Sequence

import pytest

from spikecore.backend import Backend, BackendInfo, Capabilities, hookimpl
from spikecore.plugins import selection
from spikecore.plugins.registry import Registry
from spikecore.plugins.selection import Request, resolve

NOTHING = Request(None, "")
#: As it is before the tests' own configuration takes the plugins out of it.
REAL_AUTO = selection.AUTO


class Point:
    """An entry point that leads to a plugin."""

    def __init__(self, name: str, plugin: object, distribution: str = "", module: str = "") -> None:
        self.name, self.value, self.plugin = name, module or name, plugin
        self.dist = types.SimpleNamespace(metadata={"Name": distribution}, version="1.0") if distribution else None

    def load(self) -> object:
        """The plugin."""
        if isinstance(self.plugin, Exception):
            raise self.plugin
        return self.plugin


class World:
    """Built-ins torch (every device) and cupy (cuda), plugins numba (cpu) and triton (cuda, xpu), and two broken ones,
    of which one is a built-in.

    ``reasons`` makes each of them unusable; those in ``ours`` are installed by the project's own distributions, and
    ``points`` are more entry points. It is the default registry, too.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ours: Sequence[str] = (), points: Sequence[Point] = ()) -> None:
        self.environ: Dict[str, str] = {}
        self.reasons: Dict[str, str] = {}
        devices = {"torch": ("*",), "cupy": ("cuda",), "numba": ("cpu",), "triton": ("cuda", "xpu")}
        plugins = {name: self.plugin(name, devices[name]) for name in devices}
        for name, plugin in plugins.items():
            monkeypatch.setitem(sys.modules, f"fake_{name}", plugin)
        own = [
            Point(name, plugins[name], *(f"spikecore{mark}{name}" for mark in "-_") if name in ours else ())
            for name in ("numba", "triton")
        ]
        points = [*own, Point("broken", ImportError("no libbroken")), *points]
        table = {"torch": "fake_torch", "cupy": "fake_cupy", "absent": "no_such_module"}
        self.registry = Registry(table, entry_points=points, environ=self.environ)
        monkeypatch.setattr(selection, "default_registry", lambda: self.registry)

    def plugin(self, name: str, devices: Any) -> types.ModuleType:
        """A module that describes a backend and has its factory."""
        info = BackendInfo(name, f"fake_{name}:Fake", devices, Capabilities(), lambda: self.reasons.get(name))

        def spikecore_backends() -> List[BackendInfo]:
            return [info]

        module = types.ModuleType(name)
        vars(module).update(Fake=type("Fake", (Backend,), {"name": name}))
        vars(module).update(spikecore_backends=hookimpl(spikecore_backends))
        return module

    def resolve(self, request: Request = NOTHING, device_type: str = "cpu", **auto: str) -> selection.Resolved:
        """The choice in this world; ``auto`` has the backends to try before the reference, in one string."""
        table = {device: (*names.split(), "torch") for device, names in auto.items()}
        return resolve(request, device_type, self.registry, self.environ, table)
