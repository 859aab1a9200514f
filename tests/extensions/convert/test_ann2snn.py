"""``sc.ann2snn``: accuracy on digits, spikes against a plain loop over the layers, thresholds, refusals."""

from __future__ import annotations

import copy
from typing import Any, Iterator, List, Tuple

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

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


@pytest.mark.parametrize("make", [mlp, cnn])
def test_four_steps_are_within_half_a_point_on_digits(make: Any) -> None:
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
    snn, _ = sc.ann2snn(net, images[:1400].split(200), steps=4)
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


@torch.no_grad()
def test_a_norm_is_folded_along_the_features_of_the_layer_alone() -> None:
    eye, norm = nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2, eps=0.0)
    eye.weight.copy_(torch.eye(2))
    norm.weight.copy_(torch.tensor([2.0, 3.0]))
    x = torch.ones(1, 2, 2)
    net = nn.Sequential(eye, norm, nn.ReLU()).eval()
    assert net(x).flatten().tolist() == [2.0, 2.0, 3.0, 3.0]
    words = (
        r"BatchNorm1d at '1' normalises dimension 1 of \[1, 2, 2\], and the features of Linear at '0' are dimension 2"
    )
    with pytest.raises(ValueError, match=words):
        sc.ann2snn(net, [x], steps=64, quantile=1.0)
    behind = nn.Sequential(eye, nn.Flatten(0, 1), norm, nn.ReLU(), copy.deepcopy(eye)).eval()
    snn, report = sc.ann2snn(behind, [x], steps=64, quantile=1.0)
    assert report.folded == {"2": "0"}
    torch.testing.assert_close(snn(x).mean(0), behind(x), atol=0.1, rtol=0.0)


@torch.no_grad()
def test_weights_that_are_computed_and_layers_of_other_names() -> None:
    """A parametrisation's weight counts, a layer of two calls is two, and a generator gives its first batch once."""

    class Plain(nn.Linear):
        """A name of its own."""

    torch.manual_seed(0)
    layer, x = Plain(6, 6), torch.rand(20, 6)
    net = nn.Sequential(weight_norm(nn.Linear(6, 6)), nn.BatchNorm1d(6), nn.ReLU(), layer, nn.ReLU(), layer)
    net.train()(x)
    net[0].parametrizations.weight.original0.mul_(2.0)
    snn, report = sc.ann2snn(net.eval(), (batch for batch in x.split(10)), steps=400, quantile=1.0)
    assert report.thresholds["2"] == net[:3](x).max()
    torch.testing.assert_close(snn(x).mean(0), net(x), atol=0.02, rtol=0.0)
    assert torch.nn.utils.parametrize.is_parametrized(net[0])


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


class Residual(Net):
    def forward(self, x: Tensor) -> Any:
        return self.fc((x + self.act(self.conv(x))).flatten(1))


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


class Pool(Net):
    def forward(self, x: Tensor) -> Any:
        return F.max_pool2d(self.act(self.conv(x)), 2)


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Dale(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight.abs(), self.bias, padding=1)


class Dropped(Net):
    def forward(self, x: Tensor) -> Any:
        return F.dropout(self.act(self.conv(x)), 0.5)


class Normalised(Net):
    """A normalisation and a sum read one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Any:
        h = self.conv(x)
        return self.act(self.norm(h) + h)


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
    with pytest.warns(FutureWarning, match="deprecated"):
        return nn.utils.weight_norm(layer)


def hooked(path: str) -> nn.Module:
    net = nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU()), nn.Dropout())
    net.get_submodule(path).register_forward_hook(lambda module, args, output: 2 * output)
    return net


def twice(tied: bool = False) -> nn.Sequential:
    """A layer of two calls with a normalisation behind one of them; or of one, which shares its weight."""
    net = after(nn.BatchNorm2d(3), nn.ReLU())
    net.append(copy.deepcopy(net[0]) if tied else net[0])
    net[3].weight = net[0].weight
    return net


def after(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), *layers)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (after(nn.ReLU(), nn.Sequential(nn.MaxPool2d(2))), r"'2\.0' \(MaxPool2d\): put average pooling there"),
        (Pool(), r"'max_pool2d' \(max_pool2d\): put average pooling there"),
        (after(nn.GELU()), r"'1' \(GELU\): only ReLU and ReLU6 become firing rates: put nn\.ReLU there"),
        (after(Swish()), r"'sigmoid' \(sigmoid\): only ReLU and ReLU6 become firing rates"),
        (after(sc.LIF()), r"'1' \(LIF\): put one of the layers there that help\(sc\.ann2snn\) lists"),
        (after(nn.ReLU(), nn.Softmax(1)), r"'2' \(Softmax\): leave it out, and apply it to the mean over time"),
        (
            after(nn.ReLU(), nn.BatchNorm2d(3)),
            "BatchNorm2d at '2' reads ReLU at '1', and is folded into one of Linear,",
        ),
        (
            after(nn.BatchNorm2d(3, track_running_stats=False), nn.ReLU()),
            "BatchNorm2d at '1' normalises by the statistics of a batch",
        ),
        (after(nn.ReLU(), nn.ReLU()), r"'2' \(ReLU\): no weights stand before it"),
        (after(), "Sequential has no ReLU"),
        (Residual(), r"'conv' \(Conv2d\): .*no residual connections.* that of 'x' goes to 'conv' and 'add'"),
        (View(), r"\(getattr\): to flatten a batch, write x\.flatten\(1\)"),
        (Pair(), r"\(output\): forward must return the output of the last layer"),
        (
            nn.Sequential(Dale(3, 3, 3), nn.ReLU()),
            "Dale at '0' is a subclass with a forward of its own, and firing rates",
        ),
        (
            hooked("0.0"),
            r"Conv2d at '0\.0' has hooks or a forward of its own, and firing rates would not .*; remove them",
        ),
        (hooked("0.1"), r"ReLU at '0\.1' has hooks"),
        (hooked("0"), "Sequential at '0' has hooks"),
        (hooked(""), "Sequential has hooks"),
        (hooked("1"), "Dropout at '1' has hooks"),
        (Dropped(), r"'dropout' \(dropout\): it drops in eval\(\), too: write training=self\.training"),
        (Normalised(), r"'norm' \(BatchNorm2d\): .* that of 'conv' goes to 'norm' and 'add'"),
        (twice(), "Conv2d at '0' is called 1 times without BatchNorm2d at '1' behind it, and a normalisation"),
        (twice(tied=True), "Conv2d at '0' shares its weight with Conv2d at '3', .* give each its own"),
        (
            InPlace(),
            r"iadd \(iadd\) changes the value of Conv2d at 'conv' in place|'act' \(ReLU\): each layer must take",
        ),
        (OfTensors(), "forward of OfTensors computes something else when it runs than when it is followed"),
        (
            nn.Sequential(normalised(nn.Conv2d(3, 3, 3)), nn.ReLU()),
            "Conv2d at '0' has hooks or a forward of its own",
        ),
        (TwoInputs(), "TwoInputs has 2 inputs; give a network of one"),
        (Condition(), r"forward of Condition cannot be followed: .*\nGive the network as an nn\.Sequential"),
    ],
)
def test_what_is_not_taken_is_named(net: nn.Module, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sc.ann2snn(net, torch.rand(2, 3, 4, 4), steps=4)


def test_arguments() -> None:
    net, x = after(nn.ReLU()), torch.rand(2, 3, 4, 4)
    with pytest.raises(TypeError, match=r"net=3 must be a network \(an nn\.Module\)"):
        sc.ann2snn(3, x, steps=4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"steps=2\.5 must be a whole number"):
        sc.ann2snn(net, x, steps=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps=0 must be 1 or more"):
        sc.ann2snn(net, x, steps=0)
    with pytest.raises(ValueError, match=r"quantile=99 must be above 0 and at most 1, the maximum; or None"):
        sc.ann2snn(net, x, steps=4, quantile=99)
    with pytest.raises(ValueError, match="data has no batches; give a tensor, a list of tensors or a DataLoader"):
        sc.ann2snn(net, [], steps=4)
    with pytest.raises(TypeError, match="data=None must be a tensor, a list of tensors or a DataLoader"):
        sc.ann2snn(net, None, steps=4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a batch of data has no samples, its shape is \[0, 3, 4, 4\]; leave it out"):
        sc.ann2snn(net, [x, x[:0]], steps=4)
    with pytest.raises(ValueError, match=r"Conv2d at '0' does not take \[2, 3, 4, 4\]: .* another shape or dtype"):
        sc.ann2snn(net, x.long(), steps=4)
    with pytest.raises(TypeError, match="a batch of data must be a tensor or begin with one, got 'images'"):
        sc.ann2snn(net, ["images"], steps=4)
    with pytest.raises(ValueError, match=r"activations of '1' are not finite \(nan\), and give no threshold"):
        sc.ann2snn(net, [x * float("nan"), x], steps=4)
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.fill_(-1.0)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="activations of '1' are 0 for all of data"):
        sc.ann2snn(net, x, steps=4)
