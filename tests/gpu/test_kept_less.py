"""On a GPU, what fused networks keep less of: pooling and convolutions give torch's numbers, in less memory."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.layers import TimeBatched

pytestmark = pytest.mark.gpu

LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
HALF = torch.bfloat16


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"kernel_size": 3, "padding": 1}, {"kernel_size": 1, "stride": 2}, {"kernel_size": 3, "stride": 2}],
    ids=str,
)
def test_convolutions_give_the_numbers_of_torch(
    options: Any, autocast: bool, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and gradients, by the same calls of the library."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    plain = nn.Conv2d(64, 128, **options).cuda().to(memory_format=LAYOUTS[layout])
    x = torch.randint(0, 2, (8, 64, 16, 15), device="cuda").float().contiguous(memory_format=LAYOUTS[layout])
    packed = sc.layers.PackedConv2d(64, 128, **options).cuda().to(memory_format=LAYOUTS[layout])
    packed.load_state_dict(plain.state_dict())
    found: List[List[Tensor]] = []
    for module in (plain, packed):
        leaf = x.clone().requires_grad_()
        with torch.autocast("cuda", HALF, enabled=autocast):
            y = module(leaf)
        y.backward(torch.cos(torch.arange(y.numel(), device="cuda")).view(y.shape).to(y.dtype))
        found.append([y, leaf.grad, *[one.grad for one in module.parameters()]])
    assert "Kept" in found[1][0].grad_fn.name()
    for ours, theirs in zip(found[1], found[0]):
        torch.testing.assert_close(ours, theirs, check_stride=True)


def test_a_fused_and_packed_network_keeps_and_takes_less() -> None:
    """Between forward and backward, and at the peak of backward."""
    torch.manual_seed(0)
    layers: List[nn.Module] = [sc.encode.Constant(4)]
    for channels, pool in ((3, nn.Identity()), (64, nn.MaxPool2d(2)), (64, nn.Identity()), (64, nn.AvgPool2d(2))):
        convolution = nn.Conv2d(channels, 64, 3, padding=1)
        layers += [TimeBatched(convolution, pool, nn.BatchNorm2d(64)), sc.LIF(backend="cupy")]
    plain = nn.Sequential(*layers, TimeBatched(nn.Flatten(), nn.Linear(64 * 64, 10))).cuda()
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stub lacks it alone
    net = sc.layers.pack(sc.fuse(copy.deepcopy(plain)))
    x = torch.rand(32, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    figures = []
    for one in (plain, net) * 2:
        one.zero_grad()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", HALF):
            out = one(x)
        held = torch.cuda.memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        out.float().square().mean().backward()
        figures.append((held, torch.cuda.max_memory_allocated() - before))
    (held, peak), (its, highest) = figures[2:]
    assert its < 0.5 * held
    assert highest < 0.85 * peak
