"""Steps that begin beside a sector of memory: staged in shared memory, they have the bits of those that are not."""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import ForwardPlan, Geometry
from spikecore.kernels.writing import FORWARD_GROUPS
from spikecore.testing import installed
from spikecore_cupy import launcher as cupy_launcher
from spikecore_cupy.forms import beside_of
from spikecore_cupy.host import HostBackend, HostBlocks, HostKernel, reason
from spikecore_cupy.launcher import Launcher

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


#: The names of the kernels for steps that begin beside a sector that were launched, in this test.
LAUNCHED: List[str] = []


class Watched(HostKernel):
    """A kernel that is counted where it is one for steps that begin beside a sector."""

    def __init__(self, name: str, text: str, *more: Any) -> None:
        super().__init__(name, text, *more)
        self.beside = name if "copied_in();" in text or "__launch_bounds__(128" not in text else ""

    def __call__(self, *arguments: Any) -> None:
        super().__call__(*arguments)
        LAUNCHED.extend([self.beside] if self.beside else [])


class WatchedBlocks(Watched, HostBlocks):
    """The same with all threads of a block."""


class Host(HostBackend):
    """Kernels on the CPU that are watched."""

    name = "watched"
    kernel = Watched


class HostOfBlocks(HostBackend):
    """The same with all threads of a block."""

    name = "watched_blocks"
    kernel = WatchedBlocks


@pytest.fixture(autouse=True)
def _small_layers_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cupy_launcher, "BESIDE", 1)
    yield
    LAUNCHED.clear()


@pytest.fixture
def _on_threads() -> Iterator[None]:
    with installed(Host, devices=("cpu",)):
        yield


@pytest.fixture
def _on_blocks() -> Iterator[None]:
    with installed(HostOfBlocks, devices=("cpu",)):
        yield


on_threads = pytest.mark.usefixtures("_on_threads")


def results(make: Any, backend: str, inputs: Sequence[Tensor], start: Any = None) -> List[Tensor]:
    """Outputs, final states, and gradients of inputs and of a given state, from cotangents that differ everywhere."""
    neuron = make(backend)
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    given = None if start is None else {"v": start.clone().requires_grad_()}
    outs, state = neuron.run(*leaves, state=given)
    found = [*(outs if isinstance(outs, tuple) else (outs,)), *state.values()]
    generator = torch.Generator().manual_seed(1)
    total = sum((one * torch.rand(one.shape, generator=generator).to(one.dtype)).float().sum() for one in found)
    return [*found, *torch.autograd.grad(total, [*leaves, *(given or {}).values()])]


def check(make: Any, backend: str, inputs: Sequence[Tensor], start: Any = None) -> None:
    """The spikes are those of the reference; everything else is as near as rounding."""
    ours, theirs = (results(make, name, inputs, start) for name in (backend, "torch"))
    assert torch.equal(ours[0], theirs[0])
    near = {"rtol": 1e-4, "atol": 1e-5} if inputs[0].dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for one, other in zip(ours[1:], theirs[1:]):
        torch.testing.assert_close(one, other, **near)


def drawn(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).add(0.5).to(dtype)


@on_threads
@dtypes
@pytest.mark.parametrize("make", [sc.LIF, sc.ALIF])
def test_any_number_of_neurons(make: Any, dtype: torch.dtype) -> None:
    """Steps of one chunk and of several, in blocks of one thread, whose parts begin and end in every place."""
    for neurons in (1, 2, 5, 9, 18):
        for steps in (1, 3, 37):
            check(lambda name: make(backend=name), "watched", [drawn(dtype, steps, neurons)])
    # forward and backward, of a fixed and of any number of steps
    assert set(LAUNCHED) == {f"{make.__name__.lower()}_{way}" for way in ("forward", "backward")}
    # backward of an even number reads pairs
    assert len(LAUNCHED) == (5 + 3) * 3


@pytest.mark.usefixtures("_on_blocks")
@dtypes
@pytest.mark.parametrize(("neurons", "steps"), [(7, 3), (1029, 3), (131, 20)])
def test_all_threads_of_a_block(neurons: int, steps: int, dtype: torch.dtype) -> None:
    """Threads find in shared memory what others copied, in whole blocks and in the last one."""
    check(lambda name: sc.LIF(backend=name), "watched_blocks", [drawn(dtype, steps, neurons)])
    assert LAUNCHED == ["lif_forward", "lif_backward"]


@dtypes
@pytest.mark.parametrize("kernel", [HostKernel, HostBlocks])
def test_nothing_beside_a_tensor_is_written(kernel: Any, dtype: torch.dtype) -> None:
    """Every number of the output is written, and none before or behind it."""
    program = sc.LIF().program
    plan = ForwardPlan(program, Spec(dtype, 3, ("number",) * len(program.params), (), False))
    found = beside_of(plan)
    assert found is not None
    launcher = Launcher(kernel, plan, FORWARD_GROUPS, (), beside=found.form)
    for neurons in (1, 5, 31, 515):
        inside = 3 * neurons
        memory = torch.full((64 + inside + 64,), 7.0, dtype=dtype)
        # one that begins with a sector
        skip = next(k for k in range(32, 64) if (memory.data_ptr() + k * memory.element_size()) % 32 == 0)
        out = memory[skip : skip + inside].view(3, neurons)
        x = torch.empty(inside + 64, dtype=dtype).fill_(3.0)
        begin = next(k for k in range(64) if (x.data_ptr() + k * x.element_size()) % 32 == 0)
        numbers = (2.0, 1.0, 0.0)
        assert program.params[:3] == ("tau", "threshold", "v_reset")
        params = (*numbers, *(0.0 for _ in program.params[3:]))
        given = x[begin : begin + inside].view(3, neurons)
        launcher(Geometry(3, neurons, ()), (given,), (), params, (out,), (), (), ())
        assert set(out.float().unique().tolist()) <= {0.0, 1.0}
        assert bool((memory[:skip] == 7).all())
        assert bool((memory[skip + inside :] == 7).all())
