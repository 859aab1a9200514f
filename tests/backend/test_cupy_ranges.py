"""Learnt parameters within their ranges, in kernels of the cupy backend, which compute at the ends."""

from __future__ import annotations

import math
from typing import Any, Iterator, List

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.kernels import KernelRunner
from spikecore.testing._loopback import installed
from spikecore_cupy.host import HostBackend, reason

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]

C = 6
EPS = torch.finfo(torch.float32).eps
#: How a tau and a threshold lie, by the shape of tau, and inputs that they are for.
KINDS = {
    "scalar": ((), (5, 3, C)),
    "channel": ((C,), (5, 3, C)),
    "channels apart": ((C,), (5, 2, C, 3)),
    "chunks": ((C,), (40, 2, C)),
    "odd": ((C,), (5, 1, C, 1)),
    "one for all": ((), (40, 3, C, 3)),
    "many chunks": ((C,), (40, 3, C, 3)),
}
#: Orders of memory that kernels take, from the outermost dimension in.
ORDERS = {"batch first": (1, 0, 2, 3), "channels innermost": (0, 1, 3, 2), "both": (1, 0, 3, 2)}


@pytest.fixture(autouse=True, scope="module")
def _on_host() -> Iterator[None]:
    with installed(HostBackend, devices=("cpu",)):
        yield


def made(kind: str, backend: str, **options: Any) -> sc.Neuron:
    shape, _ = KINDS[kind]
    options = {"bounds": {"threshold": (0.5, 1.5)}, "learn": ("tau", "threshold"), **options}
    return sc.LIF(torch.full(shape, 2.0), threshold=torch.full(shape, 1.0), backend=backend, **options)


def drive(kind: str) -> Tensor:
    return torch.rand(KINDS[kind][1], generator=torch.Generator().manual_seed(0)) * 3


def moved(neuron: sc.Neuron) -> None:
    """Values outside below and above, inside, and NaN; as a fused optimiser does, which raises no version."""
    for name, values in (("tau", (0.25, 3.0, 1.0, -2.0, 0.5, 7.0)), ("threshold", (9.0, 1.0, 0.1, -1.0, 0.5, 1.5))):
        value = getattr(neuron, name)
        value.data.copy_(torch.tensor(values[: value.numel()]).view(value.shape))


def results(neuron: sc.Neuron, x: Tensor) -> List[Tensor]:
    leaf = x.clone().requires_grad_()
    out = neuron(leaf)
    grads = torch.autograd.grad(out, [leaf, *neuron.parameters()], torch.cos(x))
    return [out.detach(), *grads, *[value.detach().clone() for value in neuron.parameters()]]


@pytest.mark.parametrize("kind", list(KINDS))
def test_outside(kind: str) -> None:
    """Outputs and gradients are those of the reference, and of a neuron whose parameters are at the ends."""
    x, ours, theirs = drive(kind), made(kind, "cupy_host"), made(kind, "torch")
    for _ in range(2):
        for neuron in (ours, theirs):
            moved(neuron)
        found, before = results(ours, x), ours.tau.detach().clone()
        for one, other in zip(found, results(theirs, x)):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert torch.equal(found[0], results(theirs, x)[0])
        assert torch.equal(ours.tau, before)
        sc.project(ours)
        assert ours.tau.detach().flatten()[0].item() == 1.0
        for one, other in zip(found[:-2], results(ours, x)):
            assert torch.equal(one, other)


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("kind", ["one for all", "many chunks"])
def test_inputs_in_other_orders_of_memory_take_the_short_way(
    kind: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing passes the runner, forward or backward."""
    there = ORDERS[order]
    back = [there.index(dim) for dim in range(4)]
    x, ours, theirs = (
        drive(kind).permute(there).contiguous().permute(back),
        made(kind, "cupy_host"),
        made(kind, "torch"),
    )
    for neuron in (ours, theirs):
        results(neuron, x)  # the first call of a neuron passes the runner
    with monkeypatch.context() as patch:
        patch.setattr(KernelRunner, "__call__", None)
        moved(ours)
        found = results(ours, x)
    moved(theirs)
    expected = results(theirs, x)
    assert torch.equal(found[0], expected[0])
    assert found[0].stride() == found[1].stride() == x.stride()
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    for one, other in zip(ours.parameters(), theirs.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["scalar", "channel"])
def test_ends_that_are_outside_and_nan(kind: str) -> None:
    """Beside an open end lies one epsilon, for values that no gradient can be divided by, too; NaN stays."""

    class Decaying(sc.Neuron):
        states = {"v": 0.0}
        params = {"rate": 0.5}
        positive = ("rate",)

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            v = s.v * p.rate + x
            return v, {"v": v}

    x, shape = drive(kind), KINDS[kind][0]
    neuron = Decaying(rate=torch.full(shape, 0.5), learn=("rate",), backend="cupy_host")
    neuron(x)
    for value, inside in (
        (0.0, EPS),
        (-3.0, EPS),
        (EPS, EPS),
        (1e-12, 1e-12),
        (1e-30, EPS),
        (4.0, 4.0),
        (math.nan, math.nan),
    ):
        neuron.rate.data.fill_(value)
        found = neuron(x)
        at_the_end = Decaying(rate=inside, backend="torch", bounds=None) if inside == inside else None
        assert found[-1].isnan().all() if at_the_end is None else torch.equal(found, at_the_end(x))


def test_other_ranges_hold_from_the_next_call_on() -> None:
    """Ranges are part of the program, and a call with others takes another kernel."""
    x, neuron = drive("scalar"), made("scalar", "cupy_host")
    neuron(x)
    neuron.bounds = {"tau": (1.5, 4.0), "threshold": (0.5, 1.5)}
    for value, inside in ((1.0, 1.5), (9.0, 4.0)):
        neuron.tau.data.fill_(value)
        assert torch.equal(neuron(x), sc.LIF(inside, backend="torch")(x))
    neuron.tau.data.fill_(2.0)
    neuron.bounds = None
    neuron.tau.data.fill_(0.5)
    assert torch.equal(neuron(x), sc.LIF(0.5, backend="torch", bounds=None)(x))


def test_every_call() -> None:
    """Layouts that the short way does not take, calls for a state, records, and single steps."""
    x, neuron, inside = drive("channel"), made("channel", "cupy_host"), made("channel", "torch")
    moved(neuron)
    moved(inside)
    sc.project(inside)
    for call in (
        lambda neuron: neuron(x),
        lambda neuron: neuron(x.transpose(1, 2).contiguous().transpose(1, 2)),
        lambda neuron: neuron.run(x)[0],
        lambda neuron: neuron.run(x, record=("v",))[2]["v"],
    ):
        for _ in range(2):
            assert torch.equal(call(neuron), call(inside))


def test_what_is_in_the_place_of_a_parameter_keeps_its_value() -> None:
    """``functional_call`` gives tensors of the caller; the neuron computes with the nearest value inside."""
    x, neuron = drive("scalar"), made("scalar", "cupy_host")
    at_the_end = neuron(x)
    neuron.tau.data.fill_(1.0)
    at_the_end = neuron(x)
    given = {"tau": torch.tensor(0.25, requires_grad=True), "threshold": torch.tensor(1.0)}
    for _ in range(2):
        out = torch.func.functional_call(neuron, given, (x,))
        assert torch.equal(out, at_the_end)
        assert given["tau"].item() == 0.25
