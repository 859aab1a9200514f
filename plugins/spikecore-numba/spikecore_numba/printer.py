"""The language as Numba's Python: what differs from C."""

from __future__ import annotations

import re
from typing import Dict, List

import torch

from spikecore.kernels.writing import KernelPrinter, PythonSyntax
from spikecore.lang import Node
from spikecore.lang.render import ATOM, PRODUCT, PYTHON_TEMPLATES, UNARY


class NumbaPrinter(PythonSyntax, KernelPrinter):
    """Python that Numba compiles without reordering, contraction or Python objects."""

    templates = {
        **PYTHON_TEMPLATES,
        # in parentheses, since `not` binds less tightly than `&` and `|`, which stand for `and` and `or`
        "not": (UNARY, "(not {0})"),
        "exp": (ATOM, "{exp}({0})"),
        "tanh": (ATOM, "{tanh}({0})"),
        "sigmoid": (PRODUCT, "{one} / ({one} + {exp}(-{0}))"),
        "softplus": (ATOM, "softplus{f}({0})"),
        "abs": (ATOM, "abs({0})"),
        "sign": (ATOM, "sign{f}({0})"),
        "floor": (ATOM, "np.floor({0})"),
        "round": (ATOM, "np.rint({0})"),
    }
    infinity, nan = "np.inf", "np.nan"

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__("double" if compute == torch.float64 else "float")

    def number(self, value: float) -> str:
        """A number of the type of arithmetic: Python's own are float64."""
        text = super().number(value)
        return text if self.real == "double" else f"float32({text})"

    def words(self, node: Node) -> Dict[str, str]:
        """The base's, and functions that become vector instructions where there are some."""
        wide = self.real == "double"
        return {
            **super().words(node),
            "exp": "math.exp" if wide else "expf",
            "tanh": "math.tanh" if wide else "tanhf",
        }


def imports(body: str, numpy: bool = False) -> List[str]:
    """The imports that these lines of a kernel need; ``numpy``: what stands before them needs that."""
    names = r"\b(expf|tanhf|softplusf?|signf?|modulo|lesser|greater|(?:from|to)_b?float16)\("
    ours = sorted(set(re.findall(names, body)))
    lines = ["import math\n"] if "math." in body else []
    lines += ["import numpy as np"] if numpy or "np." in body else []
    lines += ["from numba import float32"] if "float32(" in body else []
    return [*lines, *([f"\nfrom spikecore_numba.functions import {', '.join(ours)}"] if ours else [])]
