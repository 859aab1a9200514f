"""Products of spikes and float32 matrices on tensor cores, which multiply bfloat16.

A float32 number is the sum of three of bfloat16, 8 bits each, and a spike is one of bfloat16: products of a spike and a
part are exact, and their sums are float32, as those of a float32 product. Bits of a number below 2^-133 are lost. An
infinite number has parts that are NaN.

- ``y @ W.t() + b`` of a step is one product of ``[y y y 1]`` and the parts of ``[W b]`` side by side.
- ``g.t() @ y`` of all steps, the gradient of the weight, is one product of the parts of ``g`` side by side and ``y``,
  and a sum of three matrices.

cuBLAS sums across blocks in the type of the result, so torch's switch for reduced precision changes nothing here.
"""

from __future__ import annotations

import sys
from typing import Callable, List, Optional

import torch
from torch import Tensor

#: Parts of a number, and which of the two halves of a float32 number in memory is its first part.
PARTS, UPPER = 3, int(sys.byteorder == "little")
#: Width of a matrix from which on its product is taken so. A kernel with feedback takes narrower ones on most GPUs.
WIDE = 512
#: Multiplications of a step (rows times width squared) from which on it is, and steps: of 32 rows of 520 neurons and 32
#: steps a training step takes 0.98 of the time, of 100 steps 0.92, of 128 rows of 1024 neurons 0.69 and 0.67 (H200,
#: device). Of 16 steps of 32 rows the split of the weight is not made up for (1.05).
WORK, STEPS = 2**23, 32
#: Width from which on a gradient is, and its multiplications. Of 12,672 rows of 384, 512 and 1024 neurons it takes 58,
#: 77 and 172 us, and float32's product 81, 135 and 517; of 3,168 rows of 512 neurons 25 and 42 (H100, device).
WIDE_GRADIENT, WORK_OF_GRADIENT = 384, 2**30
#: Rows of a product at most. Tensor cores cut sums off: of 12,672 and 127,872 positive numbers they are 1e-7 and 1e-5
#: too small.
ROWS = 2**14
#: Rows of parts begin at a multiple of so many numbers: of 16 bytes, without which cuBLAS has slower kernels. As many
#: stand behind the copies of a row of spikes, for the bias.
ALIGNED = 8

#: ``split(x, count)``: the first ``count`` parts of ``x [K, H]``, see :meth:`spikecore.kernels.KernelBackend.split`.
Split = Callable[[Tensor, int], Tensor]


def aligned(width: int) -> int:
    """The numbers of a row of so many, with the zeros behind them."""
    return -(-width // ALIGNED) * ALIGNED


def split(x: Tensor, count: int) -> Tensor:
    """Counterpart of :meth:`spikecore.kernels.KernelBackend.split` by operations of torch."""
    width = x.shape[1]
    parts: List[Tensor] = []
    for _ in range(count):
        x = x - parts[0] if parts else x
        # the upper half of a number is its first part, cut off and not rounded: the largest would become infinite
        parts.insert(0, x.view(torch.bfloat16)[:, UPPER::2])
    return torch.nn.functional.pad(torch.stack(parts, 1), (0, aligned(width) - width))


def multiplies(matrix: Tensor) -> bool:
    """True if tensor cores multiply float32 matrices such as this one in parts: on a CUDA GPU whose tensor cores have
    bfloat16, by a torch whose ``mm`` gives float32 for it (from 2.8 on).

    Where products of float32 may be rounded to TF32, they are quicker still, and what was asked for.
    """
    if matrix.dtype != torch.float32 or matrix.device.type != "cuda" or torch.version.cuda is None:
        return False
    if not hasattr(torch.ops.aten.mm, "dtype") or torch.cuda.get_device_capability(matrix.device) < (8, 0):
        return False
    return not _may_round()


def _may_round() -> bool:
    matmul = torch.backends.cuda.matmul
    try:
        # from torch 2.9 on, where reading the older name raises once the newer one was set
        return bool(matmul.fp32_precision == "tf32")
    except (AttributeError, AssertionError):  # an older torch raises either for a name that it does not know
        return bool(matmul.allow_tf32)


def is_quicker(weight: Tensor, rows: int, steps: int) -> bool:
    """True if tensor cores take the products of so many steps of so many rows of spikes: only large ones."""
    width = weight.shape[1]
    large = width >= WIDE and rows * weight.numel() >= WORK and steps >= STEPS
    return large and not width % ALIGNED and multiplies(weight)


def gradient_is_quicker(grads: Tensor) -> bool:
    """True if tensor cores take the product of these cotangents ``[K, H]`` and as many rows of spikes."""
    rows, width = grads.shape
    return width >= WIDE_GRADIENT and rows * width * width >= WORK_OF_GRADIENT and multiplies(grads)


def multiplied(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of bfloat16, in float32."""
    return torch.mm(a, b, out_dtype=torch.float32)


def of_gradient(grads: Tensor, spikes: Tensor, parts: Split) -> Tensor:
    """``grads.t() @ spikes`` of cotangents and spikes ``[K, H]``."""
    width, count = grads.shape[1], -(-grads.shape[0] // ROWS)
    totals = []
    for some, beside in zip(grads.chunk(count), spikes.chunk(count)):
        # parts of the cotangents lie side by side, so that the spikes are there once
        product = multiplied(parts(some, PARTS).flatten(1).t(), parts(beside, 1)[:, 0])
        totals.append(product.view(PARTS, -1, product.shape[1])[:, :width, :width].sum(0))
    return totals[0] if count == 1 else torch.stack(totals).sum(0)


class SpikesTimes:
    """``y @ W.t() + b`` for spikes ``y [B, H]``, step after step."""

    def __init__(self, weight: Tensor, bias: Optional[Tensor], batch: int, parts: Split) -> None:
        height, width = weight.shape
        beside = weight.new_zeros((height, ALIGNED), dtype=torch.bfloat16)
        if bias is not None:
            # its three parts, each times a 1
            beside[:, :PARTS] = parts(bias[None], PARTS)[0].t()
        self.factor = torch.cat([parts(weight.contiguous(), PARTS).flatten(1), beside], 1).t()
        self.rows = torch.empty((batch, PARTS * width + ALIGNED), dtype=torch.bfloat16, device=weight.device)
        self.rows[:, PARTS * width :] = 1.0
        self.spikes = self.rows[:, : PARTS * width].view(batch, PARTS, width)

    def __call__(self, spikes: Tensor) -> Tensor:
        """For the spikes ``[B, H]`` of a step."""
        self.spikes.copy_(spikes[:, None])
        return multiplied(self.rows, self.factor)
