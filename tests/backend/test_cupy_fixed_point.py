"""The CUDA text of fixed point, run on the CPU, has the bits of the reference."""

from __future__ import annotations

import pytest
import torch

from integers import check_same_bits, fixed_drawn, fixed_model
from spikecore.neurons import MODELS

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("on_host")]


@pytest.mark.parametrize("name", MODELS)
def test_every_neuron(name: str) -> None:
    x = torch.randn(40, 9, generator=torch.Generator().manual_seed(0)) * 2
    check_same_bits(fixed_model(name), x, "cupy_host")


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    x = torch.randn(20, 9, generator=torch.Generator().manual_seed(seed)) * 2
    check_same_bits(fixed_drawn(seed), x, "cupy_host")
