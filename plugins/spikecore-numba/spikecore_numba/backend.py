"""The backend: two launches over compiled kernels."""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor

from spikecore.backend import Bits, Spec, Whole
from spikecore.kernels import BackwardLaunch, BackwardPlan, ForwardLaunch, ForwardPlan, KernelBackend
from spikecore.lang import Program
from spikecore_numba import CAPABILITIES
from spikecore_numba.launches import Backward, Forward
from spikecore_numba.normalising import Correction, Statistics
from spikecore_numba.packing import Packer
from spikecore_numba.rows import pays_for_bits, product, share
from spikecore_numba.source import print_kernel
from spikecore_numba.writer import BLOCK

#: Neurons that are fed back within a kernel, at most.
WIDEST_FEEDBACK = BLOCK
_packer = Packer()


class NumbaBackend(KernelBackend):
    """Compiles every program for the CPU.

    Forward writes nothing for backward, which recomputes the states block by block.
    """

    name = "numba"
    capabilities = CAPABILITIES
    reads_periods = True
    sums_periods = True
    side_by_side = True

    def forward(self, plan: ForwardPlan) -> ForwardLaunch:
        return Forward(plan)

    def backward(self, plan: BackwardPlan) -> BackwardLaunch:
        return Backward(plan)

    def statistics(self, spec: Spec) -> Statistics:
        return Statistics(spec)

    def correction(self, spec: Spec) -> Optional[Correction]:
        return Correction(spec) if spec.dtype == spec.compute else None

    def feeds_back(self, program: Program, spec: Spec, width: int) -> bool:
        """In the dtypes of arithmetic, where a row of the batch fits a block."""
        return spec.dtype == spec.compute and width <= WIDEST_FEEDBACK

    def text(self, plan: Union[ForwardPlan, BackwardPlan]) -> str:
        return print_kernel(plan).text

    def pack(self, numbers: Tensor, whole: Whole) -> Bits:
        return _packer.pack(numbers, whole)

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        return _packer.unpack(bits, whole, count, dtype)

    def adds_rows(self, rows: int, count: int, width: int, dtype: torch.dtype, *, bits: bool = False) -> bool:
        threads = torch.get_num_threads()
        pays = not bits or pays_for_bits(rows, count, width, dtype, threads)
        return pays and share(rows, count, width, dtype, threads) > 0

    def sparse_product(
        self, x: Tensor, table: Tensor, bias: Optional[Tensor] = None, always: bool = False
    ) -> Optional[Tensor]:
        return product(x, table, bias, always)
