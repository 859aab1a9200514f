"""A single step goes to the kernels without a dimension of time, with the bits of a call of one time step."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from spikecore.kernels import KernelRunner

SHAPE = (4, 6)

NEURONS = {
    "LIF": lambda **kwargs: sc.LIF(backend="numba", **kwargs),
    "learnt": lambda **kwargs: sc.LIF(learn=("tau", "v_reset"), backend="numba", **kwargs),
    "per channel": lambda **kwargs: sc.LIF(torch.linspace(2, 3, 6), learn=("tau",), backend="numba", **kwargs),
    "full": lambda **kwargs: sc.LIF(torch.rand(SHAPE) + 2, backend="numba", **kwargs),
    "two states": lambda **kwargs: sc.ALIF(backend="numba", **kwargs),
    "automatic": lambda **kwargs: sc.LIF(backend="auto", **kwargs),
}


def results(call, neuron, xs):
    """Outputs, states and gradients of steps."""
    outputs = [call(x) for x in xs]
    states = list(neuron.state.values())
    total = sum((out * (k + 0.7)).sum() for k, out in enumerate(outputs)) + sum(state.sum() for state in states)
    grads = torch.autograd.grad(total, [*xs, *neuron.parameters()])
    return [*outputs, *states, *grads]


def drawn(dtype, layout):
    """Inputs of several steps, in a layout."""
    xs = torch.rand((4, *SHAPE), generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)
    return [LAYOUTS[layout](x).detach().requires_grad_() for x in xs]


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "spread": lambda x: torch.stack([x, x], dim=-1)[..., 0],
}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", sorted(NEURONS))
def test_bits_are_those_of_a_call_of_one_time_step(kind, dtype, layout):
    """Outputs, states and gradients, at rest and carried, when the calls are repeated."""
    torch.manual_seed(0)
    single = NEURONS[kind](step="single")
    torch.manual_seed(0)
    carried = NEURONS[kind]()
    for _ in range(3):
        sc.reset(single)
        found = results(single, single, drawn(dtype, layout))
        with sc.carry_state(carried):
            expected = results(lambda x: carried(x.unsqueeze(0)).squeeze(0), carried, drawn(dtype, layout))
        for got, wanted in zip(found, expected):
            assert torch.equal(got, wanted)


def test_the_graph_is_one_node(monkeypatch):
    """A repeated step has no dimension of time in its graph, and takes the short way."""
    lif, x = NEURONS["LIF"](step="single"), torch.rand(SHAPE, requires_grad=True)
    for _ in range(3):
        lif(x).sum().backward()
        sc.detach(lif)
    monkeypatch.setattr(KernelRunner, "__call__", None)
    out = lif(x)
    assert out.grad_fn is lif.state["v"].grad_fn
    assert {before.name() for before, _ in out.grad_fn.next_functions if before} == {"torch::autograd::AccumulateGrad"}


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_results_may_be_changed_in_place(grad):
    """Outputs and states are memory of their own, and no views that torch would refuse to change."""
    found = []
    for disturbed in (False, True):
        lif, xs = NEURONS["LIF"](step="single"), drawn(torch.float32, "contiguous")
        with torch.set_grad_enabled(grad):
            outputs = [lif(x).mul_(2.0) if disturbed else lif(x) * 2.0 for x in xs]
        with torch.no_grad():
            last = lif.state["v"].clone()
            lif.state["v"].fill_(7.0)
        found.append([*outputs, last])
        if grad:
            found[-1] += torch.autograd.grad(sum(out.sum() for out in outputs), xs)
    for got, wanted in zip(*found):
        assert torch.equal(got, wanted)


@pytest.mark.filterwarnings("ignore:backend 'torch' computes instead")
def test_second_derivatives_of_an_automatic_step():
    """The reference computes them, as of a call of one time step."""
    found = []
    for step in ("single", "multi"):
        lif = NEURONS["automatic"](step=step)
        for _ in range(3):
            sc.reset(lif)
            x = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1)).mul(3).requires_grad_()
            out = lif(x) if step == "single" else lif(x.unsqueeze(0)).squeeze(0)
            (first,) = torch.autograd.grad((out * x).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first * first).sum(), x)
        found.append((first, second))
    for got, wanted in zip(*found):
        assert torch.equal(got, wanted)


def test_second_derivatives_of_a_step_are_refused_by_name():
    """With the way out, as of other calls."""
    lif, x = NEURONS["LIF"](step="single"), torch.rand(SHAPE, requires_grad=True)
    for _ in range(3):
        sc.reset(lif)
        (first,) = torch.autograd.grad((lif(x) * x).sum(), x, create_graph=True)
    with pytest.raises(sc.BackendError, match="for a second one choose backend='torch'"):
        first.sum().backward()
