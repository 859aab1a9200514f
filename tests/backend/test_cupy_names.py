"""CUDA kernels with names that CUDA, C and kernels themselves have: they compile and compute what torch does.

That texts differ in names alone is a test of their own (tests/unit/lang/test_render.py). Here is what a text cannot
show: words that compilers take for something else.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import List

import pytest
import torch

import spikecore_cupy
from cuda_texts import QUICK, built
from kernel_names import assert_like_torch, identifiers, plans
from spikecore.lang.dialects import WORDS
from spikecore.testing.naming import awkward, namings, usable
from spikecore_cupy.device import HEADER, headers
from spikecore_cupy.source import print_kernel
from spikecore_cupy.text import CudaPrinter, Form

pytestmark = pytest.mark.kernels

HERE = Path(spikecore_cupy.__file__).parent
#: Names that were missed once, and their kin: of the frame, of temporaries, of functions, macros, and words of CUDA.
MISSED = (
    "i j k t N T U V t0 t1 t2 t3 x_step grad_x v_next kept out_j chunk whole value quotient NULL M_PI HUGE_VAL errno "
    "assert EOF stdin linux unix"
).split()
CUDA = (
    "blockIdx threadIdx gridDim blockDim warpSize clock clock64 half float2 float4 double2 int4 uint3 dim3 "
    "cudaError_t volatile managed shared constant device host global launch atomicAdd rsqrt rcp saturate surface "
    "texture printf malloc free memcpy memset size_t ptrdiff_t nullptr_t std cuda main min max abs norm rnorm erf j0 "
    "j1 jn y0 y1 yn gamma tgamma lgamma signbit fdim fma hypot sinpi cospi exp2 exp10 float16 bfloat16 parts offset"
).split()


def everything() -> List[str]:
    """Every identifier of what kernels include and are built from, and words of each dialect of C."""
    found = {*MISSED, *CUDA, *WORDS}
    for text in (*headers(f'#include "{HEADER}"').values(), (HERE / "host.h").read_text(encoding="utf-8")):
        found.update(identifiers(text))
    return usable(found)


@pytest.mark.usefixtures("on_host")
def test_every_name_of_the_headers() -> None:
    """Names that kernels include, and words of C, CUDA and OpenCL; g++ compiles them all."""
    for k, naming in enumerate(namings(everything(), 120)):
        assert_like_torch(naming, "cupy_host", steps=3 if k % 2 else 17)


@pytest.mark.usefixtures("nvrtc")
def test_nvrtc_compiles_every_name() -> None:
    """Forward and backward, for the type of arithmetic and for 16 bits."""
    for k, naming in enumerate(namings(everything(), 120)):
        neuron = naming.neuron()(surrogate=naming.surrogate())
        for plan in plans(neuron, 2 if k % 2 else None, torch.float16 if k % 3 else torch.float64):
            built(print_kernel(plan, Form(2)).text, base=QUICK)


def test_no_name_is_a_macro_of_the_compiler() -> None:
    """Each macro that g++ knows in the headers that kernels may meet, under the name that a kernel gives it."""
    if shutil.which("g++") is None:
        pytest.skip("the macros are those of g++, which is not on the PATH")
    includes = [
        word
        for name in ("math", "string", "stdio", "stdlib", "errno", "assert", "stdarg")
        for word in ("-include", f"{name}.h")
    ]
    listed = subprocess.run(
        ["g++", "-dM", "-E", *includes, "-x", "c++", "/dev/null"], capture_output=True, text=True, check=True
    ).stdout
    macros = {line.split()[1].partition("(")[0] for line in listed.splitlines()}
    assert {"NULL", "M_PI", "errno", "linux", "__cplusplus"} <= macros
    printer = CudaPrinter(torch.float32)
    symbols = [printer.symbols.new(name) for name in sorted(macros)]
    write = printer.named([" ".join(symbols)])
    assert not {write(symbol) for symbol in symbols} & macros


@pytest.mark.usefixtures("on_host")
def test_names_of_any_length_and_alphabet() -> None:
    """500 letters, letters that C has not, and a class that type() made."""
    assert_like_torch(awkward(), "cupy_host")
