"""Feedback within cupy's kernels, on a GPU: one launch for all steps, against a loop over single steps by torch."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import TwoEnds
from spikecore_cupy import launcher
from spikecore_cupy.feedback_shape import parts_of, shapes, shapes_apart

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def _has_clusters() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("kernels with feedback need clusters of blocks, compute capability 9.0")


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same in each run."""
    found = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return found.to(DEVICE, dtype)


def layer(neuron: Any, width: int, dtype: torch.dtype = torch.float32, longest: int = 0, **options: Any) -> Any:
    """A recurrent layer whose weights are multiples of 1/64, with which sums of spikes are exact in any order, and with
    delays up to ``longest``.
    """
    linear = nn.Linear(width, width).to(DEVICE)
    with torch.no_grad():
        for k, value in enumerate(linear.parameters()):
            value.copy_((drawn(*value.shape, seed=width + k) * 24 / min(width, 64) ** 0.5).round() / 64)
    if longest:
        delay = torch.arange(width) * longest % (longest + 1)
        linear = sc.Delay(linear, longest, delay=delay.float(), learn=()).to(DEVICE)  # type: ignore[assignment]
    return sc.Recurrent(neuron, linear, **options).to(DEVICE, dtype)


def results(net: Any, x: torch.Tensor, record: Sequence[str] = ()) -> Tuple[List[torch.Tensor], Dict[str, Any]]:
    """All that a call gives, and all gradients for a cotangent of each."""
    net.zero_grad()
    xs = [x.detach().clone().requires_grad_() for _ in net.neuron.inputs]
    out, state, *trace = net.run(*xs, record=record)
    given = [*(out if isinstance(out, tuple) else (out,)), *state.values(), *(trace[0].values() if trace else ())]
    wanted = [(value, drawn(*value.shape, dtype=value.dtype, seed=k)) for k, value in enumerate(given)]
    wanted = [(value, g) for value, g in wanted if value.requires_grad]
    torch.autograd.backward([value for value, _ in wanted], [g for _, g in wanted])
    gradients = {f"x{k}": value.grad for k, value in enumerate(xs)}
    return [value.detach() for value in given], {**gradients, **{n: p.grad for n, p in net.named_parameters()}}


def compare(net: Any, x: torch.Tensor, record: Sequence[str] = (), tolerance: float = 1e-5) -> None:
    """Bits of torch's loop, gradients to rounding, and twice the same bits."""
    sc.set_backend(net, "torch")
    net.fused = False
    expected, its = results(net, x, record)
    sc.set_backend(net, "cupy")
    net.fused = True
    found, mine = results(net, x, record)
    again, same = results(net, x, record)
    assert expected[0].any()
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert all(torch.equal(a, b) for a, b in zip(found, again))
    for name, value in its.items():
        assert (mine[name] - value).double().norm() <= tolerance * value.double().norm(), name
        assert torch.equal(mine[name], same[name]), name


@pytest.mark.parametrize(
    ("steps", "batch", "width"),
    [
        (1, 1, 1), (2, 3, 5), (40, 8, 16), (33, 13, 100), (20, 64, 128), (17, 9, 129), (25, 200, 256), (12, 300, 360),
        (30, 128, 512), (9, 257, 512), (300, 16, 128), (12, 13, 513), (20, 300, 700), (30, 128, 1024), (9, 5, 1032),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", ["lif", "alif"])
def test_sizes(model: str, steps: int, batch: int, width: int) -> None:
    """Widths that fill no tile, batches that fill no cluster, more clusters than run at once, many chunks; rows that
    more blocks share than a cluster has, and a width that takes a launch for each step.
    """
    neuron = sc.LIF(tau=2.0) if model == "lif" else sc.ALIF(learn=("threshold",))
    record = ("v",) if model == "lif" else ("v", "a")
    # multiples of 1/64, whose sums are exact: a launch for each step adds the bias to the input first
    compare(layer(neuron, width), (drawn(steps, batch, width) * 128).round() / 64, record)


EVERY = [*shapes(96, torch.float32), *shapes_apart(600, parts_of(torch.float32))]


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: str(tuple(shape[:4])))
def test_every_layout(monkeypatch: pytest.MonkeyPatch, shape: Any) -> None:
    """All numbers of blocks, warps and rows that a kernel of this width may have."""
    monkeypatch.setattr(launcher, "shapes_of", lambda *_: (shape,))
    # a program of its own, since kernels are kept for each shape but runners for each program
    compare(layer(sc.LIF(tau=2.0, learn=("tau",)), shape.width), drawn(19, 21, shape.width) * 2, ("v",))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 4e-3)], ids=str)
@pytest.mark.parametrize("width", [40, 128, 512, 768, 1000])
def test_sixteen_bits(dtype: torch.dtype, tolerance: float, width: int) -> None:
    """Wider ones have more blocks than a cluster: the same numbers."""
    compare(layer(sc.LIF(tau=2.0), width, dtype), drawn(12, 20, width, dtype=dtype) * 2, ("v",), tolerance)


@pytest.mark.parametrize(("steps", "batch", "width"), [(1, 2, 5), (33, 13, 100), (40, 64, 256), (12, 20, 700)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str)
def test_what_comes_back(steps: int, batch: int, width: int, dtype: torch.dtype, tolerance: float) -> None:
    """Constants, one of several outputs into one of several inputs, and outputs that come back later."""
    x = drawn(steps, batch, width, dtype=dtype) * 2
    for options in ({"detach": True}, {"longest": 9}, {"longest": 60, "detach": True}):
        compare(layer(sc.ALIF(learn=("threshold",)), width, dtype, **options), x, ("v",), tolerance)
    for into in ("x", "y"):
        compare(layer(TwoEnds(), width, dtype, into=into, output=0), x, ("v",), tolerance)


def test_wide_layers_on_many_streams_at_once() -> None:
    """Blocks wait for one another: more of them than run at once, of several launches, all come to an end."""
    net, streams = layer(sc.LIF(tau=2.0), 1024), [torch.cuda.Stream() for _ in range(6)]
    sc.set_backend(net, "cupy")
    x = drawn(50, 200, 1024) * 2
    with torch.no_grad():
        expected = net(x)
        torch.cuda.synchronize()
        found = []
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(net(x))
    torch.cuda.synchronize()
    assert all(torch.equal(value, expected) for value in found)


def test_a_wide_layer_in_a_graph() -> None:
    """Each replay starts anew: what blocks count is counted from 0."""
    net, x = layer(sc.LIF(tau=2.0), 700), drawn(20, 30, 700) * 2
    sc.set_backend(net, "cupy")
    expected = [net(x).detach(), net(-x).detach()]
    place, graph = x.clone(), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = net(place)
    for value, result in zip((x, -x), expected):
        place.copy_(value)
        graph.replay()
        assert torch.equal(out, result)
