"""Fixtures of several tests of the cupy backend's kernels."""

from __future__ import annotations

import os
from typing import Iterator

import pytest

from spikecore.testing import installed
from spikecore_cupy import host


@pytest.fixture(scope="module")
def nvrtc() -> None:
    """Kernels compile here. Else the tests are skipped, or fail where ``SPIKECORE_REQUIRE`` names cupy_host."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # a missing package, a missing library
        said = f"compiling kernels needs CuPy and NVRTC, which make test-kernels installs: {error}"
        if "cupy_host" in os.environ.get("SPIKECORE_REQUIRE", ""):
            pytest.fail(said, pytrace=False)
        pytest.skip(said)


@pytest.fixture(scope="module")
def on_host() -> Iterator[str]:
    """The name of the backend whose kernels g++ builds for the CPU."""
    if host.reason():
        pytest.skip(str(host.reason()))
    with installed(host.HostBackend, devices=("cpu",)) as name:
        yield name
