"""``sc.inference_model(net, backend="c")``: outputs, weights, batches, state, errors."""

from __future__ import annotations

import shutil
from typing import Any, Callable, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="a loaded program needs a C compiler, cc")


def images(*shape: int) -> Tensor:
    """Spikes ``[T, B, 2, H, W]``."""
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(0)) < 0.3).float()


def network() -> nn.Module:
    """A convolution with batch normalisation, and a read-out."""
    torch.manual_seed(0)
    first = sc.layers.TimeBatched(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8))
    last = sc.layers.TimeBatched(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))
    return nn.Sequential(first, sc.LIF(threshold=0.3), last, sc.LI())


def close(one: Any, other: Any, x: Tensor) -> None:
    """Outputs that are not all 0, and equal up to the order of sums."""
    assert one(x).abs().max() > 0.1
    torch.testing.assert_close(one(x), other(x), rtol=1e-4, atol=1e-5)


def test_as_the_other_backends() -> None:
    """Batches and samples of other sizes, each call from rest, in eval mode, also after an update of the weights."""
    net = network()
    eager, predict = sc.inference_model(net), sc.inference_model(net, backend="c")
    for x in (images(20, 3, 2, 4, 4), images(20, 1, 2, 4, 4), images(5, 3, 2, 6, 4)):
        close(predict, eager, x)
        assert torch.equal(predict(x), predict(x))
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    sc.training_model(net, lambda y, _: (y - 1.0).square().mean(), optimizer)(x, None)
    before = predict(x)
    close(predict, eager, x)
    with torch.no_grad():
        [*net.parameters()][-2].mul_(-2.0)
    assert not torch.equal(predict(x), before)
    close(predict, eager, x)
    assert net.training


def test_changes_without_a_trace() -> None:
    """Writes through ``.data`` and NumPy, another threshold and another dtype count from the next call on."""
    net = nn.Sequential(nn.Linear(4, 8), sc.LIF(), nn.Linear(8, 3)).eval()
    eager, predict = sc.inference_model(net), sc.inference_model(net, backend="c")
    x = images(20, 3, 4)
    layer: Any = net[0]
    for change in (
        lambda: layer.weight.data.fill_(0.5),
        lambda: layer.bias.detach().numpy().fill(0.25),
        lambda: setattr(net[1], "threshold", 0.125),
    ):
        before = predict(x)
        change()
        assert not torch.equal(predict(x), before)
        close(predict, eager, x)


def test_integers() -> None:
    """A prepared network is exported in fixed point, and has the bits of the others."""
    x = images(20, 3, 2, 4, 4)
    net = sc.quant.prepare(network(), x)
    assert torch.equal(sc.inference_model(net, backend="c")(x), sc.inference_model(net)(x))


def within(net: nn.Module) -> None:
    predict = sc.inference_model(net, backend="c")
    with sc.carry_state(net):
        predict(images(2, 1, 2, 4, 4))


def of(net: nn.Module, x: Any = None, **options: Any) -> Any:
    return sc.inference_model(net, backend="c", **options)(torch.rand(3, 2, 4) if x is None else x)


CALLS: Tuple[Tuple[Callable[[], Any], type, str], ...] = (
    (lambda: of(nn.Sequential(nn.Linear(4, 4), nn.GELU(), sc.LIF())), sc.Unsupported, "GELU at '1': there is no C for"),
    (lambda: of(sc.LIF(repeat=4)), sc.Unsupported, "the network makes time itself; leave repeat= and encoders out"),
    (lambda: of(sc.LIF(step="single")), sc.Unsupported, r"for streams take sc.export_c\(.*\).load\(\)"),
    (lambda: within(network()), sc.Unsupported, "each call begins at rest"),
    (lambda: of(sc.LIF(), (torch.rand(3, 2, 4),)), ValueError, r"inputs are a tuple; give a tensor \[T, B, ...\]"),
    (lambda: of(sc.LIF(), torch.rand(3, 0, 4)), ValueError, r"inputs are of shape \[3, 0, 4\]"),
    (lambda: of(sc.LIF(), options=sc.TrainingOptions()), ValueError, "options=.*has none; leave them out"),
)


@pytest.mark.parametrize(("call", "error", "text"), CALLS)
def test_errors(call: Callable[[], Any], error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        call()
