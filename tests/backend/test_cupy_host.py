"""The text of the cupy backend's kernels is right: built by g++, it passes the conformance suite on the CPU.

Beside the suite stand programs that it does not have: values that appear detached beside themselves, and sums of small
layers.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from shell_nets import Counting
from spikecore.kernels import Recent
from spikecore.plugins.registry import default_registry
from spikecore.testing import BackendConformance
from spikecore_cupy import device, host


def check_monitor(backend: str) -> None:
    """Rates, spikes, states and their gradients are those of the reference, in a network with one neuron of each kind
    of call: several steps, fused with its normalisation, fed back, step by step.
    """
    torch.manual_seed(0)
    norm = sc.layers.NormNeuron(nn.BatchNorm1d(8), sc.LIF(), shortcut="before")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.back = norm, sc.Recurrent(sc.ALIF(), nn.Linear(8, 8))
            self.single, self.out = sc.LIF(step="single"), sc.LI()

        def forward(self, x):
            y = self.back(3 * self.norm(2 * x, x))
            return self.out(torch.stack([self.single(4 * now) for now in y]))

    net, found = Net(), {}
    for name in ("torch", backend):
        sc.set_backend(net, name)
        sc.reset(net)
        x = torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with sc.monitor(net, record=("v", "a"), spikes=True, grad=True) as seen:
            net(x)
            loss = sum(layer.v.square().sum() + layer.spikes.sum() for layer in seen.layers)
        found[name] = seen, torch.autograd.grad(loss, x)[0]
    (expected, wanted), (seen, gradient) = found["torch"], found[backend]
    assert list(seen) == ["norm", "back", "single", "out"]
    assert seen.rates == expected.rates
    assert all(0 < rate < 1 for rate in seen.rates.values())
    for one, other in zip(seen.layers, expected.layers):
        torch.testing.assert_close(one.spikes, other.spikes)
        assert one.states.keys() == other.states.keys()
        for state, values in one.states.items():
            torch.testing.assert_close(values, other.states[state], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)


pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("on_host")]


@pytest.mark.matrix(turn=1)
class TestHost(BackendConformance):
    """The cupy backend with its kernels on the CPU."""

    backend = "cupy_host"


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Uniform numbers in [0, 2), the same in each run."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2


def compare(
    make: Callable[..., sc.Neuron], xs: Sequence[Tensor], record: Sequence[str] = (), tolerance: float = 1e-4
) -> List[Tensor]:
    """Outputs, states, records and all gradients are those of the reference; returns the outputs of the kernels."""
    results = []
    for backend in ("cupy_host", "torch"):
        neuron = make(backend=backend)
        leaves = [x.clone().requires_grad_() for x in xs]
        outs, state, *trace = neuron.run(*leaves, record=record)
        outs = outs if isinstance(outs, tuple) else (outs,)
        values = [*outs, *state.values(), *(value for part in trace for value in part.values())]
        cotangents = [torch.cos(torch.arange(value.numel()).view(value.shape) + k) for k, value in enumerate(values)]
        wanted = [*leaves, *neuron.parameters()]
        seeds = [c.to(v.dtype) for c, v in zip(cotangents, values)]
        grads = torch.autograd.grad(values, wanted, seeds, retain_graph=True)
        results.append([*values, *grads])
    for ours, reference in zip(*results):
        assert ours.shape == reference.shape
        torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance, equal_nan=True)
    return results[0]


# -- programs that the suite does not have


@pytest.mark.parametrize(("make", "saved"), [(Counting, 1), (sc.LI, 0), (sc.ALIF, 2)], ids=["Counting", "LI", "ALIF"])
def test_forward_saves_what_backward_reads(make, saved):
    """Of 40 steps, the states before each of the three chunks but the first, those that gradients need."""
    out = compare(make, [drawn(40, 9)])[0]
    assert [tensor.shape for tensor in out.grad_fn.saved_tensors[1:]] == [(2, 9)] * saved


class Both(sc.Neuron):
    """Values of parameters alone and numbers, used as they are and detached."""

    states = {"v": 0.1}
    params = {"a": 0.5, "b": 0.25}

    def dynamics(self, x, s, p):
        detach = sc.ops.detach
        c = p.a * 2.0
        fixed = s.v * detach(c) + x * c + detach(p.b) * s.v + detach(detach(p.b * 3.0)) * x
        h = fixed + detach(1.5 + 0.0 * p.a) + x * p.a + detach(p.a)
        r = detach(h)
        z = self.spike(h - r * 0.5)
        return (z, h * r), {"v": h * 0.5 + detach(z) * z}


@pytest.mark.parametrize(
    ("steps", "shape"), [(3, None), (3, ()), (18, (3,)), (18, (2, 3, 4))], ids=["number", "scalar", "channel", "full"]
)
def test_a_value_and_the_same_value_detached(steps, shape):
    """Both are arguments of a step, under two names, whatever kind of parameter they are computed from."""
    value = 0.5 if shape is None else drawn(*shape, seed=1) / 2
    learn = () if shape is None else ("a",)
    compare(lambda backend: Both(a=value, b=value, learn=learn, backend=backend), [drawn(steps, 2, 3, 4) / 2])


class Bounded(sc.Neuron):
    """Every function of two numbers of one type, beside an infinity or a NaN."""

    states = {"v": 0.5}
    params = {"a": 0.25}

    def dynamics(self, x, s, p):
        ops = sc.ops
        low = ops.clamp(x, 0.0) + ops.clamp(s.v, high=0.5) + ops.clamp(p.a * x, -math.inf, math.inf)
        both = ops.minimum(x, math.inf) + ops.maximum(-math.inf, s.v) + ops.where(x > math.inf, 1.0, 0.0)
        odd = ops.where(x != x, math.nan, ops.maximum(x, -1e400)) + ops.select(
            ops.spike(x, self.surrogate), x, -math.inf
        )
        return (low + both, ops.where(x > 0.5, odd, 0.0)), {"v": low * 0.5 - both * 0.25}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinite_literals(dtype):
    """They have the type of arithmetic: templates take two arguments of one type."""

    def make(backend: str) -> sc.Neuron:
        a = torch.linspace(0.1, 0.5, 8)
        neuron = Bounded(a=a, channel_dim=-1, learn=("a",), backend=backend)
        return neuron.double() if dtype == torch.float64 else neuron

    compare(make, [(drawn(6, 3, 8) * 2 - 2).to(dtype)])


# -- sums over small layers


class Driven(sc.Neuron):
    """Of two parameters that are added to the output, no derivative reads the value."""

    states = {"v": 0.0}
    params = {"tau": 2.0, "drive": 0.25, "offset": 0.0}

    def dynamics(self, x, s, p):
        h = s.v / p.tau + x
        return h + p.drive + p.offset, {"v": h}


SMALL_LAYERS = {
    "the sums of one group": (4, 10),
    "those of several blocks": (16, 10),
    "an odd number of neurons": (3, 7),
    "channels in the middle": (2, 6, 5),
    "one neuron for each channel": (1, 10),
}


@pytest.mark.parametrize("learn", [("tau", "drive"), ("drive",), ("tau", "drive", "offset")], ids="-".join)
@pytest.mark.parametrize(
    ("layer", "kind"), [("channels in the middle", "channel"), ("an odd number of neurons", "full")]
)
def test_gradients_of_a_parameter_whose_value_nobody_reads(layer, kind, learn):
    """Those of each neuron are its own, those of a channel are sums over it alone. They once had the shape of one group
    of neurons, which lay across channels.
    """
    size = SMALL_LAYERS[layer]
    shape = size if kind == "full" else (size[1],)
    tau = torch.linspace(2, 3, size[1]) if kind == "full" else 2.5
    drive = torch.linspace(0, 1, torch.Size(shape).numel()).view(shape)
    compare(lambda backend: Driven(tau=tau, drive=drive, offset=0.125, learn=learn, backend=backend), [drawn(9, *size)])


def test_what_kernels_compute_is_seen():
    """Rates, spikes and states of a monitor, and their gradients, are those of the reference."""
    check_monitor("cupy_host")


# -- libraries on disk


def test_annealing_builds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A surrogate with other numbers has the kernels of the one before. A library that is cut short is built again, and
    never loaded.
    """
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(tmp_path))
    built: List[Any] = []
    run = host.subprocess.run
    monkeypatch.setattr(host.subprocess, "run", lambda *a, **k: built.append(a) or run(*a, **k))
    for again in range(2):
        monkeypatch.setattr(device, "loaded_kernels", Recent(8))
        with default_registry().fresh("cupy_host", "this test"):
            for alpha in (2.0, 3.5, 1e30):
                surrogate = sc.surrogate.ATan(alpha)
                compare(lambda backend, s=surrogate: sc.LIF(3.75, surrogate=s, backend=backend), [drawn(3, 5)])
        assert len(built) == 2 * (again + 1)
        for path in (tmp_path / "compiled-kernels").glob("cupy-host.*.so"):
            path.write_bytes(path.read_bytes()[:4000])


def test_what_was_verified_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From a folder of the process: whoever exchanges the entry after the check changes nothing."""
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(tmp_path))
    text = 'extern "C" int seven() { return 7; }'
    assert host.load_library("seven", text).seven() == 7
    read = host.cache.read

    def exchange(kind: str, name: str) -> Optional[bytes]:
        content = read(kind, name)
        for path in (tmp_path / "compiled-kernels").glob("cupy-host.*"):
            path.write_bytes(b"another library")
        return content

    monkeypatch.setattr(host.cache, "read", exchange)
    monkeypatch.setattr(host.subprocess, "run", None)
    assert host.load_library("seven", text).seven() == 7
