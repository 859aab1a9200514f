"""Fixed point has the bits of the reference."""

from __future__ import annotations

import pytest
import torch

from integers import check_same_bits, fixed_drawn, fixed_model
from spikecore.neurons import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_every_neuron(name: str) -> None:
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 2
    check_same_bits(fixed_model(name), x, "numba")
    if name not in ("CLIF", "EIF"):
        check_same_bits(fixed_model(name, word=16, dtype=torch.float64), x.double(), "numba")


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    x = torch.randn(20, 33, generator=torch.Generator().manual_seed(seed)) * 2
    check_same_bits(fixed_drawn(seed), x, "numba")
