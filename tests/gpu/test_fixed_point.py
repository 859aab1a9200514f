"""Whole networks in fixed point on a GPU have the bits of the reference on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import spikecore as sc

pytestmark = pytest.mark.gpu


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.first, self.last = nn.BatchNorm2d(8), sc.LIF(threshold=0.2), sc.ALIF(threshold=0.2)

    def forward(self, x: Any) -> Any:
        y = self.first(sc.layers.TimeBatched(nn.Sequential(self.conv, self.norm))(x))
        return self.last(sc.layers.TimeBatched(self.other)(y) + x)


def networks() -> Any:
    torch.manual_seed(0)
    batched = sc.layers.TimeBatched
    yield (
        "convolutional",
        nn.Sequential(
            batched(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)),
            sc.LIF(threshold=0.2),
            batched(nn.MaxPool2d(2)),
            Residual(),
            batched(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8 * 16, 10)),
            sc.LI(),
        ),
        torch.rand(12, 16, 2, 32, 32),
    )
    yield (
        "recurrent",
        nn.Sequential(
            sc.Delay(nn.Linear(40, 64), 6, per="input", learn=()),
            sc.Recurrent(sc.ALIF(threshold=0.2), nn.Linear(64, 64)),
            nn.Linear(64, 10),
            sc.LI(),
        ),
        (torch.rand(200, 16, 40) < 0.2).float(),
    )


@pytest.mark.parametrize("tf32", [False, True])
def test_whole_networks(tf32: bool) -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        for name, net, x in networks():
            net.train()
            net(x)
            prepared = sc.quant.prepare(net.eval(), x).eval()
            with torch.no_grad():
                expected = prepared(x)
                assert expected.any(), name
                for backend in ("cupy", "torch"):
                    sc.set_backend(prepared.cuda(), backend)
                    assert torch.equal(prepared(x.cuda()).cpu(), expected), (name, backend)
                    prepared.cpu()
                    sc.set_backend(prepared, "torch")
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
