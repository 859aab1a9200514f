"""``sc.monitor`` sees a network of the backend on the host, and refuses the calls that PopTorch compiles."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from ipu_nets import Net


def test_a_call_that_poptorch_compiles_is_refused():
    """A call on the host is seen; a step of the device, whose tensors hold no values when it is compiled, is not."""
    net = Net()
    x = 4 * torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
    with sc.monitor(net, record=("v",)) as seen:
        net(x)
    assert list(seen) == ["lif1", "lif2"]
    assert seen["lif1"].v.shape == (6, 3, 8)
    step = sc.training_model(net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), 0.1), backend="ipu")
    text = "LIF is watched by sc.monitor, and PopTorch compiles the call for an IPU"
    with sc.monitor(net), pytest.raises(RuntimeError, match=text):
        step(x, torch.tensor([0, 1, 2]))
