"""Feedback through a matrix: the loop over the steps is within the kernel, and nothing depends on how it is run."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import pytest
import torch
from torch import nn

import spikecore as sc
from feedback_changes import CHANGES, check_change
from spikecore_numba.backend import NumbaBackend


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


@pytest.mark.parametrize("width", [1, 5, 16])
@pytest.mark.parametrize("steps", [1, 19, 45])
def test_one_launch_gives_what_a_launch_for_each_step_gives(
    monkeypatch: pytest.MonkeyPatch, width: int, steps: int
) -> None:
    """Outputs, states and records to the bit; gradients to rounding. Both ways against a loop over single calls."""
    x = drawn(steps, 3, width) * 2
    net = layer(sc.ALIF(learn=("threshold",), backend="numba"), width, fused=False)
    apart, expected = results(net, x, ("v", "a"))
    net.fused = True
    for whole in (True, False):
        monkeypatch.setattr(NumbaBackend, "feeds_back", lambda self, program, spec, width, whole=whole: whole)
        found, gradients = results(layer_of(net), x, ("v", "a"))
        assert all(torch.equal(a, b) for a, b in zip(found, apart))
        torch.testing.assert_close(gradients, expected, rtol=1e-11, atol=1e-13)


def layer_of(net: Any) -> Any:
    """The layer again, with runners of its own."""
    sc.set_backend(net, "torch")
    sc.set_backend(net, "numba")
    return net


@pytest.mark.parametrize("change", CHANGES)
def test_a_later_call_sees_what_changed(change: str) -> None:
    """Calls of one signature go straight to their launch."""
    check_change("numba", change)


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
