"""A network in fixed point, compiled by PopTorch, has the bits of the reference."""

from __future__ import annotations

import torch
from torch import nn

import poptorch_emulator as poptorch
import spikecore as sc


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
