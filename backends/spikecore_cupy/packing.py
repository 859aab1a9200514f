"""Spikes as bits: a kernel that packs small whole numbers, and one that unpacks them, each in one pass.

Rules of this module:

- A thread takes groups of eight numbers, which are as many bytes as a number has bits: 16 bytes are read at once, and
  the bytes of a group are written at once.
- Every block says by a number of its own whether what it packed was right, so that nothing has to be set before a
  launch. The least of these is that of all, since a minimum with NaN is NaN; unpacking multiplies by it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch
from torch import Tensor

from spikecore.backend import Bits, Whole, compute_dtype
from spikecore_cupy.device import shared
from spikecore_cupy.text import TYPES, head

#: Bytes that a thread reads before it computes, so that enough is in flight.
IN_FLIGHT = 64
#: The C type of a group's bits, by the bits of a number.
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}

_TEXT = """// {count} bits a number, {stored} in memory: {direction}.

#include "spikecore.cuh"

constexpr int BITS = {count};
constexpr int V = {width};  // neighbouring numbers in one access
constexpr int GROUPS = {groups};  // of eight numbers, of a thread
using S = {stored};
using real = {real};
using Word = {word};  // the bits of a group
using Wide = {wide};  // arithmetic with them
"""

_PACK = """
struct Eight {
    Pack<S, V> at[8 / V];
    __device__ __forceinline__ S operator[](int j) const { return at[j / V][j % V]; }
    __device__ __forceinline__ void set(int j, S x) { at[j / V].set(j % V, x); }
};

// The numbers behind the last one are 0.
__device__ __forceinline__ Eight read(const S* __restrict__ numbers, const long long i, const long long N) {
    Eight eight;
    if (i + 8 <= N) {
        #pragma unroll
        for (int k = 0; k < 8 / V; ++k) eight.at[k] = load<V>(numbers + i + k * V);
    } else {
        #pragma unroll
        for (int j = 0; j < 8; ++j) eight.set(j, i + j < N ? numbers[i + j] : rounded<S>((real)0));
    }
    return eight;
}

// The whole number k with x = k * unit; something above `largest` if there is none.
__device__ __forceinline__ unsigned whole_of(const float x, const float unit, const float inverse, bool& wrong) {
    // at 2**23 numbers of float are whole: k stands in their last bits, without a conversion
    const float moved = x * inverse + 8388608.0f;
    wrong |= (moved - 8388608.0f) * unit != x;
    return __float_as_uint(moved) - 0x4b000000u;
}
__device__ __forceinline__ unsigned whole_of(const double x, const double unit, const double inverse, bool& wrong) {
    const double k = x * inverse;
    const unsigned n = k >= 0 && k < 256 ? (unsigned)k : 256;
    wrong |= n * unit != x;
    return n;
}

__device__ __forceinline__ Word packed(
    const Eight& eight, const real unit, const real inverse, const unsigned largest, bool& wrong
) {
    Wide word = 0;
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
        const real x = value(eight[j]);
        unsigned n = x != 0;
        if (BITS == 1) {
            wrong |= n && x != unit;
        } else {
            n = whole_of(x, unit, inverse, wrong);
            wrong |= n > largest;
        }
        word |= (Wide)n << j * BITS;
    }
    return (Word)word;
}

HEAD(
    const long long N, const S* __restrict__ numbers, unsigned char* __restrict__ data, float* __restrict__ right,
    const real unit, const real inverse, const int largest
) {
    const long long first = blockIdx.x * (long long)(GROUPS * blockDim.x) + threadIdx.x;
    Eight eights[GROUPS];
    #pragma unroll
    for (int g = 0; g < GROUPS; ++g) eights[g] = read(numbers, 8 * (first + g * blockDim.x), N);
    bool wrong = false;
    #pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        const long long group = first + g * blockDim.x, rest = N - 8 * group;
        const Word word = packed(eights[g], unit, inverse, largest, wrong);
        if (rest >= 8) {
            reinterpret_cast<Word*>(data)[group] = word;
        } else {
            for (int k = 0; k < BITS && 8 * k < rest * BITS; ++k)
                data[group * BITS + k] = (unsigned char)(word >> 8 * k);
        }
    }
    const bool any = __syncthreads_or(wrong);
    if (threadIdx.x == 0) right[blockIdx.x] = any ? NAN : 1.0f;
}
"""

_UNPACK = """
constexpr int PARTS = GROUPS * 8 / V;  // of V numbers, of a thread
constexpr int SIZE = V * BITS;  // bits of a part
using Piece = PART;  // the bytes of a part, or the byte that it lies in

HEAD(
    const long long N, const unsigned char* __restrict__ data, const float* __restrict__ right,
    S* __restrict__ numbers, const real unit
) {
    // parts and not groups: neighbouring threads write neighbouring 16 bytes. With the 32 bytes of a group of float
    // for each thread, half of them in a store, 64 Mi numbers took an H200 0.144 ms
    const long long first = blockIdx.x * (long long)(PARTS * blockDim.x) + threadIdx.x;
    // NaN if something was wrong, and then every number is
    const real scale = unit * right[0];
    const S zero = rounded<S>((real)0 * scale), one = rounded<S>(scale);
    Piece parts[PARTS];
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const long long i = first + p * blockDim.x, rest = N - V * i;
        if (SIZE < 8) {
            parts[p] = rest > 0 ? data[i * SIZE / 8] >> i * SIZE % 8 : 0;
        } else if (rest >= V) {
            parts[p] = reinterpret_cast<const Piece*>(data)[i];
        } else {
            Wide word = 0;
            for (int k = 0; k < SIZE / 8 && 8 * k < rest * BITS; ++k) word |= (Wide)data[i * (SIZE / 8) + k] << 8 * k;
            parts[p] = (Piece)word;
        }
    }
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const long long i = V * (first + p * blockDim.x);
        Pack<S, V> pack;
        #pragma unroll
        for (int j = 0; j < V; ++j) {
            const unsigned n = (unsigned)((Wide)parts[p] >> j * BITS) & ((1u << BITS) - 1);
            pack.set(j, BITS == 1 ? (n ? one : zero) : rounded<S>((real)n * scale));
        }
        if (i + V <= N) {
            store<V>(numbers + i, pack);
        } else {
            #pragma unroll
            for (int j = 0; j < V; ++j)
                if (i + j < N) numbers[i + j] = pack[j];
        }
    }
}
"""


class Packer:
    """The kernels of one class that compiles and launches them."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self._kernel = kernel
        self._compiled: Dict[Tuple[str, int, torch.dtype, int], Any] = {}

    def pack(self, numbers: Tensor, whole: Whole) -> Bits:
        """Implementation of :meth:`spikecore.backend.Backend.pack`."""
        count, dtype, bits = numbers.numel(), numbers.dtype, whole.bits
        width = 16 // numbers.element_size()
        if numbers.data_ptr() % 16:
            width = 1
        kernel, blocks = self._of("pack", bits, dtype, width, count)
        data = torch.empty(-(-count * bits // 8), dtype=torch.uint8, device=numbers.device)
        right = torch.empty(blocks, dtype=torch.float32, device=numbers.device)
        kernel(
            blocks,
            numbers.get_device(),
            [
                count, numbers.data_ptr(), data.data_ptr(), right.data_ptr(), whole.unit, 1 / whole.unit, whole.largest,
            ],
        )  # fmt: skip
        return Bits(data, right.amin())

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        """Implementation of :meth:`spikecore.backend.Backend.unpack`."""
        data, right = bits
        if not data.is_contiguous() or data.data_ptr() % whole.bits:
            data = data.clone(memory_format=torch.contiguous_format)
        numbers = torch.empty(count, dtype=dtype, device=data.device)
        kernel, blocks = self._of("unpack", whole.bits, dtype, 16 // numbers.element_size(), count)
        kernel(
            blocks,
            data.get_device(),
            [count, data.data_ptr(), right.data_ptr(), numbers.data_ptr(), whole.unit],
        )
        return numbers

    def _of(self, direction: str, bits: int, dtype: torch.dtype, width: int, count: int) -> Tuple[Any, int]:
        """The kernel, and how many blocks it takes for so many numbers."""
        key = direction, bits, dtype, width
        kernel = self._compiled.get(key)
        if kernel is None:
            name, text, types = printed(direction, bits, dtype, width)
            kernel = self._compiled[key] = shared(self._kernel, name, text, types)
        return kernel, -(-count // (8 * groups_of(dtype) * kernel.block))


def groups_of(dtype: torch.dtype) -> int:
    """Number of groups that a thread takes."""
    return max(1, IN_FLIGHT // (8 * (torch.finfo(dtype).bits // 8)))


def printed(direction: str, bits: int, dtype: torch.dtype, width: int) -> Tuple[str, str, Tuple[str, ...]]:
    """A kernel's name, its text, and the C types of its arguments."""
    stored, real = TYPES[dtype], TYPES[compute_dtype(dtype)]
    name = f"{direction}_{bits}_bits"
    opening = _TEXT.format(
        count=bits,
        stored=stored,
        direction=direction,
        width=width,
        groups=groups_of(dtype),
        real=real,
        word=_WORDS[bits],
        wide=_WORDS[max(bits, 4)],
    )
    body = _PACK if direction == "pack" else _UNPACK
    words = {
        "HEAD(": head(name),
        "PART;": f"{_WORDS[max(1, width * bits // 8)]};",
    }
    for word, meant in words.items():
        body = body.replace(word, meant)
    text = opening + body
    pointers = {
        "pack": ("long long", "const S*", "unsigned char*", "float*", real, real, "int"),
        "unpack": ("long long", "const unsigned char*", "const float*", "S*", real),
    }
    return name, text, pointers[direction]
