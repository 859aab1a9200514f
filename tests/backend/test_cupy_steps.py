"""Any number of steps, in chunks, and of neurons."""

from __future__ import annotations

from typing import Any, List

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import Geometry
from spikecore.kernels._call import Call, Kernels
from spikecore_cupy import forms
from spikecore_cupy import launcher as cupy_launcher
from spikecore_cupy.host import HostBackend
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


AHEAD = {
    "LIF": sc.LIF,
    "LIF, tau = 3": lambda backend: sc.LIF(3.0, backend=backend),
    "Synaptic": sc.Synaptic,
    "Alpha": sc.Alpha,
    "PLIF": sc.PLIF,
    "two numbers": lambda backend: sc.Synaptic(learn=("alpha", "beta"), backend=backend),
    "channels": lambda backend: sc.LIF(torch.linspace(1.5, 3.0, 4), learn=("tau",), channel_dim=1, backend=backend),
}


@pytest.mark.parametrize("fewest", [16, 32], ids=["one-by-one", "at-once"])
@pytest.mark.parametrize("name", AHEAD)
def test_chunks_fetched_ahead(name: str, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 16 bits layers of some sizes fetch the next chunk while they compute this one, forward and backward; the
    smallest of them verify divisions of several neurons together, zeros and subnormal quotients among them.
    """
    monkeypatch.setattr(forms, "FEWEST", fewest)
    for steps in (17, 32, 33, 40, 49):
        x = torch.rand(steps, 2, 4, 4, generator=torch.Generator().manual_seed(steps)).mul(1.5)
        x[:3, :, :, ::3] = torch.tensor([-0.0, 1e-38, 3e-39])[:, None, None, None]
        x = x.to(torch.bfloat16)
        ours, reference = (results(lambda b: AHEAD[name](backend=b), where, x) for where in ("cupy_host", "torch"))
        assert torch.equal(ours[0], reference[0]), steps
        torch.testing.assert_close(ours[1:], reference[1:], rtol=2e-2, atol=2e-2)
