"""Any number of steps: chunks of nearly equal lengths give the values of the reference, forward and backward."""

from __future__ import annotations

from typing import Any, Iterator, List, Set

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry, layout_of
from spikecore.kernels._call import Call, Kernels
from spikecore.testing._loopback import installed
from spikecore_cupy import launcher as cupy_launcher
from spikecore_cupy.backend import CupyBackend
from spikecore_cupy.chunks import chunk_length
from spikecore_cupy.forms import form_of
from spikecore_cupy.host import HostBackend, HostKernel, reason
from spikecore_cupy.source import print_kernel

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]


@pytest.fixture(autouse=True, scope="module")
def _on_host() -> Iterator[None]:
    with installed(HostBackend, devices=("cpu",)):
        yield


def results(make: Any, backend: str, x: Tensor) -> List[Tensor]:
    """Outputs, final states, gradients of the input and of parameters, from cotangents that differ at every step."""
    neuron = make(backend)
    leaf = x.detach().clone().requires_grad_()
    out, state = neuron.run(leaf)
    weights = torch.rand(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    total = (out * weights).float().sum() + sum(value.sum() for value in state.values())
    return [out, *state.values(), *torch.autograd.grad(total, [leaf, *neuron.parameters()])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "make",
    [lambda name: sc.LIF(backend=name), lambda name: sc.ALIF(backend=name), lambda name: sc.PLIF(backend=name)],
    ids=["LIF", "ALIF", "PLIF"],
)
def test_every_number_of_steps(make: Any, dtype: torch.dtype) -> None:
    """From one to seventy: spikes and states have the bits of the reference, gradients are as near as rounding."""
    for steps in range(1, 71):
        # odd sizes take single numbers, even ones pairs
        x = torch.randn(steps, 3 + steps % 2, generator=torch.Generator().manual_seed(steps)).add(0.5).to(dtype)
        ours, reference = (results(make, name, x) for name in ("cupy_host", "torch"))
        assert torch.equal(ours[0], reference[0]), steps
        # ALIF's and LIF's states are computed as the definition says; PLIF's decay is a sigmoid of its own
        tight = {"rtol": 1e-5, "atol": 1e-6}
        loose = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
        for k, (one, other) in enumerate(zip(ours[1:], reference[1:])):
            near = loose if k >= len(ours) - 2 - len(list(make("torch").parameters())) else tight
            torch.testing.assert_close(one, other, **near, msg=lambda text, steps=steps: f"{steps} steps: {text}")


@pytest.mark.parametrize(("most", "least"), [(10, 7), (12, 9), (16, 9)])
def test_chunks_are_as_few_as_can_be_and_nearly_equal(most: int, least: int) -> None:
    """No longer than they may be, none shorter by more than one; so a few lengths serve every number of steps."""
    lengths: Set[int] = set()
    for steps in range(17, 3000):
        length, count = chunk_length(steps, most), -(-steps // most)
        longer = steps - count * (length - 1)
        assert length <= most
        assert 0 < longer <= count
        assert longer * length + (count - longer) * (length - 1) == steps
        lengths.add(length)
    assert lengths == set(range(least, most + 1))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
@pytest.mark.parametrize(("make", "learn"), [(sc.LIF, ()), (sc.LIF, ("tau",)), (sc.ALIF, ()), (sc.Izhikevich, ())])
def test_forward_and_backward_have_the_same_chunks(make: Any, learn: Any, dtype: torch.dtype) -> None:
    """They share checkpoints, and a call has memory for one between any two chunks and for no more."""
    program = make().program
    kinds = tuple("scalar" if name in learn else "number" for name in program.params)
    spec = Spec(dtype, None, kinds, learn, False)
    found = CupyBackend().chunk_of(program, spec)
    assert found == (12 if dtype == torch.float32 or learn else 16 if make is sc.LIF else 10)
    forward = ForwardPlan(program, spec, checkpoints=True)
    backward = BackwardPlan(program, spec, False, (True,), (), False, (True,), False, learn)
    assert {form_of(plan).length for plan in (forward, backward)} == {found}
    kernels = Kernels(CupyBackend(), program, spec)
    for steps in (17, 25, 32, 33, 100, 129):
        x = torch.empty(steps, 4)
        results = kernels.results(Call(), layout_of(x), x, save=True)
        between = -(-steps // chunk_length(steps, found)) - 1
        assert [len(one) for one in results[1:]] == [between] * len(forward.saved)


def test_kernels_are_as_many_as_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred numbers of steps have four kernels forward."""
    texts: Set[str] = set()

    class Seen(HostKernel):
        def __init__(self, name: str, text: str, *more: Any) -> None:
            texts.add(text)
            super().__init__(name, text, *more)

    monkeypatch.setattr(HostBackend, "kernel", Seen)
    neuron = sc.LIF(backend="cupy_host")
    for steps in range(17, 217):
        neuron(torch.zeros(steps, 4))
    assert len(texts) == 4


def test_sizes_in_turn_print_no_text_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of different sizes share a launch; at every call of a compiled network their texts were printed."""
    printed: List[str] = []

    def counted(plan: Any, form: Any) -> Any:
        printed.append(type(plan).__name__)
        return print_kernel(plan, form)

    monkeypatch.setattr(cupy_launcher, "print_kernel", counted)
    program, values = sc.LIF().program, (2.0, 1.0, 0.0, 1.0, 1.0)
    count = len(program.params)
    assert len(values) == count
    kernels = Kernels(HostBackend(), program, Spec(torch.float32, None, ("number",) * count, (), False))
    geometries = [Geometry(6, neurons, ((0, 0),) * count) for neurons in (16, 32, 64)]
    launch = kernels.launch(kernels.forward_plan(Call(), False), geometries[0])
    del printed[:]
    for geometry in geometries * 3:
        out, x = torch.empty(6, geometry.neurons), torch.ones(6, geometry.neurons)
        assert launch.dense(geometry, (1, 0, 0, 1, 0, 0, 0))((x, out), values) is not None
        assert torch.equal(out, sc.LIF(backend="torch")(x))
    assert printed == ["ForwardPlan"]


def test_text_of_many_steps_is_that_of_the_longest_chunks() -> None:
    """What people read has chunks of twelve steps in float32."""
    spec = sc.kernel_source(sc.LIF(), "cupy", steps=25)
    assert all("constexpr int T = 12;  // time steps of a chunk, or one less" in text for text in spec.values())
