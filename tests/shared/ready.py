"""Backends that a test needs."""

from __future__ import annotations

import pytest

import spikecore as sc


def needs_backend(name: str) -> None:
    """Skip the test where a backend cannot compute on this machine."""
    if name not in {status.name for status in sc.backends(probe=True) if status.state == "ready"}:
        pytest.skip(f"backend {name!r} is not ready here")
