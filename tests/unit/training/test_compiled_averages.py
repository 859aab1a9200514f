"""Batch normalisation with momentum=None under torch.compile: computed by a neuron, by torch."""

from __future__ import annotations

import copy
from typing import Any, Callable

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.layers import NormNeuron, TimeBatched
from spikecore.layers._batch_norm_stats import normalised

# by torch's compiler itself
pytestmark = pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
COMPILED = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6),
    reason="torch.compile looks through neurons from torch 2.6 on",
)
T, B, C = 4, 6, 3


def norm() -> nn.Module:
    return nn.BatchNorm1d(C, momentum=None)


def lif() -> nn.Module:
    return sc.LIF(backend="torch")


def own() -> nn.Module:
    return NormNeuron(norm(), lif())


def fused() -> nn.Module:
    return sc.fuse(nn.Sequential(TimeBatched(norm()), lif()))


def batch(seed: int, *shape: int) -> Tensor:
    return 3 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + seed


def statistics(net: nn.Module) -> Any:
    return {name.rpartition(".")[2]: value for name, value in net.state_dict().items() if "running" in name}


@COMPILED
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("make", [own, fused])
def test_running_statistics_are_those_of_torch(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    """One graph; over five calls outputs and averages are those of nn.BatchNorm1d, eager and compiled."""
    net = make().to(dtype)
    compiled, plain = copy.deepcopy(net), norm().to(dtype)
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-6, "atol": 2e-6}
    for seed in range(5):
        x = batch(seed, T, B, C).to(dtype)
        spikes = sc.LIF(backend="torch")(plain(x.reshape(T * B, C)).view(T, B, C))
        assert torch.equal(net(x), spikes)
        assert torch.equal(run(x), spikes)
        for one in (net, compiled):
            for name, value in statistics(one).items():
                torch.testing.assert_close(value, getattr(plain, name), **close, msg=lambda m, n=name: f"{n}: {m}")
    counters = [value for name, value in compiled.state_dict().items() if name.endswith("num_batches_tracked")]
    assert [int(value) for value in counters] == [5]


@COMPILED
def test_averages_in_16_bits_are_rounded_once() -> None:
    """The third call moves by a third in float32; a third in bfloat16 would give 170."""
    layer = own().to(torch.bfloat16)
    run = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for value in (0.0, 0.0, 1.0):
        run(torch.full((T, B, C), value * 508.0, dtype=torch.bfloat16))
    assert layer.norm.running_mean.tolist() == [169.0] * C


@COMPILED
def test_a_fused_network_trains_compiled() -> None:
    """To the weights and statistics of the step that is not compiled."""
    nets = [fused(), fused()]
    for net, options in zip(nets, (sc.TrainingOptions(compile=True), None)):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        step = sc.training_model(net, sc.losses.ce_rate, optimizer, options=options)
        for seed in range(3):
            step(batch(seed, T, B, C).float(), torch.arange(B) % C)
    for (name, value), other in zip(nets[0].state_dict().items(), nets[1].state_dict().values()):
        torch.testing.assert_close(value, other, msg=lambda text, name=name: f"{name}: {text}")


@COMPILED
def test_one_that_torch_computes_is_refused() -> None:
    """The compiler cannot follow a division by the number of calls."""
    net = nn.Sequential(TimeBatched(norm()), lif())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = sc.training_model(net, sc.losses.ce_rate, optimizer, options=sc.TrainingOptions(compile=True))
    with pytest.raises(sc.Unsupported, match="compile=True cannot be: torch.compile raised"):
        step(batch(0, T, B, C).float(), torch.arange(B) % C)


@COMPILED
@pytest.mark.parametrize("momentum", [None, 0.1])
def test_compiled_steps_of_too_few_numbers(momentum: Any) -> None:
    """An empty batch leaves the statistics as they are, as torch does, and one number per channel is torch's error."""
    layer = nn.BatchNorm1d(C, momentum=momentum)
    run = torch.compile(lambda x: normalised(layer, x, True), backend="aot_eager", fullgraph=True)
    run(torch.zeros(0, C))
    assert (layer.running_var.tolist(), layer.running_mean.tolist()) == ([1.0] * C, [0.0] * C)
    with pytest.raises(Exception, match="Expected more than 1 value per channel"):
        run(torch.zeros(1, C))
