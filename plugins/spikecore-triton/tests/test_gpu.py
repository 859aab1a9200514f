"""Behaviour that only a GPU shows: streams, devices, graphs, large sizes, and how often the compiler runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spikecore as sc

pytestmark = pytest.mark.gpu

SIZES = """
import torch, spikecore as sc
neuron = sc.LIF(backend="triton")
for n in (16, 32, 160, 4096, 100000, 17, 31, 1000, 100003, 1):
    x = torch.rand(4, n, device="cuda", requires_grad=True)
    neuron(2 * x).sum().backward()
"""


def noise(*shape: int) -> torch.Tensor:
    """Normal numbers on the GPU."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).cuda() + 0.5


def test_sizes_are_not_compiled_for(tmp_path: Path) -> None:
    """Ten sizes take two kernels each way: one for multiples of 16, one for all others."""
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", SIZES], env=env, check=True)
    for direction in ("forward", "backward"):
        # the cotangent of a sum is one number for all, whose steps are no distance apart
        assert len(list(tmp_path.rglob(f"lif_{direction}.ttir"))) <= 3


def test_spikes_are_those_of_the_cpu() -> None:
    """Bit for bit, whatever the device."""
    x = noise(40, 10000)
    assert torch.equal(sc.LIF(2.3, backend="triton")(x).cpu(), sc.LIF(2.3, backend="torch")(x.cpu()))


def test_kernels_run_on_the_current_stream() -> None:
    """Results that a stream computes first are there when the kernel runs on it."""
    neuron = sc.LIF(backend="triton")
    expected = neuron(torch.full((8, 1 << 20), 2.0, device="cuda"))
    x = torch.zeros(8, 1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.fill_(2.0)
        out = neuron(x)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_a_graph_captures_forward_and_backward() -> None:
    """A captured training step, replayed on other numbers, gives what a direct call gives."""
    neuron = sc.PLIF(backend="triton").cuda()
    x = noise(20, 333).requires_grad_()
    neuron(x).sum().backward()  # compiles
    neuron.w.grad = x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = neuron(x)
        found = torch.autograd.grad(out.square().sum(), [x, neuron.w])
    with torch.no_grad():
        x.copy_(noise(20, 333) * 1.7)
    graph.replay()
    expected = neuron(x)
    grads = torch.autograd.grad(expected.square().sum(), [x, neuron.w])
    assert torch.equal(out, expected)
    for a, b in zip(found, grads):
        assert torch.equal(a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_choose_the_device() -> None:
    """A kernel runs where its tensors are, whichever device is the current one."""
    x = noise(5, 100)
    neuron = sc.LIF(backend="triton")
    assert torch.equal(neuron(x.to("cuda:1")).cpu(), neuron(x).cpu())


def test_offsets_go_beyond_32_bits() -> None:
    """A tensor of more than 2**31 numbers is read and written to its end."""
    neurons = (1 << 30) + 16
    if torch.cuda.mem_get_info()[0] < 3 * 2 * 3 * neurons:
        pytest.skip("needs 20 GB of memory")
    x = torch.zeros(3, neurons, device="cuda", dtype=torch.float16)
    x[2] = 3.0
    out = sc.LIF(backend="triton")(x)
    assert not out[:2].any()
    assert out[2].all()
