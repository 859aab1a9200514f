"""Products of spikes as parts of bfloat16: their pieces on the CPU, and layers that take them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import Loop
from spikecore.kernels import _recurrent
from spikecore.testing._loopback import installed


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


def test_bits_below_the_smallest_part_are_lost() -> None:
    """Nothing else of a subnormal number is."""
    x = torch.arange(1, 2**12, dtype=torch.int32).mul(1999).view(torch.float32)
    found = sum(part.double() for part in _recurrent.parts_of(x))
    assert float((found - x.double()).abs().max()) < 2.0**-133


@pytest.mark.parametrize("seen", ["transposed", "expanded"])
def test_parts_of_a_view(seen: str) -> None:
    """A parametrisation may give a weight in any layout."""
    x = drawn(6, 6).t() if seen == "transposed" else drawn(6, 1).expand(6, 6)
    assert torch.equal(sum(part.float() for part in _recurrent.parts_of(x)), x)


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


class Older:
    """``torch.backends.cuda.matmul`` of torch 2.0: a name that it does not know is a failed assertion."""

    allow_tf32 = True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("Unknown attribute " + name)


@pytest.mark.parametrize(
    "asked",
    [SimpleNamespace(allow_tf32=True), Older(), SimpleNamespace(fp32_precision="tf32")],
    ids=["attribute error", "assertion", "newer"],
)
def test_products_that_may_round_to_tf32_do(monkeypatch: pytest.MonkeyPatch, asked: Any) -> None:
    """They were asked for, by the older name or the newer one."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.ops.aten.mm, "dtype", object(), raising=False)
    assert _recurrent.is_quicker(gpu(1024), 256, 100)
    monkeypatch.setattr(torch.backends.cuda, "matmul", asked)
    assert not _recurrent.is_quicker(gpu(1024), 256, 100)


@pytest.mark.parametrize("bias", [True, False])
def test_a_step_is_the_product_of_float32(taken: List[int], bias: bool) -> None:
    """Rounded once."""
    weight, more = drawn(9, 9), drawn(9, seed=1) if bias else None
    spikes = (drawn(5, 9, seed=2) > 0).float()
    exact = spikes.double() @ weight.double().t() + (0.0 if more is None else more.double())
    found = _recurrent.SpikesTimes(weight, more, 5)(spikes)
    assert torch.equal(found, exact.float())
    assert taken == [5]


@pytest.mark.parametrize("first", [0.375, 1.0])
@pytest.mark.parametrize("deterministic", [False, True])
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
