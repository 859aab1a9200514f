"""Batch normalisation around a kernel: statistics of an input, and what the gradient through them adds, a pass each.

Torch's own pass for statistics takes many times as long where a channel's numbers lie together, since it adds them one
after the other; here neighbouring numbers are added side by side, in float64, so that no digits are lost where the mean
is far from 0. And backward need not compute every step twice, as a GPU does, which has more arithmetic than memory: the
first launch leaves the gradient through what is normalised, to which a pass over input and gradient adds the rest.
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import Spec
from spikecore.kernels import Geometry, Moved
from spikecore.kernels.writing import Argument
from spikecore_numba.compiler import DOUBLES
from spikecore_numba.loops import Loop, Text, pointers
from spikecore_numba.threads import Scratch, over_blocks

#: Neighbouring numbers of a channel that are added side by side at most, where channels do not lie side by side.
LANES = 1024
#: Where they do, parts of the input that are added up apart: as many for any threads, since the order of a sum decides
#: its bits.
SHARES = 16
#: Numbers of a block of the second backward pass, about.
BLOCK = 1 << 15

_scratch = Scratch()


class Statistics:
    """Mean and 1 / standard deviation of each channel: see :meth:`spikecore.kernels.KernelBackend.statistics`."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._kernels: Dict[Text, Loop] = {}

    def __call__(
        self, geometry: Geometry, x: Tensor, eps: float, running: Optional[Moved]
    ) -> Optional[Tuple[Tensor, Tensor]]:
        steps, neurons, ((inner, channels),) = geometry[:3]
        mean, variance, count, factor = running or (None, None, None, 0.0)
        if mean is not None and mean.dtype != self.spec.compute:
            return None
        shares = SHARES if inner == 1 else 1
        text = _SIDE_BY_SIDE if inner == 1 else _APART
        sums = torch.empty((2 * shares, channels), dtype=torch.float64, device=x.device)
        first, last = self._kernel(text), self._kernel(_FINISHED)
        lanes = channels if inner == 1 else min(inner, LANES)
        sizes = (steps, neurons, x.stride(0), inner, channels, lanes)

        def work(begin: int, end: int) -> None:
            # held in a local variable until the kernel is done: see Scratch.memory
            scratch = _scratch.memory(3 * 8 * lanes)
            first.run(first.pack(begin, end, *sizes, scratch.data_ptr(), x.data_ptr(), sums.data_ptr()))

        over_blocks(work, shares if inner == 1 else channels, steps * neurons, (x, sums))
        results = torch.empty((2, channels), dtype=self.spec.compute, device=x.device)
        moved = [0 if value is None else value.data_ptr() for value in (mean, variance)]
        n = steps * (neurons // channels)
        places = (x.data_ptr(), sums.data_ptr(), results.data_ptr(), *moved)
        last.run(last.pack(inner, channels, shares, n, mean is not None, eps, factor, *places))
        if count is not None:
            count.add_(1)
        found, rstd = results.unbind(0)
        return found, rstd

    def _kernel(self, text: Text) -> Loop:
        kernel = self._kernels.get(text)
        if kernel is None:
            kernel = self._kernels[text] = text.compiled(self.spec.dtype, self.spec.compute)
        return kernel


class Correction:
    """The rest of the gradient: see :meth:`spikecore.kernels.KernelBackend.correction`.

    Not in half precision, where the gradient would be rounded twice: in bfloat16 two of a hundred numbers then missed
    what conformance allows.
    """

    def __init__(self, spec: Spec) -> None:
        self._kernel = _CORRECTED.compiled(spec.dtype, spec.compute)
        self._bytes = torch.finfo(spec.compute).bits // 8

    def __call__(self, geometry: Geometry, x: Tensor, grad: Tensor, channels: Sequence[Tensor]) -> None:
        steps, neurons, ((inner, count),) = geometry[:3]
        rows = neurons // (inner * count)
        each = max(1, BLOCK // (inner * count))
        run, pack = self._kernel
        places = [value.data_ptr() for value in channels]
        share = count / (steps * neurons)

        def work(begin: int, end: int) -> None:
            scratch = _scratch.memory(2 * self._bytes * count)
            values = (x.data_ptr(), grad.data_ptr(), *places, scratch.data_ptr())
            run(pack(begin, end, steps * rows, rows, each, x.stride(0), inner, count, share, *values))

        over_blocks(work, -(-steps * rows // each), steps * neurons, (x, grad, channels))


_SUMS = (*pointers(DOUBLES, "scratch_of"), *pointers("inputs", "xs"), *pointers(DOUBLES, "sums"))
_SIZES = ("begin", "end", "steps", "neurons", "step", "inner", "channels", "lanes")

_APART = Text(
    "channel_sums",
    _SIZES,
    _SUMS,
    """
rows = neurons // (inner * channels)
for c in range(begin, end):
    shift = 0.0 + READ(xs[c * inner])
    for i in range(lanes):
        scratch_of[i] = 0.0
        scratch_of[lanes + i] = 0.0
    for t in range(steps):
        for row in range(rows):
            start = t * step + (row * channels + c) * inner
            for piece in range(0, inner, lanes):
                count = min(lanes, inner - piece)
                at = start + piece
                for i in range(count):
                    away = READ(xs[at + i]) - shift
                    scratch_of[i] += away
                    scratch_of[lanes + i] += away * away
    total = 0.0
    squares = 0.0
    for i in range(lanes):
        total += scratch_of[i]
        squares += scratch_of[lanes + i]
    sums[c] = total
    sums[channels + c] = squares
""",
)

_SIDE_BY_SIDE = Text(
    "channel_sums_side_by_side",
    _SIZES,
    _SUMS,
    f"""
rows = neurons // channels
for share in range(begin, end):
    for c in range(channels):
        scratch_of[c] = 0.0
        scratch_of[channels + c] = 0.0
        scratch_of[2 * channels + c] = READ(xs[c])
    for r in range(steps * rows * share // {SHARES}, steps * rows * (share + 1) // {SHARES}):
        start = r // rows * step + r % rows * channels
        for c in range(channels):
            away = READ(xs[start + c]) - scratch_of[2 * channels + c]
            scratch_of[c] += away
            scratch_of[channels + c] += away * away
    for c in range(channels):
        sums[2 * share * channels + c] = scratch_of[c]
        sums[(2 * share + 1) * channels + c] = scratch_of[channels + c]
""",
)

_FINISHED = Text(
    "channel_statistics",
    ("inner", "channels", "shares", "n", "moves"),
    (
        Argument("eps", "number"),
        Argument("factor", "number"),
        *pointers("inputs", "xs"),
        *pointers(DOUBLES, "sums"),
        *pointers("statistics", "results", "running_mean", "running_variance"),
    ),
    """
for c in range(channels):
    total = 0.0
    squares = 0.0
    for share in range(shares):
        total += sums[2 * share * channels + c]
        squares += sums[(2 * share + 1) * channels + c]
    away = total / n
    mean = away + READ(xs[c * inner])
    variance = squares / n - away * away
    if variance < 0.0:
        variance = 0.0
    results[c] = mean
    results[channels + c] = 1.0 / math.sqrt(variance + eps)
    if moves != 0:
        running_mean[c] += factor * (mean - running_mean[c])
        running_variance[c] += factor * (variance * (n / (n - 1.0)) - running_variance[c])
""",
)

_CORRECTED = Text(
    "corrected_gradient",
    ("begin", "end", "all_rows", "rows", "each", "step", "inner", "channels"),
    (
        Argument("share", "number"),
        *pointers("inputs", "xs", "grads"),
        *pointers("statistics", "means", "rstds", "weights", "grad_weights", "grad_biases", "factors"),
    ),
    """
for c in range(channels):
    scale = rstds[c] * weights[c]
    factors[c] = scale * grad_biases[c] * share
    factors[channels + c] = scale * rstds[c] * grad_weights[c] * share
for block in range(begin, end):
    for r in range(block * each, min((block + 1) * each, all_rows)):
        start = r // rows * step + r % rows * channels * inner
        to = r * channels * inner
        if inner == 1:
            for c in range(channels):
                grads[to + c] -= factors[c] + (xs[start + c] - means[c]) * factors[channels + c]
        else:
            for c in range(channels):
                mean = means[c]
                constant = factors[c]
                slope = factors[channels + c]
                here = start + c * inner
                there = to + c * inner
                for i in range(inner):
                    grads[there + i] -= constant + (xs[here + i] - mean) * slope
""",
)
