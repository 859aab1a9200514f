"""Tests of this folder need a GPU that the cupy backend can use. Elsewhere they are skipped and say why, or fail where
``SPIKECORE_REQUIRE`` names cupy.
"""

from __future__ import annotations

import os
from typing import Any, Callable

import pytest
import torch

from spikecore.plugins.registry import default_registry


@pytest.fixture(autouse=True, scope="session")
def _usable() -> None:
    reason = default_registry().probe("cupy", "these tests")
    if reason is not None and "cupy" in os.environ.get("SPIKECORE_REQUIRE", "").replace(",", " ").split():
        pytest.fail(f"cupy is required: {reason}", pytrace=False)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def noise() -> Callable[..., torch.Tensor]:
    """Makes uniform numbers on the GPU, the same ones every time for the same seed."""

    def make(
        *shape: int, low: float = -1.0, high: float = 4.0, seed: int = 0, dtype: Any = torch.float32
    ) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.empty(shape).uniform_(low, high, generator=generator).to("cuda", dtype)

    return make
