"""How the cupy backend is chosen, compiled and kept, and how it goes with the rest of PyTorch."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore._base.caches import KERNELS, Recent
from spikecore._plugins import registry
from spikecore.backend import Spec
from spikecore.lang import Program
from spikecore_cupy import device
from spikecore_cupy.backend import CupyBackend

pytestmark = pytest.mark.gpu

Noise = Callable[..., Tensor]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked for a backend, and nothing was said yet."""
    monkeypatch.delenv("SPIKECORE_BACKEND", raising=False)
    monkeypatch.delenv("SPIKECORE_BLOCK", raising=False)
    monkeypatch.setattr(registry, "_defaults", [registry.Registry(registry.BUILTINS)])


@pytest.mark.usefixtures("fresh")
def test_auto_takes_it_on_a_gpu(noise: Noise) -> None:
    """Nobody having asked for another, cuda tensors run on it, without a warning."""
    neuron = sc.LIF()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        neuron(noise(4, 3))
    assert neuron.bound["cuda"].backend.name == "cupy"
    assert "cupy on cuda" in repr(neuron)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> List[int]:
    """An empty cache in ``tmp_path``; one entry more for every compilation."""
    from cupy_backends.cuda.libs import nvrtc

    count: List[int] = []
    original = nvrtc.compileProgram

    def compile_program(program: int, options: Any) -> Any:
        count.append(program)
        return original(program, options)

    monkeypatch.setattr(nvrtc, "compileProgram", compile_program)
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device, "_kernels", Recent(KERNELS))
    return count


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], CupyBackend]:
    """Makes a backend that finds no kernel in memory, as in a new process."""

    def make() -> CupyBackend:
        monkeypatch.setattr(device, "_kernels", Recent(KERNELS))
        return CupyBackend()

    return make


def lif_of_four_steps() -> Tuple[Program, Spec, Tuple[float, ...]]:
    """The program, the spec and the values of the parameters of a LIF, those of its surrogate included."""
    neuron = sc.LIF()
    program = neuron.program
    values = (2.0, 1.0, 0.0, *neuron._dispatch.numbers.values())
    return program, Spec(torch.float32, 4, ("number",) * len(values), final=False), values


def test_kernels_are_kept_on_disk(
    compilations: List[int], new_process: Callable[[], CupyBackend], tmp_path: Path, noise: Noise
) -> None:
    """The first use compiles each kernel once, and keeps its code; other processes and sizes compile nothing."""
    program, spec, values = lif_of_four_steps()

    def use(backend: CupyBackend, size: int) -> Tensor:
        x = noise(4, size).requires_grad_()
        (out,), _, _ = backend.runner(program, spec)((x,), None, values, ())
        out.sum().backward()
        torch.cuda.synchronize()
        return out

    first = CupyBackend()
    out = use(first, 1000)
    made = len(compilations)
    assert made == 2
    assert len(list((tmp_path / "compiled-kernels").glob("cupy.*.cubin"))) == 2
    use(first, 2000)
    use(first, 123456)
    assert torch.equal(use(new_process(), 1000), out)
    use(new_process(), 4000)
    assert len(compilations) == made


@pytest.mark.filterwarnings("ignore")  # torch's about torch
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.parametrize("steps", [4, 20])
def test_compiled_is_as_eager(compiler: str, steps: int, noise: Noise) -> None:
    """``torch.compile(fullgraph=True)`` gives the spikes and gradients of the eager call, to the bit."""
    if compiler == "inductor":
        pytest.importorskip("triton", reason="inductor needs Triton")
        logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    neuron = sc.LIF(2.5, learn=("tau",), backend="cupy").to("cuda")
    torch._dynamo.reset()
    x, weight = noise(steps, 3, 40).requires_grad_(), noise(steps, 3, 40, seed=1)
    found = []
    for call in (neuron, torch.compile(neuron, fullgraph=True, backend=compiler)):
        out = call(x)
        found.append((out, *torch.autograd.grad(out, [x, neuron.tau], weight)))
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_the_text_that_is_shown_is_the_text_that_runs(
    compilations: List[int], monkeypatch: pytest.MonkeyPatch, noise: Noise
) -> None:
    """What :meth:`CupyBackend.text` shows of a call is what was compiled for it, for a large layer with any tau."""
    from cupy_backends.cuda.libs import nvrtc

    program, spec, values = lif_of_four_steps()
    values = (3.0, *values[1:])
    compiled, create = set(), nvrtc.createProgram

    def create_program(text: str, *arguments: Any) -> Any:
        compiled.add(text)
        return create(text, *arguments)

    monkeypatch.setattr(nvrtc, "createProgram", create_program)
    backend = CupyBackend()
    x = noise(4, 2**17).requires_grad_()
    backend.runner(program, spec)((x,), None, values, ())[0][0].sum().backward()
    torch.cuda.synchronize()
    assert compiled == set(backend.source(program, spec).values())
    assert len(compilations) == 2
