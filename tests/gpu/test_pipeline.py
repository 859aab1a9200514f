"""A pipeline over GPUs, and over a GPU and the host, computes what one GPU computes."""

from __future__ import annotations

from typing import Any, List

import pytest
import torch
from torch import nn

import spikecore as sc

pytestmark = pytest.mark.gpu

T, B, N = 6, 8, 16
LAST = f"cuda:{torch.cuda.device_count() - 1}"
PLACES = pytest.mark.parametrize(
    "places",
    [["cuda:0"] * 3, ["cuda:0", LAST, "cuda:0"], ["cpu", "cuda:0", LAST], ["cuda:0", "cpu", LAST]],
    ids="-".join,
)


def stages(step: str = "multi") -> List[nn.Module]:
    """The same weights every time; products and sums are exact, so that no order of them makes a spike fall."""
    torch.manual_seed(0)
    made: List[nn.Module] = [
        nn.Sequential(nn.Linear(N, N), sc.LIF(1.6, threshold=0.4, learn=("tau",), step=step)),
        nn.Sequential(nn.Linear(N, N), sc.PLIF(1.8, threshold=0.5, step=step)),
        nn.Sequential(nn.Linear(N, 4), sc.LIF(2.0, threshold=0.2, step=step)),
    ]
    for stage in made:
        for parameter in stage[0].parameters():  # type: ignore[index]  # a Sequential
            parameter.data = (parameter.data * 64).round() / 32
    return made


def inputs() -> torch.Tensor:
    """Multiples of a sixteenth."""
    return torch.randn(T, B, N, generator=torch.Generator().manual_seed(1)).add(0.5).mul(16).round().div(16)


def assert_same_gradients(found: nn.Module, wanted: nn.Module) -> None:
    """To 1e-6 of the largest."""
    for a, b in zip(found.parameters(), wanted.parameters()):
        assert (a.grad.cpu() - b.grad.cpu()).abs().max() <= 1e-6 * b.grad.abs().max()


@PLACES
@pytest.mark.parametrize("split", [{}, {"chunks": 4}, {"split_sizes": [1, 4, 3]}], ids=str)
@pytest.mark.parametrize("every", [None, 1])
def test_parts(places: List[str], split: Any, every: Any) -> None:
    """Outputs, gradients and a training step in parts, with layers that are computed again and without."""
    one = nn.Sequential(*stages()).cuda()
    many = sc.checkpoint(sc.parallel.Pipeline([*zip(stages(), places)], **split), every)
    wanted, found = one(inputs().cuda()), many(inputs())
    assert found.device == torch.device(places[-1])
    assert torch.equal(found.cpu(), wanted.cpu())
    wanted.square().sum().backward()
    found.square().sum().backward()
    assert_same_gradients(many, one)
    step = sc.training_model(many, sc.losses.ce_rate, torch.optim.Adam(many.parameters(), 0.01))
    outputs, loss = step(inputs(), torch.randint(0, 4, (B,)))
    assert outputs.device == torch.device(places[-1])
    assert torch.isfinite(loss).item()
