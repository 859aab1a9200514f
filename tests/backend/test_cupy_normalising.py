"""Backward kernels of programs that normalise: what is computed again, so that a thread's registers do, and how blocks
share the images of a batch.
"""

from __future__ import annotations

import re
from typing import Any, List

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.bench._workloads import TwoStates
from spikecore.layers import NormNeuron
from spikecore.testing._loopback import installed
from spikecore_cupy import launcher
from spikecore_cupy.device import OPTIONS, headers
from spikecore_cupy.forms import form_of, span_of
from spikecore_cupy.host import HostBackend, reason
from spikecore_cupy.text import Form

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]
#: With what is kept in registers and with what is computed again, where nobody asks otherwise.
STEPS = [4, 6, 10, 16, 33]
NEURONS = {"LIF": sc.LIF, "soft": lambda **o: sc.LIF(reset="soft", **o), "two states": TwoStates}


def _results(make: Any, x: Tensor, backend: str) -> List[Tensor]:
    norm = torch.nn.BatchNorm2d(x.shape[2])
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 1.5, x.shape[2]))
    layer = NormNeuron(norm, make(backend=backend), fused=True if backend != "torch" else None)
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    y.backward(torch.linspace(-1.0, 2.0, y.numel()).view(y.shape).to(y.dtype))
    return [y, leaf.grad, *(parameter.grad for parameter in layer.parameters())]  # type: ignore[list-item]  # there


def _image(steps: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(steps, 2, 8, 2, 4, generator=torch.Generator().manual_seed(steps)) * 2 + 1
    return x.to(dtype)


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
    x, found = _image(steps, dtype), []
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


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("steps", "neuron"), [(6, "LIF"), (10, "LIF"), (16, "LIF"), (32, "LIF"), (6, "two states"), (20, "two states")]
)
def test_registers_do_for_a_thread(steps: int, neuron: str, monkeypatch: Any) -> None:
    """Compiled for an H100, backward kernels in bfloat16 keep no more of a thread in memory than a few numbers."""
    from cupy_backends.cuda.libs import nvrtc

    printed: List[str] = []
    shared = launcher.shared

    def seen(kernel: Any, name: str, text: str, types: Any) -> Any:
        printed.append(text)
        return shared(kernel, name, text, types)

    monkeypatch.setattr(launcher, "shared", seen)
    with installed(HostBackend, devices=("cpu",)) as name:
        _results(NEURONS[neuron], _image(steps, torch.bfloat16), name)
    backward = [text for text in printed if "_backward(" in text]
    assert len(backward) == 2
    for text in backward:
        included = headers(text)
        program = nvrtc.createProgram(
            text, "k.cu", [one.encode() for one in included.values()], [*map(str.encode, included)]
        )
        nvrtc.compileProgram(program, (*OPTIONS, "-arch=sm_90", "--ptxas-options=-v"))
        spilled = re.search(r"(\d+) bytes spill stores", str(nvrtc.getProgramLog(program)))
        assert spilled is not None
        assert int(spilled[1]) <= 32


@pytest.mark.parametrize("channels", [64, 128, 256, 1024])
@pytest.mark.parametrize("images", [1, 2, 32, 33, 128])
@pytest.mark.parametrize("blocks", [1, 3, 4, 5, 12])
def test_groups_are_shared_by_all_blocks(channels: int, images: int, blocks: int) -> None:
    """A thread's groups are whole images apart, so that they have one channel, and no multiprocessor computes more than
    a third beyond its share, where there are images enough.
    """
    image, whole = channels * 32 * 32, 4 * 128
    form = Form(4, grid=132 * blocks)
    neurons = images * image
    span = span_of(form, neurons, [(32 * 32, channels)], whole)
    assert 0 < span <= neurons
    assert span % image == 0
    once = 132 * blocks * whole
    slowest = -(-span // once) * -(-neurons // span)
    # what whole images allow: one at a time, or all blocks at once
    assert slowest <= max(1.34 * neurons / once + 1, -(-image // once))


@pytest.mark.parametrize(("channels", "images"), [(4, 128), (64, 3), (64, 1000), (1000, 7)])
@pytest.mark.parametrize("blocks", [1, 3, 5, 12])
def test_the_count_is_the_best_of_all(channels: int, images: int, blocks: int) -> None:
    """Channels innermost: no other number of units side by side has fewer groups for the slowest multiprocessor, and
    it is found without trying all of some thousands (which took 9 ms of each launch of a compiled network).
    """
    form, whole = Form(4, grid=132 * blocks), 4 * 128
    neurons, once = images * 1024 * channels, 132 * blocks * whole
    unit = channels
    units, first = neurons // unit, max(1, once // unit)

    def cost(count: int) -> Any:
        return -(-count * unit // once) * -(-units // count), count

    best = min(range(first, min(4 * first + 3, max(units, first)) + 1), key=cost)
    assert span_of(form, neurons, [(1, channels)], whole) == min(neurons, best * unit)


class Driven(sc.Neuron):
    """A bias of each channel, twice: the gradient of ``b`` has a constant factor."""

    states = {"v": 0.0}
    params = {"tau": 2.0, "b": 0.1, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """One step."""
        h = s.v + (x - s.v) / p.tau + 2.0 * p.b
        z = self.spike(h - p.threshold)
        return z, {"v": sc.ops.select(z, 0.0, h)}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("steps", [4, 40])
def test_a_constant_factor_of_a_gradient(steps: int, dtype: torch.dtype, fused: bool) -> None:
    """What every part of a channel's gradient is multiplied by may be a constant: KeyError in 16 bits, and fused."""
    found = []
    for backend, x in (("cupy_host", _image(steps, dtype)), ("torch", _image(steps, dtype).float())):
        with installed(HostBackend, devices=("cpu",)):
            neuron = Driven(b=torch.full((8,), 0.1), learn=("b",), backend=backend)
            net = NormNeuron(torch.nn.BatchNorm2d(8), neuron) if fused else neuron
            y = net(x)
            y.backward(torch.linspace(-1.0, 2.0, y.numel()).view(y.shape).to(y.dtype))
            found.append([y.float(), neuron.b.grad])
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else {"rtol": 1e-4, "atol": 1e-4}
    for mine, reference in zip(*found):
        torch.testing.assert_close(mine, reference, **near)
