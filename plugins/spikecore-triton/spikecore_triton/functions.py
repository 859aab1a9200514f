"""Functions that printed kernels call: what Triton's language has no word for.

``libdevice`` is the library of the GPU's maker, and for Triton's interpreter a stand-in (:mod:`.interpreter`). Triton
reads annotations as its own, so there are none of Python's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from spikecore_triton import INTERPRETED

if INTERPRETED:
    from spikecore_triton.interpreter import libdevice
else:
    from triton.language.extra import libdevice  # type: ignore[no-redef]  # the same functions

__all__ = [
    "float32",
    "greater",
    "hold",
    "lesser",
    "libdevice",
    "modulo",
    "negative_zero",
    "sigmoid",
    "sign",
    "softplus",
]


def _compiled_for(vendor, _semantic=None):
    """True if this is compiled for the GPUs of ``"cuda"`` or of ``"hip"``; the interpreter is neither."""
    return _semantic is not None and _semantic.builder.options.backend_name == vendor.value


if not INTERPRETED:
    _compiled_for = tl.core.builtin(_compiled_for)


@triton.jit
def hold(x):
    """The same numbers, from which nothing is computed before this line.

    Without, the compiler computes at the first step backwards whatever does not depend on the last one, for all steps,
    and runs out of registers. 16-bit numbers are held two to a register, as they came.
    """
    if _compiled_for("cuda"):
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=32 // x.dtype.primitive_bitwidth
        )
    else:
        return x


@triton.jit
def float32(value: tl.constexpr):
    """A number of the type of arithmetic: a bare one is Python's, or float64 where float32 has no normal number."""
    return tl.full((), value, tl.float32)


@triton.jit
def negative_zero():
    """-0. Written as a literal it would be +0 on a GPU, since Triton makes +0 of every literal that equals 0."""
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sigmoid(x):
    """``1 / (1 + exp(-x))``."""
    return tl.div_rn(1.0, 1.0 + libdevice.exp(-1.0 * x))


@triton.jit
def softplus(x):
    """``log(1 + exp(x))``."""
    return greater(x, 0.0) + libdevice.log1p(libdevice.exp(-tl.abs(x)))


@triton.jit
def sign(x):
    """-1, 0 or 1; 0 for NaN."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0))


@triton.jit
def modulo(x, divisor):
    """``x - divisor * floor(x / divisor)``."""
    r = libdevice.fmod(x, divisor)
    return tl.where((r != 0.0) & ((r < 0.0) != (divisor < 0.0)), r + divisor, r)


@triton.jit
def lesser(a, b):
    """The smaller one; ``b`` at a tie, of zeros, too, whose signs a GPU would order. NaN if one is NaN."""
    return tl.where(a < b, a, tl.where(a != a, a, b))


@triton.jit
def greater(a, b):
    """The larger one; ``b`` at a tie, of zeros, too. NaN if one is NaN."""
    return tl.where(a > b, a, tl.where(a != a, a, b))
