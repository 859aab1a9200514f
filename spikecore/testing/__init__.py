"""The conformance suite: whether a backend computes what the equations say.

A backend's whole test file::

    from spikecore.testing import BackendConformance


    class TestMine(BackendConformance):
        backend = "mine"
        expected_failures = {"gradient/lif-hard": "no backward yet, spikecore-mine#12"}

The same from Python is :func:`check_backend`, and from the shell ``spikecore conformance mine``.

Rules of this package:

- What is right is in :mod:`spikecore.testing.oracle`, written by hand, apart from the language and from every backend.
- A case is data with an id that does not change (:mod:`spikecore.testing.case`).
- Only :mod:`spikecore.testing.conformance` imports pytest, and importing this package does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spikecore.testing.case import DEFAULT_TIERS, TIERS, Case, Collection
from spikecore.testing.cases import CASES
from spikecore.testing.runner import Result, check_backend, conforms

if TYPE_CHECKING:
    from spikecore.testing.conformance import BackendConformance

__all__ = [
    "CASES",
    "DEFAULT_TIERS",
    "TIERS",
    "BackendConformance",
    "Case",
    "Collection",
    "Result",
    "check_backend",
    "conforms",
]


def __getattr__(name: str) -> Any:
    if name == "BackendConformance":
        from spikecore.testing.conformance import BackendConformance

        return BackendConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
