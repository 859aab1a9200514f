"""sc.layers.channels_last: torch's numbers from layers of one, two and three dimensions, and nothing copied between."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Sequence

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.context import COMPILES
from spikecore.layers import TimeBatched

CONVOLUTIONS: Dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS: Dict[int, Any] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOLS: Dict[int, Any] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}


def network(dims: int, backend: str = "torch") -> nn.Sequential:
    """Convolutions with a kernel of 3 and of 1, normalisations and neurons, and a read-out."""
    torch.manual_seed(0)
    conv, norm, pool = CONVOLUTIONS[dims], NORMS[dims], POOLS[dims]

    def neuron() -> sc.Neuron:
        return sc.LIF(threshold=0.3, backend=backend)

    return nn.Sequential(
        TimeBatched(conv(3, 8, 3, padding=2, dilation=2, bias=False), norm(8)),
        neuron(),
        TimeBatched(conv(8, 6, 1, bias=False), norm(6)),
        neuron(),
        TimeBatched(pool(2), conv(6, 4, 3, stride=2, padding=1), norm(4)),
        neuron(),
        TimeBatched(nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 5)),
    ).double()


def volumes(dims: int) -> Tensor:
    """``[T, B, C, ...]``, channels-last."""
    x = torch.randn(2, 3, 3, *[8] * dims, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.movedim(2, -1).contiguous().movedim(-1, 2)


def results(net: nn.Module, x: Tensor) -> List[Tensor]:
    y = net(x)
    gradients = torch.autograd.grad(y.square().sum(), [*net.parameters()])
    return [y.detach(), *gradients, *[buffer.clone() for buffer in net.buffers()]]


def check(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for mine, its in zip(found, expected):
        torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-8)


WORDS: Dict[str, Any] = {
    "last": sc.layers.channels_last,
    "first": sc.layers.channels_first,
    "fuse": sc.fuse,
    "unfuse": sc.unfuse,
    "pack": sc.layers.pack,
    "unpack": sc.layers.unpack,
}


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("words", ["last", "last fuse pack", "pack fuse last", "last fuse pack unpack unfuse first"])
def test_the_network_computes_what_it_computed(dims: int, words: str) -> None:
    """Outputs, gradients, running statistics, and checkpoints of both forms; undone, the layers are torch's again."""
    if "pack" in words and not COMPILES:
        pytest.skip("spikes are kept as bits with torch 2.6 or newer")
    plain, x = network(dims), volumes(dims)
    net, parameters = copy.deepcopy(plain), None
    parameters = [*net.parameters()]
    for word in words.split():
        assert WORDS[word](net) is net
    assert [*map(id, net.parameters())] == [*map(id, parameters)]
    assert net.state_dict().keys() == plain.state_dict().keys()
    net.load_state_dict(plain.state_dict())
    check(results(net, x), results(plain, x))
    plain.load_state_dict(net.state_dict())
    weights = [layer.weight for layer in net.modules() if isinstance(layer, CONVOLUTIONS[dims])]
    if words.endswith("first"):
        assert [type(part) for part in net.modules()] == [type(part) for part in plain.modules()]
        assert all(weight.is_contiguous() for weight in weights)
    else:
        assert all(weight.movedim(1, -1).is_contiguous() for weight in weights)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 1, "padding": "valid"},
        {"kernel_size": 3, "padding": "same", "dilation": 3},
        {"kernel_size": 3, "padding": 2, "padding_mode": "reflect", "groups": 2, "stride": 2},
        {"kernel_size": 1, "stride": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(4, 9), (5, 4, 9)])
def test_a_convolution_is_that_of_torch(options: Any, shape: Any) -> None:
    """Of any input: one sample, contiguous, channels-last."""
    plain, last = nn.Conv1d(4, 6, **options).double(), sc.layers.ChannelsLastConv1d(4, 6, **options).double()
    last.load_state_dict(plain.state_dict())
    x = torch.randn(shape, dtype=torch.float64)
    for value in (x, x.mT.contiguous().mT):
        y = last(value)
        torch.testing.assert_close(y, plain(value))
        assert y.mT.is_contiguous()


def test_a_step_lays_out_what_has_one_dimension() -> None:
    """TrainingOptions(channels_last=True): network, inputs, and states of an optimiser that began before."""
    nets = [network(1), network(1)]
    x, y = volumes(1).contiguous(), torch.tensor([0, 1, 2])
    for net, last in zip(nets, (False, True)):
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for options in (sc.TrainingOptions(), sc.TrainingOptions(channels_last=last)):
            step = sc.training_model(net, sc.losses.ce_rate, optimizer, options=options)
            step(x, y)
    assert type(nets[1][0].module[0]) is sc.layers.ChannelsLastConv1d
    check([*nets[1].parameters()], [*nets[0].parameters()])
