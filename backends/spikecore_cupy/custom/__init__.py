"""Kernels that people write themselves: one function per element or per step, in the language or in C.

Rules of this package:

- A kernel is declared: every value has a name, a role and a kind (:mod:`declared`), and never changes.
- Arithmetic is float32, or float64 where a tensor is; 16-bit numbers are stored only.
- What a call gets wrong is said before a launch, by name (:mod:`declared`). Nothing is copied and nothing synchronises.
- A kernel has no gradient of its own: a ``torch.autograd.Function`` puts two together.
"""

from spikecore_cupy.custom.kernel import CustomKernel, ElementwiseKernel, ScanKernel

__all__ = ["CustomKernel", "ElementwiseKernel", "ScanKernel"]
