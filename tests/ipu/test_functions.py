"""Operations of the language in a compiled program, at the edges of numbers."""

from __future__ import annotations

import math

import pytest
import torch

import poptorch_emulator as poptorch
import spikecore as sc

NAN, INF = math.nan, math.inf


class Clamped(sc.Neuron):
    """Clamps its input, and takes the larger and the smaller of two."""

    states = {"v": 0.0}
    params = {"a": 0.5}

    def dynamics(self, x, s, p):
        return sc.ops.clamp(x, -p.a, p.a) + sc.ops.minimum(x, p.a) - sc.ops.maximum(x, p.a), {"v": s.v}


@pytest.mark.parametrize("a", [0.5, -0.5, 0.0])
def test_clamp_at_the_edges_of_numbers(a):
    """As a compiled program, too, NaN stays NaN and bounds hold, with torch's gradient."""
    x = torch.tensor([NAN, INF, -INF, 0.5, -0.5, 0.0, 1, -1]).repeat(2, 1).requires_grad_()
    neuron, reference = Clamped(a=torch.tensor(a), backend="ipu"), Clamped(a=torch.tensor(a), backend="torch")
    found = poptorch.inferenceModel(neuron)(x.detach())
    assert torch.equal(found.isnan(), reference(x).isnan())
    torch.testing.assert_close(found, reference(x).detach(), rtol=1e-6, atol=1e-6, equal_nan=True)
