"""Fixed point has the bits of the reference."""

from __future__ import annotations

import pytest
import torch

from integers import check_same_bits, fixed_drawn, fixed_model
from spikecore.neurons import MODELS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("name", MODELS)
def test_every_neuron(name: str) -> None:
    x = torch.randn(17, 5, generator=torch.Generator().manual_seed(0)) * 2
    check_same_bits(fixed_model(name).to(DEVICE), x.to(DEVICE), "triton")


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int) -> None:
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(seed)) * 2
    check_same_bits(fixed_drawn(seed).to(DEVICE), x.to(DEVICE), "triton")
