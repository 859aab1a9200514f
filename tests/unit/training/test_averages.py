"""Average pooling whose gradient torch has wrong in one of the forms of a step."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any, Callable, List

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.training import _averages, _form, _graph_passes

compiles = pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "is_compiling"), reason="this torch is too old to compile neurons"
)


class Calls(nn.Module):
    """A layer that is a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def network(last: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(sc.layers.TimeBatched(nn.Conv2d(2, 3, 3, padding=1)), sc.LI(tau=2.0, backend="torch"), last)
    return net.double()


def gradients(net: nn.Module, size: int, **options: Any) -> List[Tensor]:
    """Of the weights, after one step on images of so many rows and columns."""
    x = torch.randn(2, 2, 2, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = sc.training_model(net, lambda y, t: (y**2).sum(), optimizer, options=sc.TrainingOptions(**options))
    step(x, torch.zeros(1))
    assert step.form["compile"] == ("used" if options else "not asked for")
    return [parameter.grad for parameter in net.parameters()]  # type: ignore[misc]


@compiles
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")  # by torch's compiler itself
@pytest.mark.parametrize(
    "last",
    [
        pytest.param(lambda: sc.layers.TimeBatched(nn.AvgPool2d(2, ceil_mode=True)), id="module"),
        pytest.param(lambda: Calls(lambda x: nn.functional.avg_pool3d(x, (1, 2, 3), ceil_mode=True)), id="function"),
        pytest.param(lambda: sc.layers.TimeBatched(nn.AvgPool2d(4, 2, 1, ceil_mode=True)), id="padded, none beyond"),
        pytest.param(
            lambda: sc.layers.MSBlock(
                3, 4, functools.partial(sc.LIF, backend="torch"), stride=2, pooled_shortcut=True, zero_init=False
            ),
            id="block",
        ),
    ],
)
def test_compiled_windows_at_the_edge_have_the_gradient_of_eager_ones(last: Any) -> None:
    size = 8 if last().__class__ is sc.layers.TimeBatched and last().module.padding else 7
    net = network(last())
    wanted = gradients(copy.deepcopy(net), size)
    for found, expected in zip(gradients(net, size, compile=True), wanted):
        torch.testing.assert_close(found, expected)


@compiles
@pytest.mark.parametrize("padding", [0, 1])
def test_so_has_a_compiled_loss(padding: int) -> None:
    """That of a captured step; with padding it runs as it is."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        y = outputs.flatten(1).t().unsqueeze(0)
        return (nn.functional.avg_pool1d(y, 3, 2, padding, ceil_mode=True) ** 2).sum()

    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), sc.LI(tau=2.0, backend="torch")).double()
        form = _form.Form(net, sc.TrainingOptions(compile=compiled), torch.optim.SGD(net.parameters(), 0.1))
        x = torch.randn(4, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        with form.as_captured(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            form.loss(loss, form.run(x), torch.zeros(1)).backward()
        found.append([parameter.grad for parameter in net.parameters()])
    texts = [str(one.message) for one in told if "the loss runs as it is" in str(one.message)]
    assert len(texts) == padding
    assert all("198119" in text for text in texts)
    for mine, its in zip(*found):
        torch.testing.assert_close(mine, its)


@compiles
def test_padded_windows_beyond_the_image_are_not_compiled() -> None:
    net = network(sc.layers.TimeBatched(nn.AvgPool2d(3, 2, 1, ceil_mode=True)))
    with pytest.raises(sc.Unsupported, match="compile=True cannot be: torch.compile computes a wrong gradient.*198119"):
        gradients(net, 8, compile=True)


@compiles
def test_torch_without_passes_over_the_graph_compiles_no_such_pooling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_graph_passes, "_users", lambda: None)
    assert _graph_passes.compiling_options(network(nn.AvgPool2d(2))) == {}
    assert _graph_passes.compiling_options(network(nn.AvgPool2d(2, ceil_mode=True, divisor_override=3))) == {}
    for pool in (nn.AvgPool1d(2, ceil_mode=True), nn.LPPool2d(2, 2, ceil_mode=True)):
        net = network(sc.layers.TimeBatched(pool))
        with pytest.raises(sc.Unsupported, match="compile=True cannot be: torch.compile computes a wrong gradient"):
            gradients(net, 8, compile=True)
        assert sc.inference_model(net, options=sc.TrainingOptions(compile=True)).form["compile"] == "used"


def test_padded_pooling_keeps_its_layout_where_torch_misplaces_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(sc.layers.TimeBatched(nn.AvgPool2d(2, padding=1)))
    assert not _averages.misplaced_channels_last(net)
    right = nn.functional.avg_pool2d

    def misplaced(x: Tensor, size: int, padding: Any) -> Tensor:
        # the first window sees pixels beside its own, as to the CUDA kernel, which forgets the padding
        return right(x, size, padding=padding) + right(x, size).mean()

    _averages._misplaces.cache_clear()
    monkeypatch.setattr(nn.functional, "avg_pool2d", misplaced)
    assert not _averages.misplaced_channels_last(network(nn.AvgPool2d(2)))
    try:
        with pytest.raises(sc.Unsupported, match="channels_last=True cannot be: this torch gives.*188344"):
            gradients(net, 8, channels_last=True)
        with torch.inference_mode():
            sc.inference_model(net, options=sc.TrainingOptions(channels_last=True))
    finally:
        _averages._misplaces.cache_clear()
