"""Products of spikes and float32 matrices on tensor cores, which multiply bfloat16.

A float32 number is the sum of three of bfloat16, 8 bits each, and a spike is one of bfloat16: products of a spike and a
part are exact, and their sums are float32, as those of a float32 product. So ``y @ W.t() + b`` is one product of
``[y y y 1]`` and the parts of ``[W b]`` side by side, the smallest first. Bits below 2^-133 are lost.

cuBLAS sums across blocks in the type of the result, so torch's switch for reduced precision changes nothing here. An
infinite weight has no further parts: times 0 it is NaN, times 1 it is infinite, as in a float32 product.
"""

from __future__ import annotations

from typing import List, Optional

import torch
from torch import Tensor

#: Width of a matrix from which on its product is taken so. A kernel with feedback takes narrower ones on most GPUs.
WIDE = 512
#: Multiplications of a step (rows times width squared) from which on it is, and steps: of 32 rows of 520 neurons and 32
#: steps a training step takes 0.98 of the time, of 100 steps 0.92, of 128 rows of 1024 neurons 0.69 and 0.67 (H200,
#: device). Of 16 steps of 32 rows the split of the weight, some fifty small launches, is not made up for (1.05).
WORK, STEPS = 2**23, 32
#: Numbers behind the three copies of a row of spikes that are 1. With a width that is a multiple of 8, too, every row
#: begins at a multiple of 16 bytes, without which cuBLAS has slower kernels.
BESIDE = 8


def is_quicker(weight: Tensor, rows: int, steps: int) -> bool:
    """Whether tensor cores take the products of so many steps of so many rows of spikes: large ones of float32, on a
    CUDA GPU whose tensor cores have bfloat16, by a torch whose ``mm`` gives float32 for it (from 2.8 on).

    Where products of float32 may be rounded to TF32, they are quicker still, and what was asked for.
    """
    width = weight.shape[0]
    if weight.dtype != torch.float32 or weight.device.type != "cuda" or torch.version.cuda is None:
        return False
    if width < WIDE or width % 8 or rows * width * width < WORK or steps < STEPS:
        return False
    if not hasattr(torch.ops.aten.mm, "dtype") or torch.cuda.get_device_capability(weight.device) < (8, 0):
        return False
    return not _may_round()


def _may_round() -> bool:
    matmul = torch.backends.cuda.matmul
    try:
        # from torch 2.9 on, where reading the older name raises once the newer one was set
        return bool(matmul.fp32_precision == "tf32")
    except (AttributeError, AssertionError):  # an older torch raises either for a name that it does not know
        return bool(matmul.allow_tf32)


def multiplied(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of bfloat16, in float32."""
    return torch.mm(a, b, out_dtype=torch.float32)


def parts_of(x: Tensor) -> List[Tensor]:
    """Three tensors of bfloat16 whose sum is x, the smallest first."""
    found: List[Tensor] = []
    for _ in range(3):
        # cut off, not rounded: the largest numbers would become infinite
        first = (x.view(torch.int32) & -65536).view(torch.float32)
        found.insert(0, first.to(torch.bfloat16))
        # of an infinite number nothing is left
        x = (x - first).masked_fill_(x.isinf(), 0.0)
    return found


class SpikesTimes:
    """``y @ W.t() + b`` for spikes ``y [B, H]``, step after step."""

    def __init__(self, weight: Tensor, bias: Optional[Tensor], batch: int) -> None:
        width = weight.shape[0]
        beside = weight.new_zeros((width, BESIDE))
        if bias is not None:
            # its three parts, each times a 1
            for k, part in enumerate(parts_of(bias)):
                beside[:, k] = part
        self.factor = torch.cat([*parts_of(weight), beside.to(torch.bfloat16)], 1).t()
        self.rows = torch.empty((batch, 3 * width + BESIDE), dtype=torch.bfloat16, device=weight.device)
        self.rows[:, 3 * width :] = 1.0
        self.spikes = self.rows[:, : 3 * width].view(batch, 3, width)

    def __call__(self, spikes: Tensor) -> Tensor:
        """For the spikes ``[B, H]`` of a step."""
        self.spikes.copy_(spikes[:, None])
        return multiplied(self.rows, self.factor)
