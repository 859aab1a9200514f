"""On a GPU, spikes kept as bits: the same gradients, less memory, nothing that waits, NaN for other numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.backend import Whole

pytestmark = pytest.mark.gpu


def _network() -> nn.Module:
    torch.manual_seed(0)
    layers = [sc.encode.Constant(4)]
    channels = 3
    for width, pool in ((32, nn.Identity()), (64, nn.AvgPool2d(2)), (64, nn.MaxPool2d(2)), (64, nn.Identity())):
        layers += [sc.layers.TimeBatched(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width)), sc.LIF()]
        layers += [sc.layers.TimeBatched(pool)]
        channels = width
    layers += [sc.layers.TimeBatched(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))]
    return nn.Sequential(*layers).cuda()


def _step(net: nn.Module, x: Tensor, pack: bool, last: bool) -> Any:
    net.zero_grad()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    (sc.layers.pack if pack else sc.layers.unpack)(net)
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16):
        out = net(x.to(memory_format=torch.channels_last) if last else x)
    held = torch.cuda.memory_allocated() - before
    out.float().square().mean().backward()
    return [out, *[p.grad.clone() for p in net.parameters()]], held


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
def test_gradients_and_memory(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit where convolutions are deterministic, with less held between forward and backward."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    net = _network()
    if last:
        net = net.to(memory_format=torch.channels_last)
    x = torch.rand(8, 3, 32, 32, device="cuda")
    _step(net, x, True, last)
    (plain, whole), (ours, bits) = _step(net, x, False, last), _step(net, x, True, last)
    for one, other in zip(ours, plain):
        assert torch.equal(one, other)
    assert bits < 0.9 * whole


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_nothing_waits_for_the_gpu() -> None:
    """Neither packing nor unpacking reads a value on the host."""
    net, x = _network(), torch.rand(8, 3, 32, 32, device="cuda")
    _step(net, x, True, False)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        net(x).square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_places_go_beyond_32_bits() -> None:
    """More than 2**31 numbers are packed and unpacked to their end."""
    count = (1 << 31) + 13
    if torch.cuda.mem_get_info()[0] < 3 * 2 * count:
        pytest.skip("needs 13 GB of memory")
    neuron = sc.LIF(backend="cupy")
    neuron(torch.zeros(1, 1, device="cuda"))
    packing = neuron.bound["cuda"].backend
    numbers = torch.zeros(count, device="cuda", dtype=torch.float16)
    ones = [0, 5, 1 << 30, (1 << 31) - 1, 1 << 31, count - 1]
    numbers[ones] = 1
    found = packing.pack(numbers, Whole(1))
    del numbers
    assert bool(found.right == 1)
    back = packing.unpack(found, Whole(1), count, torch.float16)
    assert bool((back[ones] == 1).all())
    assert back.sum(dtype=torch.float32).item() == len(ones)
