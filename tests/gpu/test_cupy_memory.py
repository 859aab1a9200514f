"""Where tensors lie, how large they are, and how much memory a step takes."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import pytest
import torch
from torch import Tensor

import spikecore as sc

pytestmark = pytest.mark.gpu

Noise = Callable[..., Tensor]


@pytest.mark.parametrize("steps", [3, 17])
def test_indices_go_beyond_32_bits(steps: int, noise: Noise) -> None:
    """Tensors of more than 2**31 numbers are read and written to their ends, forward and backward."""
    size = 2**31 // steps + 1064
    size += size % 2
    needed = 2 * steps * size * 4
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < needed:
        pytest.skip(f"needs {needed / 1e9:.0f} GB of GPU memory; {free / 1e9:.0f} GB are free")
    assert steps * size > 2**31
    neuron, ends = sc.LIF(backend="cupy"), 4096
    x = torch.zeros(steps, size, device="cuda", dtype=torch.float16)
    small = noise(steps, ends, dtype=torch.float16)
    x[:, :ends], x[:, -ends:] = small, small
    x.requires_grad_()
    small.requires_grad_()
    out, right = neuron(x), neuron(small)
    one = torch.ones((), device="cuda", dtype=torch.float16)
    (expected,) = torch.autograd.grad(right, [small], one.expand_as(right))
    assert right.any()
    assert torch.equal(out[:, :ends], right)
    assert torch.equal(out[:, -ends:], right)
    assert not out[:, ends:-ends].any()
    (grad,) = torch.autograd.grad(out, [x], one.expand_as(out))
    assert torch.equal(grad[:, :ends], expected)
    assert torch.equal(grad[:, -ends:], expected)


def peak(work: Callable[[], Any]) -> int:
    """The most bytes that are allocated at a time, beyond those before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def training_step(neuron: sc.Neuron, x: Tensor, weight: Tensor) -> Tuple[Tensor, ...]:
    """Spikes and the gradient of the input, for a gradient that the next layer has made."""
    out = neuron(x)
    return (out, *torch.autograd.grad(out, [x], weight))


@pytest.mark.parametrize("steps", [16, 32, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_training_step_needs_two_of_its_input(steps: int, dtype: torch.dtype, noise: Noise) -> None:
    """Spikes and gradient are as large as the input; what backward needs besides is at most 17 % of it: a
    float32 state for every twelfth step of a 16-bit input.
    """
    x = noise(steps, 2**25 // steps, dtype=dtype).requires_grad_()
    weight, neuron = torch.ones_like(x), sc.LIF(backend="cupy")
    training_step(neuron, x, weight)
    size = x.numel() * x.element_size()
    assert peak(lambda: training_step(neuron, x, weight)) <= 2.17 * size
