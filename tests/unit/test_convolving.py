"""Convolutions that compute the weight's gradient first."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import spikecore as sc
from spikecore import _convolving
from spikecore._convolving import Convolved, WeightFirstConv2d
from spikecore.layers import TimeBatched

FORMS = [
    ({"kernel_size": 3, "padding": 1}, (2, 4, 5, 6)),
    ({"kernel_size": 1, "stride": 2, "bias": False}, (2, 4, 5, 6)),
    ({"kernel_size": (3, 2), "dilation": (1, 2), "groups": 2}, (1, 4, 5, 6)),
    ({"kernel_size": 3, "stride": (2, 3), "padding": (0, 2)}, (2, 4, 6, 7)),
]


@pytest.fixture
def on_cpu(monkeypatch: Any) -> None:
    """Have calls on a CPU taken as those on a GPU."""
    ours = _convolving._is_ours
    monkeypatch.setattr(Tensor, "is_cuda", True)
    assert ours(torch.randn(1, 1, 1, 1, requires_grad=True), torch.randn(1, requires_grad=True))


def deferred(module: nn.Module) -> nn.Module:
    made = copy.deepcopy(module)
    _convolving.defer_input(made)
    return made


@pytest.mark.parametrize(("options", "shape"), FORMS)
@pytest.mark.usefixtures("on_cpu")
class TestSame:
    """The numbers of torch."""

    def test_outputs_and_gradients(self, options: Any, shape: Any) -> None:
        """In both layouts."""
        torch.manual_seed(0)
        plain = nn.Conv2d(4, 6, **options)
        module = deferred(plain)
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
            found = []
            for one in (plain, module):
                y = one(x)
                found.append([y, *torch.autograd.grad(y.square().sum(), [x, *one.parameters()])])
            assert "Convolved" in y.grad_fn.name()
            torch.testing.assert_close(found[1], found[0])

    def test_gradients_of_any_order(self, options: Any, shape: Any) -> None:
        """Against finite differences."""
        torch.manual_seed(0)
        module = deferred(nn.Conv2d(4, 2, **options).double())
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        values = (x, *module.parameters())

        def call(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
            form = (module.stride, module.padding, module.dilation, module.groups)
            return Convolved.apply(x, weight, bias, form)  # type: ignore[no-any-return]

        assert torch.autograd.gradcheck(call, values)
        assert torch.autograd.gradgradcheck(call, values)

    def test_under_autocast(self, options: Any, shape: Any) -> None:
        """Computed in the dtype that autocast gives, with gradients in the parameters' dtype."""
        module = deferred(nn.Conv2d(4, 6, **options))
        with torch.autocast("cpu", torch.bfloat16):
            y = module(torch.randn(shape, requires_grad=True))
        assert "Convolved" in y.grad_fn.name()
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        assert all(one.grad.dtype == torch.float32 for one in module.parameters())


@pytest.mark.usefixtures("on_cpu")
def test_an_unpacked_input_is_gone_before_its_gradient(monkeypatch: Any) -> None:
    """What the hook gave back lives for the weight's gradient alone."""
    given: List[Any] = []
    seen: List[Any] = []
    backward, of_input = _convolving._backward, _convolving._of_input

    def unpack(kept: Tensor) -> Tensor:
        made = kept.clone()
        given.append(StorageWeakRef(made.untyped_storage()))
        return made

    def weights(*arguments: Any) -> Any:
        seen.append(("weight", not given[0].expired()))
        return backward(*arguments)

    def inputs(*arguments: Any) -> Tensor:
        seen.append(("input", not given[0].expired()))
        return of_input(*arguments)

    monkeypatch.setattr(_convolving, "_backward", weights)
    monkeypatch.setattr(_convolving, "_of_input", inputs)
    module = deferred(nn.Conv2d(4, 6, 3))
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), unpack):
        y = module(x)
    y.sum().backward()
    assert seen == [("weight", True), ("input", False)]


def test_calls_that_are_torchs() -> None:
    """On a CPU, where one call computes both, and without a derivative; the class stays what it was where it pads."""
    module = deferred(nn.Conv2d(4, 6, 3))
    assert type(module) is WeightFirstConv2d
    assert "Convolved" not in module(torch.randn(1, 4, 5, 5, requires_grad=True)).grad_fn.name()
    assert module(torch.randn(4, 5, 5)).shape == (6, 3, 3)
    for other in (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), nn.Conv2d(4, 6, 3, padding="same")):
        assert type(deferred(other)) is nn.Conv2d


@pytest.mark.usefixtures("on_cpu")
class TestLater:
    """What a convolution is when it is called counts, and not what it was when it was fused."""

    @pytest.mark.parametrize(
        ("name", "value"), [("padding_mode", "circular"), ("padding", "same"), ("padding", 1), ("dilation", 2)]
    )
    def test_numbers_may_be_set(self, name: str, value: Any) -> None:
        """Output and gradient are those of a plain one that was changed likewise."""
        module = deferred(nn.Conv2d(4, 4, 3, padding=1))
        plain = copy.deepcopy(module)
        _convolving.restore(plain)
        found = []
        for one in (plain, module):
            setattr(one, name, value)
            x = torch.randn(1, 4, 6, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
            y = one(x)
            found.append([y, *torch.autograd.grad(y.square().sum(), [x, *one.parameters()])])
        torch.testing.assert_close(found[1], found[0])

    def test_complex_numbers_are_torchs(self) -> None:
        """Of which torch makes several convolutions."""
        module = deferred(nn.Conv2d(2, 2, 3, dtype=torch.complex64))
        x = torch.randn(1, 2, 4, 4, dtype=torch.complex64, requires_grad=True)
        y = module(x)
        assert "Convolved" not in y.grad_fn.name()
        y.abs().sum().backward()
        assert x.grad is not None


def test_fuse_and_unfuse() -> None:
    """A first layer is computed once as before."""
    net = nn.Sequential(sc.encode.Constant(3), TimeBatched(nn.Conv2d(2, 4, 3)))
    sc.fuse(net)
    assert type(net[1].module) is WeightFirstConv2d
    assert net(torch.rand(2, 2, 5, 5)).stride(0) == 0
    sc.unfuse(net)
    assert type(net[1].module) is nn.Conv2d
