"""Functions that printed kernels call: what Python has no operator for, and half-precision storage.

Half-precision numbers are stored as 16 bits and converted exactly, subnormals and infinities included, a NaN to a
NaN; to 16 bits by rounding to the nearest, ties to even.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, int32, types, uint16, uint32
from numba.extending import intrinsic, register_jitable


@intrinsic
def bits_of(context: Any, value: Any) -> Any:
    """The bits of a float32, as a uint32."""
    return types.uint32(types.float32), lambda _, builder, signature, args: builder.bitcast(args[0], ir.IntType(32))


@intrinsic
def real_of(context: Any, bits: Any) -> Any:
    """The float32 that these 32 bits are."""
    return types.float32(types.uint32), lambda _, builder, signature, args: builder.bitcast(args[0], ir.FloatType())


@register_jitable
def from_bfloat16(bits: Any) -> Any:
    """A stored bfloat16 as float32: its upper half."""
    return real_of(uint32(bits) << uint32(16))


@register_jitable
def to_bfloat16(value: Any) -> Any:
    """A float32 rounded to bfloat16."""
    bits = bits_of(value)
    odd = (bits >> uint32(16)) & uint32(1)
    rounded = uint32(bits + uint32(0x7FFF) + odd) >> uint32(16)
    return uint16(rounded if value == value else uint32(0x7FC0))


@register_jitable
def from_float16(bits: Any) -> Any:
    """A stored float16 as float32."""
    wide = uint32(bits)
    # exponent and fraction in place, then the difference of the exponents' offsets, 2**112, which is exact
    magnitude = bits_of(real_of((wide & uint32(0x7FFF)) << uint32(13)) * float32(2.0**112))
    special = uint32(0x7F800000) if (wide & uint32(0x7C00)) == uint32(0x7C00) else uint32(0)
    return real_of(magnitude | special | ((wide & uint32(0x8000)) << uint32(16)))


@register_jitable
def to_float16(value: Any) -> Any:
    """A float32 rounded to float16."""
    bits = bits_of(value)
    sign = (bits >> uint32(16)) & uint32(0x8000)
    bits = bits & uint32(0x7FFFFFFF)
    odd = (bits >> uint32(13)) & uint32(1)
    # 0xC8000FFF moves the exponent by -112 and adds half a unit in the last place, less one
    normal = uint32(bits + uint32(0xC8000FFF) + odd) >> uint32(13)
    # adding 0.5 leaves a subnormal's fraction, rounded, in the lowest bits
    subnormal = bits_of(real_of(bits) + float32(0.5)) - uint32(0x3F000000)
    special = uint32(0x7E00) if bits > uint32(0x7F800000) else uint32(0x7C00)
    finite = subnormal if bits < uint32(0x38800000) else normal
    return uint16((special if bits >= uint32(0x47800000) else finite) | sign)


@register_jitable
def expf(x: Any) -> Any:
    """``e**x`` in float32, within two units in the last place; unlike the C library's it becomes vector instructions.

    ``x = n log 2 + r``, a polynomial for ``e**r`` (Cephes), times ``2**n`` in two factors, so that subnormals come out.
    """
    inside = x if abs(x) < float32(110.0) else float32(0.0)  # converting a larger number to int32 is undefined
    n = np.rint(inside * float32(1.4426950408889634))
    r = inside - n * float32(0.693359375) + n * float32(2.12194440e-4)
    p = float32(1.9875691500e-4) * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    p = p * (r * r) + r + float32(1.0)
    half = int32(n) >> int32(1)
    y = p * _two_to(half) * _two_to(int32(n) - half)
    y = float32(np.inf) if x >= float32(110.0) else (float32(0.0) if x <= float32(-110.0) else y)
    return y if x == x else x


@register_jitable
def _two_to(n: Any) -> Any:
    """``2**n`` for a small whole ``n``."""
    return real_of(uint32(int32(n + int32(127))) << uint32(23))


@register_jitable
def tanhf(x: Any) -> Any:
    """Hyperbolic tangent in float32, within three units in the last place, as vector instructions: a polynomial near 0
    (Cephes), else by ``e**(2 |x|)``.
    """
    z = x * x
    p = float32(-5.70498872745e-3) * z + float32(2.06390887954e-2)
    p = p * z + float32(-5.37397155531e-2)
    p = p * z + float32(1.33314422036e-1)
    p = p * z + float32(-3.33332819422e-1)
    far = float32(1.0) - float32(2.0) / (expf(abs(x) + abs(x)) + float32(1.0))
    return x * (p * z + float32(1.0)) if abs(x) < float32(0.625) else (far if x > float32(0.0) else -far)


@register_jitable
def softplusf(x: Any) -> Any:
    """``log(1 + e**x)`` in float32."""
    return greater(x, float32(0.0)) + math.log1p(expf(-abs(x)))


@register_jitable
def softplus(x: Any) -> Any:
    """``log(1 + e**x)`` in float64."""
    return greater(x, 0.0) + math.log1p(math.exp(-abs(x)))


@register_jitable
def signf(x: Any) -> Any:
    """-1, 0 or 1 as float32; 0 for NaN."""
    return float32(1.0) if x > float32(0.0) else (float32(-1.0) if x < float32(0.0) else float32(0.0))


@register_jitable
def sign(x: Any) -> Any:
    """-1, 0 or 1 as float64; 0 for NaN."""
    return 1.0 if x > 0.0 else (-1.0 if x < 0.0 else 0.0)


@register_jitable
def modulo(x: Any, divisor: Any) -> Any:
    """``x - divisor * floor(x / divisor)``."""
    r = np.fmod(x, divisor)
    return r + divisor if (r != 0) & ((r < 0) != (divisor < 0)) else r


@register_jitable
def lesser(a: Any, b: Any) -> Any:
    """The smaller one; ``b`` at a tie, zeros of both signs included. NaN if one is NaN."""
    return a if (a < b) | (a != a) else b


@register_jitable
def greater(a: Any, b: Any) -> Any:
    """The larger one; ``b`` at a tie, zeros of both signs included. NaN if one is NaN."""
    return a if (a > b) | (a != a) else b
