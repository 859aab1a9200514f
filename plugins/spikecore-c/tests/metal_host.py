"""Metal source on the CPU: a text compiled by g++ as C++, with a header of Metal's names, and run thread after thread.

It shows what a text means and how torch's loader is called, not what Apple's compiler makes of it.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from typing import Any, List, Optional

from torch import Tensor

from spikecore.backend import BackendInfo, hookimpl
from spikecore.kernels.shared_library import library
from spikecore_c import WITHOUT_FLOAT64
from spikecore_c.metal import MetalBackend

OPTIONS = ("-x", "c++", "-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-w")
HEADER = """
#include <cmath>
#include <cstdint>
#include <cstring>
#define kernel extern "C"
#define device
#define constant const
using uint = unsigned;
using half = _Float16;
struct bfloat {
    uint16_t bits;
    explicit bfloat(float x) {
        uint32_t b;
        std::memcpy(&b, &x, 4);
        bits = x != x ? 0x7fc0 : (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    }
    operator float() const {
        uint32_t b = uint32_t(bits) << 16;
        float x;
        std::memcpy(&x, &b, 4);
        return x;
    }
};
namespace metal {
using std::exp, std::log, std::sin, std::cos, std::tan, std::sinh, std::cosh, std::tanh, std::atan, std::fabs, std::pow;
using std::floor, std::ceil, std::trunc, std::rint, std::fmod, std::copysign;
inline float min(float a, float b) { return b < a ? b : a; }
namespace precise {
inline float divide(float a, float b) { return a / b; }
inline float sqrt(float x) { return std::sqrt(x); }
}
}
"""
#: The head of a kernel, which names it and its arguments.
HEAD = re.compile(r"kernel void (\w+)\(\n(.*?)\n\) \{", re.DOTALL)


class Library:
    """Library of ``torch.mps.compile_shader``: its attributes are kernels."""

    def __init__(self, text: str) -> None:
        ((name, head),) = HEAD.findall(text)
        *arguments, position = (" ".join(argument.split()) for argument in head.split(","))
        assert position == "uint position [[thread_position_in_grid]]"
        given = ", ".join(_given(argument, f"values[{k}]") for k, argument in enumerate(arguments))
        loop = f"for (long i = 0; i < threads; ++i) {name}({given}, uint(i));"
        whole = f'{text}\nextern "C" void run(long threads, void **values) {{ {loop} }}\n'
        made = library(name, {f"{name}.c": whole.replace("#include <metal_stdlib>", HEADER)}, OPTIONS)
        self._library, self._count = made, len(arguments)
        setattr(self, name, self._launch)

    def _launch(self, *values: Any, threads: int) -> None:
        # a thread more than there are neurons must do nothing
        kept: List[Any] = [_bound(value) for value in values]
        assert len(kept) == self._count
        pointers = [value.data_ptr() if isinstance(value, Tensor) else ctypes.addressof(value) for value in kept]
        self._library.run(ctypes.c_long(threads + 1), (ctypes.c_void_p * len(pointers))(*pointers))


def _given(argument: str, value: str) -> str:
    kind, mark = re.fullmatch(r"(?:constant|device) (.*) ([&*])\w+", argument).groups()  # type: ignore[union-attr]
    return f"{'*' if mark == '&' else ''}({kind} *){value}"


def _bound(value: Any) -> Any:
    """Tensors as they are. Of lists, whole numbers are int64, others float32, tensors addresses, as torch has it."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value[0], Tensor):
        return (ctypes.c_void_p * len(value))(*[tensor.data_ptr() for tensor in value])
    kind = ctypes.c_int64 if isinstance(value[0], int) else ctypes.c_float
    return (kind * len(value))(*value)


class MetalHost(MetalBackend):
    """The backend, on CPU tensors."""

    name = "metal_host"
    compile_shader = staticmethod(Library)


def probe() -> Optional[str]:
    """Reason why it does not work here."""
    return None if shutil.which("g++") else "Metal source on the CPU needs g++, which is not on the PATH"


@hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The backend of tests."""
    return [BackendInfo("metal_host", "metal_host:MetalHost", ("cpu",), WITHOUT_FLOAT64, probe, api=(1, 6))]
