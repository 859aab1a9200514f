"""What every kernel backend inherits, shown with a backend whose kernels are a Python loop over plain memory."""

from __future__ import annotations

from typing import Any, Tuple

import pytest
import torch
from torch import Tensor

import spikecore as sc
from kernel_loop import LAYOUTS, SHAPE, Gated, Loop, bound, channels_last, gradients, image, same, twins
from spikecore.backend import BackendError
from spikecore.kernels import KernelRunner, layout_of


@pytest.mark.parametrize(
    ("layout", "of_grad"), [*((name, "contiguous") for name in LAYOUTS), *(("channels-last", name) for name in LAYOUTS)]
)
def test_every_layout_gives_the_same(layout: str, of_grad: str) -> None:
    """Inputs and cotangents of any strides give the values and gradients of contiguous ones."""
    ours, theirs = twins(sc.LIF)
    x = LAYOUTS[layout](image()).requires_grad_()
    g = LAYOUTS[of_grad](image(seed=1))
    x_, g_ = x.detach().contiguous().requires_grad_(), g.contiguous()
    y, y_ = ours(x), theirs(x_)
    same(y, y_)
    same(torch.autograd.grad(y, x, g)[0], torch.autograd.grad(y_, x_, g_)[0])


def test_dense_layouts_are_kept_without_a_copy() -> None:
    """What is dense step by step stays where it is, and results lie as the input does."""
    for name in ("contiguous", "channels-last", "batch last", "part of a batch", "one step"):
        x = LAYOUTS[name](image())
        assert layout_of(x).fit_steps(x) is x, name
    x = channels_last(image())
    neuron = bound(sc.LIF(), Loop())
    assert neuron(x).stride() == x.stride()


@pytest.mark.parametrize(
    ("chunk", "layout", "T"),
    [(0, "contiguous", 6), (0, "channels-last", 1), (4, "contiguous", 6), (4, "channels-last", 20)],
)
def test_everything_at_once(chunk: int, layout: str, T: int) -> None:
    """Several inputs and outputs, state, record and learnt parameters of all kinds have the reference's values and
    gradients.
    """

    def make() -> sc.Neuron:
        generator = torch.Generator().manual_seed(3)
        return Gated(
            tau=2.0 + torch.rand(4, generator=generator),
            a=torch.rand(SHAPE[1:], generator=generator),
            start=torch.tensor(0.3),
            learn=("tau", "a", "start"),
        )

    ours, theirs = twins(make, chunk)
    found = []
    for neuron in (ours, theirs):
        for given in (False, True):
            xs = [LAYOUTS[layout](image(T, seed=s)).requires_grad_() for s in (0, 1)]
            state = {n: image(1, seed=s)[0].requires_grad_() for n, s in (("v", 5), ("w", 6))} if given else None
            (a, b), end, trace = neuron.run(*xs, state=state, record=("w", "v"))
            results = [a, b, end["w"], trace["v"]]
            cotangents = [image(T, seed=9), image(T, seed=10)[:1].expand_as(b), image(1, seed=11)[0], image(T, seed=12)]
            wanted = [*xs, *neuron.parameters(), *((state or {}).values())]
            found.append([*results, end["v"], trace["w"], *gradients(results, wanted, cotangents)])
    half = len(found) // 2
    for ours_, theirs_ in zip(found[:half], found[half:]):
        same(ours_, theirs_, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (1, 1), (3,)])
def test_empty_and_small(shape: Tuple[int, ...]) -> None:
    """No steps, no neurons and single ones are no special cases to the user."""
    ours, theirs = twins(lambda: sc.LIF(learn=("tau", "v_reset")))
    found = []
    for neuron in (ours, theirs):
        x = torch.ones(shape, requires_grad=True)
        y, end, trace = neuron.run(x, record=("v",))
        wanted = [x, *neuron.parameters()]
        found.append([y, end["v"], trace["v"], *gradients([y, end["v"]], wanted, [y + 1, end["v"] + 1])])
    same(*found)


def test_gradient_for_some_only() -> None:
    """Each input, state and parameter alone gets its gradient, and no work is done for the others."""
    ours, theirs = twins(lambda: Gated(tau=torch.tensor(2.0), learn=("tau",)))
    for wants in ("x", "gate", "v", "w", "tau", "nothing"):
        found = []
        for neuron in (ours, theirs):
            x, gate, v, w = (image(seed=i) if i < 2 else image(1, seed=i)[0] for i in range(4))
            named = {"x": x, "gate": gate, "v": v, "w": w, "tau": neuron.tau.detach()}
            neuron.tau.requires_grad_(wants == "tau")
            target = neuron.tau if wants == "tau" else named.get(wants)
            if target is not None:
                target.requires_grad_()
            (_, b), end = neuron.run(x, gate, state={"v": v, "w": w})
            assert b.requires_grad == (wants != "nothing")
            if wants != "nothing":
                found.append(gradients([b, end["v"]], [target], [image(seed=7), image(1, seed=8)[0]]))
        if found:
            same(*found, rtol=1e-4, atol=1e-5)


def test_no_steps_give_a_state_of_its_own() -> None:
    """With T = 0 the final state and the trace share no memory with what was given, nor within themselves."""
    neuron = bound(sc.LIF(), Loop())
    given = {"v": torch.rand(3, 4)}
    _, state, trace = neuron.run(torch.rand(0, 3, 4), state=given, record=("v",))
    state["v"].zero_()
    assert given["v"].abs().sum() > 0
    assert trace["v"].shape == (0, 3, 4)
    neuron.run(torch.rand(0, 3, 4))[1]["v"].add_(1.0)


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


@pytest.mark.parametrize(("kind", "T"), [*((kind, 6) for kind in sorted(NEURONS)), ("numbers", 3)])
def test_the_bits_are_those_of_the_runner(kind: str, T: int, monkeypatch: Any) -> None:
    """Outputs and gradients of the first call and of later ones, of which none takes the runner."""
    neuron = made(kind)
    with monkeypatch.context() as patched:
        only_bound(patched)
        first = results(neuron, drive(T))
        assert all(torch.equal(a, b) for a, b in zip(first, results(neuron, drive(T))))
        with torch.no_grad():
            assert torch.equal(neuron(drive(T)), first[0])
    monkeypatch.setattr(KernelRunner, "bind", lambda *_: None)
    for ours, theirs in zip(first, results(made(kind), drive(T))):
        assert torch.equal(ours, theirs)
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())


def images(T: int) -> Tensor:
    """Inputs ``[T, B, C, H, W]``."""
    return torch.stack([drive(T), drive(T, 1), drive(T, 2)], -1)


ORDERS = ("channels-last", "batch last", "batch first", "part of a batch", "every other")


@pytest.mark.parametrize(
    ("kind", "order"), [*(("channels", order) for order in ORDERS), ("two states", "channels-last")]
)
def test_other_orders(kind: str, order: str, monkeypatch: Any) -> None:
    """Inputs that are not contiguous have plans of their own, in turn with contiguous ones and other cotangents."""
    inputs = [LAYOUTS[name](images(6)) for name in ("contiguous", order, "contiguous", order)]
    cotangents = [torch.cos(inputs[k]) for k in (0, 1, 1, 0)]
    neuron = made(kind)
    found = [results(neuron, x, grad) for x, grad in zip(inputs, cotangents)]
    monkeypatch.setattr(KernelRunner, "bind", lambda *_: None)
    for ours, x, grad in zip(found, inputs, cotangents):
        for one, other in zip(ours, results(made(kind), x, grad)):
            assert torch.equal(one, other)
            assert (one.dtype, one.stride()) == (other.dtype, other.stride())


class TestUnusual:
    """What is unusual about a call does not change its numbers."""

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

    def test_a_parameter_of_another_dtype(self) -> None:
        """Float16 parameters are computed with in float32, and get their gradient in float16."""
        neuron = made("scalar").half()
        found = results(neuron, drive())
        assert [g.dtype for g in found[2:]] == [torch.float16] * 2
