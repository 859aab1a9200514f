"""``[B, T, ...]`` seen as ``[T, B, ...]``: nothing is copied, results lie as the input does, bits are the same."""

from __future__ import annotations

from typing import Any, Iterator, List

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore._base.versions import COMPILES
from spikecore.kernels import Layout, layout_of
from spikecore.testing._loopback import installed
from spikecore_cupy.host import HostBackend, reason

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]


@pytest.fixture(autouse=True, scope="module")
def _on_host() -> Iterator[None]:
    with installed(HostBackend, devices=("cpu",)):
        yield


def batch_first(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Data ``[B, T, ...]`` seen with time first."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).add(0.5).to(dtype).transpose(0, 1)


VIEWS = {
    "features": batch_first(3, 5, 8),
    "many steps": batch_first(3, 37, 10),
    "odd rows": batch_first(3, 5, 9),
    "images": batch_first(3, 5, 2, 4, 4),
    "channels last": batch_first(3, 5, 4, 4, 2).permute(0, 1, 4, 2, 3),
    "two outer": torch.randn(2, 3, 5, 8).permute(2, 0, 1, 3),
    "one step": torch.randn(3, 1, 8).expand(3, 5, 8).transpose(0, 1),
    "half": batch_first(3, 20, 16, dtype=torch.bfloat16),
    "a batch of part": batch_first(6, 5, 8)[:, ::2],
}


def in_rows(x: Tensor) -> bool:
    """Whether a call of this input is computed in rows."""
    return layout_of(x, rows=True).outer > 0


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "one step"])
def test_the_layout_is_that_of_the_view(name: str) -> None:
    """The tensor is taken as it is, and a new one of its layout has its strides where memory has no gaps."""
    x = VIEWS[name]
    layout = layout_of(x, rows=True)
    assert layout.outer > 0
    assert layout.fit_steps(x) is x
    assert Layout.decoded(layout.shape, layout.encoded) == layout
    new = layout.empty_steps(x, x.dtype)
    assert new.shape == x.shape
    if name != "a batch of part":
        assert new.stride() == x.stride()
    assert layout_of(x).outer == 0


@pytest.mark.matrix(turn=0)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["number", "channel", "full"])
def test_bits_are_those_of_contiguous_data(view: str, kind: str) -> None:
    """Outputs, states, records and gradients, at rest and from a state; cotangents come in any layout."""
    x = VIEWS[view]
    size = {"channel": x.shape[2 if x.ndim > 3 else x.ndim - 1], "full": x.shape[1:]}.get(kind)
    tau: Any = 2.0 if size is None else torch.rand(size, generator=torch.Generator().manual_seed(1)) + 1.5
    for given in (False, True):
        for record in ((), ("v",)):
            for cotangent in ("contiguous", "like", "expanded"):
                found: List[List[Tensor]] = []
                for contiguous in (False, True):
                    neuron = sc.LIF(tau, learn=() if size is None else ("tau",), backend="cupy_host")
                    neuron.channel_dim = 1 if x.ndim > 3 else -1
                    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
                    moved = leaf.contiguous() if contiguous else leaf
                    state = {"v": torch.full(x.shape[1:], 0.25)} if given else None
                    out, end, *trace = neuron.run(moved, state=state, record=record)
                    weights = torch.rand(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
                    if cotangent == "like":
                        weights = torch.empty_like(x).copy_(weights)
                    elif cotangent == "expanded":
                        weights = torch.ones((), dtype=out.dtype).expand(out.shape)
                    tensors = [out, end["v"], *(t["v"] for t in trace)]
                    seeds = [weights, *(torch.ones_like(t) for t in tensors[1:])]
                    grads = torch.autograd.grad(tensors, [leaf, *neuron.parameters()], seeds)
                    found.append([*tensors, *grads])
                    if not contiguous and view not in ("one step", "a batch of part"):
                        assert out.stride() == x.stride()
                ours, reference = found
                for k, (one, other) in enumerate(zip(ours, reference)):
                    if k == len(ours) - 1 and size is not None:
                        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)  # a sum in another order
                    else:
                        assert torch.equal(one, other), (given, record, cotangent, k)


def test_a_kernel_sees_the_view_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the input is that of the caller, forward and backward, and the geometry says how rows lie."""
    seen: List[Any] = []
    for name in ("forward", "backward"):
        launch_of = getattr(HostBackend, name)

        def spied(self: Any, plan: Any, launch_of: Any = launch_of) -> Any:
            launch = launch_of(self, plan)

            def spy(geometry: Any, inputs: Any, *rest: Any) -> Any:
                seen.append((geometry, inputs[0].data_ptr()))
                return launch(geometry, inputs, *rest)

            return spy

        monkeypatch.setattr(HostBackend, name, spied)
    x = batch_first(3, 5, 8).requires_grad_()
    sc.LIF(backend="cupy_host")(x).sum().backward()
    assert [pointer for _, pointer in seen] == [x.data_ptr()] * 2
    assert all(geometry.rows == (8, 1) for geometry, _ in seen)
    assert x.grad is not None
    assert x.grad.stride() == x.stride()


def test_short_rows_and_gaps_are_copied() -> None:
    """Rows of less than a sector of memory, and those that lie apart for another reason than time."""
    assert not in_rows(torch.randn(64, 5).t())
    assert not in_rows(torch.randn(3, 5, 7).transpose(0, 1))
    assert in_rows(torch.randn(3, 5, 8).transpose(0, 1))
    assert not in_rows(torch.randn(5, 3, 20)[:, :, :10])
    assert not in_rows(torch.randn(5, 3, 20))


def test_inputs_in_two_layouts() -> None:
    """The first input says the layout; a second one that lies otherwise is taken where its rows allow, else copied."""

    class Two(sc.Neuron):
        inputs = ("x", "y")
        states = {"v": 0.0}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            v = 0.5 * s.v + x.x - x.y
            return v, {"v": v}

    a, b = batch_first(3, 5, 8), torch.randn(5, 3, 8)
    neuron = Two(backend="cupy_host")
    for x, y in ((a, b), (b, a), (a, a.clone(memory_format=torch.preserve_format))):
        assert torch.equal(neuron(x, y), neuron(x.contiguous(), y.contiguous()))


@pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
@pytest.mark.parametrize("learn", [(), ("tau",)])
def test_a_compiled_call_lies_as_an_eager_one(learn: Any) -> None:
    """Registered ops take the view, too: the same strides, the same bits, forward and backward."""
    found = []
    for compiled in (False, True):
        neuron = sc.LIF(torch.tensor(2.0) if learn else 2.0, learn=learn, backend="cupy_host")
        call = torch.compile(neuron, backend="aot_eager") if compiled else neuron
        x = batch_first(3, 20, 8).requires_grad_()
        out = call(x)
        out.sum().backward()
        assert x.grad is not None
        assert out.stride() == x.grad.stride() == x.stride()
        found.append([out, x.grad, *(p.grad for p in neuron.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found))
