"""Chunks of steps, blocks of neurons and sums of the kernels: sizes at their bounds give what the reference gives."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Sequence

import pytest
import torch
from torch import Tensor

import spikecore as sc
from shell_nets import Counting

pytestmark = pytest.mark.matrix(turn=2)


#: How close sums in different orders, and approximate divisions in surrogates, come.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def pair(neuron: sc.Neuron, device: str) -> List[sc.Neuron]:
    """The neuron on triton, and a copy of it on the reference; both on the device."""
    other = copy.deepcopy(neuron)
    sc.set_backend(neuron, "triton")
    sc.set_backend(other, "torch")
    return [neuron.to(device), other.to(device)]


def noise(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype).to(device)


def everything(neuron: sc.Neuron, xs: Sequence[Tensor], state: Dict[str, Tensor], seed: int = 50) -> List[Tensor]:
    """Outputs, final states, traces, and the gradients of all that has any."""
    xs = [x.clone().requires_grad_() for x in xs]
    state = {name: value.clone().requires_grad_() for name, value in state.items()}
    out, end, trace = neuron.run(*xs, state=state or None, record=tuple(neuron.states))
    results = [*(out if isinstance(out, tuple) else (out,)), *end.values(), *trace.values()]
    wanted = [*xs, *state.values(), *neuron.parameters()]
    cotangents = [noise(*r.shape, device=str(r.device), seed=seed + i, dtype=r.dtype) for i, r in enumerate(results)]
    pairs = [(r, c) for r, c in zip(results, cotangents) if r.requires_grad]
    found = torch.autograd.grad([r for r, _ in pairs], wanted, [c for _, c in pairs], allow_unused=True)
    return [*results, *(torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted))]


@pytest.mark.parametrize(
    ("steps", "neurons"), [(1, 1), (2, 257), (15, 16), (16, 600), (17, 33), (31, 2), (32, 300), (48, 1), (69, 40)]
)
def test_every_size_gives_the_same(steps: int, neurons: int, device: str) -> None:
    """Chunks of steps, steps left over, blocks and half-empty blocks change nothing."""
    ours, theirs = pair(sc.ALIF(2.5, learn=("tau",)), device)
    x = noise(steps, neurons, device=device) + 0.4
    found = [everything(n, [x], {}) for n in (ours, theirs)]
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert torch.equal(found[0][0], found[1][0])


@pytest.mark.parametrize(("make", "saved"), [(Counting, 1), (sc.LI, 0), (sc.ALIF, 2)], ids=["Counting", "LI", "ALIF"])
@pytest.mark.parametrize("steps", [32, 37])
def test_forward_saves_what_backward_reads(make: Any, saved: int, steps: int, device: str) -> None:
    """The states before every chunk but the first, and of those the ones that gradients need."""
    ours, theirs = pair(make(), device)
    x = noise(steps, 40, device=device) + 0.5
    out = ours(x.clone().requires_grad_())
    assert [kept.shape for kept in out.grad_fn.saved_tensors[1:]] == [((steps - 1) // 16, 40)] * saved
    for a, b in zip(everything(ours, [x], {}), everything(theirs, [x], {})):
        torch.testing.assert_close(a, b, **CLOSE)


def test_one_step_may_stand_for_all(device: str) -> None:
    """An input expanded over time, and a cotangent expanded over everything, are read as they lie."""
    ours, theirs = pair(sc.LIF(), device)
    found = []
    for neuron in (ours, theirs):
        x = (noise(90, device=device) + 1).requires_grad_()
        neuron(x.expand(20, 90)).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, **CLOSE)


def test_lanes_without_a_neuron_add_nothing(device: str) -> None:
    """Not even the NaN of a division by a parameter that is not there."""
    neuron = sc.LIF(learn=("tau", "threshold"))
    neuron.tau = torch.nn.Parameter(torch.full((50,), 2.0))
    ours, theirs = pair(neuron, device)
    for neuron in (ours, theirs):
        neuron(noise(4, 50, device=device) + 1).sum().backward()
    torch.testing.assert_close(ours.threshold.grad, theirs.threshold.grad, **CLOSE)


def test_gradients_of_scalars_are_the_same_every_time(device: str) -> None:
    """Partial sums are added in a fixed order."""
    x = noise(9, 3000, device=device) + 0.4
    neuron = sc.PLIF(backend="triton").to(device)
    found = []
    for _ in range(2):
        neuron.w.grad = None
        neuron(x).sum().backward()
        found.append(neuron.w.grad)
    assert found[0] is not None
    assert torch.equal(found[0], found[1])
