"""Kernels that pack spikes as bits compile with NVRTC, which needs no GPU, and become the instructions they must."""

from __future__ import annotations

import re
from typing import Tuple

import pytest
import torch

from spikecore.dtypes import DTYPES
from spikecore_cupy.device import OPTIONS, headers
from spikecore_cupy.packing import printed

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("nvrtc")]


def built(text: str, *options: str) -> Tuple[str, str]:
    """A kernel as PTX, and what the compiler said."""
    from cupy_backends.cuda.libs import nvrtc

    included = headers(text)
    texts, names = [one.encode() for one in included.values()], [one.encode() for one in included]
    program = nvrtc.createProgram(text, "kernel.cu", texts, names)
    try:
        nvrtc.compileProgram(program, (*OPTIONS, *options))
        ptx = nvrtc.getPTX(program)
        return (ptx.decode() if isinstance(ptx, bytes) else ptx), nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("direction", ["pack", "unpack"])
def test_sixteen_bytes_at_once(direction: str, bits: int, dtype: torch.dtype) -> None:
    """A thread moves 64 bytes of numbers, 16 in an access, and spills none; arguments are as a launch packs them."""
    sizes = {"long long": 64, "int": 32, "float": 32, "double": 64}
    name, text, types = printed(direction, bits, dtype, 128 // torch.finfo(dtype).bits)
    ptx, _ = built(text, "-arch=compute_90")
    access = "ld" if direction == "pack" else "st"
    moved = re.findall(rf"{access}\.global(?:\.nc)?\.v(\d)\.[a-z](\d+)", ptx)
    assert [int(count) * int(size) for count, size in moved] == [128] * 4
    entry = re.search(rf"\.entry {name}\((.*?)\)", ptx, re.DOTALL)
    assert entry is not None
    taken = [int(size) for size in re.findall(r"\.param \.[a-z](\d+)", entry[1])]
    assert taken == [64 if "*" in kind else sizes[kind] for kind in types]
    _, log = built(text, "-arch=sm_90", "--ptxas-options=-v")
    spilled = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert spilled == [("0", "0", "0")]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_every_gpu(which: str, dtype: torch.dtype) -> None:
    """Nothing in a kernel is of one generation; one for numbers at any address compiles, too."""
    from cupy_backends.cuda.libs import nvrtc

    known = nvrtc.getSupportedArchs()
    widest = 128 // torch.finfo(dtype).bits
    for direction, width in (("pack", 1), ("pack", widest), ("unpack", widest)):
        built(printed(direction, 4, dtype, width)[1], f"-arch=sm_{min(known) if which == 'oldest' else max(known)}")
