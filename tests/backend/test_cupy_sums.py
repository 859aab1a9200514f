"""cupy's sums over channels: which threads of a block belong together, what blocks leave, statistics of an input."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import Geometry
from spikecore.layers import NormNeuron
from spikecore.testing._loopback import installed
from spikecore_cupy.derivative import is_power_of_two
from spikecore_cupy.host import HostBackend, HostBlocks, HostBlocksBackend, HostKernel, reason
from spikecore_cupy.sums import Statistics, Totals, arrangement


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("most", [1, 128, 256])
@pytest.mark.parametrize(
    ("inner", "channels"),
    [(1, 64), (1, 96), (1, 7), (1, 4096), (1024, 64), (16, 512), (49, 64), (196, 48), (3136, 64), (997, 3), (1, 1)],
)
def test_numbers_of_a_block_are_each_of_one_channel(width, most, inner, channels):
    """What the threads of a block add up, as block_totals() does, lies in one channel: the one that the arrangement
    says for the number that comes of it.
    """
    found = arrangement(width, inner, channels, most)
    if found is None:
        assert (channels if inner == 1 else inner) % width or most > 1
        return
    assert 1 <= found.block <= most
    whole, period = found.block * width, inner * channels
    for first in {0, whole, 5 * whole, (period // whole) * whole}:
        block = first // whole
        number = block * found.numbers
        for k in range(found.numbers):
            if found.lanes:
                group = range(k * found.lanes * width, (k + 1) * found.lanes * width)
            else:
                group = range(k, whole, found.period)
            of = {(first + neuron) // inner % channels for neuron in group}
            assert of == {(number + k) // found.inner % channels}


def test_channels_that_fit_no_block_are_not_arranged():
    """Neurons of a thread in two channels, and rows of a prime number of threads."""
    assert arrangement(4, 1, 6, 128) is None
    assert arrangement(4, 6, 8, 128) is None
    assert arrangement(1, 997, 8, 128) is None


@pytest.mark.kernels
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
@pytest.mark.parametrize(
    ("channels", "inner", "numbers"), [(5, 1, 40), (64, 1, 640), (3, 1, 7), (4, 3, 36), (2, 5, 25)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [HostKernel, HostBlocks])
def test_totals_are_the_sums_of_each_channel(channels, inner, numbers, dtype, kernel):
    """Of several rows, also where the last channels have one number less."""
    parts = torch.randn(2, numbers, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = torch.stack([*Totals(kernel, dtype)(parts, channels, inner)])
    of = torch.arange(numbers) // inner % channels
    wanted = torch.zeros(2, channels, dtype=torch.float64).index_add_(1, of, parts.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def _image(dtype, layout, sizes=(4, 3, 8, 4, 4)):
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(1)) * 2 + 3
    x[:, :, 0] += 1000  # a mean of five hundred deviations
    x[0, 0, 1] = 500  # and numbers far from all others
    x = x.to(dtype)
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(x.shape) if layout == "last" else x


def _lies(x):
    return (1 if x.stride(2) == 1 else x[0, 0, 0].numel(), x.shape[2])


@pytest.mark.kernels
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("sizes", [(4, 3, 8, 4, 4), (1, 2, 3, 5, 5), (7, 2, 6, 3, 1), (5, 3, 24, 6, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
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


@pytest.mark.kernels
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize(("steps", "batch"), [(1, 2), (3, 1), (5, 7), (11, 40), (8, 70)])
@pytest.mark.parametrize("kernel", [HostKernel, HostBlocks])
def test_statistics_of_steps_that_lie_apart(kernel, steps, batch, layout):
    """What lies between them is not read; a thread goes from the groups of one step to those of the next."""
    x = _image(torch.float32, layout, (steps, batch + 2, 8, 8, 8))
    x[:, batch:] = float("nan")
    x = x[:, :batch]
    geometry = Geometry(steps, x[0].numel(), (_lies(x),))
    mean, rstd = Statistics(kernel, Spec(torch.float32, steps, ()))(geometry, x, 1e-5, None)
    numbers = x.double().transpose(0, 2).flatten(1)
    torch.testing.assert_close(mean.double(), numbers.mean(1), rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(rstd.double(), (numbers.var(1, unbiased=False) + 1e-5).rsqrt(), rtol=2e-5, atol=1e-6)


@pytest.mark.kernels
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
@pytest.mark.parametrize("kernel", [HostKernel, HostBlocks])
def test_statistics_of_nan_are_nan(kernel, odd, layout):
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


@pytest.mark.kernels
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
def test_statistics_without_running_ones_move_nothing():
    """And sizes that blocks cannot add up are left to others."""
    x = _image(torch.float32, "last")
    geometry = Geometry(4, x[0].numel(), (_lies(x),))
    find = Statistics(HostKernel, Spec(torch.float32, 4, ()))
    mean, _rstd = find(geometry, x, 1e-5, None)
    torch.testing.assert_close(mean, x.mean((0, 1, 3, 4)), rtol=1e-5, atol=1e-4)


@pytest.mark.kernels
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
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


def test_powers_of_two():
    """Numbers by which a division is a product, for every number that is divided."""
    assert [is_power_of_two(value) for value in (2.0, 0.5, 1.0, 64, 2.0**60)] == [True] * 5
    others = (3.0, 0.0, -2.0, 2.5, 2.0**61, 2.0**-70, float("inf"), float("nan"))
    assert not any(is_power_of_two(value) for value in others)


@pytest.mark.kernels
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
@pytest.mark.parametrize("tau", [2.0, 3.0])
def test_a_division_by_a_power_of_two_is_a_product_of_the_same_bits(tau, monkeypatch):
    """A neuron that normalises gives the potentials that it gives with divisions, and divides by any other number."""
    found = []
    for choose in (is_power_of_two, lambda value: False):
        monkeypatch.setattr("spikecore_cupy.launcher.is_power_of_two", choose)
        with installed(HostBackend, devices=("cpu",)) as name:
            layer = NormNeuron(torch.nn.BatchNorm2d(8), sc.LI(tau=tau, backend=name), fused=True)
            found.append(layer(_image(torch.float32, "last")))
    assert torch.equal(*found)


@pytest.mark.kernels
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("sizes", [(4, 5, 8, 4, 4), (4, 3, 24, 6, 4), (18, 2, 8, 4, 2), (2, 2, 6, 3, 1)], ids=str)
def test_blocks_of_many_threads_compute_the_same(sizes, layout):
    """All threads of a block add up channels: outputs, gradients and running statistics of torch, whatever the way in
    which channels lie in a block; twice the same bits.
    """
    x = _image(torch.float32, layout, sizes)
    x[:, :, 0] -= 1000
    x[0, 0, 1] = 5
    found = []
    with installed(HostBlocksBackend, devices=("cpu",)) as name:
        for backend, fused in ((name, True), (name, True), ("torch", False)):
            norm = torch.nn.BatchNorm2d(sizes[2])
            with torch.no_grad():
                norm.weight.copy_(torch.linspace(0.5, 1.5, sizes[2]))
                norm.bias.copy_(torch.linspace(-0.2, 0.5, sizes[2]))
            layer = NormNeuron(norm, sc.LIF(backend=backend, detach_reset=True), fused=fused)
            leaf = x.clone().requires_grad_()
            y = layer(leaf)
            y.backward(torch.linspace(-1.0, 2.0, y.numel()).view(y.shape))
            found.append([y, leaf.grad, *(p.grad for p in layer.parameters()), *layer.buffers()])
    for mine, again, its in zip(*found):
        assert torch.equal(mine, again)
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
