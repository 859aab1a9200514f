"""Choice, compilation and cache of the cupy backend, and its use with the rest of PyTorch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import KERNELS, Recent
from spikecore.lang import Program
from spikecore.plugins.registry import BUILTINS, Registry, replace_default
from spikecore_cupy import device
from spikecore_cupy.backend import CupyBackend

pytestmark = pytest.mark.gpu

Noise = Callable[..., Tensor]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody asked for a backend, and nothing was said yet."""
    monkeypatch.delenv("SPIKECORE_BACKEND", raising=False)
    monkeypatch.delenv("SPIKECORE_BLOCK", raising=False)
    before = replace_default(Registry(BUILTINS))
    yield
    replace_default(before)


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
    monkeypatch.setattr(device, "loaded_kernels", Recent(KERNELS))
    return count


def lif_of_four_steps() -> Tuple[Program, Spec, Tuple[float, ...]]:
    """The program, the spec and the values of the parameters of a LIF, those of its surrogate included."""
    neuron = sc.LIF()
    program = neuron.program
    values = tuple(map(float, neuron.named_values().values()))
    return program, Spec(torch.float32, 4, ("number",) * len(values), final=False), values


def test_the_text_that_is_shown_is_the_text_that_runs(
    compilations: List[int], monkeypatch: pytest.MonkeyPatch, noise: Noise
) -> None:
    """The text that :meth:`CupyBackend.text` shows of a call was compiled for it, for a large layer with any tau."""
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
