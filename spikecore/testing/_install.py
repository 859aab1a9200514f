"""A way to have a backend in this process without installing it: for tests."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Iterator, List, Optional, Tuple, Type

import spikecore
from spikecore.backend import ANY_DEVICE, Backend, BackendInfo
from spikecore.plugins import registry

_classes = SimpleNamespace()


@contextmanager
def installed(
    backend: Type[Backend], devices: Tuple[str, ...] = (ANY_DEVICE,), reason: Optional[str] = None
) -> Iterator[str]:
    """Within the block this backend is there, beside the built-ins, as if a distribution provided it; gives its name.

    ``reason``: why it cannot be used here, if so. Meant for tests, from one thread.
    """
    name = backend.name
    info = BackendInfo(name, f"{__name__}:_classes.{name}", devices, backend.capabilities, lambda: reason)

    class Plugin:
        @spikecore.backend.hookimpl
        def spikecore_backends(self) -> List[BackendInfo]:
            return [info]

    point: Any = SimpleNamespace(name=name, value=f"in process: {backend.__qualname__}", dist=None, load=Plugin)
    setattr(_classes, name, backend)
    before = registry.replace_default(registry.Registry(registry.default_registry().builtins, entry_points=[point]))
    try:
        yield name
    finally:
        registry.replace_default(before)
        delattr(_classes, name)
