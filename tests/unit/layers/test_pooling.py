"""Pooling that keeps little for backward: the same numbers as torch's, and what is saved."""

from __future__ import annotations

import copy
from typing import Any, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.context import COMPILES
from spikecore.layers import TimeBatched

KINDS = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}
#: Shape, window, whether channels are innermost: windows that cover all, and some that leave rows and columns over.
CASES = [((3, 5, 8, 8), 2, True), ((2, 3, 9, 7), (3, 2), False), ((2, 4, 5, 9), (1, 4), True), ((1, 2, 4, 4), 4, False)]
CASES += [((1, 1, 4, 11_000), 3, False), ((1, 2, 201, 200), 5, True)]  # places beyond 16 bits, and many pixels


def numbers(shape: Tuple[int, ...], last: bool, nan: bool = False) -> Tensor:
    """Few different numbers, so that maxima are equal; with NaN and infinity if wanted."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-2, 3, shape, generator=generator).double()
    if nan:
        x[torch.rand(shape, generator=generator) < 0.2] = float("nan")
        x[0, 0, 0] = float("-inf")
    return x.contiguous(memory_format=torch.channels_last) if last else x


def compact(module: nn.Module) -> nn.Module:
    (made,) = sc.fuse(nn.Sequential(copy.deepcopy(module)))
    assert type(made) is not type(module)
    return made


def saved(module: nn.Module, x: Tensor) -> List[Tensor]:
    found: List[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t) or t, lambda t: t):
        module(x)
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
class TestSame:
    """The numbers of torch."""

    @pytest.mark.parametrize(
        ("shape", "window", "last", "nan"),
        [(*case, nan) for case, nan in zip(CASES, (False, True, True, False, True, True))],
    )
    def test_outputs_gradients_and_second_derivatives(
        self, kind: str, shape: Any, window: Any, last: bool, nan: bool
    ) -> None:
        """Bit for bit, with the same strides."""
        plain = KINDS[kind](window)
        x = numbers(shape, last, nan).requires_grad_()
        y = plain(x)
        cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1)).requires_grad_()
        (grad,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
        (second,) = torch.autograd.grad(grad, cotangent, torch.cos(torch.arange(grad.numel()).double()).view(shape))
        found = compact(plain)(x)
        torch.testing.assert_close(found, y, rtol=0, atol=0, equal_nan=True, check_stride=y.numel() > shape[1])
        (its,) = torch.autograd.grad(found, x, cotangent, create_graph=True)
        torch.testing.assert_close(its, grad, rtol=0, atol=0 if kind == "max" else 1e-15, check_stride=True)
        again = torch.cos(torch.arange(grad.numel()).double()).view(shape)
        torch.testing.assert_close(torch.autograd.grad(its, cotangent, again)[0], second)

    def test_other_calls_are_torchs(self, kind: str) -> None:
        """Without a derivative, of one sample, of no number, under vmap, in forward mode, compiled."""
        plain = KINDS[kind](2)
        module = compact(plain)
        x = torch.randn(2, 3, 4, 4)
        assert torch.equal(module(x), plain(x))
        assert module(x).grad_fn is None
        for other in (x[0], x[:0], x.requires_grad_()):
            assert torch.equal(module(other.detach().requires_grad_()), plain(other))
        assert torch.equal(torch.func.vmap(module)(x[None].detach()), plain(x)[None])
        tangent = torch.ones_like(x)
        _, found = torch.func.jvp(module, (x.detach(),), (tangent,))
        assert torch.equal(found, torch.func.jvp(plain, (x.detach(),), (tangent,))[1])
        with pytest.raises(RuntimeError, match="too small|small"):
            module(torch.randn(2, 3, 1, 1, requires_grad=True))


def test_what_is_kept() -> None:
    """A byte for each maximum, nothing for averages; torch's keep the input, and indices."""
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    assert [t.numel() * t.element_size() for t in saved(compact(nn.MaxPool2d(2)), x)] == [2 * 3 * 4 * 4]
    assert not saved(compact(nn.AvgPool2d(2)), x)
    assert any(t.dtype == torch.int64 for t in saved(nn.MaxPool2d(2), x))


@pytest.mark.parametrize(
    "module",
    [
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool3d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d(17),
        nn.AvgPool2d(3, 2),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, divisor_override=3),
        nn.AvgPool1d(2),
    ],
    ids=repr,
)
def test_other_poolings_stay(module: nn.Module) -> None:
    """Dilated windows, averages of windows that overlap, and what gives more than the pooled numbers."""
    assert sc.fuse(nn.Sequential(module))[0] is module


#: Windows of each number of dimensions: apart, overlapping, with gaps, padded, of another size in each dimension.
IN_GRAPHS = [
    (nn.MaxPool1d(2), (2, 3, 9)),
    (nn.MaxPool1d(5, 3, 2), (2, 3, 17)),
    (nn.MaxPool2d(2), (2, 3, 8, 7)),
    (nn.MaxPool2d(3, 2, 1), (2, 3, 9, 8)),
    (nn.MaxPool2d((2, 3), (3, 1), (1, 0)), (2, 3, 7, 6)),
    (nn.MaxPool2d(1, 2), (2, 3, 5, 6)),
    (nn.MaxPool3d(2), (2, 3, 4, 6, 5)),
    (nn.MaxPool3d((3, 2, 1), (2, 2, 1), (1, 0, 0)), (2, 2, 5, 4, 3)),
]


@pytest.mark.skipif(not COMPILES, reason="torch.compile of what spikecore computes needs torch 2.6")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch, while it traces
@pytest.mark.parametrize(("pool", "shape"), IN_GRAPHS, ids=repr)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_maxima_in_a_compiled_graph(pool: nn.Module, shape: Tuple[int, ...], last: bool) -> None:
    """Outputs, gradients and their strides are torch's, of equal maxima too; of NaN where a window has some."""
    module: Any = compact(pool)
    for nan in (False, True):
        torch._dynamo.reset()
        x = numbers(shape, False, nan and max(shape) > 5)
        x = x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x
        x[x.isneginf()] = -9.0  # which a padded window of nothing else has
        mine, its = (x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
        found = torch.compile(module, backend="aot_eager", fullgraph=True)(mine)
        expected = pool(its)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        cotangent = torch.randn(found.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
        found.backward(cotangent)
        expected.backward(cotangent)
        torch.testing.assert_close(mine.grad, its.grad, rtol=0, atol=1e-15)
        assert mine.grad.stride() == x.stride()


class TestFuse:
    """Pooling as a part of ``sc.fuse``."""

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            sc.encode.Constant(4),
            TimeBatched(nn.Conv2d(2, 8, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(8)),
            sc.LIF(backend="torch"),
            TimeBatched(nn.AvgPool2d(2)),
            TimeBatched(nn.Conv2d(8, 8, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(8)),
            sc.LIF(backend="torch"),
            TimeBatched(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 3)),
        )

    def test_the_network_computes_the_same(self) -> None:
        """Also where the first layer is computed once; sc.unfuse puts torch's layers back."""
        plain = self.network()
        net = sc.fuse(copy.deepcopy(plain))
        assert repr(net).count("keeps places") == 3
        assert repr(net).count("keeps nothing") == 1
        x = torch.rand(16, 2, 32, 32)
        mine, its = (torch.autograd.grad(one(x).square().sum(), [*one.parameters()]) for one in (net, plain))
        torch.testing.assert_close(mine, its)
        assert [type(module) for module in sc.unfuse(net).modules()] == [type(module) for module in plain.modules()]
