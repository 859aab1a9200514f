"""What every kernel backend inherits, shown with a backend whose kernels are a Python loop over plain memory."""

from __future__ import annotations

from typing import Tuple

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import LAYOUTS, SHAPE, Gated, Loop, bound, channels_last, gradients, image, same, twins
from spikecore.backend import Spec, Unsupported
from spikecore.kernels import KernelRunner, layout_of, with_reciprocals
from spikecore.kernels._layout import Layout
from spikecore.lang import Node, topological
from spikecore.lang.node import const


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of_grad", LAYOUTS)
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


@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("T", [1, 6, 20])
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


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (1, 1), (3,), (0,), (5, 2, 0, 3)])
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    """Outputs and input gradients have the input's dtype; state and parameter gradients that of arithmetic."""
    ours, theirs = twins(lambda: sc.LIF(learn=("tau",)))
    found = []
    for neuron in (ours, theirs):
        x = image(dtype=dtype).requires_grad_()
        y, end = neuron.run(x)
        g = gradients([y, end["v"]], [x, neuron.tau], [image(dtype=dtype, seed=2), torch.ones_like(end["v"])])
        assert (y.dtype, end["v"].dtype, g[0].dtype) == (dtype, sc.backend.compute_dtype(dtype), dtype)
        found.append([y, end["v"], *g])
    same(*found, rtol=1e-2, atol=1e-2) if dtype != torch.float64 else same(*found)


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


def test_divisions_by_what_is_fixed_become_products() -> None:
    """A reciprocal is a division of its own; the nodes that must stay exact stay, and so does any other division."""
    x, y, tau = (Node(*leaf) for leaf in (("input", (), "x"), ("state", (), "y"), ("param", (), "tau")))
    inside, moving = Node("div", (x, tau)), Node("div", (x, y))
    root = Node("add", (Node("div", (inside, tau)), moving))
    new = with_reciprocals(topological([root]), exact={inside}, fixed={tau})
    assert (new[inside], new[moving]) == (inside, moving)
    assert new[root] == Node("add", (Node("mul", (inside, Node("div", (const(1.0), tau)))), moving))


def test_second_derivative_is_refused_in_words() -> None:
    """create_graph alone is fine; differentiating the gradient says what would work."""
    neuron = bound(sc.LIF(), Loop())
    x = torch.ones(4, 3, requires_grad=True)
    (g,) = torch.autograd.grad(neuron(x).sum(), x, create_graph=True)
    with pytest.raises(Unsupported, match="first derivatives only.*backend='torch'"):
        g.square().sum().backward()


def test_carried_state_is_one_long_call() -> None:
    """Chunks of a sequence under carry_state give outputs and gradients of the whole."""
    ours, theirs = twins(lambda: sc.ALIF(2.5))
    x, x_ = (image(9).requires_grad_() for _ in range(2))
    with sc.carry_state(ours):
        y = torch.cat([ours(part) for part in x.split(4)])
    y_ = theirs(x_)
    same(y, y_)
    g = image(9, seed=4)
    same(torch.autograd.grad(y, x, g), torch.autograd.grad(y_, x_, g))


def test_autocast_takes_the_half_input_as_it_is() -> None:
    """Under autocast a neuron behind a linear layer runs on what the layer gives."""
    net = nn.Sequential(nn.Linear(5, 7), bound(sc.LIF(), Loop()))
    with torch.autocast("cpu", torch.bfloat16):
        y = net(torch.randn(4, 3, 5))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert net[0].weight.grad is not None


def test_a_program_has_one_name_everywhere() -> None:
    """The key of the registered ops depends on backend, program and spec alone."""
    spec = Spec(torch.float32, None, ("number",) * 5)
    key = KernelRunner(Loop(), sc.LIF().program, spec).key
    assert key == KernelRunner(Loop(), sc.LIF(3.0).program, spec).key
    assert key != KernelRunner(Loop(), sc.LIF(reset="soft").program, spec).key
    assert key != KernelRunner(Loop(), sc.LIF().program, Spec(torch.float32, 4, ("number",) * 5)).key


def test_layout_finds_the_channel() -> None:
    """Neuron i in the order of memory belongs to channel (i // inner) % C."""
    for name in ("contiguous", "channels-last", "batch last"):
        x = LAYOUTS[name](image())
        layout = layout_of(x)
        labels = torch.arange(4).view(1, 4, 1, 1).expand(SHAPE)
        memory = labels.permute(layout.order).flatten() if layout.order else labels.flatten()
        inner = layout.inner_of(1)
        assert torch.equal((torch.arange(memory.numel()) // inner) % 4, memory), name
    assert Layout((2, 3), None).inner_of(0) == 3


def test_a_view_of_opposite_numbers_is_taken_for_what_it_says() -> None:
    """An input and a cotangent whose memory holds the opposite of their values."""
    neuron, reference = twins(sc.LIF)
    x, grad = image().requires_grad_(), image(seed=1)
    for one in (neuron, reference):
        one(torch._neg_view(-x)).backward(torch._neg_view(-grad))
    ours, x.grad = x.grad, None
    assert ours is not None
    reference(x).backward(2 * grad)
    same(ours, x.grad)


def test_no_steps_give_a_state_of_its_own() -> None:
    """With T = 0 the final state and the trace share no memory with what was given, nor within themselves."""
    neuron = bound(sc.LIF(), Loop())
    given = {"v": torch.rand(3, 4)}
    _, state, trace = neuron.run(torch.rand(0, 3, 4), state=given, record=("v",))
    state["v"].zero_()
    assert given["v"].abs().sum() > 0
    assert trace["v"].shape == (0, 3, 4)
    neuron.run(torch.rand(0, 3, 4))[1]["v"].add_(1.0)
