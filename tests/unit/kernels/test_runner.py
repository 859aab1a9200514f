"""The base of every kernel backend, shown with a backend whose kernels are a Python loop over plain memory."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import pytest
import torch
from torch import Tensor

import spikecore as sc
from kernel_loop import LAYOUTS, Loop, bound, channels_last, image
from spikecore.backend import BackendError
from spikecore.kernels import KernelRunner, layout_of


def test_dense_layouts_are_kept_without_a_copy() -> None:
    """A tensor that is dense step by step stays where it is, and results lie as the input does."""
    for name in ("contiguous", "channels-last", "batch last", "part of a batch", "one step"):
        x = LAYOUTS[name](image())
        assert layout_of(x).fit_steps(x) is x, name
    x = channels_last(image())
    neuron = bound(sc.LIF(), Loop())
    assert neuron(x).stride() == x.stride()


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


#: A neuron, what an earlier call of it had, and what the next one has, in the words of :func:`outcome`.
CHANGES: Dict[str, Tuple[str, Dict[str, Any], Dict[str, Any]]] = {
    "the input learns": ("numbers", {"learns": False}, {}),
    "an input of another dtype": ("numbers", {}, {"dtype": torch.bfloat16}),
    "gradients are on": ("channels", {"learns": False, "grad": False}, {"learns": False}),
    "the state learns": ("numbers", {"learns": False, "state": False}, {"learns": False, "state": True}),
    "a parameter learns": ("channels", {"learns": False, "frozen": True}, {"learns": False}),
    "a parameter of another dtype": ("channels", {}, {"tau": torch.linspace(2, 3, C, dtype=torch.float64)}),
    "a parameter of other strides": ("channels", {}, {"tau": torch.linspace(2, 3, 2 * C)[::2]}),
    "a parameter for each neuron": ("channels", {}, {"tau": torch.linspace(2, 3, 2 * C).reshape(C, 2)}),
}


def outcome(
    neuron: sc.Neuron,
    learns: bool = True,
    grad: bool = True,
    state: Optional[bool] = None,
    frozen: bool = False,
    tau: Optional[Tensor] = None,
    dtype: torch.dtype = torch.float32,
) -> List[Any]:
    """Outputs, and gradients of all that learns. ``state``: whether one is given, and learns."""
    for parameter in neuron.parameters():  # in place: a neuron whose attribute is set forgets its calls
        parameter.data = torch.linspace(2, 3, C) if tau is None else tau
        parameter.requires_grad_(not frozen)
    x = drive().to(dtype).requires_grad_(learns)
    start = None if state is None else {"v": torch.full_like(drive()[0], 0.25).requires_grad_(state)}
    with torch.set_grad_enabled(grad):
        out = neuron(x) if start is None else neuron.run(x, state=start)[0]
        leaves = [leaf for leaf in (x, *neuron.parameters(), *(start or {}).values()) if leaf.requires_grad and grad]
        assert out.requires_grad == bool(leaves)
        return [out.detach(), *(torch.autograd.grad(out.cos().sum(), leaves) if leaves else [])]


@pytest.mark.parametrize("change", CHANGES)
def test_a_call_unlike_the_one_before(change: str) -> None:
    """A call goes past the checks only where it is like one that passed them."""
    kind, before, after = CHANGES[change]
    neuron = made(kind)
    for options in (before, before, after, after, before):
        for ours, theirs in zip(outcome(neuron, **options), outcome(made(kind), **options)):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


class TestUnusual:
    """Unusual calls have the same numbers."""

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
