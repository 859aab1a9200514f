"""cupy's sums over channels: statistics of an input, and kernels that normalise."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.backend import Spec
from spikecore.context import COMPILES
from spikecore.kernels import Geometry
from spikecore.layers import NormNeuron
from spikecore.testing import installed
from spikecore.testing.custom import AdaptiveLIF
from spikecore_cupy import launcher
from spikecore_cupy.forms import form_of
from spikecore_cupy.host import HostBackend, HostBlocks, HostBlocksBackend, HostKernel, reason
from spikecore_cupy.sums import Statistics
from spikecore_cupy.text import Form

#: Marks of tests that build kernels by g++.
MARKS = (pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason())))


def on_cpu(test):
    """Puts the marks on a test."""
    for mark in MARKS:
        test = mark(test)
    return test


def _image(dtype, layout, sizes=(4, 3, 8, 4, 4)):
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(1)) * 2 + 3
    x[:, :, 0] += 1000  # a mean of five hundred deviations
    x[0, 0, 1] = 500  # and numbers far from all others
    x = x.to(dtype)
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(x.shape) if layout == "last" else x


def _lies(x):
    return (1 if x.stride(2) == 1 else x[0, 0, 0].numel(), x.shape[2])


@on_cpu
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("sizes", [(4, 3, 8, 4, 4), (7, 2, 6, 3, 1), (5, 3, 24, 6, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kernel", [HostKernel, HostBlocks])
def test_statistics_are_those_of_float64(dtype, sizes, layout, kernel):
    """Mean, 1 / standard deviation and moved running statistics, far from 0 and beside numbers far off."""
    x, spec = _image(dtype, layout, sizes), Spec(dtype, sizes[0], ())
    mean, variance = torch.full((sizes[2],), 0.25, dtype=spec.compute), torch.full((sizes[2],), 2.0, dtype=spec.compute)
    calls = torch.tensor(4)
    geometry = Geometry(sizes[0], x[0].numel(), (_lies(x),))
    found = Statistics(kernel, spec)(geometry, x, 1e-5, (mean, variance, calls, 0.25))
    numbers = x.double().transpose(0, 2).flatten(1)
    wanted = [numbers.mean(1), (numbers.var(1, unbiased=False) + 1e-5).rsqrt()]
    moved = [0.75 * 0.25 + 0.25 * wanted[0], 0.75 * 2.0 + 0.25 * numbers.var(1)]
    for mine, its in zip([*found, mean, variance], [*wanted, *moved]):
        torch.testing.assert_close(mine.double(), its, rtol=2e-5, atol=1e-6)
    assert calls.item() == 5


@on_cpu
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
@pytest.mark.parametrize(("kernel", "layout"), [(HostKernel, "last"), (HostBlocks, "first")])
def test_statistics_of_nan_are_nan(kernel, layout, odd):
    """Of the channel with it alone, the running variance included: 0 in its place would look like a number."""
    x = torch.randn(4, 3, 8, 4, 4, generator=torch.Generator().manual_seed(1))
    x[1, 2, 5, 0, 3] = odd
    x = x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(x.shape) if layout == "last" else x
    running = torch.zeros(8), torch.ones(8)
    geometry = Geometry(4, x[0].numel(), (_lies(x),))
    found = Statistics(kernel, Spec(torch.float32, 4, ()))(geometry, x, 1e-5, (*running, torch.tensor(0), 0.25))
    for one in (found[1], running[1]):
        assert one.isnan().nonzero().flatten().tolist() == [5]
    for one in (found[0], running[0]):
        assert (~one.isfinite()).nonzero().flatten().tolist() == [5]


@on_cpu
def test_autograd_knows_that_running_statistics_moved():
    """A graph that saved them, of a call in eval mode, is refused as after a call of torch's own normalisation."""
    with installed(HostBackend, devices=("cpu",)) as name:
        norm = torch.nn.BatchNorm2d(8)
        layer = NormNeuron(norm, sc.LIF(backend=name), fused=True)
        layer(_image(torch.float32, "first"))
        versions = [buffer._version for buffer in norm.buffers()]
        layer(_image(torch.float32, "first"))
        assert all(buffer._version > before for buffer, before in zip(norm.buffers(), versions))
        assert int(norm.num_batches_tracked) == 2


@on_cpu
@pytest.mark.skipif(not COMPILES, reason="torch.compile of what spikecore computes needs torch 2.6")
@pytest.mark.parametrize(
    ("layout", "sizes"), [("last", (4, 3, 8, 4, 4)), ("first", (2, 2, 3, 257, 1))], ids=["by kernels", "by torch"]
)
def test_a_compiled_network_moves_running_statistics_as_an_eager_one(layout, sizes):
    """Two calls in training: outputs, gradients, and running statistics, which an op in the graph writes. Of channels
    that no block takes, torch's operations find the statistics.
    """
    with installed(HostBlocksBackend, devices=("cpu",)) as name:
        eager = NormNeuron(_norm(sizes[2]), sc.LIF(backend=name), fused=True)
        compiled = copy.deepcopy(eager)
        run = torch.compile(compiled, fullgraph=True, backend="aot_eager")
        x, found = _image(torch.float32, layout, sizes), []
        for layer, call in ((eager, eager), (compiled, run)):
            leaf = x.clone().requires_grad_()
            outputs = [call(leaf), call(leaf + 1)]
            torch.autograd.backward(outputs, [torch.linspace(-1.0, 2.0, x.numel()).view(x.shape)] * 2)
            found.append([*outputs, leaf.grad, *(p.grad for p in layer.parameters()), *layer.buffers()])
    for its, mine in zip(*found):
        torch.testing.assert_close(mine, its)
    assert int(compiled.norm.num_batches_tracked) == 2


@on_cpu
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("sizes", [(4, 5, 8, 4, 4), (4, 3, 24, 6, 4), (18, 2, 8, 4, 2), (2, 2, 6, 3, 1)], ids=str)
def test_blocks_of_many_threads_compute_the_same(sizes, layout):
    """All threads of a block add up channels: outputs, gradients and running statistics of torch, whatever the way in
    which channels lie in a block; twice the same bits.
    """
    x = _image(torch.float32, layout, sizes)
    x[:, :, 0] -= 1000
    x[0, 0, 1] = 5
    _same_as_torch([x])


@on_cpu
@pytest.mark.parametrize("layout", ["first", "last"])
def test_blocks_of_many_threads_normalise_a_shortcut(layout):
    """Two inputs have statistics, sums and corrections of their own."""
    x = _image(torch.float32, layout, (4, 3, 24, 6, 4))
    x[:, :, 0] -= 1000
    x[0, 0, 1] = 5
    _same_as_torch([x, 2 * x.flip(0) + 1], shortcut="before", shortcut_norm=_norm(24))


@on_cpu
def test_a_saved_input_may_lie_otherwise_in_each_pass():
    """Beside a shortcut, hooks give a dense copy of x to one backward pass, and every second step of a tensor to the
    next.
    """

    def gradients(backend):
        generator = torch.Generator().manual_seed(1)
        layer = NormNeuron(_norm(4), sc.LIF(2.0, backend=backend), shortcut="before", fused=True)
        found = []
        for pack in (torch.Tensor.contiguous, torch.Tensor.detach):
            wide, skip = (torch.randn(n, 2, 4, 5, 5, generator=generator).requires_grad_() for n in (12, 6))
            x = wide[::2]
            with torch.autograd.graph.saved_tensors_hooks(pack, torch.Tensor.detach):
                y = layer(x, skip)
            found += torch.autograd.grad(y, (wide, skip), torch.cos(torch.arange(y.numel())).view(y.shape))
        return found

    with installed(HostBackend) as name:
        for mine, its in zip(gradients(name), gradients("torch")):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)


@on_cpu
@pytest.mark.parametrize("sizes", [(18, 5, 8, 4, 4), (18, 3, 24, 6, 3), (4, 2, 8, 4, 2), (18, 3, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_many_threads_add_up_learnt_parameters(dtype, sizes):
    """Two parameters of each channel, of any shape of a channel: torch's gradients, and twice the same bits."""
    x = (torch.rand(sizes, generator=torch.Generator().manual_seed(1)) * 2).to(dtype)
    weights = torch.rand(sizes, generator=torch.Generator().manual_seed(2)).to(dtype)
    tau, threshold = torch.linspace(1.5, 3.0, sizes[2]), torch.linspace(0.5, 1.0, sizes[2])
    found = []
    with installed(HostBlocksBackend, devices=("cpu",)) as name:
        for backend in (name, name, "torch"):
            neuron = sc.LIF(tau, threshold=threshold, learn=("tau", "threshold"), backend=backend)
            found.append(torch.autograd.grad((neuron(x) * weights).float().sum(), [neuron.tau, neuron.threshold]))
    assert all(torch.equal(one, other) for one, other in zip(*found[:2]))
    torch.testing.assert_close(found[0], found[2], rtol=1e-3, atol=1e-3)


def _norm(channels):
    norm = torch.nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 1.5, channels))
        norm.bias.copy_(torch.linspace(-0.2, 0.5, channels))
    return norm


def _same_as_torch(inputs, **options):
    """Outputs, gradients and running statistics of torch; twice the same bits."""
    found = []
    with installed(HostBlocksBackend, devices=("cpu",)) as name:
        for backend, fused in ((name, True), (name, True), ("torch", False)):
            neuron = sc.LIF(backend=backend, detach_reset=True)
            layer = NormNeuron(_norm(inputs[0].shape[2]), neuron, fused=fused, **copy.deepcopy(options))
            leaves = [x.clone().requires_grad_() for x in inputs]
            y = layer(*leaves)
            y.backward(torch.linspace(-1.0, 2.0, y.numel()).view(y.shape))
            found.append([y, *(x.grad for x in leaves), *(p.grad for p in layer.parameters()), *layer.buffers()])
    for mine, again, its in zip(*found):
        assert torch.equal(mine, again)
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


# -- kernels that normalise: what is computed again, and how blocks share the images of a batch

#: With what is kept in registers and with what is computed again, where nobody asks otherwise.
STEPS = [4, 10, 33]
NEURONS = {"LIF": sc.LIF, "soft": lambda **o: sc.LIF(reset="soft", **o), "two states": AdaptiveLIF}


def _drawn(steps: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(steps, 2, 8, 2, 4, generator=torch.Generator().manual_seed(steps)) * 2 + 1
    return x.to(dtype)


def _results(make: Any, x: Tensor, backend: str) -> List[Tensor]:
    norm = torch.nn.BatchNorm2d(x.shape[2])
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 1.5, x.shape[2]))
    layer = NormNeuron(norm, make(backend=backend), fused=True if backend != "torch" else None)
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    y.backward(torch.linspace(-1.0, 2.0, y.numel()).view(y.shape).to(y.dtype))
    return [y, leaf.grad, *(parameter.grad for parameter in layer.parameters())]  # type: ignore[list-item]  # there


@on_cpu
@pytest.mark.matrix(turn=0)
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("steps", STEPS)
def test_what_is_computed_again_has_the_same_bits(
    steps: int, dtype: torch.dtype, neuron: str, monkeypatch: Any
) -> None:
    """A kernel that computes again what a step gave, and one that keeps it, give the same bits, and the numbers of the
    reference for the same input in float32.
    """
    x, found = _drawn(steps, dtype), []
    for again in (False, True):

        def form(plan: Any, again: bool = again) -> Form:
            return form_of(plan)._replace(again=again)

        monkeypatch.setattr(launcher, "form_of", form)
        with installed(HostBackend, devices=("cpu",)) as name:
            found.append(_results(NEURONS[neuron], x, name))
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else {"rtol": 1e-4, "atol": 1e-4}
    for kept, computed, reference in zip(*found, _results(NEURONS[neuron], x.float(), "torch")):
        assert torch.equal(kept, computed)
        torch.testing.assert_close(kept.float(), reference, **near)
