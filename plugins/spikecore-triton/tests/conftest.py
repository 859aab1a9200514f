"""Where the tests run: on the GPU if there is one, else in Triton's interpreter on the CPU, without the tests of a GPU.

Kernels are kept beside pytest's own cache, between runs, unless the environment names a folder.
"""

from __future__ import annotations

import os
from typing import List

import pytest
import torch

GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"


def pytest_configure(config: pytest.Config) -> None:
    """Choose, before any backend is made."""
    if not GPU:
        os.environ["TRITON_INTERPRET"] = "1"
    if config.pluginmanager.hasplugin("cacheprovider"):
        os.environ.setdefault("SPIKECORE_CACHE_DIR", str(config.cache.mkdir("spikecore-kernels")))


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none."""
    for item in items:
        if not GPU and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="torch finds no GPU"))


@pytest.fixture(scope="session")
def device() -> str:
    """Where tensors must be for the backend to take them."""
    return "cuda" if GPU else "cpu"
