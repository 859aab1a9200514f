"""Any number of steps and of neurons: chunks of nearly equal lengths, how many neurons a thread computes, and where a
step multiplies by a reciprocal.
"""

from __future__ import annotations

from typing import Any, List, Optional, Set, Type, Union

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry, layout_of
from spikecore.kernels._call import Call, Kernels
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS
from spikecore_cupy import launcher as cupy_launcher
from spikecore_cupy.backend import CupyBackend
from spikecore_cupy.chunks import chunk_length
from spikecore_cupy.forms import form_of
from spikecore_cupy.host import HostBackend, HostKernel
from spikecore_cupy.launcher import Launcher
from spikecore_cupy.source import print_kernel

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("on_host")]


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
    """Around the ends of chunks: spikes and states have the bits of the reference, gradients are near it."""
    for steps in (1, 2, 9, 15, 16, 17, 18, 23, 24, 25, 33, 37, 48, 49, 70):
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


class Kernel(HostKernel):
    """As on a GPU: blocks of many threads."""

    block = 128


def launcher(
    dtype: torch.dtype, backward: bool = False, kernel: Type[HostKernel] = Kernel, steps: Optional[int] = None
) -> Launcher:
    """That of LIF's forward or backward kernel, by default for any number of steps."""
    program = sc.LIF().program
    spec = Spec(dtype, steps, ("number",) * len(program.params), (), False)
    plan: Union[ForwardPlan, BackwardPlan] = ForwardPlan(program, spec, (), checkpoints=steps is None)
    if backward:
        nothing = {"trace": (), "final": False, "state": False, "learn": ()}
        plan = BackwardPlan(program, spec, has_initial_state=False, outputs=(True,), inputs=(True,), **nothing)
    return Launcher(kernel, plan, BACKWARD_GROUPS if backward else FORWARD_GROUPS, ())


@pytest.mark.parametrize(
    ("dtype", "widths"),
    [
        (torch.float32, {1000: 1, 2**17 - 2: 1, 2**17: 2, 2**17 + 1: 1, 2**24: 2}),
        (torch.bfloat16, {1000: 1, 2**16 - 4: 1, 2**16: 2, 2**18 - 4: 2, 2**18: 4, 2**18 + 2: 2, 2**24: 4}),
        (torch.float64, {1000: 1, 2**24: 1}),
    ],
    ids=["float32", "bfloat16", "float64"],
)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_few_neurons_have_threads_of_fewer_numbers(backward: bool, dtype: torch.dtype, widths: Any) -> None:
    """On a GPU; on a CPU, where this saves nothing, every size has the widest, so that tests meet it."""
    on_gpu, on_cpu = launcher(dtype, backward), launcher(dtype, backward, HostKernel)
    for neurons, expected in widths.items():
        width = on_gpu._narrowed(neurons, on_gpu._form.width)
        assert on_gpu._fitting(width, neurons, 0) == expected, neurons
        assert on_cpu._narrowed(neurons, on_cpu._form.width) == max(widths.values())


@pytest.mark.parametrize(
    ("dtype", "steps", "most"),
    [
        (torch.float32, None, 2**24),
        (torch.float32, 16, 2**24),
        (torch.float64, None, 2**24),
        (torch.bfloat16, 10, 2**24),
        (torch.bfloat16, 11, 2**17),
        (torch.float16, None, 2**17),
    ],
)
def test_where_steps_multiply_by_a_reciprocal(dtype: torch.dtype, steps: Optional[int], most: int) -> None:
    """Where tau is a power of two; backward in 16 bits only few steps, or of few neurons."""
    names = sc.LIF().program.params
    twos, threes = ([value if name == "tau" else 1.0 for name in names] for value in (2.0, 3.0))
    forward, backward = (launcher(dtype, which, steps=steps) for which in (False, True))
    for neurons in (1, 2**17, 2**17 + 1, 2**24):
        assert forward._multiplies(neurons, twos)
        assert backward._multiplies(neurons, twos) is (neurons <= most)
        assert not forward._multiplies(neurons, threes)
        assert not backward._multiplies(neurons, threes)
