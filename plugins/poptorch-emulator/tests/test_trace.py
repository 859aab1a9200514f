"""Compiled ``forward``: what it may do, what the device makes of it, and what is refused: rules E3, E5 and E9."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import DynamicOutputShapeException

import poptorch_emulator as poptorch
import refusals
from poptorch_emulator import traced


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 100


def x_of(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def gradient(function, x):
    """The gradient of the sum of a traced function."""
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(traced(function, x)(x).sum(), x)
    return found


class TestValues:
    """A graph computes what torch computes."""

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: torch.where(x > 0, 1.0, x),
            lambda x: (1.0 - x) * x.sigmoid() / 3 + x.square(),
            lambda x: F.layer_norm(x, (3,)).softmax(-1),
            lambda x: torch.stack([x, x.exp()]).unbind(0)[1].chunk(2, 1)[0],
            lambda x: torch.einsum("ij,kj->ik", x, x).std(),
            lambda x: x.cumsum(0).clamp(-1, 1).prod(1),
            lambda x: x.argmax(1).float(),
            lambda x: x[1:, [0, 2]] + x[[0, 1, 1], 1:],
            lambda x: x.gather(1, x.argmax(1, keepdim=True)),
            lambda x: x.clone().index_put_((torch.arange(2),), x[2]),
            lambda x: torch.cat([x, torch.zeros_like(x)], 1).repeat(2, 1),
            lambda x: F.max_pool2d(F.conv2d(x.view(1, 1, 4, 3), x.view(1, 1, 4, 3), padding=2), 2),
            lambda x: F.batch_norm(x, x[0].clone(), x[1].abs(), training=True),
            lambda x: F.embedding((x > 0).long().sum(1), x),
        ],
    )
    def test_as_torch(self, function):
        """Results of common functions, decomposed by this version of torch, are those of torch."""
        x = x_of(4, 3)
        assert torch.allclose(traced(function, x)(x), function(x).float(), atol=1e-6)

    def test_in_place(self):
        """Operations in place, on views and by mask, change what they change in torch."""

        def function(x):
            x = x.clone()
            x[1] += 10
            x[x < 0] = 0.5
            x[0, 1:] = 3
            return x, x[1]

        x = x_of(4, 3)
        for got, expected in zip(traced(function, x)(x), function(x)):
            assert torch.equal(got, expected)

    def test_sqrt(self):
        """The square root is the correctly rounded one."""
        x = torch.rand(1000)
        assert torch.equal(traced(torch.sqrt, x)(x), x.double().sqrt().float())


class TestGradients:
    """E3: PopTorch differentiates the recorded operations."""

    def test_custom_backward_is_ignored(self):
        """The backward of an autograd.Function never runs."""
        assert torch.equal(gradient(Scaled.apply, x_of(3)), torch.full((3,), 2.0))

    def test_no_grad_is_ignored(self):
        """no_grad stops no gradient."""

        def function(x):
            with torch.no_grad():
                return x * 3

        assert torch.equal(gradient(function, x_of(3)), torch.full((3,), 3.0))

    def test_detach_is_honoured(self):
        """detach does stop it."""
        x = x_of(3)
        assert torch.equal(gradient(lambda x: x * x.detach(), x), x)

    @pytest.mark.parametrize("function", [torch.maximum, torch.minimum, torch.max, torch.min])
    def test_ties(self, function):
        """Both of two equal arguments of maximum and minimum get the whole gradient."""
        x = torch.tensor([1.0, 2.0]).requires_grad_()
        y = torch.tensor([1.0, 5.0]).requires_grad_()
        to_x, to_y = torch.autograd.grad(traced(function, x, y)(x, y).sum(), (x, y))
        assert to_x[0] == to_y[0] == 1.0
        assert to_x[1] + to_y[1] == 1.0

    def test_casts(self):
        """A comparison and a cast to an integer carry none."""
        x = x_of(3).requires_grad_()
        assert not traced(lambda x: (x > 0).float() + x.int().float(), x)(x).requires_grad


class TestHost:
    """E5: the host has no part in a compiled forward."""

    def test_host_tensor(self):
        """So is mixing in a tensor of the host, whose description is PopTorch's."""
        index = torch.LongTensor([1, 0])
        with pytest.raises(poptorch.Error) as caught:
            traced(lambda x: torch.index_select(x, 0, index), x_of(4))
        assert "Expected an IPU tensor but got tensor(device=cpu, shape=[2], dtype=Long)." in str(caught.value)
        assert 'Constant tensors should be moved explicitly to the IPU, via cpu_tensor.to("ipu").' in str(caught.value)

    def test_constant(self):
        """A tensor of the host that is moved to the device is compiled in, as it is then."""
        constant = torch.ones(3)
        graph = traced(lambda x: x + constant.to(x.device), torch.zeros(3))
        constant.fill_(5)
        assert torch.equal(graph(torch.zeros(3)), torch.ones(3))

    def test_constants_of_the_graph_stay(self):
        """Changes in place of a constant are gone at the next call."""
        graph = traced(lambda x: torch.tensor([1.0]).add_(x), torch.ones(1))
        assert [graph(torch.ones(1)).item() for _ in range(2)] == [2.0, 2.0]

    def test_mask(self):
        """Reading by a mask has no constant shape."""
        with pytest.raises(DynamicOutputShapeException):
            traced(lambda x: x[x > 0], x_of(3))
        with pytest.raises(poptorch.Error, match="The IPU cannot support dynamic output shapes"):
            traced(lambda x: x.nonzero(), x_of(3))
        with pytest.raises(poptorch.Error, match="Type inference failed for aten::masked_select because"):
            traced(lambda x: x.masked_select(x > 0), x_of(3))

    def test_device(self):
        """A tensor says that it is on the IPU, and only inside is a model running there."""
        seen = []
        traced(lambda x: seen.append((x.device, poptorch.isRunningOnIpu())) or x, x_of(3))
        assert seen == [(torch.device("ipu:0"), True)]
        assert not poptorch.isRunningOnIpu()


class TestFactories:
    """Tensors made in forward."""

    @pytest.mark.parametrize(
        ("name", "make"),
        [
            ("zeros", lambda: torch.zeros(3)),
            ("ones", lambda: torch.ones(3)),
            ("full", lambda: torch.full((3,), 2.0)),
            ("arange", lambda: torch.arange(3)),
            ("tensor", lambda: torch.tensor([1.0, 2.0, 3.0])),
            ("rand", lambda: torch.rand(3)),
        ],
    )
    def test_go_to_the_device(self, name, make, caplog):
        """The functions that PopTorch replaces make tensors of the device, and say so."""
        with caplog.at_level(logging.WARNING, "poptorch"):
            traced(lambda x: x + make(), x_of(3))
        assert f"No device set in torch.{name}(): forcing to IPU" in caplog.text

    def test_are_put_back(self):
        """torch is as before, after an error too."""
        before = torch.zeros
        with pytest.raises(ZeroDivisionError):
            traced(lambda x: 1 / 0, x_of(3))
        assert torch.zeros is before
        assert not poptorch.isRunningOnIpu()

    def test_named_device(self):
        """A device that is named is kept."""
        with pytest.raises(poptorch.Error, match="Expected an IPU tensor"):
            traced(lambda x: x + torch.zeros(3, device="cpu"), x_of(3))
        x = x_of(3)
        assert torch.equal(traced(lambda x: x + x.new_ones(3), x)(x), x + 1)


class TestSupport:
    """E9: what PopTorch has no handler for."""

    def test_refused(self):
        """Operations without a handler are named, each once."""
        text = (
            r"Unsupported ops found in compiled model: \[aten::lerp, aten::sgn, aten::huber_loss\]\. Not all operations"
        )
        with pytest.raises(poptorch.Error, match=text):
            traced(lambda x: F.huber_loss(x.lerp(x, 0.5).sgn().sgn(), x), x_of(3))

    def test_in_place_shapes(self):
        """PopTorch handles ``squeeze_`` and ``transpose_``; the others are not modelled, which the error says."""

        def reshaped(x):
            y = x * 2
            y.transpose_(0, 2).add_(1)
            y.squeeze_()
            return y

        x = x_of(4, 1, 3)
        assert torch.equal(traced(reshaped, x)(x), reshaped(x))
        with pytest.raises(poptorch.Error, match="changes the shape of a tensor in place, which the emulator does not"):
            traced(lambda x: x.clone().unsqueeze_(0), x)

    def test_one_hot(self):
        """one_hot takes the number of classes."""
        labels = torch.tensor([0, 2])
        assert torch.equal(traced(lambda t: F.one_hot(t, 3), labels)(labels), F.one_hot(labels, 3).int())
        with pytest.raises(poptorch.Error, match="OneHot num classes must be specified and must be constant"):
            traced(F.one_hot, labels)


class TestFunctions:
    """poptorch's own functions."""

    def test_on_the_host(self):
        """identity_loss on the host is the reduction; the advice is the identity."""
        x = x_of(3)
        assert torch.equal(poptorch.identity_loss(x, "sum"), x.sum())
        assert torch.equal(poptorch.identity_loss(x, "mean"), x.mean())
        assert torch.equal(poptorch.identity_loss(x, "none"), x)
        assert poptorch.nop(x) is x
        with pytest.raises(AssertionError, match="Unsupported reduction type!"):
            poptorch.identity_loss(x, "max")

    def test_advice(self):
        """Advice to the compiler is the identity in a graph, too."""
        x = x_of(3)

        def function(x):
            x = poptorch.set_available_memory(poptorch.ipu_print_tensor(x, "x"), 0.2)
            a, b = poptorch.recomputationCheckpoint(x, x)
            return poptorch.nop(a) + b

        assert torch.equal(traced(function, x)(x), 2 * x)
        assert torch.equal(gradient(function, x), torch.full((3,), 2.0))

    def test_for_loop(self):
        """In inference for_loop repeats its body; its inputs are checked."""
        x = x_of(3)
        assert torch.allclose(traced(lambda x: poptorch.for_loop(4, lambda y: y * 2, [x])[0], x)(x), x * 16)
        assert torch.allclose(poptorch.for_loop(4, lambda y: y * 2, [x])[0], x * 2)
        with pytest.raises(ValueError, match=r"\(Object is not list\)"):
            traced(lambda x: poptorch.for_loop(4, lambda y: y, x), x)
        with pytest.raises(ValueError, match=r"Object contained in list at index 1 is not torch\.tensor"):
            traced(lambda x: poptorch.for_loop(4, lambda y, z: (y, z), [x, 1]), x)

    def test_cond(self):
        """In inference cond gives the results of one branch."""
        x = torch.tensor([1.0])
        graph = traced(lambda x: poptorch.cond(x > 0, lambda y: y * 2, [x], lambda y: y * 3, [x])[0], x)
        assert [graph(torch.tensor([value])).item() for value in (1.0, -1.0)] == [2.0, -3.0]


def test_threads():
    """One model is compiled at a time; what other threads compute in the meantime stays theirs."""
    made, results = [], {}

    def function(x):
        other = threading.Thread(target=lambda: made.append(torch.zeros(2)))
        other.start()
        other.join()
        return x + torch.ones(3)

    def compile_and_run(value):
        x = torch.full((3,), float(value))
        results[value] = traced(function, x)(x)

    threads = [threading.Thread(target=compile_and_run, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {value: result.tolist() for value, result in results.items()} == {n: [n + 1.0] * 3 for n in range(4)}
    assert {tensor.device.type for tensor in made} == {"cpu"}


test_refused = refusals.table(__file__, globals())
