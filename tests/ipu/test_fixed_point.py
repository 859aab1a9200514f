"""Fixed point through PopTorch has the bits of the reference."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import spikecore as sc
from integers import check_same_bits, fixed_drawn, fixed_model
from spikecore.neurons import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_every_neuron(name: str) -> None:
    x = torch.randn(20, 9, generator=torch.Generator().manual_seed(0)) * 2
    check_same_bits(fixed_model(name), x, "ipu")


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    x = torch.randn(12, 9, generator=torch.Generator().manual_seed(seed)) * 2
    check_same_bits(fixed_drawn(seed), x, "ipu")


def test_a_compiled_network() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), sc.ALIF(threshold=0.2), nn.Linear(12, 4), sc.LI())
    x = torch.rand(10, 3, 6)
    fixed = sc.quant.prepare(net, x).eval()
    sc.set_backend(fixed, "torch")
    expected = fixed(x)
    sc.set_backend(fixed, "ipu")
    options = poptorch.Options()
    found = poptorch.inferenceModel(fixed, options)(x)
    assert torch.equal(found, expected)
