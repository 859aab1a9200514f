"""The language as CUDA C++: what differs from the base printer."""

from __future__ import annotations

from typing import Collection, Dict, FrozenSet, Tuple

import torch

from spikecore.kernels.writing import KernelPrinter, negated_choice
from spikecore.lang import Node
from spikecore.lang.render import ATOM, PRODUCT
from spikecore_cupy.derivative import FUSED

#: dtype -> its name in kernels.
TYPES: Dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


class CudaPrinter(KernelPrinter):
    """CUDA C++ that NVRTC compiles without contraction (``--fmad=false``) and with IEEE division and square root.

    ``approximate`` are divisions that may be off by two units in the last place, ``numbers`` the parameters that are
    numbers of surrogates, of which an approximate division is as quick as of a constant, ``powers`` parameters that are
    powers of two, ``repeated`` exact divisions of every step by what is the same at each of them.
    """

    def __init__(
        self,
        compute: torch.dtype,
        approximate: FrozenSet[Node] = frozenset(),
        numbers: Collection[str] = (),
        powers: Collection[Node] = (),
        repeated: Collection[Node] = (),
    ) -> None:
        super().__init__(TYPES[compute])
        #: The text of a repeated division.
        self.division = "divided({0}, {1})"
        self.approximate, self.numbers, self.powers, self.repeated = approximate, numbers, powers, repeated

    def template(self, node: Node) -> Tuple[int, str]:
        if node.op == FUSED:
            return ATOM, "multiply_add({0}, {1}, {2})"
        if node.op == "div" and node.args[1] in self.powers:
            return PRODUCT, "{0} * ({one} / {1})"
        if node in self.repeated:
            return ATOM, self.division
        if node not in self.approximate:
            binding, text = super().template(node)
            index = negated_choice(node)
            return binding, text if index is None else text.replace(f"{{{index}}}", f"opaque({{{index}}})")
        above = node.args[0]
        number = above.attr != 0.0 if above.op == "const" else above.op == "param" and above.attr in self.numbers
        return ATOM, "quotient({0}, {1})" if number else "full_quotient({0}, {1})"
