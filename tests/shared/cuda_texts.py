"""Texts of CUDA kernels compiled by NVRTC, which needs no GPU."""

from __future__ import annotations

import re
from typing import List, Tuple

from spikecore_cupy.device import OPTIONS, headers

#: For the verdict alone: to PTX and without optimising it takes a tenth of a second.
QUICK = ("-std=c++17", "-default-device", "-arch=compute_90", "-G")


def built(text: str, *options: str, base: Tuple[str, ...] = OPTIONS) -> Tuple[str, str]:
    """A kernel as PTX, and what the compiler said. A text that it refuses is an error with the log."""
    from cupy_backends.cuda.libs import nvrtc

    included = headers(text)
    files, names = [one.encode() for one in included.values()], [one.encode() for one in included]
    program = nvrtc.createProgram(text, "kernel.cu", files, names)
    try:
        nvrtc.compileProgram(program, (*base, *options))
        ptx = nvrtc.getPTX(program)
        return (ptx.decode() if isinstance(ptx, bytes) else ptx), str(nvrtc.getProgramLog(program))
    except nvrtc.NVRTCError:
        raise AssertionError(f"{nvrtc.getProgramLog(program)}\nof\n{text}") from None
    finally:
        nvrtc.destroyProgram(program)


def arguments(ptx: str, name: str) -> List[int]:
    """Numbers of bits of the arguments of a compiled kernel."""
    entry = re.search(rf"\.entry {name}\((.*?)\)", ptx, re.DOTALL)
    assert entry is not None
    return [int(size) for size in re.findall(r"\.param \.[a-z](\d+)", entry[1])]


def packed(types: Tuple[str, ...]) -> List[int]:
    """Numbers of bits that a launch packs for the arguments."""
    sizes = {"long long": 64, "int": 32, "float": 32, "double": 64}
    return [64 if "*" in name else sizes[name] for name in types]


def spills(log: str) -> List[Tuple[int, int, int]]:
    """Bytes of stack, of spill stores and of spill loads, for each function of a kernel."""
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert found
    return [(int(a), int(b), int(c)) for a, b, c in found]
