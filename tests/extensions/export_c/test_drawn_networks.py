"""Drawn networks: what ``sc.quant.prepare`` returns is exported, and C has its bits, after training too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from c_programs import CHECKED, differing

TimeBatched = sc.layers.TimeBatched
STEPS, BATCH = 60, 2


def spread(net: nn.Module, draw: random.Random) -> nn.Module:
    """Weights and biases of very different sizes, from channel to channel; some are 0, as of a norm that decayed."""
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    for layer in net.modules():
        if not isinstance(layer, (nn.Linear, nn.Conv2d)):
            continue
        rows, fan = len(layer.weight), layer.weight[0].numel()
        sizes = 10.0 ** torch.empty(rows).uniform_(-draw.choice([0, 2, 6, 25]), 1.0, generator=generator)
        sizes[torch.rand(rows, generator=generator) < 0.1] = 0.0
        normal = torch.randn(layer.weight.shape, generator=generator) / fan**0.5
        layer.weight.data = normal * sizes.reshape(-1, *[1] * (normal.ndim - 1))
        if layer.bias is not None:
            bias = torch.randn(rows, generator=generator)
            layer.bias.data = bias * 10.0 ** torch.empty(rows).uniform_(-5.0, 1.0, generator=generator)
    return net


def dense(draw: random.Random) -> Tuple[nn.Module, Tuple[int, ...]]:
    a, b, c = draw.choice([1, 7, 100, 500]), draw.choice([1, 12, 130]), draw.choice([1, 5])
    cell = draw.choice([sc.LIF, sc.Synaptic, sc.ALIF])
    return nn.Sequential(nn.Linear(a, b), cell(threshold=0.3), nn.Linear(b, c), sc.LI()), (a,)


def recurrent(draw: random.Random) -> Tuple[nn.Module, Tuple[int, ...]]:
    a, b = draw.choice([1, 9, 80]), draw.choice([3, 40])
    delay: Any = sc.Delay(nn.Linear(a, b), 4, learn=()) if draw.random() < 0.5 else nn.Linear(a, b)
    back: Any = sc.Delay(nn.Linear(b, b), 3, per="input", learn=()) if draw.random() < 0.5 else nn.Linear(b, b)
    return nn.Sequential(delay, sc.Recurrent(sc.LIF(threshold=0.3), back), nn.Linear(b, 4), sc.LI()), (a,)


def convolutional(draw: random.Random) -> Tuple[nn.Module, Tuple[int, ...]]:
    a, b = draw.choice([1, 3]), draw.choice([4, 16])
    first = nn.Conv2d(a, b, 3, stride=draw.choice([1, 2]), padding=1)
    pool = nn.AvgPool2d(2)
    last = TimeBatched(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(b, 3))
    return nn.Sequential(TimeBatched(first), sc.LIF(threshold=0.3), TimeBatched(pool), last, sc.LI()), (a, 8, 8)


def read(shape: Tuple[int, ...], draw: random.Random) -> Tensor:
    """Spikes, or numbers of any size."""
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    x = torch.randn((STEPS, BATCH, *shape), generator=generator)
    return (x > 0.5).float() if draw.random() < 0.5 else x * draw.choice([0.01, 1.0, 50.0])


@pytest.mark.matrix(turn=1)
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("make", [dense, recurrent, convolutional], ids=lambda make: make.__name__)
def test_what_is_prepared_is_exported(make: Any, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    net, shape = make(draw)
    x = read(shape, draw)
    weights, word = draw.choice([(8, 16), (4, 8), (8, 12)])
    options = {"word": word, "per_channel": draw.random() < 0.7, "ranges": draw.choice(["data", "learnt"])}
    prepared = sc.quant.prepare(spread(net, draw), x, weights, **options).eval()
    sc.export_c(prepared, x, tmp_path)
    wrong, count = differing(tmp_path, "test", CHECKED)
    assert (wrong, count % (STEPS * BATCH)) == (0, 0)


@pytest.mark.matrix(turn=1)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", [dense, recurrent, convolutional], ids=lambda make: make.__name__)
def test_training_does_not_take_it_away(make: Any, seed: int, tmp_path: Path) -> None:
    """Layers of spikes stay exact whatever the weights and biases become."""
    draw = random.Random(100 + seed)
    torch.manual_seed(seed)
    net, shape = make(draw)
    x = (read(shape, draw) > 0.0).float()
    prepared = sc.quant.prepare(spread(net, draw), x).eval()
    for parameter in prepared.parameters():
        parameter.data += 100.0 * torch.randn_like(parameter) * parameter.abs()
    sc.quant.report(prepared, x)
    sc.export_c(prepared, x, tmp_path)
    assert differing(tmp_path, "test", CHECKED)[0] == 0
