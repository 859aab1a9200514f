"""The one hook of the plugin system, and the markers that go with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable

import pluggy

if TYPE_CHECKING:
    from spikecore.backend import BackendInfo

#: Name of the pluggy project.
PROJECT = "spikecore"
#: Entry-point group; the entry point's name is the backend's name.
GROUP = "spikecore.backends"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def spikecore_backends() -> Iterable[BackendInfo]:
    """Describe the backends this plugin provides. Cheap: no heavy import, no device access."""
    return ()
