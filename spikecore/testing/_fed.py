"""A subject whose output comes back through a matrix: its net, its input, and its gradients beside the oracle's."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.dtypes import DTYPES, NARROW
from spikecore.testing._compare import Mismatch, as_array
from spikecore.testing._context import Context
from spikecore.testing._inputs import generator, rounded
from spikecore.testing._oracle import Array, recurrent
from spikecore.testing._subject import Subject


class Fed:
    """A subject with feedback: the net, its input, and what the oracle has for both."""

    def __init__(self, s: Subject, bias: bool = True, first: Optional[Array] = None) -> None:
        self.s = s
        width = s.shape[-1]
        rng = generator("recurrent", s.model.name, s.shape)
        # multiples of 1/8, of which sums with spikes are exact in every order and in every dtype
        weight = np.rint(rng.normal(size=(width, width)) * 8.0 / np.sqrt(min(width, 8))) / 8.0
        added = np.rint(rng.normal(size=width) * 4.0) / 8.0 if bias else None
        start = np.zeros(s.shape[1:]) if first is None else first
        self.matrix = recurrent.Matrix(weight, added, start)
        self._input()
        linear: Any = nn.Linear(width, width, bias=bias).to(s.dtype)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(weight))
            if added is not None:
                linear.bias.copy_(torch.tensor(added))
        self.net: Any = s.context.place(sc.Recurrent(s.neuron, linear, fused=True))

    def _input(self) -> None:
        """The input that makes what the subject drew, to within rounding; the subject then takes what it does make."""
        drawn, dtype = self.s.inputs[0], self.s.dtype
        narrow = self.s.dtype_name in NARROW
        self.x = rounded(drawn - self.matrix.back(self.s.seen.outputs[0]), dtype)
        for _ in range(2):
            back = self.matrix.back(self.s.seen.outputs[0])
            back = rounded(back, dtype) if narrow else back
            self.s.takes([rounded(self.x + back, dtype) if narrow else self.x + back])

    def check(self, x: Tensor, cotangent: Tensor, of: str = "") -> recurrent.Gradients:
        """The gradients of input and matrix for a cotangent of the output."""
        found = recurrent.adjoint(self.s.seen, self.matrix, as_array(cotangent))
        if self.s.dtype_name in NARROW:
            # in their dtype the products of all steps are rounded, one after the other
            weight = self.net.linear.weight
            for name, actual, expected in (("input", x.grad, found.inputs), ("weight", weight.grad, found.weight)):
                near(name, as_array(actual), expected, self.s.of)  # type: ignore[arg-type]  # backward gave one
            return found
        if x.requires_grad:
            self.s.check("input gradient", x.grad, found.inputs, suspects={})
        self.check_matrix(found, of)
        return found

    def check_matrix(self, found: recurrent.Gradients, of: str = "") -> None:
        """The gradients of the matrix."""
        linear = self.net.linear
        if linear.weight.requires_grad:
            self.s.check("parameter gradient", linear.weight.grad, found.weight, name=f"weight{of}")
            if linear.bias is not None:
                self.s.check("parameter gradient", linear.bias.grad, found.bias, name=f"bias{of}")


def steps_of(s: Subject, at: slice) -> Any:
    """Some steps of the oracle's run."""
    steps = s.seen.steps[at]
    start = steps[0].before
    return s.seen._replace(
        outputs=tuple(out[at] for out in s.seen.outputs), steps=steps, start=start, final=steps[-1].next
    )


def multiplies(context: Context, dtype: str) -> bool:
    """Whether torch multiplies matrices of this dtype on the device; torch 2.0 does not in float16 on a CPU."""
    one = context.tensor([[1.0]], DTYPES[dtype])
    try:
        return bool((one @ one).item() == 1.0)
    except RuntimeError:
        return False


def near(name: str, actual: Array, expected: Array, of: str) -> None:
    """Within what products in 16 bits may make of it, in the norm."""
    away = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    if not away < 0.03:
        raise Mismatch(f"gradient of {name} of {of}, with products in 16 bits, is {away:.2g} off in the norm")
