"""Bound calls: a later call of a signature goes to its plan, with the bits of the runner."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import spikecore as sc
from kernel_loop import LAYOUTS, Loop, bound
from spikecore.backend import BackendError
from spikecore.kernels import KernelRunner

C = 4
NEURONS = {
    "numbers": sc.LIF,
    "scalar": lambda: sc.LIF(learn=("tau", "threshold")),
    "scalar of one": lambda: sc.LIF(tau=torch.tensor([2.0]), learn=("tau",)),
    "channels": lambda: sc.LIF(torch.linspace(2, 3, C), threshold=torch.linspace(0.8, 1, C), learn=("tau",)),
    "not learnt": lambda: sc.LIF(torch.linspace(2, 3, C)),
    "two states": lambda: sc.ALIF(learn=("tau",)),
}


def made(kind: str, chunk: int = 4) -> sc.Neuron:
    return bound(NEURONS[kind](), Loop(chunk))


def drive(T: int = 6, seed: int = 0) -> Tensor:
    return torch.rand(T, 3, C, 2, generator=torch.Generator().manual_seed(seed)) * 3


def results(neuron: sc.Neuron, x: Tensor, cotangent: Any = None) -> Any:
    x = x.clone().requires_grad_()
    out = neuron(x)
    params = [*neuron.parameters()]
    grads = torch.autograd.grad(out, [x, *params], torch.cos(x) if cotangent is None else cotangent)
    return [out.detach(), *grads]


def only_bound(monkeypatch: Any) -> None:
    """Have the runner's own way fail."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("the runner was called")

    monkeypatch.setattr(KernelRunner, "__call__", refused)


@pytest.mark.parametrize("T", [3, 6])
@pytest.mark.parametrize("kind", sorted(NEURONS))
class TestSame:
    """With and without checkpoints."""

    def test_the_bits_are_those_of_the_runner(self, kind: str, T: int, monkeypatch: Any) -> None:
        """Outputs and gradients, with the shape, dtype and layout of each."""
        bound_ = results(made(kind), drive(T))
        monkeypatch.setattr(KernelRunner, "bind", lambda *_: None)
        for ours, theirs in zip(bound_, results(made(kind), drive(T))):
            assert torch.equal(ours, theirs)
            assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())

    def test_neither_the_first_call_nor_a_later_one_takes_the_runner(self, kind: str, T: int, monkeypatch: Any) -> None:
        """Forward and backward; a checkpointed call so saves the same tensors each time."""
        only_bound(monkeypatch)
        neuron = made(kind)
        first = results(neuron, drive(T))
        assert all(torch.equal(a, b) for a, b in zip(first, results(neuron, drive(T))))
        with torch.no_grad():
            assert torch.equal(neuron(drive(T)), first[0])


def images(T: int) -> Tensor:
    """Inputs ``[T, B, C, H, W]``."""
    return torch.stack([drive(T), drive(T, 1), drive(T, 2)], -1)


ORDERS = ("channels-last", "batch last", "batch first", "part of a batch", "every other")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", sorted(NEURONS))
class TestOtherOrders:
    """Inputs that are not contiguous have plans of their own."""

    @pytest.mark.parametrize("T", [3, 6])
    def test_the_bits_are_those_of_the_runner(self, kind: str, order: str, T: int, monkeypatch: Any) -> None:
        """In turn with contiguous inputs, and with cotangents that lie in another way."""
        inputs = [LAYOUTS[name](images(T)) for name in ("contiguous", order, "contiguous", order)]
        cotangents = [torch.cos(inputs[k]) for k in (0, 1, 1, 0)]
        neuron = made(kind)
        found = [results(neuron, x, grad) for x, grad in zip(inputs, cotangents)]
        monkeypatch.setattr(KernelRunner, "bind", lambda *_: None)
        for ours, x, grad in zip(found, inputs, cotangents):
            for one, other in zip(ours, results(made(kind), x, grad)):
                assert torch.equal(one, other)
                assert (one.dtype, one.stride()) == (other.dtype, other.stride())

    def test_the_runner_is_not_called(self, kind: str, order: str, monkeypatch: Any) -> None:
        """Forward and backward, with checkpoints and without."""
        only_bound(monkeypatch)
        neuron = made(kind)
        for T in (6, 6, 3):
            results(neuron, LAYOUTS[order](images(T)).clone())


class TestUnusual:
    """What is unusual about a call does not change its numbers."""

    @pytest.mark.parametrize("kind", ["numbers", "channels"])
    def test_a_cotangent_of_any_layout(self, kind: str) -> None:
        """One number for all, as sum() gives it, one step for all, a transposed one, a negated one."""
        x = drive()
        dense = torch.rand(x.shape)
        for cotangent in (
            torch.tensor(0.5).expand(x.shape),
            dense[:1].expand(x.shape),
            dense.transpose(1, 3).contiguous().transpose(1, 3),
            torch.complex(dense, dense).conj().imag,
        ):
            neuron = made(kind)
            found = results(neuron, x, cotangent)
            wanted = results(neuron, x, cotangent.resolve_neg().contiguous())
            assert all(torch.equal(a, b) for a, b in zip(found, wanted))

    @pytest.mark.parametrize("kind", ["numbers", "channels"])
    def test_an_input_of_any_layout(self, kind: str) -> None:
        """Transposed, and negated without its values being written."""
        x = drive()
        neuron = made(kind)
        wanted = neuron(x)
        assert torch.equal(neuron(x.transpose(1, 3).contiguous().transpose(1, 3)), wanted)
        assert torch.equal(neuron(torch.complex(-x, -x).conj().imag), wanted)
        assert neuron(x[:0]).shape == (0, 3, C, 2)
        assert neuron(x[:, :0]).shape == (6, 0, C, 2)

    def test_saved_tensors_that_lie_elsewhere_by_now(self) -> None:
        """A hook may give back other strides; another dtype is an error."""
        x = drive()
        neuron = made("channels")
        wanted = results(neuron, x)
        other = lambda t: t.transpose(0, -1).contiguous().transpose(0, -1)  # noqa: E731 - a hook
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, other):
            found = results(neuron, x)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.half()), pytest.raises(
            RuntimeError, match="a saved-tensor hook gave back torch.float16"
        ):
            results(neuron, x)

    def test_a_changed_input_is_found(self) -> None:
        """Torch counts the versions of what is saved."""
        x = drive().requires_grad_() * 1
        neuron = made("numbers")
        neuron(x)
        out = neuron(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    def test_second_derivatives_are_refused(self) -> None:
        """The first is the kernel's also under create_graph=True, for a channel's parameter in its own shape."""
        x = drive().requires_grad_()
        neuron = made("channels")
        gx, gtau = torch.autograd.grad(neuron(x), (x, neuron.tau), torch.cos(x.detach()), create_graph=True)
        plain = results(made("channels"), drive(), torch.cos(x.detach()))
        assert torch.equal(gx, plain[1])
        assert torch.equal(gtau, plain[2])
        with pytest.raises(BackendError, match="derives first derivatives only"):
            (gx.sum() + gtau.sum()).backward()

    def test_a_backward_kernel_that_cannot_be_had(self) -> None:
        """The error is the one of every call."""

        class Lame(Loop):
            def backward(self, plan: Any) -> Any:
                raise BackendError("no such kernel")

        x = drive().requires_grad_()
        out = bound(sc.LIF(), Lame(4))(x)
        with pytest.raises(BackendError, match="no such kernel"):
            out.sum().backward()

    def test_a_parameter_of_another_dtype(self) -> None:
        """Float16 parameters are computed with in float32, and get their gradient in float16."""
        neuron = made("scalar").half()
        found = results(neuron, drive())
        assert [g.dtype for g in found[2:]] == [torch.float16] * 2

    def test_gradients_of_some(self) -> None:
        """What was not asked for is not computed."""
        x = drive().requires_grad_()
        neuron = made("scalar")
        wanted = results(neuron, drive())
        for index, source in enumerate((x, neuron.tau, neuron.threshold)):
            (found,) = torch.autograd.grad(neuron(x), source, torch.cos(x.detach()))
            assert torch.equal(found, wanted[1 + index])


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("T", [3, 6])
def test_a_launch_of_dense_tensors(T: int, takes: bool) -> None:
    """A backend may give one for tensors of one size; where it does not take them, the launch of all tensors runs."""
    counted = []

    class Sized:
        def __init__(self, launch: Any, groups: int) -> None:
            self.launch, self.groups = launch, groups

        def __call__(self, *args: Any) -> Any:
            counted.append("all")
            return self.launch(*args)

        def dense(self, geometry: Any, counts: Any) -> Any:
            assert len(counts) == self.groups

            def launch(tensors: Any, params: Any) -> Any:
                counted.append("dense")
                each = iter(tensors)
                groups = [[next(each) for _ in range(count)] for count in counts]
                groups[2] = params
                return (self.launch(geometry, *groups) or ()) if takes else None

            return launch

    class Dense(Loop):
        def forward(self, plan: Any) -> Any:
            return Sized(super().forward(plan), 7)

        def backward(self, plan: Any) -> Any:
            return Sized(super().backward(plan), 9)

    for kind in ("numbers", "channels"):
        neuron = bound(NEURONS[kind](), Dense(4))
        assert all(torch.equal(a, b) for a, b in zip(results(neuron, drive(T)), results(made(kind), drive(T))))
    assert counted == (["dense"] * 4 if takes else ["dense", "all"] * 4)
