"""What is known of a backend, for people and for the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from spikecore._base.contract import Api
from spikecore._plugins.candidates import Candidate
from spikecore._plugins.loading import Probed
from spikecore.backend import Backend, BackendInfo, BackendLoadError


@dataclass(frozen=True)
class BackendStatus:
    """One line of the list of backends. A field is empty (``api``: None) while it is not known."""

    name: str
    #: ``ready``, ``unavailable``, ``failed``, ``blocked``, ``shadowed``, or ``installed``: nobody has tried it yet.
    state: str
    distribution: str
    version: str
    api: Optional[Api]
    devices: Tuple[str, ...]
    #: Names of the declared capabilities.
    capabilities: Tuple[str, ...]
    #: Why it is in this state, and the way out; for a ready one, what serves if it is not what the name says.
    detail: str
    #: Device types whose tensors automatic choice may give to it.
    automatic: Tuple[str, ...] = ()


@dataclass
class Known:
    """What loading a candidate has shown so far. Each field is set once."""

    info: Optional[BackendInfo] = None
    failure: Optional[BackendLoadError] = None
    probed: Optional[Probed] = None
    backend: Optional[Backend] = None

    def unusable(self) -> str:
        """The probe's reason with the hint how to get what is missing."""
        hint = self.info.install_hint if self.info else ""
        reason = self.probed.reason if self.probed else None
        return f"{reason} ({hint})" if hint else str(reason)

    def state(self) -> Tuple[str, str]:
        """State and detail, as :class:`BackendStatus` has them."""
        if self.failure:
            return "failed", str(self.failure)
        if self.probed is None:
            return "installed", ""
        return ("unavailable", self.unusable()) if self.probed.reason else ("ready", self.probed.note)

    def row(self, candidate: Candidate, verdict: Tuple[str, str], automatic: Tuple[str, ...]) -> BackendStatus:
        """The line of a candidate. ``verdict`` is why it must not be loaded, if so."""
        state, detail = verdict if verdict[0] else self.state()
        return BackendStatus(
            name=candidate.name,
            state=state,
            distribution=candidate.distribution,
            version=candidate.version,
            api=self.info.api if self.info else None,
            devices=self.info.devices if self.info else (),
            capabilities=self.info.capabilities.names() if self.info else (),
            detail=detail,
            automatic=automatic,
        )
