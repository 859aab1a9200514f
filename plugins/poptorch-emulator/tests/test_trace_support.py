"""What the emulator refuses to trace, the functions of PopTorch, and traces on several threads."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emulator as poptorch
from poptorch_emulator._trace import traced


def x_of(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def gradient(function, x):
    """The gradient of the sum of a traced function."""
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(traced(function, x)(x).sum(), x)
    return found


class TestSupport:
    """E9: what PopTorch has no handler for."""

    @pytest.mark.parametrize(
        ("name", "function"),
        [
            ("heaviside", lambda x: torch.heaviside(x, x)),
            ("lerp", lambda x: torch.lerp(x, x, 0.5)),
            ("logical_xor", lambda x: torch.logical_xor(x, x)),
            ("xlogy", lambda x: torch.xlogy(x, x)),
            ("aminmax", lambda x: torch.aminmax(x, dim=0).min),
            ("tril", lambda x: torch.tril(x.unsqueeze(0))),
            ("sgn", lambda x: x.sgn()),
            ("copysign", lambda x: x.copysign(x)),
            ("nan_to_num", lambda x: x.nan_to_num()),
            ("hypot", lambda x: torch.hypot(x, x)),
            ("logit", lambda x: x.logit()),
            ("sinc", lambda x: x.sinc()),
            ("index_add", lambda x: x.index_add(0, torch.arange(3), x)),
            ("huber_loss", lambda x: F.huber_loss(x, x)),
        ],
    )
    def test_refused(self, name, function):
        """An operation without a handler is named."""
        with pytest.raises(poptorch.Error) as caught:
            traced(function, x_of(3))
        assert f"Unsupported ops found in compiled model: [aten::{name}]. Not all operations are" in str(caught.value)

    def test_all_are_named(self):
        """All of them, each once."""
        with pytest.raises(poptorch.Error, match=r"\[aten::lerp, aten::sgn\]"):
            traced(lambda x: x.lerp(x, 0.5).sgn().sgn(), x_of(3))

    def test_no_meta_implementation(self):
        """An operation whose shape torch cannot infer is an error."""
        with pytest.raises((poptorch.Error, RuntimeError)):
            traced(lambda x: torch.linalg.eig(x)[0], x_of(3, 3))

    def test_in_place_shapes(self):
        """PopTorch handles two such operations; the others are not modelled, which the error says."""

        def reshaped(x):
            y = x * 2
            y.transpose_(0, 2).add_(1)
            y.squeeze_()
            return y, y @ y.t()

        x = x_of(4, 1, 3)
        assert all(map(torch.equal, traced(reshaped, x)(x), reshaped(x)))
        for change in (lambda x: x.clone().t_(), lambda x: x.clone().unsqueeze_(0)):
            with pytest.raises(poptorch.Error, match="does not model"):
                traced(change, x_of(4, 3))

    def test_one_hot(self):
        """one_hot takes the number of classes."""
        labels = torch.tensor([0, 2])
        assert torch.equal(traced(lambda t: F.one_hot(t, 3), labels)(labels), F.one_hot(labels, 3).int())
        with pytest.raises(poptorch.Error, match="OneHot num classes must be specified and must be constant"):
            traced(F.one_hot, labels)

    def test_weighted_losses(self):
        """Class weights are refused with PopTorch's texts."""
        x, t = x_of(4, 3), torch.tensor([0, 1, 2, 0])
        with pytest.raises(poptorch.Error, match='Parameter "weight" is unsupported for aten::cross_entropy_loss'):
            traced(lambda x, t: F.cross_entropy(x, t, x[0]), x, t)
        with pytest.raises(poptorch.Error, match='Parameter "weight" is unsupported for aten::nll_loss_nd'):
            traced(lambda x, t: F.nll_loss(x, t, weight=x[0]), x, t)


class TestFunctions:
    """poptorch's own functions."""

    def test_on_the_host(self):
        """identity_loss on the host is the reduction; the advice is the identity."""
        x = x_of(3)
        assert torch.equal(poptorch.identity_loss(x, "sum"), x.sum())
        assert torch.equal(poptorch.identity_loss(x, "mean"), x.mean())
        assert torch.equal(poptorch.identity_loss(x, "none"), x)
        assert poptorch.nop(x) is x

    @pytest.mark.parametrize("reduction", [0, 1, None, "max"])
    def test_reduction(self, reduction):
        """A reduction is one of three strings."""
        with pytest.raises(AssertionError, match="Unsupported reduction type!"):
            poptorch.identity_loss(x_of(3), reduction)

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

    def test_custom_op(self):
        """There is no SDK to compile a custom operation with."""
        with pytest.raises(poptorch.Error, match="Poplar SDK"):
            poptorch.custom_op([x_of(3)], "Cube", "custom.ops", 1, example_outputs=[x_of(3)])


def test_modules_can_be_copied_in_forward_of_the_host():
    """Recording leaves nothing behind: a module of which forward was recorded is an ordinary one."""
    net = nn.Linear(3, 2)
    executor = poptorch.inferenceModel(net)
    executor(x_of(4, 3))
    assert type(copy.deepcopy(net).weight) is nn.Parameter
    assert net.weight.device.type == "cpu"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_under_a_mode_of_torch(mode):
    """no_grad and inference_mode around compilation, or inside of it, change nothing."""

    def function(x):
        with mode():
            return F.linear(x, x).double().reshape(-1)

    x = x_of(3, 3)
    with mode():
        graph = traced(lambda x: F.linear(x, x).double().reshape(-1), x)
    for one in (graph, traced(function, x)):
        assert torch.allclose(one(x), (x @ x.t()).reshape(-1))
        assert one(x.clone().requires_grad_()).requires_grad


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


def test_compiling_inside_of_forward():
    """A model does not compile another."""
    with pytest.raises(poptorch.Error, match="compiled inside of the forward of another"):
        traced(lambda x: traced(lambda y: y, torch.ones(1)) and x, x_of(3))
