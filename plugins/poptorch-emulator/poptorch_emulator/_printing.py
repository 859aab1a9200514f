"""What ``poptorch.ipu_print_tensor`` writes to standard error: values as the forward pass computes them, and gradients.

The form is Poplar's for numbers, brackets, lines and parts that are left out; the width of columns is that of the
widest number.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Callable, List, Tuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

#: How a number is written, by ``float_format``.
FORMATS = ("auto", "fixed", "scientific", "none")


@dataclass(frozen=True)
class Style:
    """The arguments of ``ipu_print_tensor``, by their names there."""

    title: str
    print_gradient: bool
    summarise_threshold: int
    edge_items: int
    max_line_width: int
    digits: int
    float_format: str
    separator: str
    open_bracket: str
    close_bracket: str

    def text(self, values: Tensor) -> str:
        """All values, or those at the edges of more than ``summarise_threshold``."""
        write = self._writer(values)
        edge = self.edge_items if 0 < self.summarise_threshold < values.numel() else 0
        return self._nested(values, write, edge, 0)

    def _writer(self, values: Tensor) -> Callable[[Any], str]:
        if not values.is_floating_point():
            return lambda value: str(int(value))
        digits = self.digits or 8
        if self.float_format == "scientific":
            return lambda value: f"{value:.{digits - 1}e}"
        if self.float_format == "fixed":
            return lambda value: (
                f"{value:.{max(0, digits - len(str(int(abs(value)))))}f}" if math.isfinite(value) else f"{value:g}"
            )
        return lambda value: f"{value:.{digits}g}"

    def _nested(self, values: Tensor, write: Callable[[Any], str], edge: int, depth: int) -> str:
        if not values.dim():
            return write(values.item())
        if edge > 0 and 2 * edge < len(values):
            parts: List[Any] = [*values[:edge], None, *values[-edge:]]
        else:
            parts = list(values)
        items = ["..." if part is None else self._nested(part, write, edge, depth + 1) for part in parts]
        if values.dim() > 1:
            lines = "".join(f"{' ' * (depth + 1)}{item}\n" for item in items)
            return f"{self.open_bracket}\n{lines}{' ' * depth}{self.close_bracket}"
        return f"{self.open_bracket}{self._row(items, depth)}{self.close_bracket}"

    def _row(self, items: List[str], depth: int) -> str:
        width = max(map(len, items)) if self.digits else 0
        text, column = "", depth + len(self.open_bracket)
        for position, item in enumerate(items):
            item = item.rjust(width) + (self.separator if position + 1 < len(items) else "")
            if text and 0 < self.max_line_width < column + len(item):
                text, column = f"{text.rstrip()}\n{' ' * (depth + 2)}", depth + 2
            text, column = text + item, column + len(item)
        return text


class Printed(torch.autograd.Function):
    """The tensor itself, which is written to standard error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, style: Style) -> Tensor:
        ctx.style = style
        _write(style.title, x, style)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, None]:
        if ctx.style.print_gradient:
            _write(f"{ctx.style.title}_gradient", gradient, ctx.style)
        return gradient, None


def printed(x: Tensor, style: Style) -> Tensor:
    """``x``, printed whenever it is computed. Shapes are inferred on tensors without values, which print nothing."""
    if isinstance(x, FakeTensor):
        return x.clone()
    same: Tensor = Printed.apply(x, style)
    return same


def _write(title: str, values: Tensor, style: Style) -> None:
    sys.stderr.write(f"{title}: {style.text(values.detach())}\n")
