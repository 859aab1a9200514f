"""Pooling that keeps little for backward: the same numbers as torch's, and what is saved."""

from __future__ import annotations

import copy
import pickle
from typing import Any, List, Tuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import spikecore as sc
from spikecore.layers import TimeBatched, _pooling

KINDS = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}
#: Shape, window, whether channels are innermost: windows that cover all, and some that leave rows and columns over.
CASES = [((3, 5, 8, 8), 2, True), ((2, 3, 9, 7), (3, 2), False), ((2, 4, 5, 9), (1, 4), True), ((1, 2, 4, 4), 4, False)]


def numbers(shape: Tuple[int, ...], last: bool, nan: bool = False) -> Tensor:
    """Few different numbers, so that maxima are equal; with NaN and infinity if wanted."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-2, 3, shape, generator=generator).double()
    if nan:
        x[torch.rand(shape, generator=generator) < 0.2] = float("nan")
        x[0, 0, 0] = float("-inf")
    return x.contiguous(memory_format=torch.channels_last) if last else x


def compact(module: nn.Module) -> nn.Module:
    made = _pooling.compact(copy.deepcopy(module))
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

    @pytest.mark.parametrize("nan", [False, True])
    @pytest.mark.parametrize(("shape", "window", "last"), CASES)
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

    def test_gradients_of_any_order(self, kind: str) -> None:
        """Against finite differences."""
        x = torch.randperm(70).double().view(1, 2, 5, 7).mul_(0.1).requires_grad_()
        module = compact(KINDS[kind](2))
        assert torch.autograd.gradcheck(module, x)
        assert torch.autograd.gradgradcheck(module, x)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_types(self, kind: str, dtype: torch.dtype) -> None:
        """Averages are divided as torch divides them."""
        x = torch.randn(2, 3, 6, 6).to(dtype)
        try:
            y = KINDS[kind](3)(x)
        except RuntimeError as error:
            pytest.skip(str(error))  # older versions of torch
        cotangent = torch.randn_like(y)
        grads = []
        for module in (KINDS[kind](3), compact(KINDS[kind](3))):
            leaf = x.clone().requires_grad_()
            module(leaf).backward(cotangent)
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("stride", 1),
            ("padding", 1),
            ("ceil_mode", True),
            ("kernel_size", 3),
            ("dilation", 2),
            ("return_indices", True),
            ("divisor_override", 3),
        ],
    )
    def test_numbers_may_be_set_later(self, kind: str, name: str, value: Any) -> None:
        """Pooling that no longer has windows apart is torch's, with derivatives as without."""
        module = compact(KINDS[kind](2))
        if not hasattr(module, name):
            pytest.skip("of the other kind")
        setattr(module, name, value)
        x = torch.randn(1, 2, 5, 5)
        torch.testing.assert_close(module(x.clone().requires_grad_()), module(x), rtol=0, atol=0)

    @pytest.mark.parametrize(("size", "stride"), [((2,), None), ([2], [2]), (2, []), (np.int64(2), None), ((2, 2), 2)])
    def test_sizes_as_torch_takes_them(self, kind: str, size: Any, stride: Any) -> None:
        """One number is meant for both dimensions, no stride for that of the window."""
        x = torch.randn(1, 2, 5, 5, requires_grad=True)
        module = compact(KINDS[kind](size, stride))
        assert module(x).grad_fn.name() == "_PoolingBackward"
        assert torch.equal(module(x), KINDS[kind](size, stride)(x))

    def test_batched_gradients(self, kind: str) -> None:
        """Those that autograd takes by vmap, of two orders."""
        x = numbers((2, 3, 7, 9), False).float().requires_grad_()
        cotangents = torch.randn(5, 2, 3, 3, 4, generator=torch.Generator().manual_seed(1))
        found = []
        for module in (KINDS[kind](2), compact(KINDS[kind](2))):
            y = module(x)
            (grad,) = torch.autograd.grad(y, x, cotangents, is_grads_batched=True, retain_graph=True)
            cotangent = cotangents[0].clone().requires_grad_()
            (first,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
            (second,) = torch.autograd.grad(first, cotangent, grad, is_grads_batched=True)
            found.append((grad, second))
        torch.testing.assert_close(*found)

    def test_a_cotangent_with_a_tangent(self, kind: str) -> None:
        """Forward mode over reverse mode, where forward ran before."""
        x = numbers((2, 3, 7, 9), False).float().requires_grad_()
        tangents = []
        for module in (KINDS[kind](2), compact(KINDS[kind](2))):
            y = module(x)
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(torch.ones_like(y), torch.arange(float(y.numel())).view_as(y))
                tangents.append(forward_ad.unpack_dual(torch.autograd.grad(y, x, dual)[0]).tangent)
        torch.testing.assert_close(*tangents)

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
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(2, 1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d(17),
        nn.MaxPool2d(1),
        nn.AvgPool2d(3, 2),
        nn.AvgPool2d(2, padding=1),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, divisor_override=3),
        nn.AvgPool1d(2),
    ],
    ids=repr,
)
def test_other_poolings_stay(module: nn.Module) -> None:
    """Windows that overlap or are padded, and what gives more than the pooled numbers."""
    assert sc.fuse(nn.Sequential(module))[0] is module


class TestFuse:
    """As part of ``sc.fuse``."""

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
        """Also where the first layer is computed once."""
        plain = self.network()
        net = sc.fuse(copy.deepcopy(plain))
        assert repr(net).count("keeps places") == 3
        assert repr(net).count("keeps nothing") == 1
        x = torch.rand(16, 2, 32, 32)
        mine, its = (torch.autograd.grad(one(x).square().sum(), [*one.parameters()]) for one in (net, plain))
        torch.testing.assert_close(mine, its)

    def test_explain_says_it(self) -> None:
        """What each pooling keeps."""
        found = {
            layer.kind: layer.notes for layer in sc.explain(sc.fuse(self.network()), torch.rand(2, 2, 32, 32)).layers
        }
        assert found["CompactMaxPool2d"][0] == "keeps a byte for each maximum"
        assert found["CompactAvgPool2d"] == ("keeps nothing",)

    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
    def test_it_is_traced(self) -> None:
        """By torch.jit.trace, which reads properties of the deferred normalisations."""
        net = sc.fuse(self.network()).eval()
        x = torch.rand(2, 2, 32, 32)
        assert torch.equal(torch.jit.trace(net, (x,), check_trace=False)(x), net(x))

    def test_it_is_undone_and_copied(self) -> None:
        """unfuse, deepcopy, pickle."""
        net = self.network()
        kinds = [type(module) for module in net.modules()]
        for copied in (copy.deepcopy(sc.fuse(net)), pickle.loads(pickle.dumps(net))):
            assert repr(copied).count("keeps") == 4
        assert [type(module) for module in sc.unfuse(net).modules()] == kinds
