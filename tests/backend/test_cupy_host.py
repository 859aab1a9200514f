"""The text of the cupy backend's kernels is right: built by g++, it passes the conformance suite on the CPU."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from spikecore.testing import BackendConformance
from spikecore.testing._loopback import installed
from spikecore.testing.random_programs.edges import TABLE, check_edges, check_paths
from spikecore_cupy.host import HostBackend, reason
from watched import check_monitor

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]


@pytest.fixture(autouse=True, scope="module")
def _on_host():
    with installed(HostBackend, devices=("cpu",)):
        yield


@pytest.mark.matrix(turn=1)
class TestHost(BackendConformance):
    """The cupy backend with its kernels on the CPU."""

    backend = "cupy_host"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("operation", TABLE)
def test_every_operation_at_the_edges(operation, dtype):
    """Values, signs of zero and gradients at NaN, infinities, ties, zeros and subnormals are those of the table."""
    check_edges("cupy_host", operation, dtype=dtype)


def test_where_a_path_is_a_zero_cotangent_counts():
    """Zero times infinity is NaN along a path, and what no path leads to is 0."""
    check_paths("cupy_host")


class Detached(sc.Neuron):
    """A parameter, an expression of it, and both without their gradient."""

    params = {"a": 2.0, "b": 0.5}

    def dynamics(self, x, s, p):
        half = p.a * p.b
        both = sc.ops.detach(half) + x
        return (x * p.a + sc.ops.detach(p.a), half * both, sc.ops.detach(half) * x / sc.ops.detach(p.b)), {}


@pytest.mark.parametrize("size", [(), (3,)])
def test_a_parameter_and_itself_detached_are_one_value(size):
    """A step that takes both takes one of them; values and gradients are those of the reference."""
    x = torch.tensor([[[1.0, 2.0, 3.0]]])
    found = []
    for backend in ("cupy_host", "torch"):
        values = {name: torch.full(size, value) for name, value in (("a", 2.0), ("b", 0.5))}
        neuron = Detached(**values, learn=("a", "b"), backend=backend)
        outs = neuron(x)
        grads = torch.autograd.grad(sum(out.sum() for out in outs), [neuron.a, neuron.b], allow_unused=True)
        found.append([*outs, *grads])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


class Awkward(sc.Neuron):
    """A neuron whose names are those that a kernel would use."""

    inputs = ("x", "out0")
    states = {"v": 0.0, "v_t": 0.0}
    params = {"out_j": 2.0, "grad_x_j": 1.0, "expf": 0.5}

    def dynamics(self, x, s, p):
        h = s.v + (x.x - s.v) / p.out_j + x.out0 * p.expf
        z = self.spike(h - p.grad_x_j)
        return z, {"v": sc.ops.select(z, 0.0, h), "v_t": s.v_t * p.expf + z}


class Counting(sc.Neuron):
    """A state that no gradient is computed from, before one that is."""

    states = {"count": 0.0, "v": 0.1}
    params = {"tau": 2.0}

    def dynamics(self, x, s, p):
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - 1.0)
        count = s.count + z
        return count, {"count": count, "v": sc.ops.select(z, 0.0, h)}


@pytest.mark.parametrize(("make", "saved"), [(Counting, 1), (sc.LI, 0), (sc.ALIF, 2)], ids=["Counting", "LI", "ALIF"])
def test_forward_saves_what_backward_reads(make, saved):
    """Of 40 steps, the states before each of the four chunks but the first, those that gradients need."""
    x = torch.randn(40, 9, generator=torch.Generator().manual_seed(0)).add(0.5).requires_grad_()
    found = []
    for backend in ("cupy_host", "torch"):
        neuron = make(backend=backend)
        out, state = neuron.run(x)
        if backend == "cupy_host":
            assert [tensor.shape for tensor in out.grad_fn.saved_tensors[1:]] == [(3, 9)] * saved
        results = [out, *state.values()]
        found.append([*results, *torch.autograd.grad(results, [x], [torch.ones_like(r) for r in results])])
    for ours, reference in zip(*found):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_neuron_may_have_any_names(dtype):
    """Names that a kernel would use for itself change nothing."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(6, 8, generator=generator).to(dtype).requires_grad_() for _ in range(2)]
    found = []
    for backend in ("cupy_host", "torch"):
        out, _, trace = Awkward(backend=backend).run(*inputs, record=("v", "v_t"))
        grads = torch.autograd.grad(out.sum() + trace["v"].sum() + trace["v_t"].sum(), inputs)
        found.append((out, trace["v"], trace["v_t"], *grads))
    for ours, reference in zip(*found):
        torch.testing.assert_close(ours, reference)


class Both(sc.Neuron):
    """Values of parameters alone and numbers, used as they are and detached."""

    states = {"v": 0.1}
    params = {"a": 0.5, "b": 0.25}

    def dynamics(self, x, s, p):
        detach = sc.ops.detach
        c = p.a * 2.0
        fixed = s.v * detach(c) + x * c + detach(p.b) * s.v + detach(detach(p.b * 3.0)) * x
        h = fixed + detach(1.5 + 0.0 * p.a)
        r = detach(h)
        z = self.spike(h - r * 0.5)
        return (z, h * r), {"v": h * 0.5 + detach(z) * z}


@pytest.mark.parametrize("steps", [3, 18])
@pytest.mark.parametrize("kind", ["number", "scalar", "channel", "full"])
def test_a_value_and_the_same_value_detached(kind, steps):
    """Both are arguments of a step, under two names, whatever kind of parameter they are computed from."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(steps, 2, 3, 4, generator=generator)
    shape = {"scalar": (), "channel": (3,), "full": (2, 3, 4)}.get(kind)
    value = 0.5 if shape is None else torch.rand(shape, generator=generator)
    found = []
    for backend in ("cupy_host", "torch"):
        neuron = Both(a=value, b=value, learn=() if shape is None else ("a",), backend=backend)
        leaf = x.clone().requires_grad_()
        (z, y), end = neuron.run(leaf)
        grads = torch.autograd.grad(z.sum() + y.sum() + end["v"].sum(), [leaf, *neuron.parameters()])
        found.append([z, y, end["v"], *grads])
    for ours, reference in zip(*found):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


SMALL_LAYERS = {
    "the sums of one group": (4, 10),
    "those of several blocks": (16, 10),
    "an odd number of neurons": (3, 7),
    "channels in the middle": (2, 6, 5),
    "one neuron for each channel": (1, 10),
    "one block": (1, 2),
}


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("steps", [8, 20])
@pytest.mark.parametrize("layer", sorted(SMALL_LAYERS))
def test_learnt_parameters_of_a_small_layer(layer, steps, start):
    """However their sums are found, and where tensors begin in memory: gradients are those of the reference."""
    size = SMALL_LAYERS[layer]
    count = steps * torch.Size(size).numel()
    x = (torch.arange(start + count) % 17 / 8)[start:].view(steps, *size)
    found = []
    for backend in ("cupy_host", "torch"):
        tau = torch.linspace(2, 3, size[1])
        neuron = sc.LIF(tau, threshold=0.75, learn=("tau", "threshold"), backend=backend)
        leaf = x.detach().requires_grad_()
        for _ in range(2):
            out = neuron(leaf)
            grads = torch.autograd.grad(out, [leaf, neuron.tau, neuron.threshold], torch.cos(x))
        found.append([out.detach(), *grads])
    for ours, theirs in zip(*found):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class Driven(sc.Neuron):
    """Of two parameters that are added to the output, no derivative reads the value."""

    states = {"v": 0.0}
    params = {"tau": 2.0, "drive": 0.25, "offset": 0.0}

    def dynamics(self, x, s, p):
        h = s.v / p.tau + x
        return h + p.drive + p.offset, {"v": h}


@pytest.mark.parametrize("kind", ["full", "channel"])
@pytest.mark.parametrize("learn", [("tau", "drive"), ("drive",), ("tau", "drive", "offset")], ids="-".join)
@pytest.mark.parametrize("layer", sorted(SMALL_LAYERS))
def test_gradients_of_a_parameter_whose_value_nobody_reads(layer, learn, kind):
    """Those of each neuron are its own, those of a channel are sums over it alone. Random programs (1082690590060 and
    900042) found them in the shape of one group of neurons, which lay across channels.
    """
    size = SMALL_LAYERS[layer]
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(9, *size, generator=generator) * 2
    channels = torch.linspace(2, 3, size[1]) if kind == "full" else 2.5
    shape = size if kind == "full" else (size[1],)
    found = []
    for backend in ("cupy_host", "torch"):
        drive = torch.linspace(0, 1, torch.Size(shape).numel()).view(shape)
        neuron = Driven(tau=channels, drive=drive, offset=0.125, learn=learn, backend=backend)
        leaf = x.detach().requires_grad_()
        out = neuron(leaf)
        found.append([out.detach(), *torch.autograd.grad(out, [leaf, *neuron.parameters()], torch.cos(x))])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("learn", [("drive",), ("tau", "drive"), ("drive", "offset")], ids="-".join)
def test_groups_of_a_thread_lie_in_the_same_channels(monkeypatch, learn):
    """In a layer of several groups, gradients of a channel are sums over it alone, be the value read or not."""
    monkeypatch.setattr("spikecore_cupy.forms.SPAN", 8)
    monkeypatch.setattr("spikecore_cupy.forms.SMALL", 0)
    x = torch.rand(9, 6, 5, 7, generator=torch.Generator().manual_seed(0)) * 2
    found = []
    for backend in ("cupy_host", "torch"):
        channels = torch.linspace(2, 3, 5)
        neuron = Driven(tau=2.5, drive=channels - 2, offset=0.5, learn=learn, backend=backend)
        leaf = x.detach().requires_grad_()
        out = neuron(leaf)
        found.append([out.detach(), *torch.autograd.grad(out, [leaf, *neuron.parameters()], torch.cos(x))])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_what_kernels_compute_is_seen():
    """Rates, spikes and states of a monitor, and their gradients, are those of the reference."""
    check_monitor("cupy_host")
