"""The training step against plain PyTorch: micro batches, accumulation, replicas, output modes, writes in place."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emulator as poptorch
from poptorch_emulator import OutputMode


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(8, 3)

    def scores(self, x):
        return self.b(F.relu(self.a(x)))

    def forward(self, x, t):
        y = self.scores(x)
        return y, poptorch.identity_loss(F.cross_entropy(y, t), "none")


def options_of(iterations=1, accumulation=1, replicas=1, mode=None, period=None):
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    if mode is not None:
        options.outputMode(mode) if period is None else options.outputMode(mode, period)
    return options


def data(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


@pytest.mark.parametrize(("iterations", "accumulation", "replicas"), [(1, 1, 1), (4, 1, 1), (2, 3, 2)])
def test_against_torch(iterations, accumulation, replicas):
    """Three calls change the weights as as many updates of torch on the whole batch of each device iteration."""
    net = Net()
    reference = copy.deepcopy(net)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    executor = poptorch.trainingModel(
        net, options_of(iterations, accumulation, replicas), torch.optim.SGD(net.parameters(), lr=0.1)
    )
    size = 2 * accumulation * replicas
    for call in range(3):
        x, t = data(iterations * size, call)
        executor(x, t)
        for part, target in zip(x.split(size), t.split(size)):
            optimizer.zero_grad()
            F.cross_entropy(reference.scores(part), target).backward()
            optimizer.step()
    for name, expected in reference.state_dict().items():
        assert torch.allclose(net.state_dict()[name], expected, atol=1e-6), name


def test_sum_reduction():
    """Gradients are summed if the options say so: a mean over n micro batches at n times the rate."""
    results = []
    for reduction, rate in ((poptorch.ReductionType.Sum, 0.1), (poptorch.ReductionType.Mean, 0.4)):
        options = options_of(1, 2, 2)
        options.Training.accumulationAndReplicationReductionType(reduction)
        net = Net()
        executor = poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=rate))
        executor(*data(8, 0))
        results.append(net.state_dict()["a.weight"])
    assert torch.allclose(*results, atol=1e-6)
    assert not torch.allclose(results[0], Net().a.weight, atol=1e-6)


def test_learning_rate_is_read_when_it_is_handed_over():
    """A rate that changes is the old one until setOptimizer."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    executor = poptorch.trainingModel(net, None, optimizer)
    executor(*data(4, 0))
    before = net.state_dict()["a.weight"].clone()
    optimizer.param_groups[0]["lr"] = 0.0
    executor(*data(4, 1))
    after = net.state_dict()["a.weight"].clone()
    assert not torch.equal(after, before)
    executor.setOptimizer(optimizer)
    executor(*data(4, 2))
    assert torch.equal(net.state_dict()["a.weight"], after)


def test_learning_rate_at_wrapping():
    """The rate is that of wrapping, not that of the first call."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    before = net.a.weight.detach().clone()
    executor = poptorch.trainingModel(net, None, optimizer)
    optimizer.param_groups[0]["lr"] = 0.1
    executor(*data(4, 0))
    assert torch.equal(net.state_dict()["a.weight"], before)


class Echo(nn.Module):
    """Returns its input, a number made of it, and a loss."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + 0, x.sum(), poptorch.identity_loss((self.w * x).sum(), "none")


@pytest.mark.parametrize(
    ("mode", "period", "rows"),
    [
        (None, None, [6, 7]),
        (OutputMode.Final, None, [6, 7]),
        (OutputMode.All, None, [0, 1, 2, 3, 4, 5, 6, 7]),
        (OutputMode.EveryN, 2, [2, 3, 6, 7]),
        (OutputMode.EveryN, 4, [6, 7]),
        (OutputMode.Sum, None, [12, 16]),
    ],
)
def test_output_modes(mode, period, rows):
    """The results of two iterations, two accumulated micro batches and two replicas, in the order of the inputs."""
    executor = poptorch.trainingModel(Echo(), options_of(2, 2, 2, mode, period))
    x = torch.arange(8.0).repeat_interleave(3)
    got, total, _ = executor(x)
    assert got.tolist() == torch.tensor(rows, dtype=torch.float32).repeat_interleave(3).tolist()
    assert total.tolist() == [row * 3 for row in rows]


def test_output_of_one_micro_batch():
    """A number stays one, without dimensions, if one micro batch is returned."""
    executor = poptorch.trainingModel(Echo(), options_of(2, 2))
    got, total, loss = executor(torch.arange(4.0))
    assert got.tolist() == [3]
    assert total.shape == loss.shape == ()


def test_input_groups():
    """Replicas of one group have the same input."""
    options = options_of(1, 1, 4)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    executor = poptorch.trainingModel(Echo(), options)
    assert executor(torch.arange(2.0))[0].tolist() == [0, 0, 1, 1]


def test_writes_to_inputs():
    """Writes of forward into an input are in the caller's tensor after the call."""

    class Writing(nn.Module):
        def forward(self, x, n):
            x[:, 0] += 1
            n.mul_(2)
            return x.sum()

    x, n = torch.zeros(4, 2), torch.arange(4)
    poptorch.inferenceModel(Writing(), poptorch.Options().deviceIterations(2))(x, n)
    assert x.tolist() == [[1, 0]] * 4
    assert n.tolist() == [0, 2, 4, 6]
    assert n.dtype == torch.int64


class Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Spiking(nn.Module):
    def __init__(self, spike):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(8, 3)
        self.spike = spike

    def forward(self, x, t):
        return F.cross_entropy(self.b(self.spike(self.a(x))), t)


def test_surrogate_in_a_function_is_refused():
    """E3: PopTorch would train nothing below an autograd.Function, and say nothing."""
    net = Spiking(Surrogate.apply)
    executor = poptorch.trainingModel(net, None, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="Surrogate is an autograd.Function: PopTorch would record its forward"):
        executor(*data(8, 0))
    assert Surrogate.apply(torch.ones(2)).tolist() == [1, 1]  # and elsewhere it is what it was


def test_surrogate_in_a_function_may_infer():
    """Without a backward pass there is nothing to lose."""

    class Net(nn.Module):
        def forward(self, x):
            return Surrogate.apply(x)

    assert poptorch.inferenceModel(Net())(torch.tensor([-1.0, 1.0])).tolist() == [0, 1]


def test_what_no_gradient_reaches_is_said(caplog):
    """A trained layer without a path from the loss stays as it is; PopTorch says nothing."""
    net = Spiking(lambda x: (x >= 0).to(x.dtype))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    executor = poptorch.trainingModel(net, None, torch.optim.SGD(net.parameters(), lr=0.1))
    executor(*data(8, 0))
    after = net.state_dict()
    assert torch.equal(after["a.weight"], before["a.weight"])
    assert not torch.equal(after["b.weight"], before["b.weight"])
    assert "No gradient reaches a.weight, a.bias" in caplog.text


def test_surrogate_in_plain_operations_trains():
    """With the same gradient written in operations and detach, all layers are trained as torch trains them."""

    def spike(x):
        return (x >= 0).to(x.dtype).detach() + (x - x.detach())

    net, reference = Spiking(spike), Spiking(Surrogate.apply)
    x, t = data(8, 0)
    executor = poptorch.trainingModel(net, None, torch.optim.SGD(net.parameters(), lr=0.1))
    executor(x, t)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference(x, t).backward()
    optimizer.step()
    for name, expected in reference.state_dict().items():
        assert torch.allclose(net.state_dict()[name], expected, atol=1e-6), name
