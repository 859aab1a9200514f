"""Ranges of parameters on a GPU: no wait for the device, fused optimisers, and steps replayed from CUDA graphs."""

from __future__ import annotations

from typing import Any, Callable, Dict

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]

Noise = Callable[..., Tensor]
EPS = torch.finfo(torch.float32).eps
ENDS = {"1.tau": 1.0, "2.k": EPS, "3.beta": 1.0}


def network(backend: str = "cupy") -> nn.Sequential:
    """Three neurons with a range of each kind."""
    neurons = (
        sc.LIF(1.2, learn=("tau",), backend=backend),
        sc.KLIF(backend=backend),
        sc.Leaky(0.99, learn=("beta",), backend=backend),
    )
    return nn.Sequential(nn.Linear(6, 6), *neurons).cuda()


def ranged(net: nn.Module) -> Dict[str, float]:
    """The parameters that have ranges, as they are now."""
    return {name: value.item() for name, value in net.named_parameters() if name in ENDS}


def outwards(net: Any) -> Callable[[Tensor, Any], Tensor]:
    """A loss that drives each parameter out of its range."""
    return lambda out, _: out.mean() + 2 * net[1].tau + 5 * net[2].k - net[3].beta


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_every_optimiser_without_waiting(options: Dict[str, bool], noise: Noise) -> None:
    """The call after an update that left the ranges computes at their ends, and the host waits for nothing."""
    net, x = network(), noise(8, 4, 6)
    optimizer = torch.optim.SGD(net.parameters(), 1.0, **options)
    net(x)
    loss = outwards(net)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            optimizer.zero_grad()
            loss(net(x), None).backward()
            optimizer.step()
        out = net(x)
        sc.functional.project(net)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert ranged(net) == ENDS
    assert torch.equal(out, net(x))
    inside = nn.Sequential(sc.LIF(1.0), sc.KLIF(k=EPS).cuda(), sc.Leaky(1.0))
    assert torch.equal(out, inside(net[0](x)))
