"""The text of the cupy backend's kernels is right: built by g++, it passes the conformance suite on the CPU."""

from __future__ import annotations

import pytest

from spikecore.testing import BackendConformance
from spikecore.testing.loopback import installed
from spikecore_cupy.host import HostBackend, reason

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]


@pytest.fixture(autouse=True, scope="module")
def _on_host():
    with installed(HostBackend, devices=("cpu",)):
        yield


class TestHost(BackendConformance):
    """The cupy backend with its kernels on the CPU."""

    backend = "cupy_host"
