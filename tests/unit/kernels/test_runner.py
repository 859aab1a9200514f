"""What every kernel backend inherits, shown with a backend whose kernels are a Python loop over plain memory."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

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


@pytest.mark.parametrize("order", ["channels-last", "batch first", "every other"])
def test_layouts_in_turn(order: str) -> None:
    """One neuron is called with contiguous inputs and with others; each call has plans of its own."""
    ours, theirs = twins(NEURONS["channels"], 4)
    for name in ("contiguous", order, "contiguous", order):
        x = LAYOUTS[name](image())
        same(results(ours, x), results(theirs, x))


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
    """What passed the checks of an earlier call goes straight on only where it is alike."""
    kind, before, after = CHANGES[change]
    neuron = made(kind)
    for options in (before, before, after, after, before):
        for ours, theirs in zip(outcome(neuron, **options), outcome(made(kind), **options)):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


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
