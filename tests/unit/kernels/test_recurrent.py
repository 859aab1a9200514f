"""Feedback through a matrix on kernel backends that know nothing of it, and its products as parts of bfloat16."""

from __future__ import annotations

import pkgutil
import types
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Tuple

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import Loop, bound
from spikecore.kernels import _recurrent
from spikecore.testing._loopback import installed
from spikecore_torch.backend import TorchBackend

_module: Any = types.ModuleType("flat")
_text = (pkgutil.get_data("spikecore._scaffold", "templates/kernel.template") or b"").decode()
exec(_text.replace("@Class@", "Flat").replace("@name@", "flat").replace("@package@", "flat"), _module.__dict__)


class Flat(_module.Flat):  # type: ignore[misc, name-defined]  # its base is made of text
    """Launches that return their results."""

    name = "flat_fed"
    capabilities = replace(_module.Flat.capabilities, recurrent=True)


def net_of(neuron: Any, width: int, dtype: torch.dtype, bias: bool = True) -> Any:
    """A recurrent layer whose weights are multiples of 1/8."""
    torch.manual_seed(width)
    linear = nn.Linear(width, width, bias=bias).to(dtype)
    with torch.no_grad():
        for value in linear.parameters():
            value.copy_((value * 24).round() / 8)
    return sc.Recurrent(neuron, linear, fused=True).to(dtype)


def called(
    net: Any,
    x: torch.Tensor,
    state: Optional[Dict[str, torch.Tensor]],
    record: Tuple[str, ...],
    absent: Tuple[int, ...],
) -> List[Optional[torch.Tensor]]:
    """Everything that a call gives, and every gradient; no cotangent for the results of these numbers."""
    x = x.detach().requires_grad_()
    start = None if state is None else {k: v.detach().requires_grad_() for k, v in state.items()}
    out, final, *trace = net.run(x, state=start, record=record)
    results = [out, *final.values(), *(trace[0].values() if trace else ())]
    torch.manual_seed(5)
    grads = [torch.rand(one.shape, dtype=one.dtype) for one in results]
    wanted = [x, *(start.values() if start else ()), *net.parameters()]
    there = [k for k in range(len(results)) if k not in absent]
    found = torch.autograd.grad([results[k] for k in there], wanted, [grads[k] for k in there], allow_unused=True)
    return [*(one.detach() for one in results), *found]


@pytest.mark.parametrize(
    ("backend", "shape", "given", "absent"),
    [
        ("loop", (1, 2, 3), True, ()),
        ("loop", (18, 3, 4), False, (0,)),
        ("loop", (41, 5), True, (1, 2, 3)),
        ("chunked", (18, 3, 4), True, ()),
        ("chunked", (6, 2, 2, 3), False, (0, 1, 2, 4)),
        ("flat", (18, 3, 4), True, (0,)),
        ("flat", (41, 5), False, ()),
    ],
)
def test_values_and_gradients_are_those_of_the_reference(
    backend: str, shape: Tuple[int, ...], given: bool, absent: Tuple[int, ...]
) -> None:
    """With parameters of every kind, a record, a given state or none, and cotangents of some results alone."""
    width, step = shape[-1], shape[1:]

    def neuron() -> Any:
        torch.manual_seed(1)
        full = torch.rand(step) + 1.5  # of a step's shape: one for each neuron of each row
        values = {"tau": full if len(step) > 1 else 2.0, "rho": torch.rand(width) * 0.5, "beta": torch.tensor(0.25)}
        return sc.ALIF(**values, learn=("tau", "rho", "beta", "threshold"), channel_dim=-1)

    torch.manual_seed(2)
    x = torch.randn(shape, dtype=torch.float64) * 2
    state = {name: torch.rand(step, dtype=torch.float64) for name in ("v", "a", "feedback")} if given else None
    right = net_of(neuron(), width, torch.float64)
    bound(right.neuron, TorchBackend())
    expected = called(right, x, state, ("v", "a"), absent)
    mine = net_of(neuron(), width, torch.float64)
    if backend == "flat":
        with installed(Flat, ("cpu",)) as name:
            sc.set_backend(mine, name)
            found = called(mine, x, state, ("v", "a"), absent)
    else:
        bound(mine.neuron, Loop(4 if backend == "chunked" else 0))
        found = called(mine, x, state, ("v", "a"), absent)
    assert mine.looped == ""
    for ours, one in zip(found, expected):
        assert (ours is None) == (one is None) or not bool((one if ours is None else ours).any())
        if ours is not None and one is not None:
            torch.testing.assert_close(ours, one, rtol=1e-10, atol=1e-12)


def test_a_start_that_is_learnt_gets_its_gradient() -> None:
    """The initial state is a parameter, through all steps."""

    class Started(sc.Neuron):
        states = {"v": "start"}
        params = {"start": 0.25, "threshold": 1.0}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            h = 0.5 * s.v + x
            z = self.spike(h - p.threshold)
            return z, {"v": h - z}

    grads = []
    for backend in (Loop(), TorchBackend()):
        net = net_of(Started(learn=("start",)), 3, torch.float64)
        bound(net.neuron, backend)
        out = net(torch.linspace(-1, 2, 30, dtype=torch.float64).view(5, 2, 3))
        (out * torch.linspace(0, 1, 30).view(5, 2, 3)).sum().backward()
        grads.append(net.neuron.start.grad)
        assert net.looped == ""
    assert grads[0].item() != 0.0
    torch.testing.assert_close(grads[0], grads[1])


def test_what_is_kept_for_backward() -> None:
    """What the neuron was given at each step, and states after every root of the steps; the input itself is not."""
    kept: List[Tuple[int, ...]] = []
    net = net_of(sc.ALIF(), 4, torch.float32)
    bound(net.neuron, Loop())
    x = torch.randn(400, 2, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        out = net(x)
    # u and the output; v and a after 20, 40, ..., 380 steps; v, a and the last output before the first; weight, bias
    assert sorted(kept) == sorted([(400, 2, 4)] * 2 + [(19, 2, 4)] * 2 + [(2, 4)] * 3 + [(4, 4), (4,)])
    out.sum().backward()
    kept.clear()
    net.linear.requires_grad_(False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        net(x)
    assert kept.count((400, 2, 4)) == 1


def test_backward_runs_twice_and_reads_no_argument_that_changed() -> None:
    """Twice with retain_graph; a weight that was changed in place before backward is an error of torch's."""
    net = net_of(sc.LIF(), 3, torch.float32)
    bound(net.neuron, Loop())
    x = torch.randn(5, 2, 3, requires_grad=True)
    out = net(x)
    first = torch.autograd.grad(out.sum(), [x, net.linear.weight], retain_graph=True)
    again = torch.autograd.grad(out.sum(), [x, net.linear.weight], retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    with torch.no_grad():
        net.linear.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_backward_within_autocast() -> None:
    """Of a call that was computed without: its products have the dtypes of that call."""
    x, found = torch.randn(6, 3, 4), []
    for inside in (False, True):
        with installed(Loop) as name:
            net = net_of(sc.LIF(1.7, backend=name), 4, torch.float32)
            torch.manual_seed(3)
            state = {key: torch.rand(3, 4).requires_grad_() for key in ("v", "feedback")}
            out = net.run(x, state=state)[0]
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
                found.append(torch.autograd.grad(out.sum(), [*net.parameters(), *state.values()]))
    for plain, within in zip(*found):
        assert torch.equal(plain, within)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers of many sizes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator) * torch.randn(*shape, generator=generator).mul(8).exp2()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> List[int]:
    """As on a GPU whose tensor cores take products of any size; gives the rows of each product."""
    calls: List[int] = []

    def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        assert a.dtype == b.dtype == torch.bfloat16
        calls.append(a.shape[0])
        return (a.double() @ b.double()).float()

    monkeypatch.setattr(_recurrent, "multiplied", multiplied)
    monkeypatch.setattr(_recurrent, "is_quicker", lambda weight, rows, steps: weight.dtype == torch.float32)
    return calls


def test_three_parts_are_the_number() -> None:
    """To the bit, with infinite ones, NaN of any bits, the largest, and subnormal ones down to 2^-133."""
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3.4028234663852886e38, -3.4e38, 2.0**-133]
    odd = torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32)  # NaN whose high bits say infinite
    x = torch.cat([drawn(500), torch.tensor(special), drawn(50) * 2.0**-60, odd])
    parts = _recurrent.parts_of(x)
    assert [part.dtype for part in parts] == [torch.bfloat16] * 3
    assert torch.equal(sum(part.float() for part in parts).nan_to_num(1.25), x.nan_to_num(1.25))


def gpu(width: int, dtype: torch.dtype = torch.float32, device: str = "cuda") -> Any:
    """What is read of a weight."""
    return SimpleNamespace(shape=(width, width), dtype=dtype, device=torch.device(device))


def test_which_products_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones of float32 with aligned rows, for as many steps as make up for the split."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.ops.aten.mm, "dtype", object(), raising=False)
    is_quicker = _recurrent.is_quicker
    assert is_quicker(gpu(1024), 256, 100)
    assert is_quicker(gpu(1000), 256, 100)
    assert not is_quicker(gpu(1001), 256, 100)
    assert not is_quicker(gpu(1024), 1, 100)
    assert not is_quicker(gpu(1024), 0, 100)
    assert not is_quicker(gpu(1024), 256, 4)
    assert not is_quicker(gpu(256), 10**6, 100)
    assert not is_quicker(gpu(1024, torch.float16), 256, 100)
    assert not is_quicker(gpu(1024, torch.float64), 256, 100)
    assert not is_quicker(gpu(1024, device="cpu"), 256, 100)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert not is_quicker(gpu(1024), 256, 100)


def test_products_that_may_round_to_tf32_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were asked for, by the older name or the newer one."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.ops.aten.mm, "dtype", object(), raising=False)
    for asked in (SimpleNamespace(allow_tf32=True), SimpleNamespace(fp32_precision="tf32")):
        monkeypatch.setattr(torch.backends.cuda, "matmul", asked)
        assert not _recurrent.is_quicker(gpu(1024), 256, 100)


def test_a_step_is_the_product_of_float32(taken: List[int]) -> None:
    """Rounded once."""
    weight, more = drawn(9, 9), drawn(9, seed=1)
    spikes = (drawn(5, 9, seed=2) > 0).float()
    exact = spikes.double() @ weight.double().t() + more.double()
    found = _recurrent.SpikesTimes(weight, more, 5)(spikes)
    assert torch.equal(found, exact.float())
    assert taken == [5]


@pytest.mark.parametrize(("first", "deterministic"), [(0.375, False), (1.0, True)])
def test_a_layer_gives_what_it_gives_without(taken: List[int], first: float, deterministic: bool) -> None:
    """Values to the bit with weights whose sums are exact; the first output may be any number."""
    linear = nn.Linear(7, 7)
    with torch.no_grad():
        for k, value in enumerate(linear.parameters()):
            value.copy_(drawn(*value.shape, seed=k).clamp(-2, 2).mul(8).round() / 8)
    net = sc.Recurrent(sc.LIF(2.0), linear, fused=True)
    x = drawn(20, 3, 7).clamp(-3, 3)

    def called(backend: str) -> Any:
        net.zero_grad()
        sc.set_backend(net, backend)
        given = x.clone().requires_grad_()
        state = {name: value.detach() for name, value in net.run(x[:1])[1].items()}
        state["feedback"] = torch.full((3, 7), first)
        out, final, trace = net.run(given, state=state, record=("v",))
        (out * out.detach().cumsum(0)).sum().backward()
        values = [out.detach(), *(one.detach() for one in [*final.values(), *trace.values()])]
        return values, [given.grad, *(p.grad for p in net.parameters())]

    torch.use_deterministic_algorithms(deterministic)
    try:
        with installed(Loop, devices=("cpu",)) as name:
            values, gradients = called("torch")
            assert not taken
            again, others = called(name)
            assert len(taken) == 19  # the first step's is as ever
    finally:
        torch.use_deterministic_algorithms(False)
    assert values[0].count_nonzero()
    assert all(torch.equal(a, b) for a, b in zip(again, values))
    assert all((a - b).norm() <= 1e-6 * b.norm() for a, b in zip(others, gradients))


@pytest.mark.parametrize("neuron", [sc.LI(2.0), sc.TernaryLIF()], ids=lambda n: type(n).__name__)
def test_other_outputs_are_multiplied_as_ever(taken: List[int], neuron: Any) -> None:
    """Those of a leaky integrator have more bits than a part; of ternary spikes nothing says that they are short."""
    with installed(Loop, devices=("cpu",)) as name:
        net = sc.Recurrent(neuron, nn.Linear(7, 7), fused=True)
        sc.set_backend(net, name)
        net(drawn(40, 3, 7))
    assert not taken
