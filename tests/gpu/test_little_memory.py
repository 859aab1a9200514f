"""On a GPU, memory="low": the numbers of the plain step, eager and captured, in a tenth of what ReLU keeps."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

pytestmark = pytest.mark.gpu


def network(neuron: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    net = sc.models.sew_resnet(18, steps=4, classes=10, small=True, neuron=neuron).cuda()
    return net.to(memory_format=torch.channels_last)  # type: ignore[no-any-return,call-overload]  # the stub lacks it


def images(count: int) -> Tensor:
    x = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(1)).cuda()
    return x.contiguous(memory_format=torch.channels_last)


def lif() -> nn.Module:
    return sc.LIF(detach_reset=True, backend="cupy")


def trained(**options: Any) -> List[Tensor]:
    """Losses and weights after some steps."""
    net = sc.fuse(network(lif))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=True)
    form = sc.CudaOptions(autocast=torch.bfloat16, **options)
    step = sc.training_model(net, sc.losses.ce_rate, optimizer, options=form)
    x, y = images(16), torch.arange(16, device="cuda") % 10
    losses = [step(x, y)[1].clone() for _ in range(6)]
    return [*losses, *net.state_dict().values()]


def test_numbers_are_those_of_the_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, eager and captured."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    wanted = trained()
    for found in (trained(memory="low"), trained(memory="low", graph=True)):
        assert all(map(torch.equal, found, wanted))


def test_a_tenth_is_kept() -> None:
    """Between forward and backward, and at most half at the peak."""
    figures = []
    for neuron, memory in ((nn.ReLU, False), (lif, True)):
        net, x = network(neuron), images(64)
        run = sc.checkpoint(sc.fuse(net), "spikes") if memory else net
        for _ in range(2):
            net.zero_grad()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            with torch.autocast("cuda", torch.bfloat16):
                out = run(x)
            kept = torch.cuda.memory_allocated() - before
            torch.cuda.reset_peak_memory_stats()
            out.float().square().mean().backward()
            peak = torch.cuda.max_memory_allocated() - before
        figures.append((kept, peak))
    (kept, peak), (ours, highest) = figures
    assert ours < 0.1 * kept
    assert highest < 0.5 * peak
