"""Float32 numbers as parts of bfloat16, for products on tensor cores: a kernel that reads each number once."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch
from torch import Tensor

from spikecore_cupy.device import shared
from spikecore_cupy.text import head

#: Neighbouring numbers of a thread.
WIDTH = 4
NAME = "split"
TYPES = ("long long", "int", "int", "const float*", "bfloat16*")
_TEXT = """// Numbers of float in {count} parts of bfloat16, the first 8 bits in the last part.

#include "spikecore.cuh"

constexpr int PARTS = {count};
constexpr int V = {width};  // neighbouring numbers of a thread
constexpr bool WHOLE = {whole};  // V of them are one access

// `groups` of V numbers of rows of `width` numbers; rows of parts have `padded` ones.
{head}
    const long long groups, const int width, const int padded, const float* __restrict__ x, bfloat16* __restrict__ parts
) {{
    const long long group = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (group >= groups) return;
    const long long row = row_of(group, padded / V);
    const int column = (int)(group * V - row * padded);
    const float* from = x + row * width + column;
    Pack<float, V> rest = {{}};
    if (WHOLE) {{
        if (column < width) rest = load<V>(from);
    }} else {{
        #pragma unroll
        for (int j = 0; j < V; ++j) rest[j] = column + j < width ? from[j] : 0.0f;
    }}
    #pragma unroll
    for (int p = PARTS - 1; p >= 0; --p) {{
        Pack<bfloat16, V> part = {{}};
        #pragma unroll
        for (int j = 0; j < V; ++j) {{
            const unsigned bits = __float_as_uint(rest[j]);
            part.set(j, {{(unsigned short)(bits >> 16)}});
            rest[j] -= __uint_as_float(bits & 0xffff0000u);
        }}
        store(parts + (row * PARTS + p) * padded + column, part);
    }}
}}
"""


class Splitter:
    """The kernels of one class that compiles and launches them."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self._kernel = kernel
        self._compiled: Dict[Tuple[int, bool], Any] = {}

    def __call__(self, x: Tensor, count: int) -> Tensor:
        """Implementation of :meth:`spikecore.kernels.KernelBackend.split`."""
        rows, width = x.shape
        padded = -(-width // 8) * 8
        parts = torch.empty((rows, count, padded), dtype=torch.bfloat16, device=x.device)
        whole = not (width % WIDTH or x.data_ptr() % (4 * WIDTH))
        kernel = self._compiled.get((count, whole))
        if kernel is None:
            kernel = self._compiled[count, whole] = shared(self._kernel, NAME, printed(count, whole), TYPES)
        groups = rows * padded // WIDTH
        arguments = (groups, width, padded, x.data_ptr(), parts.data_ptr())
        kernel(-(-groups // kernel.block), x.get_device(), arguments)
        return parts


def printed(count: int, whole: bool) -> str:
    """The text of a kernel."""
    return _TEXT.format(count=count, width=WIDTH, whole=str(whole).lower(), head=head(NAME))
