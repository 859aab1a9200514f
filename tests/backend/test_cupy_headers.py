"""Kernels and the files that they include: no kernel calls anything as one of the files does, whichever it includes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
import torch

import spikecore_cupy
from spikecore.backend import Spec
from spikecore.dtypes import compute_dtype
from spikecore_cupy import ElementwiseKernel, ScanKernel
from spikecore_cupy.device import headers
from spikecore_cupy.feedback import HEADER
from spikecore_cupy.packing import printed
from spikecore_cupy.sums import Statistics, Totals

pytestmark = pytest.mark.kernels

FILES = sorted(path.name for path in Path(spikecore_cupy.__file__).parent.glob("*.cuh"))


def recorded(texts: Dict[str, str]) -> Any:
    """A class of kernels that are not launched, whose texts are put there. A new one: kernels are kept by class."""

    class Unrun:
        block = 128

        def __init__(self, name: str, text: str, types: Sequence[str], memory: int = 0) -> None:
            texts[name] = text

        def __call__(self, *arguments: Any) -> None:
            """Nothing is computed."""

    return Unrun


def texts(dtype: torch.dtype) -> Dict[str, str]:
    """Every text that the backend writes by hand, and one of each kind of custom kernel."""
    found: Dict[str, str] = {}
    for direction in ("pack", "unpack"):
        for bits in (1, 8):
            found[f"{direction} {bits}"] = printed(direction, bits, dtype, 2)[1]
    compute, kernel = compute_dtype(dtype), recorded(found)
    Totals(kernel, compute)
    x = torch.zeros(4, 2, 8, dtype=dtype)
    running = (torch.zeros(8, dtype=compute), torch.ones(8, dtype=compute), torch.tensor(0), 0.5)
    Statistics(kernel, Spec(dtype, 4, ()))((4, 16, ((1, 8),)), x, 1e-5, running)
    body = "y = maximum(x, (real)0) * sigmoid(x);"
    found["elementwise"] = ElementwiseKernel("gate", inputs=["x"], outputs=["y"], body=body).source_for(dtype)
    body = "total += x; y = total;"
    scan = ScanKernel("cumsum", inputs=["x"], outputs=["y"], state={"total": 0.0}, body=body)
    found["scan"] = scan.source_for(dtype)
    return found


def test_what_a_kernel_includes_is_found() -> None:
    """Those that the files include, too; one that is not there is left to the compiler, which names it."""
    assert sorted(headers(f'#include "{HEADER}"\n')) == FILES
    assert sorted(headers('#include "sums.cuh"\n#include "mine.cuh"\n')) == ["sums.cuh"]
    assert headers("// nothing") == {}


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_kernels_compile_with_every_file(dtype: torch.dtype) -> None:
    """Kernels that unpack spikes once had a type ``Part``; another change gave the header one of this name."""
    from cupy_backends.cuda.libs import nvrtc

    before = "".join(f'#include "{name}"\n' for name in FILES if name not in ("sums.cuh", "staged.cuh"))
    failed: List[str] = []
    found = texts(dtype)
    assert len(found) == 9
    for name, text in found.items():
        assert re.search(r'^#include "spikecore.cuh"$', text, re.MULTILINE), name
        whole = before + text
        included = headers(whole)
        files, names = [one.encode() for one in included.values()], [one.encode() for one in included]
        program = nvrtc.createProgram(whole, "kernel.cu", files, names)
        try:
            nvrtc.compileProgram(program, ("-std=c++17", "-default-device", "-arch=compute_90", "-G"))
        except nvrtc.NVRTCError:
            failed.append(f"{name}: {nvrtc.getProgramLog(program)}")
        finally:
            nvrtc.destroyProgram(program)
    assert not failed, "\n".join(failed)
