"""Feedback through a matrix: the loop over the steps is within the kernel, and nothing depends on how it is run."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import pytest
import torch
from torch import nn

import spikecore as sc


def layer(neuron: Any, width: int, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """A recurrent layer whose weights are multiples of 1/8, with which sums of spikes are exact."""
    linear = nn.Linear(width, width).to(dtype)
    draw = torch.Generator().manual_seed(width)
    with torch.no_grad():
        for value in linear.parameters():
            value.copy_((torch.randn(value.shape, generator=draw, dtype=torch.float64) * 3).round() / 8)
    return sc.Recurrent(neuron, linear, **options).to(dtype)


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def results(net: Any, x: torch.Tensor, record: Sequence[str] = ()) -> Tuple[List[torch.Tensor], Dict[str, Any]]:
    """All that a call gives, and all gradients for a cotangent of each."""
    net.zero_grad()
    x = x.detach().clone().requires_grad_()
    out, state, *trace = net.run(x, record=record)
    given = [out, *state.values(), *(trace[0].values() if trace else ())]
    torch.autograd.backward(given, [drawn(*value.shape, dtype=value.dtype, seed=k) for k, value in enumerate(given)])
    return [value.detach() for value in given], {"x": x.grad, **{n: p.grad for n, p in net.named_parameters()}}


def test_threads_change_nothing() -> None:
    """Rows of the batch run on several threads; every bit stays."""
    net, x = layer(sc.LIF(learn=("tau",), backend="numba"), 64, torch.float32), drawn(40, 67, 64, dtype=torch.float32)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(results(net, x))
    finally:
        torch.set_num_threads(before)
    for values, gradients in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(values, found[0][0]))
        # the gradient of the matrix and of tau are sums by torch
        assert torch.equal(gradients["x"], found[0][1]["x"])


def test_many_steps_in_chunks_of_history() -> None:
    """More steps than a core's cache holds the states of: the kernel computes them twice, with the same gradients."""
    x, wide = drawn(6000, 1, 48) * 2, layer(sc.ALIF(backend="numba"), 48)
    _, gradients = results(wide, x)
    wide.fused = False
    sc.set_backend(wide, "torch")
    _, expected = results(wide, x)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-10)


class Gates(sc.Neuron):
    """Three inputs, of which all are fed back, and a parameter that is learnt."""

    inputs, states, params = ("i", "f", "g"), {"c": 0.0}, {"a": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """A gated sum."""
        c = s.c * sc.ops.sigmoid(x.f) + self.spike(x.i) * x.g * p.a
        return self.spike(c - 0.25) + c, {"c": c}


@pytest.mark.parametrize(("batch", "width"), [((3,), 5), ((2, 3), 33), ((), 7), ((2,), 1040), ((129,), 1030)])
def test_inputs_side_by_side_are_inputs(batch: Tuple[int, ...], width: int) -> None:
    """A packed input, which kernels read as it is, with blocks within a row of one input, on one thread and several."""
    neuron, linear = Gates(learn=("a",), backend="numba"), nn.Linear(width, 3 * width).double()
    packed, apart = (sc.Recurrent(neuron, linear, into=("i", "f", "g"), packed=flag).double() for flag in (True, False))
    steps = 4 if width > 1000 else 40
    x, first = drawn(steps, *batch, 3 * width), {"c": drawn(*batch, width), "feedback": drawn(*batch, width, seed=1)}
    found = []
    for net in (packed, apart):
        leaf = x.clone().requires_grad_()
        net.zero_grad()
        # what autograd saves lies elsewhere, and dense, when it comes back
        with torch.autograd.graph.save_on_cpu():
            out, state, trace = net.run(*([leaf] if net.packed else leaf.chunk(3, -1)), state=first, record=("c",))
        given = [out, *state.values(), *trace.values()]
        torch.autograd.backward(given, [drawn(*value.shape, seed=k) for k, value in enumerate(given)])
        found.append(([value.detach() for value in given], [leaf.grad, *[p.grad for p in net.parameters()]]))
    # a product of another size may add up in another order
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-11)
