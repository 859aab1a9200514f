"""``sc.ann2snn``: accuracy on digits, spikes against a plain loop over the layers, many steps, thresholds, refusals."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any, Iterator, List, Tuple

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import refusals
import spikecore as sc


@pytest.fixture(autouse=True)
def reference() -> Iterator[None]:
    """Nothing here is about a backend; and for networks this small, threads that wait for each other take longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with sc.use_backend("torch"):
        yield
    torch.set_num_threads(threads)


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.Dropout(0.1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )


class Block(nn.Module):
    """A residual block of ResNet."""

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        self.relu, self.shortcut = nn.ReLU(inplace=True), nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Any:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


def resnet() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(Block(16, 16), Block(16, 24, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)),
    )


@pytest.mark.parametrize(("make", "steps"), [(mlp, 4), (cnn, 4), (resnet, 16)])
def test_few_steps_are_within_half_a_point_on_digits(make: Any, steps: int) -> None:
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    net = make()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(12):
        for batch in torch.randperm(1400).split(100):
            optimizer.zero_grad()
            F.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
    snn, _ = sc.ann2snn(net, images[:1400].split(200), steps=steps)
    net.eval()
    with torch.no_grad():
        right, spiking = [(out.argmax(1) == labels).double().mean() for out in (net(images), snn(images).mean(0))]
    assert right > 0.97
    assert spiking > right - 0.005


def plain(net: nn.Sequential, x: Tensor, thresholds: List[float], steps: int) -> Tuple[Tensor, List[Tensor]]:
    """The mean output, and the number of spikes of each layer, step by step; a spike is worth the threshold."""
    v = [threshold / 2 for threshold in thresholds]
    counts: List[Any] = [0.0] * len(v)
    total: Any = 0.0
    for _ in range(steps):
        y, place = x, 0
        for layer in net:
            if not isinstance(layer, (nn.ReLU, nn.ReLU6)):
                y = layer(y)
                continue
            h = v[place] + y
            spikes = (h >= thresholds[place]).to(y.dtype)
            v[place] = h - thresholds[place] * spikes
            counts[place] = counts[place] + spikes
            y, place = thresholds[place] * spikes, place + 1
        total = total + y
    return total / steps, counts


def small() -> Tuple[nn.Sequential, Tensor]:
    """A network in float64 with most layers, whose normalisations have seen data, and a batch."""
    torch.manual_seed(1)
    net = nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 4, 3), nn.ReLU6()),
        *(nn.Flatten(), nn.Dropout(), nn.Linear(16, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 5)),
    ).double()
    x = torch.randn(20, 2, 8, 8, dtype=torch.float64)
    net(x)
    return net.eval(), x


@torch.no_grad()
def test_spikes_are_those_of_a_plain_loop() -> None:
    net, x = small()
    snn, report = sc.ann2snn(net, x, steps=5)
    assert list(report.thresholds) == ["2", "5", "10"]
    assert report.folded == {"1": "0", "9": "8"}
    out, counts = plain(net, x, [*report.thresholds.values()], 5)
    with sc.monitor(snn) as seen:
        torch.testing.assert_close(snn(x).mean(0), out)
    neurons = [name for name, module in snn.named_modules() if isinstance(module, sc.IF)]
    for name, count in zip(neurons, counts):
        assert seen[name].rate == pytest.approx((count / 5).mean().item())
    # a constant input: rounded to a whole number of spikes, T at most
    theta = report.thresholds["2"]
    activations = net[:3](x)
    torch.testing.assert_close(counts[0], (activations * 5 / theta + 0.5).floor().clamp(0, 5))
    # step by step
    sc.set_step(snn, "single")
    torch.testing.assert_close(torch.stack([snn(x) for _ in range(5)]).mean(0), out)


class Net(nn.Module):
    """A forward with functions, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.conv(self.act(self.conv(x))), inplace=True)
        return self.fc(F.dropout(torch.flatten(x, 1), 0.5, self.training))


@torch.no_grad()
def test_many_steps_give_the_network_itself() -> None:
    net, x = Net().eval(), torch.rand(8, 3, 4, 4)
    snn, report = sc.ann2snn(net, x, steps=400, quantile=1.0)
    assert list(report.thresholds) == ["act", "relu"]
    torch.testing.assert_close(snn(x).mean(0), net(x), atol=0.02, rtol=0.0)
    ends = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Flatten())
    snn, report = sc.ann2snn(ends, x[:, 0, 0], steps=400, quantile=1.0)
    assert report.scale == report.thresholds["1"]
    torch.testing.assert_close(snn(x[:, 0, 0]).mean(0) * report.scale, ends(x[:, 0, 0]), atol=0.01, rtol=0.0)
    limited = nn.Sequential(nn.Linear(4, 3), nn.ReLU6(), nn.Linear(3, 2))
    limited[0].weight.mul_(40)
    assert (limited[:2](x[:, 0, 0]) == 6).any()
    snn, report = sc.ann2snn(limited, x[:, 0, 0], steps=400, quantile=1.0)
    assert report.thresholds == {"1": 6.0}
    torch.testing.assert_close(snn(x[:, 0, 0]).mean(0), limited(x[:, 0, 0]), atol=0.05, rtol=0.0)


class Branches(nn.Module):
    """Sums of values of all scales: of spikes and currents, of two neurons, of one twice, with the input; maxima of
    spikes, currents and the input; normalisations that have no layer for themselves; a ReLU of spikes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.point, self.fc = nn.Conv2d(2, 4, 1), nn.Linear(4, 5)
        self.act, self.pool = nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(3)])

    def forward(self, x: Tensor) -> Any:
        a = self.act(self.stem(x))
        b = self.norms[0](a + self.conv(a))  # spikes and currents; a normalisation of a sum
        c = self.act(b) + a  # two neurons
        c = self.act(c + c)  # a ReLU of spikes
        d = self.pool(c) + F.max_pool2d(self.conv(c), 3, 2, 1)  # maxima of spikes, and of currents
        e = self.point(self.pool(x)) + d  # of the input
        h = self.conv(e)  # a sum without a ReLU
        f = self.norms[1](h) + h + self.norms[2](self.act(h))  # a normalisation beside another reader, and of spikes
        return self.fc(F.adaptive_avg_pool2d(torch.add(f, e), 1).flatten(1))


@torch.no_grad()
def test_branches_give_the_network_itself() -> None:
    torch.manual_seed(0)
    net, x = Branches().double(), torch.randn(6, 2, 8, 8, dtype=torch.float64)
    for parameter in net.parameters():
        parameter.mul_(0.7)
    net(x)
    net.eval()
    errors = []
    for steps in (16, 256, 4096):
        snn, report = sc.ann2snn(net, x, steps=steps, quantile=1.0)
        errors.append((snn(x).mean(0) - net(x)).abs().max().item())
    assert errors[0] > 8 * errors[1] > 64 * errors[2]
    assert errors[2] < 5e-3 * net(x).abs().max().item()
    assert report.scale == 1.0
    assert report.folded == {}


@torch.no_grad()
def test_what_is_made_of_branches_is_a_network_like_others() -> None:
    net, x = resnet().eval(), torch.rand(3, 1, 8, 8)
    snn, report = sc.ann2snn(net, x, steps=6)
    assert list(report.thresholds) == ["2", "4.relu", "4.relu, call 2", "5.relu", "5.relu, call 2"]
    assert report.folded["5.shortcut.1"] == "5.shortcut.0"
    out = snn(x)
    assert torch.equal(copy.deepcopy(snn)(x), out)
    assert torch.equal(pickle.loads(pickle.dumps(snn))(x), out)
    with sc.monitor(snn) as seen:
        snn(x)
    assert len([rate for rate in seen.rates.values() if 0 < rate < 1]) >= 5
    assert "add" in snn.code
    sc.set_step(snn, "single")
    torch.testing.assert_close(torch.stack([snn(x) for _ in range(6)]), out)


class SameNames(Net):
    """A function and a module of the same name, with activations of other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        return self.fc(F.relu(self.conv(self.conv(self.relu(self.conv(x))))).flatten(1))


@torch.no_grad()
def test_layers_of_the_same_name_have_thresholds_of_their_own() -> None:
    net, x = SameNames().eval(), torch.rand(8, 3, 4, 4)
    net.conv.weight.mul_(3.0)
    snn, report = sc.ann2snn(net, x, steps=400, quantile=1.0)
    first, second = report.thresholds.values()
    assert list(report.thresholds) == ["relu", "relu, call 2"]
    assert first == F.relu(net.conv(x)).max().item() != second
    torch.testing.assert_close(snn(x).mean(0), net(x), atol=0.05, rtol=0.0)


@torch.no_grad()
def test_spikes_of_a_residual_block_are_those_of_a_plain_loop() -> None:
    torch.manual_seed(2)
    conv, inner, fc = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(12, 4)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.inner, self.fc = conv, inner, fc

        def forward(self, x: Tensor) -> Any:
            x = F.relu(self.conv(x))
            return self.fc(F.max_pool2d(F.relu(x + self.inner(x)), 2).flatten(1))

    net, x, steps = Plain().double(), torch.randn(5, 1, 4, 4, dtype=torch.float64), 7
    snn, report = sc.ann2snn(net, x, steps=steps)
    first, second = report.thresholds.values()
    v, w, counts, passed = first / 2, second / 2, 0.0, 0.0
    total: Any = 0.0
    for _ in range(steps):
        h = v + conv(x)
        spikes = (h >= first).double()
        v = h - first * spikes
        h = w + first * spikes + inner(first * spikes)
        spikes = (h >= second).double()
        w = h - second * spikes
        counts = counts + spikes
        largest = counts.unfold(2, 2, 2).unfold(3, 2, 2).amax((-2, -1))
        total = total + fc(second * (largest - passed).flatten(1))
        passed = largest
    torch.testing.assert_close(snn(x).mean(0), total / steps)


@torch.no_grad()
def test_maximum_pooling_passes_as_many_spikes_as_the_neuron_ahead() -> None:
    net, x = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.MaxPool2d(2)), torch.rand(4, 1, 6, 6)
    net[0].weight.fill_(1.0)
    net[0].bias.zero_()
    snn, _ = sc.ann2snn(net, x, steps=9, quantile=1.0)
    spikes, pooled = snn[:2](x), snn(x)
    assert set(pooled.unique().tolist()) == {0.0, 1.0}
    for step in range(9):
        counts = spikes[: step + 1].sum(0).numpy().reshape(4, 3, 2, 3, 2)
        assert np.array_equal(pooled[: step + 1].sum(0)[:, 0].numpy(), counts.max((2, 4)))


def test_thresholds_are_quantiles_or_of_the_least_error() -> None:
    net, x = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2)), torch.randn(50, 6)
    values = net[:2](x).detach().numpy()
    values = values[values > 0]
    loader = [(part, torch.zeros(10)) for part in x.split(10)]
    assert sc.ann2snn(net, loader, steps=4, quantile=1.0)[1].thresholds["1"] == values.max()
    _, report = sc.ann2snn(net, loader, steps=4, quantile=0.8)
    assert report.thresholds["1"] == pytest.approx(np.quantile(values, 0.8), rel=0.02)
    assert report.above["1"] == pytest.approx(0.2, abs=0.01)
    assert "1: IF, threshold" in str(report)

    def error(threshold: float) -> float:
        rates = np.clip(np.floor(values / threshold * 4 + 0.5), 0, 4) * threshold / 4
        return float(((rates - values) ** 2).sum())

    best = sc.ann2snn(net, loader, steps=4)[1].thresholds["1"]
    assert error(best) == pytest.approx(min(error(values.max() * part / 100) for part in range(1, 101)), rel=1e-4)


def test_the_network_stays_and_what_is_made_can_be_trained() -> None:
    net = cnn().train()
    net(torch.rand(4, 1, 8, 8))
    before = copy.deepcopy(net.state_dict())
    snn, _ = sc.ann2snn(net, torch.rand(4, 1, 8, 8), steps=3)
    assert net.training
    assert not snn.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    snn.train()(torch.rand(4, 1, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in snn.parameters())


class View(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.act(self.conv(x))
        return self.fc(x.view(x.shape[0], -1))


class Condition(Net):
    def forward(self, x: Tensor) -> Any:
        return self.act(self.conv(x)) if x.sum() > 0 else x


class Pair(Net):
    def forward(self, x: Tensor) -> Any:
        return (self.act(self.conv(x)),)


class Shifted(Net):
    def forward(self, x: Tensor) -> Any:
        return self.act(self.conv(x) + 1.0)


class Product(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.act(self.conv(x))
        return self.fc((h * h).flatten(1))


class OtherDims(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.act(self.conv(x))
        return F.adaptive_avg_pool2d(h, (1, 3)) + F.adaptive_avg_pool2d(h, 1).flatten(1)


class Unused(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.conv(x)
        self.act(h)
        return self.fc(h.flatten(1))


class Biased(Net):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        return self.act(self.conv(x) + self.bias)


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Dale(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight.abs(), self.bias, padding=1)


class Dropped(Net):
    def forward(self, x: Tensor) -> Any:
        return F.dropout(self.act(self.conv(x)), 0.5)


class InPlace(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.conv(x)
        skip = self.act(h)
        h += 1.0
        return self.act(skip + h)


class OfTensors(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.act(self.conv(x))
        return self.act(self.conv(x)) if isinstance(x, Tensor) else x


class TwoInputs(Net):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.act(self.conv(x))


def normalised(layer: nn.Module) -> nn.Module:
    """A layer whose weight a hook computes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.1 and newer say that it is deprecated
        return nn.utils.weight_norm(layer)


def hooked(path: str) -> nn.Module:
    net = nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU()), nn.Dropout())
    net.get_submodule(path).register_forward_hook(lambda module, args, output: 2 * output)
    return net


def after(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), *layers)


X = torch.rand(2, 3, 4, 4)


def snn(data: Any = X, net: Any = None, steps: Any = 4, **options: Any) -> Any:
    """A conversion with one wrong argument."""
    return sc.ann2snn(after(nn.ReLU()) if net is None else net, data, steps=steps, **options)


def silent() -> nn.Sequential:
    """A network whose activations are 0."""
    net = after(nn.ReLU())
    nn.init.zeros_(net[0].weight)  # type: ignore[arg-type]  # a tensor
    nn.init.constant_(net[0].bias, -1.0)  # type: ignore[arg-type]
    return net


test_refused = refusals.table(__file__, globals())
